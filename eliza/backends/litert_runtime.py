"""LiteRT's two interfaces, as the one that a sequence needs.

`CompiledRuntime` keeps keys and values in the runtime's own buffers.
`InterpreterRuntime`, the older interface, copies all of them at each call; it is used
where the other one cannot be, and knows how logits are quantised.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from eliza.backends.litert_layout import Layout, Signature, Step, TensorInfo, discover
from eliza.backends.litert_log import captured, quiet_at_exit
from eliza.backends.litert_weights import packed_weights
from eliza.errors import BackendError, BundleError, NotSupported, OutOfMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Inputs = Mapping[str, NDArray[Any]]
    Rows = NDArray[np.float32]

__all__ = ["INSTALL", "Cache", "Runtime", "open_runtime"]

INSTALL = "pip install 'eliza[litert]'"


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
        """Append to the cache; return the logits, if the step gives any.

        The rows [n, width] are the caller's own.
        """

    def read(self, cache: Cache, name: str) -> NDArray[Any]:
        """Return a copy of one of the tensors of a cache."""

    def write(self, cache: Cache, name: str, values: NDArray[Any]) -> None:
        """Replace one of the tensors of a cache."""

    def free(self, cache: Cache) -> None:
        """Give the memory of a cache back. May be called twice."""

    def close(self) -> None:
        """Give everything back."""


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
    interpreter = _import("interpreter")
    try:
        with captured():
            # It checks the file, and survives one that is damaged; the other interface
            # does not check, and ends the process.
            checked = interpreter.Interpreter(model_path=path, num_threads=n_threads)
            names = list(checked.get_signature_list())
    except (RuntimeError, ValueError) as error:
        raise BundleError(
            f"{path} cannot be loaded by LiteRT: {first_line(error)}"
        ) from error
    if not names:
        raise NotSupported(
            f"{path} has no signatures; eliza needs those of a model that generates, "
            "such as `eliza convert` writes"
        )
    if interface != "interpreter":
        try:
            runtime = CompiledRuntime(path, n_threads, in_place)
        except NotSupported as error:
            # Of quantised logits this interface does not tell the scale.
            if interface == "compiled" or not isinstance(error, _OtherInterface):
                raise
        else:
            return runtime
    return InterpreterRuntime(path, checked, names)


class _OtherInterface(NotSupported):
    """The other interface can do it."""


def _import(module: str) -> Any:
    import importlib
    from importlib.util import find_spec

    try:
        return importlib.import_module(f"ai_edge_litert.{module}")
    except ImportError as error:
        old = " (tflite-runtime, which is installed, is too old for these files)"
        raise NotSupported(
            f"the LiteRT backend needs the package ai-edge-litert: {INSTALL}"
            f"{old if find_spec('tflite_runtime') else ''}; {error}"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the beginning of a message of the runtime, which may have many lines."""
    return (str(error).strip() or repr(error)).splitlines()[0]


@cache
def _environment(compiled: Any) -> Any:
    """Return the one environment of the process.

    It is never freed: the library would say so on standard error, at any time.
    """
    quiet_at_exit()
    folder = os.path.dirname(os.path.abspath(compiled.__file__))
    options = compiled.EnvironmentOptions(runtime_path=folder)
    environment = compiled.Environment.create(options=options)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment))
    return environment


