"""Graphs of TFLite operators, and the tables that describe them in a file.

Only what a decoder of the Llama kind needs. The numbers are those of TensorFlow Lite's
schema; an operator's version is the lowest that has what is used here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from eliza.convert.flatbuffer import Array, Node, Number, Table, Tables, Text
from eliza.convert.tflite_buffers import Buffers, Stored

__all__ = ["Graph", "ModelTables", "Tensor"]

_SCHEMA_VERSION = 3
_TYPES = {
    np.dtype(np.float32): 0,
    np.dtype(np.int32): 2,
    np.dtype(np.int8): 9,
}
_FLOAT, _INT = np.dtype(np.float32), np.dtype(np.int32)
_ABSENT = -1  # an input that an operator goes without


class _Operator(NamedTuple):
    """The number of an operator, its version, and which table has its options."""

    code: int
    version: int = 1
    options: int = 0


_ADD = _Operator(0, options=11)
_CONCATENATION = _Operator(2, options=10)
_EMBEDDING_LOOKUP = _Operator(7)
_FULLY_CONNECTED = _Operator(9, options=8)
_LOGISTIC = _Operator(14)
_MUL = _Operator(18, options=21)
_RESHAPE = _Operator(22, options=17)
_SOFTMAX = _Operator(25, options=9)
_GATHER = _Operator(36, options=23)
_TRANSPOSE = _Operator(39, options=26)
_MEAN = _Operator(40, options=27)
_SPLIT = _Operator(49, options=35)
_SLICE = _Operator(65, options=48)
_RSQRT = _Operator(76)
_BATCH_MATMUL = _Operator(126, options=101)
_DYNAMIC_UPDATE_SLICE = _Operator(151, options=117)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value within one graph."""

    index: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic] = _FLOAT


