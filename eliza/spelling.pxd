"""Texts with all their spellings: the owner of what `_spell` walks through."""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from ._ingest cimport Ids
from ._pieces cimport Pieces
from ._spell cimport spell_t
from ._trie cimport Trie
from ._types cimport index_t


@cython.final
cdef class Spellings:
    # Immutable once made.
    cdef spell_t s           # with all texts live; it points into what follows
    cdef Trie texts          # of bytes; its names are the choices
    cdef Pieces pieces
    cdef Ids exits
    cdef index_t *end        # owned, as are the next two
    cdef uint8_t *rest
    cdef int64_t *rest_start
    cdef int64_t n_rest      # bytes of rest
    cdef object __weakref__

    # Find out from where on each text can be spelled. InvalidArgument: not at all.
    cdef int mark_rests(self, bytes raw, object offsets, object order) except -1
