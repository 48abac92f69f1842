"""Subsets of the leaves of a trie, as counts of permitted leaves."""

cimport cython

from ._ingest cimport Ids
from ._names cimport Names
from ._types cimport index_t, trie_t


@cython.final
cdef class Subset:
    # Immutable once made, `passed` aside.
    cdef object whole        # the Trie; it owns t and names
    cdef const trie_t *t
    cdef Names names         # or None
    cdef index_t *rank       # [n_leaves + 1] owned; permitted leaves before leaf i
    cdef Ids passed          # cursor exits that the last check found right, or None


# From whatever a caller may give as allow=. InvalidArgument, InvalidType.
cdef Subset subset_make(object trie, const trie_t* t, Names names, object allow)
