"""Loading a file with LiteRT: by which of its interfaces, and what is checked first."""

from __future__ import annotations

from typing import Any

from eliza.backends.litert_base import (
    INSTALL,
    OtherInterfaceError,
    Runtime,
    first_line,
    import_litert,
    installed,
)
from eliza.backends.litert_compiled import CompiledRuntime
from eliza.backends.litert_inputs import settled
from eliza.backends.litert_interpreter import InterpreterRuntime
from eliza.backends.litert_log import captured
from eliza.errors import BackendError, BundleError, NotSupported

__all__ = ["open_runtime"]


def open_runtime(
    path: str, n_threads: int, interface: str | None, in_place: bool
) -> Runtime:
    """Load a file.

    Parameters
    ----------
    interface : {"compiled", "interpreter"} or None
        Which of the two; None for the first that can run the file.
    in_place : bool
        Whether keys and values are written where they are read.

    Raises
    ------
    NotSupported
        The package is missing, or the file needs what is not supported here.
    BundleError
        The runtime cannot read the file.
    """
    interpreter = import_litert("interpreter")
    try:
        with captured():
            # It checks the file, and survives one that is damaged; the other interface
            # does not check, and ends the process.
            checked = interpreter.Interpreter(model_path=path, num_threads=n_threads)
            names = list(checked.get_signature_list())
    except (RuntimeError, ValueError) as error:
        if installed() == "tflite_runtime":
            raise too_old(path, error) from error
        raise BundleError(
            f"{path} cannot be loaded by LiteRT: {first_line(error)}"
        ) from error
    if not names:
        raise NotSupported(
            f"{path} has no signatures; eliza needs those of a model that generates, "
            "such as `eliza convert` writes"
        )
    runtime = _with_interface(path, n_threads, interface, in_place, checked, names)
    try:
        runtime.layout = settled(runtime, path)
    except BaseException:
        runtime.close()
        raise
    return runtime


def _with_interface(
    path: str,
    n_threads: int,
    interface: str | None,
    in_place: bool,
    checked: Any,
    names: list[str],
) -> Runtime:
    if interface != "interpreter":
        try:
            return CompiledRuntime(path, n_threads, in_place)
        except NotSupported as error:
            # It does not tell the scale of quantised logits, or has no such operator.
            if interface == "compiled" or not isinstance(error, OtherInterfaceError):
                raise
    runtime = InterpreterRuntime(path, checked, names)
    if installed() == "tflite_runtime":
        try:
            runtime.try_once()
        except BackendError as error:
            raise too_old(path, error) from error
    return runtime


def too_old(path: str, error: Exception) -> NotSupported:
    """Return what to say of a file that tflite-runtime cannot run."""
    return NotSupported(
        f"{path} cannot be run by tflite-runtime, which is installed; ai-edge-litert "
        f"came after it: {INSTALL}; {first_line(error)}"
    )