class ModelTables:
    """What the graphs of a model share, and in the end the whole description."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self._codes: dict[_Operator, int] = {}
        self._graphs: list[Graph] = []
        self._metadata: dict[str, int] = {}

    def graph(self, name: str) -> Graph:
        """Start a graph; its name is that of its signature."""
        graph = Graph(name, self)
        self._graphs.append(graph)
        return graph

    def add_metadata(self, name: str, data: bytes) -> None:
        """Add bytes that the runtime does not look at."""
        self._metadata[name] = self.buffers.raw(data)

    def code(self, operator: _Operator) -> int:
        """Return the number that an operator has in this file."""
        return self._codes.setdefault(operator, len(self._codes))

    def table(self) -> Table:
        """Return the description of the whole model."""
        codes = [
            Table(
                {
                    0: Number("i8", min(operator.code, 127)),
                    2: Number("i32", operator.version),
                    3: Number("i32", operator.code),
                }
            )
            for operator in self._codes
        ]
        metadata = [
            Table({0: Text(name), 1: Number("u32", buffer)})
            for name, buffer in self._metadata.items()
        ]
        graphs = self._graphs
        return Table(
            {
                0: Number("u32", _SCHEMA_VERSION),
                1: Tables(codes),
                2: Tables([graph.table() for graph in graphs]),
                3: Text("made by eliza"),
                4: Tables(self.buffers.tables()),
                6: Tables(metadata),
                7: Tables([graph.signature(i) for i, graph in enumerate(graphs)]),
            }
        )


class Graph:
    """One graph: a method for each operator, which returns its result."""

    def __init__(self, name: str, model: ModelTables) -> None:
        self.name = name
        self._model = model
        self._tensors: list[Table] = []
        self._operators: list[Table] = []
        self._constants: dict[int, Tensor] = {}
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}

    # Values

    def input(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic] = _FLOAT
    ) -> Tensor:
        """Add an input."""
        tensor = self._tensor(shape, dtype, name=f"{self.name}_{name}")
        self.inputs[name] = tensor
        return tensor

    def constant(self, stored: Stored) -> Tensor:
        """Return a constant as a value of this graph."""
        found = self._constants.get(stored.buffer)
        if found is None:
            found = self._tensor(stored.shape, stored.dtype, stored.name, stored)
            self._constants[stored.buffer] = found
        return found

    def weight(self, name: str) -> Tensor:
        """Return a weight of the model."""
        return self.constant(self._model.buffers[name])

    def ints(self, *values: int) -> Tensor:
        """Return a vector of constants."""
        return self._small(np.array(values, np.int32))

    def _small(self, values: np.ndarray) -> Tensor:
        return self.constant(self._model.buffers.small(values))

    # Operators

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a + b."""
        shape = np.broadcast_shapes(a.shape, b.shape)
        return self._apply(_ADD, [a, b], shape)

    def add_number(self, a: Tensor, number: float) -> Tensor:
        """Return a + number."""
        return self.add(a, self._small(np.array([number], np.float32)))

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a · b, value by value."""
        shape = np.broadcast_shapes(a.shape, b.shape)
        return self._apply(_MUL, [a, b], shape)

    def reshape(self, a: Tensor, *shape: int) -> Tensor:
        """Return the same values in another shape."""
        options: dict[int, Node] = {0: Array(np.array(shape, np.int32))}
        inputs = [a, self.ints(*shape)]
        return self._apply(_RESHAPE, inputs, shape, options, a.dtype)

    def transpose(self, a: Tensor, *axes: int) -> Tensor:
        """Return the values with their axes in another order."""
        shape = tuple(a.shape[axis] for axis in axes)
        return self._apply(_TRANSPOSE, [a, self.ints(*axes)], shape)

    def linear(self, a: Tensor, weight: Tensor) -> Tensor:
        """Return a [n, in] times the transpose of a weight [out, in]."""
        version = 5 if weight.dtype == np.int8 else 1
        inputs: list[Tensor | None] = [a, weight, None]
        shape = a.shape[0], weight.shape[0]
        return self._apply(_FULLY_CONNECTED._replace(version=version), inputs, shape)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a [1, g, n, k] times the transpose of b [1, g, m, k]."""
        shape = (*a.shape[:-1], b.shape[-2])
        return self._apply(_BATCH_MATMUL, [a, b], shape, {1: Number("bool", True)})

    def softmax(self, a: Tensor) -> Tensor:
        """Return the softmax over the last axis."""
        return self._apply(_SOFTMAX, [a], a.shape, {0: Number("f32", 1.0)})

    def logistic(self, a: Tensor) -> Tensor:
        """Return 1 / (1 + exp(-a))."""
        return self._apply(_LOGISTIC, [a], a.shape)

    def rsqrt(self, a: Tensor) -> Tensor:
        """Return 1 / sqrt(a)."""
        return self._apply(_RSQRT, [a], a.shape)

    def mean(self, a: Tensor) -> Tensor:
        """Return the mean over the last axis, which stays, with length 1."""
        keep: dict[int, Node] = {0: Number("bool", True)}
        return self._apply(_MEAN, [a, self.ints(-1)], (*a.shape[:-1], 1), keep)

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        """Return the rows of a table, which may be int8, by their numbers."""
        version = 4 if table.dtype == np.int8 else 1
        operator = _EMBEDDING_LOOKUP._replace(version=version)
        return self._apply(operator, [ids, table], (*ids.shape, *table.shape[1:]))

    def gather(self, table: Tensor, ids: Tensor) -> Tensor:
        """Return the rows of a float32 table by their numbers."""
        return self._apply(_GATHER, [table, ids], (*ids.shape, *table.shape[1:]))

    def first(self, a: Tensor) -> Tensor:
        """Return the first value of a vector of integers, as a vector."""
        return self._apply(_SLICE, [a, self.ints(0), self.ints(1)], (1,), dtype=a.dtype)

    def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Join along an axis."""
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        options: dict[int, Node] = {0: Number("i32", axis)}
        return self._apply(_CONCATENATION, parts, tuple(shape), options, parts[0].dtype)

    def halves(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """Divide along the last axis."""
        shape = (*a.shape[:-1], a.shape[-1] // 2)
        axis = self._small(np.array(len(shape) - 1, np.int32))
        parts = self._tensor(shape), self._tensor(shape)
        self._operate(_SPLIT, [axis, a], parts, {0: Number("i32", 2)})
        return parts

    def update(self, whole: Tensor, part: Tensor, at: Tensor, name: str) -> Tensor:
        """Return `whole` with `part` from the indices `at` on; an output."""
        result = self._tensor(whole.shape, name=f"{self.name}_out_{name}")
        self._operate(_DYNAMIC_UPDATE_SLICE, [whole, part, at], [result])
        self.outputs[name] = result
        return result

    # The description

    def table(self) -> Table:
        """Return the description of the graph."""
        return Table(
            {
                0: Tables(self._tensors),
                1: Array(self._indices(self.inputs)),
                2: Array(self._indices(self.outputs)),
                3: Tables(self._operators),
                4: Text(self.name),
            }
        )

    def signature(self, index: int) -> Table:
        """Return the description of the signature, given the number of the graph."""
        maps = [
            Tables(
                [
                    Table({0: Text(name), 1: Number("u32", tensors[name].index)})
                    for name in sorted(tensors)
                ]
            )
            for tensors in (self.inputs, self.outputs)
        ]
        where = Number("u32", index)
        return Table({0: maps[0], 1: maps[1], 2: Text(self.name), 4: where})

    @staticmethod
    def _indices(tensors: Mapping[str, Tensor]) -> np.ndarray:
        return np.array([tensors[name].index for name in sorted(tensors)], np.int32)

    def _tensor(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic] = _FLOAT,
        name: str = "",
        stored: Stored | None = None,
    ) -> Tensor:
        index = len(self._tensors)
        fields: dict[int, Node] = {
            0: Array(np.array(shape, np.int32)),
            1: Number("i8", _TYPES[dtype]),
            2: Number("u32", 0 if stored is None else stored.buffer),
            3: Text(name or f"{self.name}_{index}"),
            8: Number("bool", True),
        }
        if stored is not None and stored.quantisation is not None:
            fields[4] = stored.quantisation
        self._tensors.append(Table(fields))
        return Tensor(index, shape, dtype)

    def _apply(
        self,
        operator: _Operator,
        inputs: Sequence[Tensor | None],
        shape: tuple[int, ...],
        options: Mapping[int, Node] | None = None,
        dtype: np.dtype[np.generic] = _FLOAT,
    ) -> Tensor:
        """Add an operator with one result."""
        result = self._tensor(shape, dtype)
        self._operate(operator, inputs, [result], options)
        return result

    def _operate(
        self,
        operator: _Operator,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        options: Mapping[int, Node] | None = None,
    ) -> None:
        indices = [_ABSENT if a is None else a.index for a in inputs]
        fields: dict[int, Node] = {
            0: Number("u32", self._model.code(operator)),
            1: Array(np.array(indices, np.int32)),
            2: Array(np.array([out.index for out in outputs], np.int32)),
        }
        if operator.options:
            fields[3] = Number("u8", operator.options)
            fields[4] = Table(options or {})
        self._operators.append(Table(fields))
