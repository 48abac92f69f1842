"""Single logits from a hidden state: only the rows of the head that are asked for.

The rows are read where they lie in the model's file. What is done with int8 weights is
what XNNPACK does: it quantises the hidden state to 8 bits between its extremes, adds up
integers, and scales their sum. float32 is added up in another order than there, so that
the last bits may differ. Whether the runtime at hand gives the same within a hundred
thousandth is found out when the model is loaded.

Ids with equal weights have equal logits, wherever among others they are asked for: a
matrix product of NumPy rounds by the place of a row, and then the tie would not go to
the lowest id.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Self

import numpy as np

from eliza.files.tables import Malformed, TableView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.litert_base import Runtime
    from eliza.backends.litert_layout import Head

    Rows = NDArray[np.float32]

__all__ = ["SingleLogits"]

_FLOAT32, _INT8 = 0, 9
_TRIALS = 4

#: How far single logits may lie from those of whole rows, as a part of the largest one.
_NEAR = 1e-5


class SingleLogits:
    """The weights of a head, by their rows.

    Parameters
    ----------
    weights : array [n_vocab, dim]
        int8 or float32; mapped from the file.
    scales : array [n_vocab] or None
        By what rows of int8 are multiplied.
    """

    def __init__(self, weights: NDArray[np.int8] | Rows, scales: Rows | None) -> None:
        self._weights = weights
        self._scales = scales

    @classmethod
    def of(cls, path: str, head: Head, runtime: Runtime) -> Self | None:
        """Return them for a file, if they give the same as the runtime does."""
        found = _find(path, head)
        if found is None:
            return None
        self = cls(*found)
        rng = np.random.default_rng(0)
        ids = rng.integers(0, len(self._weights), 64)
        for scale in np.geomspace(0.1, 30, _TRIALS):
            hidden = (rng.standard_normal(head.dim) * scale).astype(np.float32)
            wanted = runtime.apply(head, hidden[None])[0, ids]
            apart = np.abs(self.logits(hidden, ids) - wanted).max()
            if not apart <= _NEAR * np.abs(wanted).max():
                return None
        return self

    def logits(self, hidden: Rows, ids: NDArray[np.integer]) -> Rows:
        """Return the logits of some ids, given a hidden state."""
        rows = self._weights[ids]
        if self._scales is None:
            # Each row by itself, and more exactly than the result can say.
            plain: Rows = np.multiply(rows, hidden, dtype=np.float64).sum(1)
            return plain.astype(np.float32)
        values, zero, step = _quantised(hidden)
        # Sums of products of 8 bits are whole numbers, which float64 adds up exactly.
        sums = rows.astype(np.float64) @ (values - zero)
        real: Rows = sums.astype(np.float32) * step * self._scales[ids]
        return real


def _quantised(hidden: Rows) -> tuple[NDArray[np.float64], float, np.float32]:
    """Return values of 8 bits, which of them stands for 0, and what a step is worth."""
    one = np.float32
    low, high = min(hidden.min(), one(0)), max(hidden.max(), one(0))
    scale = one(1) if low == high else one(255) / (high - low)
    from_low, from_high = one(-128) - low * scale, one(127) - high * scale
    error = (one(-128) + low * scale) + (one(127) + high * scale)
    zero = np.clip(from_low if error > 0 else from_high, -128, 127)
    zero = float(np.rint(zero))
    values = np.clip(np.rint(hidden * scale) + zero, -128, 127)
    return values.astype(np.float64), zero, one(1) / scale


def _find(path: str, head: Head) -> tuple[NDArray[np.int8] | Rows, Rows | None] | None:
    """Return the weights and scales that a signature multiplies with."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        root = TableView.root(data)
        buffers = root.tables(4)
        graphs = [graph for graph in root.tables(2) if graph.text(4) == head.name]
        for tensor in graphs[0].tables(0) if len(graphs) == 1 else ():
            at, n = tensor.vector(0, 4)
            shape = tuple(np.frombuffer(data, "<i4", n, at).tolist())
            if shape != (head.logits_info.shape[-1], head.dim):
                continue
            kind = tensor.number(1, "<b")
            buffer = buffers[tensor.number(2, "<I")]
            begin = buffer.number(1, "<Q")
            dtype = {_FLOAT32: "<f4", _INT8: "<i1"}.get(kind)
            if dtype is None or begin < 2:
                return None
            weights = np.frombuffer(data, dtype, shape[0] * shape[1], begin)
            scales = None
            if kind == _INT8:
                quantisation = tensor.table(4)
                at, n = (0, 0) if quantisation is None else quantisation.vector(2, 4)
                if n != shape[0]:
                    return None
                scales = np.frombuffer(data, "<f4", n, at)
            return weights.reshape(shape), scales
    except (Malformed, IndexError, ValueError):
        return None
    return None
