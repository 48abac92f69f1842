"""Rows of logits in every form that eliza takes, with what they say as float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st


@dataclass
class Row:
    """A row as it is handed in, and its values."""

    form: np.ndarray
    values: np.ndarray  # float32
    dtype: str | None  # what to say about it

    def read(self):
        """The row's values now."""
        return as_float32(self.form, self.dtype)


def as_float32(form, dtype):
    if dtype == "bfloat16":
        return (form.astype(np.uint32) << 16).view(np.float32)
    return form.astype(np.float32)


def bfloat16(values):
    """The bits of float32 values cut to bfloat16; NaN stays NaN."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )


def bits_of(x):
    """Bit patterns: -0.0 is not 0.0, and a NaN equals itself."""
    return np.ascontiguousarray(x).view(np.uint16 if x.itemsize == 2 else np.uint32)


KINDS = ("float32", "float16", "bfloat16")


def make_row(values, kind="float32", step=1):
    """Lay values out as `kind` with `step` between neighbours."""
    values = np.asarray(values, np.float32)
    cells = bfloat16(values) if kind == "bfloat16" else values.astype(kind)
    wide = np.zeros(abs(step) * len(values), cells.dtype)
    form = wide[::step]
    form[:] = cells
    dtype = "bfloat16" if kind == "bfloat16" else None
    return Row(form, as_float32(form, dtype), dtype)


values = st.one_of(
    st.floats(-8, 8, width=16),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -65504.0, 6e-8]),
)


def rows(n_vocab):
    """Rows of every type, with gaps and backwards, and with padding at the end."""
    return st.builds(
        make_row,
        st.lists(values, min_size=n_vocab, max_size=n_vocab + 5),
        st.sampled_from(KINDS),
        st.sampled_from([1, 2, 3, -1, -2]),
    )