class CompiledRuntime:
    """A file in a `CompiledModel`."""

    def __init__(self, path: str, n_threads: int, in_place: bool) -> None:
        compiled = _import("compiled_model")
        try:
            with captured(), packed_weights(path) as packed:
                cpu = compiled.CpuOptions(num_threads=n_threads)
                if packed is not None:
                    cpu.xnnpack_weight_cache_path = packed
                options = compiled.Options(compiled.HardwareAccelerator.CPU, cpu)
                self._model = compiled.CompiledModel.from_file(
                    path, environment=_environment(compiled), options=options
                )
                signatures = self._signatures()
        except (RuntimeError, ValueError) as error:
            raise BundleError(
                f"{path} cannot be loaded by LiteRT: {first_line(error)}"
            ) from error
        self._in_place = in_place
        self.layout = discover(signatures, path)
        logits = {s.logits_info.dtype for s in self.layout.with_rows if s.logits_info}
        if logits - {"float32", "float16", "bfloat16"}:
            raise _OtherInterface(f"{path} gives logits as {', '.join(logits)}")
        self._inputs: dict[str, dict[str, Any]] = {}
        self._logits: dict[str, Any] = {}
        self._spare: dict[str, Any] | None = None

    def _signatures(self) -> dict[str, Signature]:
        model = self._model
        found = {}
        for name in model.get_signature_list():
            inputs = _infos(model.get_input_tensor_details(name))
            found[name] = Signature(
                inputs, _infos(model.get_output_tensor_details(name))
            )
        return found

    def new_cache(self) -> Cache:
        """Return keys and values that are all 0."""
        return Cache(self._new_tensors())

    def _new_tensors(self) -> dict[str, Any]:
        step = self.layout.steps[0].name
        tensors = {}
        try:
            with captured():
                for name, info in self.layout.caches.items():
                    tensor = self._model.create_input_buffer_by_name(step, name)
                    tensors[name] = tensor
                    # What is never written is multiplied by 0, which NaN survives.
                    tensor.write(np.zeros(info.shape, _dtype(info.dtype)))
        except MemoryError as error:
            _destroy(tensors)
            raise OutOfMemory(
                f"no memory for the keys and values of {self.layout.n_ctx} ids"
            ) from error
        except (RuntimeError, ValueError) as error:
            _destroy(tensors)
            raise BackendError(
                f"LiteRT gives no keys and values for {self.layout.n_ctx} ids: "
                f"{first_line(error)}"
            ) from error
        return tensors

    def run(self, step: Step, inputs: Inputs, cache: Cache) -> Rows | None:
        """Append to the cache; return the logits, if the step gives any."""
        try:
            buffers = self._buffers(step, inputs)
            for name, values in inputs.items():
                buffers[name].write(values)
            if self._spare is None and not self._in_place:
                self._spare = self._new_tensors()
            after = cache.tensors if self._spare is None else self._spare
            outputs = dict(after)
            if step.logits is not None:
                outputs[step.logits] = self._logits_buffer(step)
            self._model.run_by_name(step.name, {**buffers, **cache.tensors}, outputs)
            rows = None if step.logits is None else self._rows(step)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"LiteRT failed: {first_line(error)}") from error
        if self._spare is not None:
            self._spare, cache.tensors = cache.tensors, after
        return rows

    def _buffers(self, step: Step, inputs: Inputs) -> dict[str, Any]:
        found = self._inputs.get(step.name)
        if found is None:
            create = self._model.create_input_buffer_by_name
            with captured():
                found = {name: create(step.name, name) for name in inputs}
            self._inputs[step.name] = found
        return found

    def _logits_buffer(self, step: Step) -> Any:
        found = self._logits.get(step.name)
        if found is None:
            create = self._model.create_output_buffer_by_name
            with captured():
                found = self._logits[step.name] = create(step.name, step.logits)
        return found

    def _rows(self, step: Step) -> Rows:
        # A copy, which nobody's decode changes later: 6 us for 49,152 values.
        assert step.logits_info is not None
        info = step.logits_info
        flat = self._logits[step.name].read(step.n * info.shape[-1], _dtype(info.dtype))
        return _as_float32(flat.reshape(step.n, -1))

    def read(self, cache: Cache, name: str) -> NDArray[Any]:
        """Return a copy of one of the tensors of a cache."""
        info = self.layout.caches[name]
        flat = cache.tensors[name].read(int(np.prod(info.shape)), _dtype(info.dtype))
        values: NDArray[Any] = flat.reshape(info.shape)
        return values

    def write(self, cache: Cache, name: str, values: NDArray[Any]) -> None:
        """Replace one of the tensors of a cache."""
        cache.tensors[name].write(values)

    def free(self, cache: Cache) -> None:
        """Give the memory of a cache back. May be called twice."""
        _destroy(cache.tensors)

    def close(self) -> None:
        """Give everything back."""
        for buffers in self._inputs.values():
            _destroy(buffers)
        _destroy(self._logits)
        if self._spare is not None:
            _destroy(self._spare)
        with captured():
            self._model.close()


class InterpreterRuntime:
    """A file in an `Interpreter`; keys and values are arrays."""

    def __init__(self, path: str, interpreter: Any, names: list[str]) -> None:
        try:
            with captured():
                runners = {s: interpreter.get_signature_runner(s) for s in names}
        except (RuntimeError, ValueError) as error:
            raise BundleError(
                f"{path} cannot be loaded by LiteRT: {first_line(error)}"
            ) from error
        self._runners = runners
        signatures = {
            name: Signature(
                _infos(runner.get_input_details()), _infos(runner.get_output_details())
            )
            for name, runner in runners.items()
        }
        self.layout = discover(signatures, path)
        self._scales = {
            step.name: _scale(runners[step.name], step, path)
            for step in self.layout.with_rows
        }

    def new_cache(self) -> Cache:
        """Return keys and values that are all 0."""
        caches = self.layout.caches.items()
        try:
            tensors = {
                name: np.zeros(info.shape, _dtype(info.dtype)) for name, info in caches
            }
        except MemoryError as error:
            raise OutOfMemory(
                f"no memory for the keys and values of {self.layout.n_ctx} ids"
            ) from error
        return Cache(tensors)

    def run(self, step: Step, inputs: Inputs, cache: Cache) -> Rows | None:
        """Append to the cache; return the logits, if the step gives any."""
        try:
            outputs = self._runners[step.name](**inputs, **cache.tensors)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"LiteRT failed: {first_line(error)}") from error
        cache.tensors = {name: outputs[name] for name in cache.tensors}
        if step.logits is None:
            return None
        rows = outputs[step.logits].reshape(step.n, -1)
        scale = self._scales[step.name]
        if scale is not None:
            rows = (rows.astype(np.float32) - scale[1]) * scale[0]
        return _as_float32(rows)

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


def _infos(details: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Return what the runtime says of inputs or outputs, in our form."""
    return {
        name: TensorInfo(tuple(map(int, info["shape"])), _type_name(info["dtype"]))
        for name, info in details.items()
    }


def _type_name(dtype: Any) -> str:
    return dtype if isinstance(dtype, str) else np.dtype(dtype).name


def _dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # the runtime itself needs it

        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(name)
    return found


def _as_float32(rows: NDArray[Any]) -> Rows:
    return rows if rows.dtype == np.float32 else rows.astype(np.float32)


def _scale(runner: Any, step: Step, where: str) -> tuple[np.float32, np.float32] | None:
    """Return by what quantised logits are multiplied, and what is 0 in them."""
    assert step.logits_info is not None
    dtype = step.logits_info.dtype
    if dtype in ("float32", "float16", "bfloat16"):
        return None
    details = runner.get_output_details()[step.logits]["quantization_parameters"]
    if dtype not in ("int8", "uint8", "int16") or len(details["scales"]) != 1:
        raise NotSupported(
            f"{where} gives logits as {dtype} with {len(details['scales'])} scales; "
            "eliza reads floats, and integers with one scale"
        )
    return np.float32(details["scales"][0]), np.float32(details["zero_points"][0])


def _destroy(tensors: dict[str, Any]) -> None:
    while tensors:
        tensors.popitem()[1].destroy()
