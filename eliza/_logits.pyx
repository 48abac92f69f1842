"""Kernels over the logits of allowed ids; see the .pxd."""

from libc.math cimport INFINITY, exp, log
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memset

from cpython.buffer cimport Py_buffer, PyBuffer_Release

from ._rows cimport ROW_F16, ROW_F32, row_open, row_t
from ._types cimport index_t, token_t

__all__ = ["log_sum_exp"]

cdef extern from "_simd.h":
    void eliza_detect() noexcept nogil

cdef extern from "_mask.h":
    void eliza_mask32(
        uint32_t* row, int64_t n, const token_t* ids, int64_t n_ids, uint32_t minus_inf
    ) noexcept nogil
    void eliza_mask16(
        uint16_t* row, int64_t n, const token_t* ids, int64_t n_ids, uint32_t minus_inf
    ) noexcept nogil

cdef extern from "_lse.h":
    float eliza_max(const float* x, int64_t n) noexcept nogil
    double eliza_sum_exp(const float* x, int64_t n, float top) noexcept nogil
    void eliza_read_f16(const uint16_t* x, int64_t n, float* out) noexcept nogil
    void eliza_read_bf16(const uint16_t* x, int64_t n, float* out) noexcept nogil
    float eliza_from_f16(uint16_t x) noexcept nogil
    float eliza_from_bf16(uint16_t x) noexcept nogil

eliza_detect()

cdef enum:
    BLOCK = 256              # logits read into float32 at a time
    F16_MINUS_INF = 0xFC00
    BF16_MINUS_INF = 0xFF80

cdef uint32_t F32_MINUS_INF = 0xFF800000

ctypedef fused cell_t:       # the bits of what a row is made of
    uint32_t
    uint16_t


cdef inline float row_at(const row_t* row, int64_t id) noexcept nogil:
    cdef const char* cell = row.data + id * row.stride
    if row.kind == ROW_F32:
        return (<const float*>cell)[0]
    if row.kind == ROW_F16:
        return eliza_from_f16((<const uint16_t*>cell)[0])
    return eliza_from_bf16((<const uint16_t*>cell)[0])


cdef void row_gather(
    const row_t* row, const token_t* ids, index_t n, float* out
) noexcept nogil:
    cdef index_t i
    for i in range(n):
        out[i] = row_at(row, ids[i])


cdef int64_t row_argmax_any(
    const row_t* row, const token_t* ids, index_t n
) noexcept nogil:
    cdef int64_t i, best = -1
    cdef float value, top = -INFINITY
    for i in range(n):
        value = row_at(row, ids[i])
        if value > top:
            top = value
            best = i
    return best


cdef void mask_gaps(
    char* data, int64_t stride, int64_t n_cells, const token_t* ids, index_t n,
    cell_t value,
) noexcept nogil:
    """Write to each cell between the ids, for rows whose cells stand apart."""
    cdef int64_t id
    cdef index_t i = 0
    for id in range(n_cells):
        if i < n and ids[i] == id:
            i += 1
        else:
            (<cell_t*>(data + id * stride))[0] = value


cdef void row_mask(const row_t* row, const token_t* ids, index_t n) noexcept nogil:
    cdef uint32_t value = F32_MINUS_INF
    if row.kind != ROW_F32:
        value = F16_MINUS_INF if row.kind == ROW_F16 else BF16_MINUS_INF
    if row.flat:
        eliza_mask32(<uint32_t*>row.data, row.n, ids, n, value)
    elif row.kind == ROW_F32:
        mask_gaps[uint32_t](row.data, row.stride, row.n, ids, n, value)
    elif row.stride == sizeof(uint16_t):
        eliza_mask16(<uint16_t*>row.data, row.n, ids, n, value << 16 | value)
    else:
        mask_gaps[uint16_t](row.data, row.stride, row.n, ids, n, <uint16_t>value)


cdef void words_set(
    uint32_t* words, int64_t n_words, const token_t* ids, index_t n
) noexcept nogil:
    cdef index_t i
    memset(words, 0, n_words * sizeof(uint32_t))
    for i in range(n):
        words[ids[i] >> 5] |= <uint32_t>1 << (ids[i] & 31)


cdef const float* row_block(
    const row_t* row, int64_t first, int64_t n, float* room
) noexcept nogil:
    """Return n logits from `first` on as float32, in `room` if they have to be read."""
    cdef int64_t i
    if row.flat:
        return <const float*>row.data + first
    if row.stride == sizeof(uint16_t) and row.kind == ROW_F16:
        eliza_read_f16(<const uint16_t*>row.data + first, n, room)
    elif row.stride == sizeof(uint16_t):
        eliza_read_bf16(<const uint16_t*>row.data + first, n, room)
    else:
        for i in range(n):
            room[i] = row_at(row, first + i)
    return room


cdef double row_lse(const row_t* row) noexcept nogil:
    cdef float[BLOCK] room
    cdef int64_t at, n, block = row.n_vocab if row.flat else BLOCK
    cdef float top = -INFINITY
    cdef double total = 0
    at = 0
    while at < row.n_vocab:
        n = min(block, row.n_vocab - at)
        top = max(top, eliza_max(row_block(row, at, n, room), n))
        at += n
    if top == INFINITY or top == -INFINITY:
        return top
    at = 0
    while at < row.n_vocab:
        n = min(block, row.n_vocab - at)
        total += eliza_sum_exp(row_block(row, at, n, room), n, top)
        at += n
    return top + log(total)


cdef int64_t row_infinite(const row_t* row) noexcept nogil:
    """Count the ids at +inf."""
    cdef int64_t i, count = 0
    for i in range(row.n_vocab):
        count += row_at(row, i) == INFINITY
    return count


cdef bint row_logprobs(
    const row_t* row, const token_t* ids, index_t n, bint whole, double* out
) noexcept nogil:
    cdef double top = -INFINITY, norm, total = 0
    cdef index_t i
    cdef int64_t infinite = 0
    for i in range(n):
        out[i] = row_at(row, ids[i])
        if not out[i] > -INFINITY:  # NaN as well
            out[i] = -INFINITY
        top = max(top, out[i])
        infinite += out[i] == INFINITY
    if top == -INFINITY:
        return False
    if whole:
        norm = row_lse(row)
        infinite = 0 if norm < INFINITY else row_infinite(row)
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


def log_sum_exp(row, dtype=None):
    """Return log(sum(exp(row))) without overflow.

    Parameters
    ----------
    row : buffer of float32, float16 or bfloat16, shape (n,)
        Logits. NaN counts as -inf.
    dtype : {None, "bfloat16"}
        "bfloat16" if `row` holds its bits as uint16.

    Returns
    -------
    float
        -inf if no value is above -inf, +inf if one is +inf.

    Raises
    ------
    InvalidArgument
        `row` has another type or shape.
    """
    cdef Py_buffer view
    cdef row_t r
    cdef double result
    row_open(row, 1, 0, False, dtype, &view, &r)
    r.n_vocab = r.n
    with nogil:
        result = row_lse(&r)
    PyBuffer_Release(&view)
    return result
