"""Cursors: owners of a position, which check what Python hands them."""

cimport cython

from ._ingest cimport Ids
from ._position cimport bound_t, pos_t
from ._types cimport index_t, token_t, trie_t


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


@cython.final
cdef class Cursor:
    cdef pos_t p
    cdef Bound bound
    cdef token_t *scratch    # owned; allowed ids that had to be gathered
    cdef index_t room        # of scratch

    # The allowed ids, valid until the next call. OutOfMemory.
    cdef int ids(self, const token_t** ids, index_t* n) except -1
    # The same; NoCandidateError when done.
    cdef int open_ids(self, const token_t** ids, index_t* n) except -1

cdef Cursor cursor_make(Bound bound)
