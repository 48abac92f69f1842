"""From sorted sequences of ids to the arrays of a trie: one linear pass, in plain C."""

from libc.stdint cimport int64_t

from ._types cimport index_t, token_t, trie_t

# Fill `trie`, all zero before but n_vocab, from sorted, distinct sequences. Returns 0,
# or -1 without memory; the caller frees with trie_free in both cases.
cdef int trie_build(
    trie_t* trie, const token_t* ids, const int64_t* start, index_t n,
    const index_t* order, const index_t* lcp,
) noexcept nogil

cdef void trie_free(trie_t* trie) noexcept nogil
