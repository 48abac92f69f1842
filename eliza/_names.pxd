"""The names of leaves as one block of UTF-8, made into str on demand."""

cimport cython
from libc.stdint cimport int64_t

from ._types cimport index_t


@cython.final
cdef class Names:
    cdef index_t n
    cdef char *text          # all names end to end
    cdef int64_t *start      # [n + 1] offsets into text
    # Open addressing over hash(str), leaf + 1 in each slot, 0 if empty; made at the
    # first look-up: 8 to 16 bytes per leaf where a dict and its strs take 200.
    cdef index_t *slot
    cdef int64_t n_slots     # a power of two

    cdef str get(self, index_t leaf)
    cdef int64_t find(self, str name) except -2
    cdef int index(self) except -1
    cdef int64_t nbytes(self) noexcept

# The bytes of a name, also of one with half a surrogate pair.
cdef bytes utf8(str name)

# names[order[i]] is the name of leaf i.
cdef Names names_make(list names, const index_t* order, index_t n)
