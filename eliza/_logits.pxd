"""Kernels over the logits of allowed ids.

They take a checked row and a list of ids, sorted, unique and below the row's n_vocab,
and do not read logits of other ids unless they say so. NaN counts as -inf everywhere.
"""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint32_t

from ._rows cimport row_t
from ._types cimport index_t, token_t

# Write the logits of ids[n] to out[n], as they are.
cdef void row_gather(
    const row_t* row, const token_t* ids, index_t n, float* out
) noexcept nogil

# As row_argmax, for any row.
cdef int64_t row_argmax_any(
    const row_t* row, const token_t* ids, index_t n
) noexcept nogil

# In place: -inf at every other id and in the padding; survivors keep their bits.
cdef void row_mask(const row_t* row, const token_t* ids, index_t n) noexcept nogil

# The ids as bits, the lowest bit of a word first; all others 0.
cdef void words_set(
    uint32_t* words, int64_t n_words, const token_t* ids, index_t n
) noexcept nogil

# log(sum(exp)) over all ids below n_vocab.
cdef double row_lse(const row_t* row) noexcept nogil

# Write the log-softmax of the ids, within them or the whole row below n_vocab. False
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
    cdef const float* x = <const float*>row.data
    cdef float a0 = -INFINITY, a1 = a0, a2 = a0, a3 = a0, v0, v1, v2, v3
    cdef int64_t i = 0, b0 = -1, b1 = -1, b2 = -1, b3 = -1, end = n
    if not row.flat:
        return row_argmax_any(row, ids, n)
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
