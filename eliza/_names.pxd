"""The names of leaves as one block of UTF-8, made into str on demand."""

cimport cython
from libc.stdint cimport int64_t

from ._types cimport index_t


@cython.final
cdef class Names:
    cdef index_t n
    cdef const char *text    # all names end to end
    cdef const int64_t *start    # [n + 1] offsets into text
    cdef int64_t n_text      # bytes of text
    cdef bint owned          # text and start are ours to free
    cdef object owner        # else: what they lie in
    # Open addressing over hash(str), leaf + 1 in each slot, 0 if empty; made at the
    # first look-up: 8 to 16 bytes per leaf where a dict and its strs take 200.
    cdef index_t *slot
    cdef int64_t n_slots     # a power of two

    cdef str get(self, index_t leaf)
    cdef bint is_name(self, index_t leaf, const char* text, int64_t length) noexcept
    cdef int64_t find(self, str name) except -2
    cdef int index(self) except -1
    # Offsets and UTF-8 of names from a file; that no name comes twice is seen by the
    # first look-up. BundleError.
    cdef int verify(self) except -1
    cdef int64_t nbytes(self) noexcept

# The bytes of a name, also of one with half a surrogate pair.
cdef bytes utf8(str name)

# names[order[i]] is the name of leaf i.
cdef Names names_make(list names, const index_t* order, index_t n)

# Names that lie in memory of `owner`; the offsets are doubted at each use.
cdef Names names_view(
    const char* text, int64_t n_text, const int64_t* start, index_t n, object owner
)
