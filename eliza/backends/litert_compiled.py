"""LiteRT's newer interface: keys and values stay in the runtime's own buffers."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.backends.litert_base import (
    FLOATS,
    Cache,
    OtherInterfaceError,
    as_float32,
    dtype_of,
    first_line,
    import_litert,
    infos,
)
from eliza.backends.litert_layout import Head, Signature, Step, TensorInfo, discover
from eliza.backends.litert_log import captured, quiet_at_exit
from eliza.backends.litert_weights import packed_weights
from eliza.errors import BackendError, OutOfMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.litert_base import Inputs, Rows

__all__ = ["CompiledRuntime"]


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
        compiled = import_litert("compiled_model")
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
            raise OtherInterfaceError(
                f"{path} cannot be loaded by LiteRT's CompiledModel: "
                f"{first_line(error)}"
            ) from error
        self._in_place = in_place
        self._inputs: dict[str, dict[str, Any]] = {}
        self._outputs: dict[str, Any] = {}
        self._forms: dict[str, tuple[int, np.dtype[Any]]] = {}
        self._spare: dict[str, Any] | None = None
        try:
            self.layout = discover(signatures, path)
            self._check_logits(path)
        except BaseException:
            self.close()
            raise

    def _check_logits(self, path: str) -> None:
        types = {step.out_info.dtype for step in self.layout.giving if step.out_info}
        types |= {head.logits_info.dtype for head in self.layout.heads}
        if types - FLOATS:
            raise OtherInterfaceError(f"{path} gives logits as {', '.join(types)}")

    def _signatures(self) -> dict[str, Signature]:
        model = self._model
        found = {}
        for name in model.get_signature_list():
            inputs = infos(model.get_input_tensor_details(name))
            found[name] = Signature(
                inputs, infos(model.get_output_tensor_details(name))
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
                    tensor.write(np.zeros(info.shape, dtype_of(info.dtype)))
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
        """Append to the cache; return what the step gives, if anything."""
        try:
            buffers = self._written(step.name, inputs)
            if self._spare is None and not self._in_place:
                self._spare = self._new_tensors()
            after = cache.tensors if self._spare is None else self._spare
            outputs = dict(after)
            if step.out is not None:
                outputs[step.out] = self._output(step.name, step.out)
            self._model.run_by_name(step.name, {**buffers, **cache.tensors}, outputs)
            rows = None
            if step.out is not None and step.out_info is not None:
                rows = self._rows(step.name, outputs[step.out], step.out_info)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"LiteRT failed: {first_line(error)}") from error
        if self._spare is not None:
            self._spare, cache.tensors = cache.tensors, after
        return rows

    def apply(self, head: Head, hidden: Rows) -> Rows:
        """Return the logits of n hidden states."""
        try:
            inputs = self._written(head.name, {"hidden": hidden[None]})
            out = self._output(head.name, head.logits)
            self._model.run_by_name(head.name, inputs, {head.logits: out})
            return self._rows(head.name, out, head.logits_info)
        except (RuntimeError, ValueError) as error:
            raise BackendError(f"LiteRT failed: {first_line(error)}") from error

    def _written(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        """Return buffers with inputs; they are made once."""
        found = self._inputs.get(signature)
        if found is None:
            create = self._model.create_input_buffer_by_name
            with captured():  # the first one to be written to also prints something
                found = {name: create(signature, name) for name in inputs}
                for name, values in inputs.items():
                    found[name].write(values)
            self._inputs[signature] = found
            return found
        for name, values in inputs.items():
            found[name].write(values)
        return found

    def _output(self, signature: str, name: str) -> Any:
        found = self._outputs.get(signature)
        if found is None:
            create = self._model.create_output_buffer_by_name
            with captured():
                found = self._outputs[signature] = create(signature, name)
        return found

    def _rows(self, signature: str, buffer: Any, info: TensorInfo) -> Rows:
        """Return a copy, which nobody's decode changes later."""
        form = self._forms.get(signature)
        if form is None:
            form = int(np.prod(info.shape)), dtype_of(info.dtype)
            self._forms[signature] = form
        return as_float32(buffer.read(*form).reshape(-1, info.shape[-1]))

    def read(self, cache: Cache, name: str) -> NDArray[Any]:
        """Return a copy of one of the tensors of a cache."""
        info = self.layout.caches[name]
        flat = cache.tensors[name].read(int(np.prod(info.shape)), dtype_of(info.dtype))
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
        _destroy(self._outputs)
        if self._spare is not None:
            _destroy(self._spare)
        with captured():
            self._model.close()


def _destroy(tensors: dict[str, Any]) -> None:
    while tensors:
        tensors.popitem()[1].destroy()
