"""The names of leaves; see the .pxd."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

cimport cython
from cpython.object cimport PyObject_Hash
from cpython.unicode cimport PyUnicode_DecodeUTF8

from ._check cimport damaged
from ._types cimport index_t

from .errors import OutOfMemory


cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL


cdef bytes utf8(str name):
    # Half a surrogate pair is a legal str, and so a legal name.
    return name.encode("utf-8", "surrogatepass")


@cython.auto_pickle(False)
cdef class Names:
    def __dealloc__(self):
        if self.owned:
            free(<void*>self.text)
            free(<void*>self.start)
        free(self.slot)

    cdef str get(self, index_t leaf):
        cdef int64_t start = self.start[leaf], end = self.start[leaf + 1]
        if not 0 <= start <= end <= self.n_text:
            raise damaged()
        try:
            return PyUnicode_DecodeUTF8(self.text + start, end - start, "surrogatepass")
        except UnicodeDecodeError:
            raise damaged() from None

    cdef bint is_name(self, index_t leaf, const char* text, int64_t length) noexcept:
        cdef int64_t start = self.start[leaf]
        return self.start[leaf + 1] - start == length and (
            memcmp(self.text + start, text, length) == 0
        )

    cdef int64_t find(self, str name) except -2:
        """Return the leaf with this name, or -1."""
        cdef bytes wanted = utf8(name)
        cdef int64_t i
        with cython.critical_section(self):
            if self.slot == NULL:
                self.index()
        i = PyObject_Hash(name) & (self.n_slots - 1)
        while self.slot[i]:
            if self.is_name(self.slot[i] - 1, wanted, len(wanted)):
                return self.slot[i] - 1
            i = (i + 1) & (self.n_slots - 1)
        return -1

    cdef int index(self) except -1:
        """Fill the table for `find`. A name that comes twice is damage."""
        cdef int64_t n_slots = 8, i, start
        cdef index_t leaf
        cdef index_t* slot
        while n_slots < 2 * <int64_t>self.n:
            n_slots *= 2
        slot = <index_t*>calloc(n_slots, sizeof(index_t))
        if slot == NULL:
            raise OutOfMemory(f"no memory to look up {self.n} names")
        try:
            for leaf in range(self.n):
                i = PyObject_Hash(self.get(leaf)) & (n_slots - 1)
                start = self.start[leaf]
                while slot[i]:
                    if self.is_name(
                        slot[i] - 1, self.text + start, self.start[leaf + 1] - start
                    ):
                        raise damaged()
                    i = (i + 1) & (n_slots - 1)
                slot[i] = leaf + 1
        except BaseException:
            free(slot)
            raise
        self.n_slots = n_slots
        self.slot = slot
        return 0

    cdef int verify(self) except -1:
        cdef index_t leaf
        cdef int64_t start
        if self.start[0] != 0 or self.start[self.n] != self.n_text:
            raise damaged()
        for leaf in range(self.n):
            start = self.start[leaf]
            if start > self.start[leaf + 1]:
                raise damaged()
            # A continuation byte: the name starts inside of a character.
            if start < self.n_text and (self.text[start] & 0xC0) == 0x80:
                raise damaged()
        # All names in one go: 15 ms for a million, where one by one takes 70.
        try:
            PyUnicode_DecodeUTF8(self.text, self.n_text, "surrogatepass")
        except UnicodeDecodeError:
            raise damaged() from None
        return 0

    cdef int64_t nbytes(self) noexcept:
        return (
            self.n_text + (<int64_t>self.n + 1) * sizeof(int64_t)
            + self.n_slots * sizeof(index_t)
        )


cdef Names names_make(list names, const index_t* order, index_t n):
    cdef Names out = Names()
    cdef index_t i
    cdef int64_t room = 16 * <int64_t>n
    cdef Py_ssize_t length
    cdef str name
    cdef bytes kept
    cdef const char* text
    cdef char* grown
    cdef int64_t* start = <int64_t*>malloc((<size_t>n + 1) * sizeof(int64_t))
    out.n = n
    out.owned = True
    out.start = start
    out.text = <char*>malloc(room)
    if start == NULL or out.text == NULL:
        raise OutOfMemory(f"no memory for {n} names")
    start[0] = 0
    for i in range(n):
        name = names[order[i]]
        if name.isascii():   # then its own memory is UTF-8 already
            text = PyUnicode_AsUTF8AndSize(name, &length)
        else:
            kept = utf8(name)
            text = kept
            length = len(kept)
        if out.n_text + length > room:
            room = max(2 * room, out.n_text + length)
            grown = <char*>realloc(<void*>out.text, room)
            if grown == NULL:
                raise OutOfMemory(f"no memory for {n} names")
            out.text = grown
        memcpy(<char*>out.text + out.n_text, text, length)
        out.n_text += length
        start[i + 1] = out.n_text
    grown = <char*>realloc(<void*>out.text, max(out.n_text, 1))
    if grown != NULL:
        out.text = grown
    return out


cdef Names names_view(
    const char* text, int64_t n_text, const int64_t* start, index_t n, object owner
):
    cdef Names out = Names()
    out.text = text
    out.n_text = n_text
    out.start = start
    out.n = n
    out.owner = owner
    return out
