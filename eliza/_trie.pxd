"""Tries. Their arrays are in `_types`, cursors in `_cursor`."""

cimport cython

from ._assemble cimport Order
from ._image cimport Image
from ._ingest cimport Ids, Sequences
from ._names cimport Names
from ._types cimport index_t, trie_t


@cython.final
cdef class Trie:
    # Immutable once made, `passed` aside.
    cdef trie_t t            # arrays owned, or parts of image
    cdef Image image         # None: built here
    cdef bint owned
    cdef Names name_table    # None: made without names
    cdef bytes tokenizer     # the tokenizer's fingerprint, or b""
    cdef Ids passed          # cursor exits that the last check found right, or None
    cdef object __weakref__

    cdef index_t leaf_of(self, object leaf) except? 0xFFFFFFFF

cdef bytes fingerprint_of(object fingerprint)

# From checked leaves, and exits as read_all_exits gives them; `order` is filled, or
# already is. Errors as in `assemble`.
cdef Trie trie_make(Sequences leaves, object exits, object fingerprint, Order order)
