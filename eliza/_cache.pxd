"""What a trie is built from, checked once, and its key in a cache."""

cimport cython
from libc.stdint cimport int64_t

from ._assemble cimport Order
from ._ingest cimport Sequences


@cython.final
cdef class Form:
    # Values on their way into SHA-256. Each goes in with its kind and its length, so
    # that what was put can be read back in one way only.
    cdef char *data          # [ROOM] owned
    cdef int64_t n
    cdef object sha          # None until `data` was full for the first time

    cdef int put(self, char kind, const void* data, int64_t n) except -1
    cdef int put_text(self, char kind, str text) except -1
    cdef int flush(self) except -1
    cdef bytes digest(self)


@cython.final
cdef class Recipe:
    cdef Sequences leaves
    cdef object exits        # as read_all_exits gives them
    cdef bytes fingerprint
    cdef Order order         # of the key's leaves, and then the trie's
    cdef readonly bytes key

    cdef bytes make_key(self, tuple origin)
