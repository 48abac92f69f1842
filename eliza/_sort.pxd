"""Sorting sequences of ids, in plain C over the caller's memory.

Two calls, so that the caller can look at equal sequences in between, where names decide
whether they are an error: `leaves_sort`, then `leaves_squeeze`.
"""

from libc.stdint cimport int64_t

from ._types cimport index_t, token_t

# What leaves_sort writes as the common prefix of a sequence equal to the one before it.
cdef enum:
    LCP_EQUAL = 0xFFFFFFFF

# Sort n sequences: number i is ids[start[i] : start[i + 1]], not empty, ids below
# 2**bits - 1. Writes order[n] (stable) and lcp[n] (the ids shared with the one sorted
# before). Returns how many are equal to the one before them, or -1 without memory.
cdef int64_t leaves_sort(
    const token_t* ids, const int64_t* start, index_t n, int bits,
    index_t* order, index_t* lcp,
) noexcept nogil

# Take entries marked LCP_EQUAL out of order and lcp; returns how many are left.
cdef index_t leaves_squeeze(index_t n, index_t* order, index_t* lcp) noexcept nogil
