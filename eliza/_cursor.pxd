"""Cursors: owners of a position, which check what Python hands them."""

cimport cython

from ._bound cimport Bound
from ._position cimport pos_t
from ._types cimport index_t, token_t


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

# What messages share: the first few of many ids, and the error where none can be taken.
cdef str show(object ids)
cdef object no_candidate(const token_t* ids, index_t n)
