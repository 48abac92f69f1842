"""What LiteRT's two interfaces have in common, for a sequence and for each other."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eliza.backends.litert_layout import Head, Layout, Step, TensorInfo
from eliza.errors import NotSupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Inputs = Mapping[str, NDArray[Any]]
    Rows = NDArray[np.float32]

__all__ = ["FLOATS", "INSTALL", "Cache", "OtherInterfaceError", "Runtime"]
__all__ += [
    "as_float32",
    "dtype_of",
    "first_line",
    "import_litert",
    "infos",
    "installed",
    "type_name",
]

INSTALL = "pip install 'eliza[litert]'"

FLOATS = {"float32", "float16", "bfloat16"}


class Cache:
    """The keys and values of one timeline, in a form that its runtime knows."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors


class Runtime(Protocol):
    """A loaded file."""

    layout: Layout

    def new_cache(self) -> Cache:
        """Return keys and values that are all 0."""

    def run(self, step: Step, inputs: Inputs, cache: Cache) -> Rows | None:
        """Append to the cache; return what the step gives for each id, if anything.

        The rows are the caller's own.
        """

    def apply(self, head: Head, hidden: Rows) -> Rows:
        """Return the logits of n hidden states; the caller's own."""

    def read(self, cache: Cache, name: str) -> NDArray[Any]:
        """Return a copy of one of the tensors of a cache."""

    def write(self, cache: Cache, name: str, values: NDArray[Any]) -> None:
        """Replace one of the tensors of a cache."""

    def free(self, cache: Cache) -> None:
        """Give the memory of a cache back. May be called twice."""

    def close(self) -> None:
        """Give everything back."""


class OtherInterfaceError(NotSupported):
    """The other interface can do it."""


def installed() -> str | None:
    """Return the package that is there: "ai_edge_litert", or what came before it.

    The last tflite-runtime, 2.14, was built for NumPy 1 and ends in a SystemError under
    NumPy 2.
    """
    if importlib.util.find_spec("ai_edge_litert") is not None:
        return "ai_edge_litert"
    old = int(np.__version__.partition(".")[0]) < 2 and _old_is_there()
    return "tflite_runtime" if old else None


def _old_is_there() -> bool:
    return importlib.util.find_spec("tflite_runtime") is not None


def import_litert(module: str) -> Any:
    """Return a module of the package that is there, or say what to install.

    Raises
    ------
    NotSupported
        There is none, or it cannot be imported.
    OtherInterfaceError
        It has only the other interface.
    """
    package = installed()
    old = "" if package else " (tflite-runtime is there, but is not for NumPy 2)"
    if package == "tflite_runtime":
        old = " (tflite-runtime is there, but has not all of it)"
        if module != "interpreter":
            raise OtherInterfaceError(
                f"the newer interface is that of ai-edge-litert: {INSTALL}"
            )
    try:
        return importlib.import_module(f"{package or 'ai_edge_litert'}.{module}")
    except ImportError as error:
        raise NotSupported(
            f"the LiteRT backend needs the package ai-edge-litert: {INSTALL}"
            f"{old if _old_is_there() else ''}; {error}"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the beginning of a message of the runtime, which may have many lines."""
    return (str(error).strip() or repr(error)).splitlines()[0]


def infos(details: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Return what the runtime says of inputs or outputs, in our form."""
    return {
        name: TensorInfo(tuple(map(int, info["shape"])), type_name(info["dtype"]))
        for name, info in details.items()
    }


def type_name(dtype: Any) -> str:
    """Return the name of a number type."""
    return dtype if isinstance(dtype, str) else np.dtype(dtype).name


def dtype_of(name: str) -> np.dtype[Any]:
    """Return a number type by its name."""
    if name == "bfloat16":
        import ml_dtypes  # the runtime itself needs it

        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(name)
    return found


def as_float32(rows: NDArray[Any]) -> Rows:
    """Return rows as float32; the same ones if they are."""
    return rows if rows.dtype == np.float32 else rows.astype(np.float32)
