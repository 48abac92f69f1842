"""What cursors are bound to: a trie, a subset of it, exit ids; shared by reference."""

cimport cython

from ._ingest cimport Ids
from ._position cimport bound_t
from ._types cimport index_t, trie_t


@cython.final
cdef class Bound:
    # A bound_t and the owners of what it points to.
    cdef bound_t b
    cdef object trie         # a Trie; it has .name(leaf), for messages
    cdef object subset       # a Subset or None
    cdef Ids exits


cdef Bound bind(
    object trie, const trie_t* t, object subset, const index_t* rank, Ids exits
)

# InvalidArgument where bound_check finds a fault.
cdef int bound_verify(Bound bound) except -1
