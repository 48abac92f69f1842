"""Tries and subsets of their leaves. Cursors are in `_cursor`, arrays in `_types`."""

cimport cython
from libc.stdint cimport int64_t

from ._cursor cimport Cursor
from ._ingest cimport Ids
from ._names cimport Names
from ._types cimport index_t, trie_t


@cython.final
cdef class Trie:
    # Immutable once made, `passed` aside.
    cdef trie_t t            # owned
    cdef Names name_table    # None: made without names
    cdef bytes tokenizer     # the tokenizer's fingerprint, or b""
    cdef Ids passed          # cursor exits that the last check found right, or None
    cdef object __weakref__

    cdef index_t leaf_of(self, object leaf) except? 0xFFFFFFFF


@cython.final
cdef class Subset:
    # Immutable once made, `passed` aside.
    cdef Trie whole
    cdef index_t *rank       # [n_leaves + 1] owned; permitted leaves before leaf i
    cdef Ids passed          # as in Trie
