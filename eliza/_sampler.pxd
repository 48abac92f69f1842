"""Owners of links."""

from ._cursor cimport Cursor
from ._link cimport link_t
from ._llama_api cimport llama_sampler
from ._types cimport token_t


cdef class Link:
    # A link and, until it is in a chain, its sampler.
    cdef link_t *link        # a reference of ours; NULL: closed
    cdef llama_sampler *sampler  # valid while link.alive
    cdef bint owned          # the sampler is ours to free
    cdef object __weakref__

    cdef int must_live(self) except -1
    # A cursor where the link is, in the trie that it has now: C may copy another one.
    cdef Cursor position(self)
    # The same, after raise_error.
    cdef Cursor known(self)
    # The error that is noted in the link, which forgets it; None if there is none.
    cdef object take_error(self)
    cdef int raise_error(self) except -1
    cdef object off_path(self, Cursor cursor, token_t id)
    cdef void drop(self) noexcept

# A Link for a sampler of ours that somebody else owns. OutOfMemory if it has no state.
cdef Link adopt(type cls, llama_sampler* smpl)
