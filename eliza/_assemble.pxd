"""From checked sequences to the arrays of a trie, with what names and exits demand."""

cimport cython

from ._ingest cimport Sequences
from ._types cimport index_t, trie_t


@cython.final
cdef class Order:
    # Where the leaves of a trie come from in the input; empty until `order_fill`.
    cdef index_t n
    cdef index_t *order      # [n] owned; place in the input of the first such sequence
    cdef index_t *lcp        # [n] owned; ids shared with the leaf before

# Sort sequences; equal ones still stand side by side.
cdef int order_fill(Order out, Sequences leaves) except -1

# Build into `t`, all zero before; the caller frees, also after an error. `order` is
# filled, or already is.
# `exits` is None, Ids that every leaf has, or a dict from places in the input to Ids.
# InvalidArgument for two names of one sequence and two sequences of one name.
cdef int assemble(
    Sequences leaves, object exits, Order order, trie_t* t
) except -1
