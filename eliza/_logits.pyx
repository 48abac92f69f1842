"""Rows of logits: taking them from a caller, and kernels over them; see the .pxd."""

from libc.math cimport INFINITY, exp, log
from libc.stdint cimport int64_t, uintptr_t

from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_STRIDES,
    Py_buffer,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)

from ._types cimport index_t, token_t

import sys

from .errors import InvalidArgument, InvalidType

__all__ = ["log_sum_exp"]

cdef extern from "_lse.h":
    void eliza_detect() noexcept nogil
    void eliza_fill(float* row, int64_t n) noexcept nogil
    double eliza_lse(const float* x, int64_t n) noexcept nogil

eliza_detect()
cdef char NATIVE = c"<" if sys.byteorder == "little" else c">"

cdef enum:
    MASK_BLOCK = 4096        # floats of a row in work at a time: 16 KiB, half of L1


cdef str describe(object logits):
    """Name the type, dtype and shape of what was given in place of a row."""
    cdef str kind = type(logits).__name__
    dtype = getattr(logits, "dtype", None)
    shape = getattr(logits, "shape", None)
    if dtype is None or shape is None:
        return kind
    return f"{kind} of dtype {dtype} and shape {shape}"


cdef str wanted(int64_t n_vocab):
    return f"logits must be one row: float32, 1-D, contiguous, at least {n_vocab} long"


cdef int row_open(
    object logits, int64_t n_vocab, bint writable, Py_buffer* view, row_t* row
) except -1:
    cdef const char* form
    if not PyObject_CheckBuffer(logits):
        raise InvalidType(f"{wanted(n_vocab)}; got {describe(logits)}")
    try:
        PyObject_GetBuffer(logits, view, PyBUF_STRIDES | PyBUF_FORMAT)
    except (BufferError, ValueError) as error:
        raise InvalidArgument(
            f"{wanted(n_vocab)}; got {describe(logits)}: {error}"
        ) from None
    form = view.format
    if form != NULL and view.ndim == 1 and view.shape[0] >= n_vocab:
        if form[0] == c"@" or form[0] == c"=" or form[0] == NATIVE:
            form += 1
        if (
            form[0] == c"f" and form[1] == 0
            and view.strides[0] == sizeof(float)
            and <uintptr_t>view.buf % sizeof(float) == 0
            and not (writable and view.readonly)
        ):
            row.data = <float*>view.buf
            row.n = view.shape[0]
            row.n_vocab = n_vocab
            return 0
    try:
        refuse(logits, n_vocab, writable, view)
    finally:
        PyBuffer_Release(view)


cdef int refuse(
    object logits, int64_t n_vocab, bint writable, Py_buffer* view
) except -1:
    """Raise the error for a buffer that is not a row."""
    cdef str message = f"{wanted(n_vocab)}; got {describe(logits)}"
    cdef bytes form = b"B" if view.format == NULL else view.format
    if form.lstrip(b"@=" + bytes([NATIVE])) != b"f":
        raise InvalidType(message + "; convert it with .astype(numpy.float32)")
    if writable and view.readonly:
        message += ", read-only: it must be writable"
    raise InvalidArgument(message)


cdef void row_mask(const row_t* row, const token_t* ids, index_t n) noexcept nogil:
    # Save, fill, restore, a block at a time: cheaper than filling the gaps between ids,
    # which reaches 1.6 times a plain fill at 2,000 ids.
    cdef float[MASK_BLOCK] kept
    cdef int64_t at = 0, end
    cdef index_t i = 0, j, k
    while at < row.n:
        end = min(at + MASK_BLOCK, row.n)
        j = i
        while j < n and ids[j] < end:
            kept[j - i] = row.data[ids[j]]
            j += 1
        eliza_fill(row.data + at, end - at)
        for k in range(i, j):
            row.data[ids[k]] = kept[k - i]
        i = j
        at = end


cdef double row_lse(const row_t* row) noexcept nogil:
    return eliza_lse(row.data, row.n_vocab)


cdef int64_t count_infinite(const float* x, int64_t n) noexcept nogil:
    cdef int64_t i, count = 0
    for i in range(n):
        count += x[i] == INFINITY
    return count


cdef bint row_logprobs(
    const row_t* row, const token_t* ids, index_t n, bint whole, double* out
) noexcept nogil:
    cdef double top = -INFINITY, norm, total = 0
    cdef index_t i
    cdef int64_t infinite = 0
    for i in range(n):
        out[i] = row.data[ids[i]]
        if not out[i] > -INFINITY:  # NaN as well
            out[i] = -INFINITY
        top = max(top, out[i])
        infinite += out[i] == INFINITY
    if top == -INFINITY:
        return False
    if whole:
        norm = row_lse(row)
        infinite = 0 if norm < INFINITY else count_infinite(row.data, row.n_vocab)
    elif infinite == 0:
        for i in range(n):
            total += exp(out[i] - top)
        norm = top + log(total)
    else:
        norm = INFINITY
    for i in range(n):
        if norm < INFINITY:
            out[i] -= norm
        else:
            out[i] = -log(<double>infinite) if out[i] == INFINITY else -INFINITY
    return True


def log_sum_exp(row):
    """Return log(sum(exp(row))) without overflow.

    Parameters
    ----------
    row : buffer of float32, shape (n,)
        Logits. NaN counts as -inf.

    Returns
    -------
    float
        -inf if no value is above -inf, +inf if one is +inf.

    Raises
    ------
    InvalidArgument
        `row` has another type, shape or layout.
    """
    cdef Py_buffer view
    cdef row_t r
    cdef double result
    row_open(row, 0, False, &view, &r)
    r.n_vocab = r.n
    with nogil:
        result = row_lse(&r)
    PyBuffer_Release(&view)
    return result
