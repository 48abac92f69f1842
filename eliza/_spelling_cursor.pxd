"""Cursors over spellings: owners of a position, which check what Python hands them."""

cimport cython
from libc.stdint cimport int64_t

from ._ingest cimport Ids
from ._position cimport pos_t
from ._spell cimport scratch_t, spell_t
from ._subset cimport Subset
from ._types cimport index_t, token_t


@cython.final
cdef class SpellingBound:
    # A spell_t, checked, and the owners of what it points to.
    cdef spell_t s
    cdef object owner        # the Spellings; it has .name(leaf)
    cdef Subset subset       # or None
    cdef Ids exits


@cython.final
cdef class SpellingCursor:
    cdef pos_t p
    cdef SpellingBound bound
    cdef scratch_t scratch
    cdef token_t *path_ids   # owned; the accepted ids, an exit id included
    cdef index_t n_path
    cdef index_t path_room
    cdef token_t *list       # owned; the ids allowed where `look` was sent last
    cdef int64_t n_list
    cdef int64_t list_room
    cdef bint fresh          # `list` is that of p

    # Put the ids allowed at a position into list. OutOfMemory.
    cdef int look(self, const pos_t* at) except -1
    # Do so for p, once.
    cdef int ids(self) except -1
    # The same; NoCandidateError when done.
    cdef int open_ids(self) except -1
    cdef int reserve_path(self, index_t room) except -1

cdef SpellingCursor spelling_cursor(SpellingBound bound)
