"""LiteRT's older interface: keys and values are copied in and out at each call.

It is used where the newer one cannot be: it knows how logits are quantised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.backends.litert_base import (
    FLOATS,
    Cache,
    as_float32,
    dtype_of,
    first_line,
    infos,
    type_name,
)
from eliza.backends.litert_inputs import inputs_of
from eliza.backends.litert_layout import Head, Signature, Step, discover
from eliza.backends.litert_log import captured
from eliza.errors import BackendError, BundleError, NotSupported, OutOfMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.litert_base import Inputs, Rows

__all__ = ["InterpreterRuntime"]


class InterpreterRuntime:
    """A file in an `Interpreter`; keys and values are arrays."""

    def __init__(self, path: str, interpreter: Any, names: list[str]) -> None:
        try:
            with captured():
                runners = {s: interpreter.get_signature_runner(s) for s in names}
                signatures = {
                    name: Signature(
                        infos(runner.get_input_details()),
                        infos(runner.get_output_details()),
                    )
                    for name, runner in runners.items()
                }
        except (RuntimeError, ValueError) as error:
            raise BundleError(
                f"{path} cannot be loaded by LiteRT: {first_line(error)}"
            ) from error
        self._runners = runners
        self.layout = discover(signatures, path)
        self._scales: dict[str, _Scale] = {}
        for step in self.layout.giving:
            if step.out is not None:
                self._scales[step.name] = _scale(runners[step.name], step.out, path)
        for head in self.layout.heads:
            self._scales[head.name] = _scale(runners[head.name], head.logits, path)

    def try_once(self) -> None:
        """Compute something: what an operator lacks shows only then."""
        step = self.layout.steps[0]
        self.run(step, inputs_of(step, np.zeros(1, np.int32), 0), self.new_cache())

    def new_cache(self) -> Cache:
        """Return keys and values that are all 0."""
        caches = self.layout.caches.items()
        try:
            tensors = {
                name: np.zeros(info.shape, dtype_of(info.dtype))
                for name, info in caches
            }
        except MemoryError as error:
            raise OutOfMemory(
                f"no memory for the keys and values of {self.layout.n_ctx} ids"
            ) from error
        return Cache(tensors)

    def run(self, step: Step, inputs: Inputs, cache: Cache) -> Rows | None:
        """Append to the cache; return what the step gives, if anything."""
        try:
            outputs = self._runners[step.name](**inputs, **cache.tensors)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"LiteRT failed: {first_line(error)}") from error
        cache.tensors = {name: outputs[name] for name in cache.tensors}
        return None if step.out is None else self._real(step.name, outputs[step.out])

    def apply(self, head: Head, hidden: Rows) -> Rows:
        """Return the logits of n hidden states."""
        try:
            outputs = self._runners[head.name](hidden=hidden[None])
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"LiteRT failed: {first_line(error)}") from error
        return self._real(head.name, outputs[head.logits])

    def _real(self, signature: str, values: NDArray[Any]) -> Rows:
        """Return rows as float32, whatever the runtime has."""
        rows = values.reshape(-1, values.shape[-1])
        scale = self._scales[signature]
        if scale is not None:
            rows = (rows.astype(np.float32) - scale[1]) * scale[0]
        return as_float32(rows)

    def read(self, cache: Cache, name: str) -> NDArray[Any]:
        """Return a copy of one of the tensors of a cache."""
        values: NDArray[Any] = cache.tensors[name].copy()
        return values

    def write(self, cache: Cache, name: str, values: NDArray[Any]) -> None:
        """Replace one of the tensors of a cache."""
        cache.tensors[name] = values.copy()

    def free(self, cache: Cache) -> None:
        """Give the memory of a cache back. May be called twice."""
        cache.tensors = {}

    def close(self) -> None:
        """Give everything back."""
        self._runners = {}


#: By what quantised values are multiplied, and what is 0 in them.
_Scale = tuple[np.float32, np.float32] | None


def _scale(runner: Any, name: str, where: str) -> _Scale:
    """Return how an output is quantised; None if it is not."""
    details = runner.get_output_details()[name]
    dtype = type_name(details["dtype"])
    if dtype in FLOATS:
        return None
    scales = details["quantization_parameters"]["scales"]
    if dtype not in ("int8", "uint8", "int16") or len(scales) != 1:
        raise NotSupported(
            f"{where} gives logits as {dtype} with {len(scales)} scales; eliza reads "
            "floats, and integers with one scale"
        )
    zero = details["quantization_parameters"]["zero_points"][0]
    return np.float32(scales[0]), np.float32(zero)
