"""What a cursor is bound to, checked; see the .pxd."""

cimport cython

from ._check cimport damaged
from ._ingest cimport Ids, label
from ._position cimport (
    BOUND_CONFLICT,
    BOUND_DAMAGED,
    BOUND_NO_EXIT,
    bound_check,
    bound_fault,
)
from ._types cimport index_t, token_t, trie_t

from .errors import InvalidArgument


@cython.no_gc  # can be in no cycle: nothing here refers back
@cython.auto_pickle(False)
cdef class Bound:
    pass


cdef str leaf_label(object trie, index_t leaf):
    name = trie.name(leaf)
    return label("leaf", leaf if name is None else name)


cdef Bound bind(
    object trie, const trie_t* t, object subset, const index_t* rank, Ids exits
):
    cdef Bound bound = Bound()
    bound.trie = trie
    bound.subset = subset
    bound.exits = exits
    bound.b.trie = t
    bound.b.rank = rank
    bound.b.exits = exits.data
    bound.b.n_exits = <index_t>exits.n
    return bound


cdef int bound_verify(Bound bound) except -1:
    cdef index_t leaf = 0, other = 0
    cdef token_t id = 0
    cdef bound_fault fault = bound_check(&bound.b, &leaf, &other, &id)
    if fault == BOUND_DAMAGED:
        raise damaged()
    if fault == BOUND_NO_EXIT:
        raise InvalidArgument(
            f"{leaf_label(bound.trie, leaf)} is the beginning of other leaves and has "
            "no exit id, so it could never come out: give exits="
        )
    if fault == BOUND_CONFLICT:
        raise InvalidArgument(
            f"exit id {id} of {leaf_label(bound.trie, leaf)} also leads on to "
            f"{leaf_label(bound.trie, other)}"
        )
    return 0
