"""Kernels over the logits of allowed ids.

A `row_t` is one checked row, borrowed from the caller until the buffer is released.
The kernels take a list of ids, sorted and unique and all below the row's n_vocab, and
never read a logit of another id. NaN counts as -inf everywhere.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t

from cpython.buffer cimport Py_buffer

from ._types cimport index_t, token_t

cdef struct row_t:
    float *data
    int64_t n                # length of the row; ids at n_vocab and above are padding
    int64_t n_vocab

# Take a row from a buffer. On success the caller releases `view` when done with the
# row; otherwise nothing is held. InvalidType, InvalidArgument.
cdef int row_open(
    object logits, int64_t n_vocab, bint writable, Py_buffer* view, row_t* row
) except -1

# In place: -inf at every other id and in the padding; survivors keep their bits.
cdef void row_mask(const row_t* row, const token_t* ids, index_t n) noexcept nogil

# log(sum(exp)) over the ids below n_vocab.
cdef double row_lse(const row_t* row) noexcept nogil

# Write the log-softmax of the ids, within them or over the whole row, to out[n]. False
# if no id has a logit above -inf. If some are +inf they share the whole probability.
cdef bint row_logprobs(
    const row_t* row, const token_t* ids, index_t n, bint whole, double* out
) noexcept nogil


cdef inline int64_t row_argmax(
    const row_t* row, const token_t* ids, index_t n
) noexcept nogil:
    """Return which of ids has the highest logit, the first of equals; -1 if none.

    Four independent lanes: one lane waits for each comparison before the next and takes
    twice as long from 64 ids on.
    """
    cdef const float* x = row.data
    cdef float a0 = -INFINITY, a1 = a0, a2 = a0, a3 = a0, v0, v1, v2, v3
    cdef int64_t i = 0, b0 = -1, b1 = -1, b2 = -1, b3 = -1, end = n
    while i + 4 <= end:
        v0 = x[ids[i]]
        v1 = x[ids[i + 1]]
        v2 = x[ids[i + 2]]
        v3 = x[ids[i + 3]]
        b0 = i if v0 > a0 else b0
        a0 = v0 if v0 > a0 else a0
        b1 = i + 1 if v1 > a1 else b1
        a1 = v1 if v1 > a1 else a1
        b2 = i + 2 if v2 > a2 else b2
        a2 = v2 if v2 > a2 else a2
        b3 = i + 3 if v3 > a3 else b3
        a3 = v3 if v3 > a3 else a3
        i += 4
    if b1 >= 0 and (a1 > a0 or (a1 == a0 and b1 < b0)):
        a0 = a1
        b0 = b1
    if b2 >= 0 and (a2 > a0 or (a2 == a0 and b2 < b0)):
        a0 = a2
        b0 = b2
    if b3 >= 0 and (a3 > a0 or (a3 == a0 and b3 < b0)):
        a0 = a3
        b0 = b3
    while i < end:
        v0 = x[ids[i]]
        b0 = i if v0 > a0 else b0
        a0 = v0 if v0 > a0 else a0
        i += 1
    return b0
