"""The constants of a `.tflite` file: small ones within its tables, weights after them.

A file of weights may have gigabytes. They are produced, quantised and written in pieces
of some megabytes; the tables, which come first in the file and say where each weight
lies and how its rows are scaled, are completed last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from eliza.convert.flatbuffer import Array, Number, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Produce = Callable[[int, int], NDArray[np.float32]]

__all__ = ["Buffers", "Stored"]

#: XNNPACK reads weights where they lie in the mapped file.
_ALIGNMENT = 64

_PIECE_BYTES = 16 << 20


@dataclass(slots=True, eq=False)
class Stored:
    """A constant, and where it goes.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
        float32, int32 or int8.
    buffer : int
        The number of its buffer.
    scales : Array or None
        Of the rows, for int8; `quantisation` is the table that holds them.
    produce : callable or None
        Gives the values of rows start to stop, as float32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    buffer: int
    scales: Array | None = None
    quantisation: Table | None = None
    produce: Produce | None = None
    offset: Number = field(default_factory=lambda: Number("u64", 0))

    @property
    def nbytes(self) -> int:
        """The size in the file."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def pieces(self) -> Iterator[NDArray[np.generic]]:
        """Give the values as they stand in the file; fill in the scales on the way."""
        assert self.produce is not None
        rows = max(1, _PIECE_BYTES // (4 * int(np.prod(self.shape[1:]))))
        for start in range(0, self.shape[0], rows):
            stop = min(start + rows, self.shape[0])
            values = self.produce(start, stop)
            if self.scales is None:
                yield np.ascontiguousarray(values, np.float32)
            else:
                quantised, scales = quantise(values)
                self.scales.values[start:stop] = scales
                yield quantised


def quantise(
    values: NDArray[np.float32],
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return int8 values in [-127, 127], and by what each row is to be multiplied."""
    scales = np.abs(values).max(axis=1) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(values / scales[:, None]).astype(np.int8), scales


class Buffers:
    """All constants of a model, each stored once however many graphs use it."""

    def __init__(self) -> None:
        self._tables = [Table({})]  # buffer 0 is that of tensors without one
        self._small: dict[tuple[bytes, str, tuple[int, ...]], Stored] = {}
        self._weights: dict[str, Stored] = {}
        self._zeros: dict[int, Array] = {}

    def small(self, values: NDArray[np.generic]) -> Stored:
        """Return a constant that is stored within the tables."""
        key = values.tobytes(), values.dtype.str, values.shape
        found = self._small.get(key)
        if found is None:
            data = Array(np.frombuffer(key[0], np.uint8))
            found = Stored("", values.shape, values.dtype, self._add({0: data}))
            self._small[key] = found
        return found

    def weight(self, name: str, shape: tuple[int, ...], produce: Produce) -> Stored:
        """Register a float32 constant that is stored after the tables."""
        return self._register(name, shape, np.dtype(np.float32), None, produce)

    def quantised(self, name: str, shape: tuple[int, ...], produce: Produce) -> Stored:
        """Register a constant that is stored as int8, with a scale for each row."""
        scales = Array(np.ones(shape[0], np.float32))
        return self._register(name, shape, np.dtype(np.int8), scales, produce)

    def __getitem__(self, name: str) -> Stored:
        """Return a weight by its name."""
        return self._weights[name]

    def raw(self, data: bytes) -> int:
        """Store bytes within the tables; return the number of their buffer."""
        return self._add({0: Array(np.frombuffer(data, np.uint8))})

    def tables(self) -> list[Table]:
        """Return the descriptions of all buffers."""
        return self._tables

    @property
    def nbytes(self) -> int:
        """The size of all weights."""
        return sum(weight.nbytes for weight in self._weights.values())

    def write(
        self, file: BinaryIO, tables: bytearray, progress: Callable[[float], object]
    ) -> None:
        """Write the tables and the weights to the end of a file, where it stands.

        Parameters
        ----------
        tables : bytearray
            The flatbuffer, with what only becomes known here still to be put in.
        progress : callable
            Called with the fraction that is written.
        """
        base, at = file.tell(), len(tables)
        for weight in self._weights.values():
            at = -(-at // _ALIGNMENT) * _ALIGNMENT
            weight.offset.value = at
            weight.offset.patch(tables)
            at += weight.nbytes
        file.write(tables)
        done, total = 0, max(1, self.nbytes)
        for weight in self._weights.values():
            file.write(bytes(base + int(weight.offset.value) - file.tell()))
            for piece in weight.pieces():
                file.write(piece.data.cast("B"))
                done += piece.nbytes
                progress(done / total)
            if weight.scales is not None:
                weight.scales.patch(tables)
        file.seek(base)
        file.write(tables)

    def _register(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[np.generic],
        scales: Array | None,
        produce: Produce,
    ) -> Stored:
        number = len(self._tables)
        table = None
        if scales is not None:
            zeros = self._zeros.setdefault(
                shape[0], Array(np.zeros(shape[0], np.int64))
            )
            table = Table({2: scales, 3: zeros})
        stored = Stored(name, shape, dtype, number, scales, table, produce)
        # Offset and size, in place of data: they may lie beyond the 2 GB that the
        # tables can reach.
        self._add({1: stored.offset, 2: Number("u64", stored.nbytes)})
        self._weights[name] = stored
        return stored

    def _add(self, fields: dict[int, Array | Number]) -> int:
        self._tables.append(Table(dict(fields)))
        return len(self._tables) - 1
