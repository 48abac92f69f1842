"""Whether the arrays of a trie that came from elsewhere can be used at all.

The header has been checked before: the arrays are as long as the counts say. Here every
index and every id in them is doubted. After `node_check` said yes to a node and to all
above it, the functions on positions stay inside of the arrays.
"""

from ._types cimport index_t, trie_t

# The error for a trie whose file is not what it was.
cdef object damaged()

# One node, its run, its exits, and the numbers that its children start from.
cdef bint node_check(const trie_t* t, index_t i) noexcept nogil

# Exit ids that hold for every leaf: to be checked before any node.
cdef bint shared_check(const trie_t* t) noexcept nogil

# A leaf: its node and all above it.
cdef bint leaf_check(const trie_t* t, index_t leaf) noexcept nogil

# Everything.
cdef bint trie_check(const trie_t* t) noexcept nogil
