"""The names of leaves; see the .pxd."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

cimport cython
from cpython.object cimport PyObject_Hash
from cpython.unicode cimport PyUnicode_DecodeUTF8

from ._types cimport index_t

from .errors import OutOfMemory


cdef bytes utf8(str name):
    # Half a surrogate pair is a legal str, and so a legal name.
    return name.encode("utf-8", "surrogatepass")


@cython.auto_pickle(False)
cdef class Names:
    def __dealloc__(self):
        free(self.text)
        free(self.start)
        free(self.slot)

    cdef str get(self, index_t leaf):
        return PyUnicode_DecodeUTF8(
            self.text + self.start[leaf], self.start[leaf + 1] - self.start[leaf],
            "surrogatepass",
        )

    cdef int64_t find(self, str name) except -2:
        """Return the leaf with this name, or -1."""
        cdef bytes wanted = utf8(name)
        cdef const char* text = wanted
        cdef int64_t length = len(wanted), i, leaf
        with cython.critical_section(self):
            if self.slot == NULL:
                self.index()
        i = PyObject_Hash(name) & (self.n_slots - 1)
        while self.slot[i]:
            leaf = self.slot[i] - 1
            if (
                self.start[leaf + 1] - self.start[leaf] == length
                and memcmp(self.text + self.start[leaf], text, length) == 0
            ):
                return leaf
            i = (i + 1) & (self.n_slots - 1)
        return -1

    cdef int index(self) except -1:
        """Fill the table for `find`."""
        cdef int64_t n_slots = 8, i
        cdef index_t leaf
        cdef index_t* slot
        while n_slots < 2 * <int64_t>self.n:
            n_slots *= 2
        slot = <index_t*>calloc(n_slots, sizeof(index_t))
        if slot == NULL:
            raise OutOfMemory(f"no memory to look up {self.n} names")
        for leaf in range(self.n):
            i = PyObject_Hash(self.get(leaf)) & (n_slots - 1)
            while slot[i]:
                i = (i + 1) & (n_slots - 1)
            slot[i] = leaf + 1
        self.n_slots = n_slots
        self.slot = slot
        return 0

    cdef int64_t nbytes(self) noexcept:
        return (
            self.start[self.n] + (<int64_t>self.n + 1) * sizeof(int64_t)
            + self.n_slots * sizeof(index_t)
        )


cdef Names names_make(list names, const index_t* order, index_t n):
    cdef Names out = Names()
    cdef index_t i
    cdef int64_t total = 0
    cdef bytes one
    out.n = n
    out.start = <int64_t*>malloc((<size_t>n + 1) * sizeof(int64_t))
    for i in range(n):
        total += len(utf8(names[order[i]]))
    out.text = <char*>malloc(total + 1)
    if out.start == NULL or out.text == NULL:
        raise OutOfMemory(f"no memory for {n} names")
    out.start[0] = 0
    for i in range(n):
        one = utf8(names[order[i]])
        memcpy(out.text + out.start[i], <const char*>one, len(one))
        out.start[i + 1] = out.start[i] + len(one)
    return out
