"""From checked sequences to the arrays and names of a trie; see the .pxd."""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

from ._build cimport trie_build
from ._ingest cimport Ids, Sequences, label
from ._sort cimport LCP_EQUAL, leaves_sort, leaves_squeeze
from ._types cimport index_t, token_t, trie_t

from .errors import InvalidArgument, OutOfMemory


@cython.auto_pickle(False)
cdef class Order:
    def __dealloc__(self):
        free(self.order)
        free(self.lcp)


cdef int order_fill(Order out, Sequences leaves) except -1:
    cdef int64_t n = leaves.n
    cdef int64_t equal
    cdef int bits = 1
    if n >= 2**31 - 1 or leaves.start[n] >= 2**32 - 1:
        raise InvalidArgument(
            f"a trie holds up to 2**31 - 2 leaves of 2**32 - 2 ids in all; got {n} of "
            f"{leaves.start[n]}"
        )
    while (<int64_t>1 << bits) <= leaves.n_vocab:
        bits += 1
    out.n = <index_t>n
    out.order = <index_t*>malloc(n * sizeof(index_t))
    out.lcp = <index_t*>malloc(n * sizeof(index_t))
    equal = -1
    if out.order != NULL and out.lcp != NULL:
        with nogil:
            equal = leaves_sort(
                leaves.ids, leaves.start, out.n, bits, out.order, out.lcp
            )
    if equal < 0:
        raise OutOfMemory(f"no memory to sort {n} leaves")
    return 0


cdef int names_check(Sequences leaves) except -1:
    """Refuse a name that stands for two different sequences."""
    cdef const int64_t* start = leaves.start
    cdef int64_t i, j, length
    cdef dict first = {}
    if <int64_t>len(set(leaves.names)) == leaves.n:
        return 0
    for i in range(leaves.n):
        j = first.setdefault(leaves.names[i], i)
        length = start[i + 1] - start[i]
        if j != i and not (
            length == start[j + 1] - start[j]
            and memcmp(
                leaves.ids + start[i], leaves.ids + start[j], length * sizeof(token_t)
            ) == 0
        ):
            raise InvalidArgument(
                f"{label('leaf', leaves.names[i])} is given twice with different ids: "
                f"at {j} and at {i}"
            )
    return 0


cdef int equal_check(Order order, list names) except -1:
    """Refuse two names for one sequence."""
    cdef index_t i
    for i in range(order.n):
        if order.lcp[i] == LCP_EQUAL:
            one = names[order.order[i - 1]]
            two = names[order.order[i]]
            if one != two:
                raise InvalidArgument(
                    f"{label('leaf', one)} and {label('leaf', two)} have the same ids"
                )
    return 0


cdef dict exits_by_leaf(Order order, dict exits):
    """Move exits from places in the input to leaf numbers; equal leaves share."""
    cdef dict out = {}
    cdef index_t i
    cdef int64_t leaf = -1
    for i in range(order.n):
        leaf += order.lcp[i] != LCP_EQUAL
        ids = exits.get(order.order[i])
        if ids is not None:
            out.setdefault(leaf, []).append(ids)
    return out


cdef int exits_store(trie_t* t, dict by_leaf) except -1:
    """Write the exits of single leaves into the trie."""
    cdef dict merged = {}
    cdef Ids ids, part
    cdef index_t leaf
    cdef int64_t total = 0
    for number, parts in by_leaf.items():
        ids = Ids()
        for part in parts:
            ids.add(part)
        ids.sort()
        merged[number] = ids
        total += ids.n
    if total == 0:
        return 0
    if total >= 2**32 - 1:
        raise InvalidArgument(f"a trie holds up to 2**32 - 2 exit ids; got {total}")
    t.exit_ids = <token_t*>malloc(total * sizeof(token_t))
    t.exit_start = <index_t*>malloc((<size_t>t.n_leaves + 1) * sizeof(index_t))
    if t.exit_ids == NULL or t.exit_start == NULL:
        raise OutOfMemory(f"no memory for {total} exit ids")
    for leaf in range(t.n_leaves):
        t.exit_start[leaf] = t.n_exit_ids
        ids = merged.get(leaf)
        if ids is not None and ids.n:
            memcpy(t.exit_ids + t.n_exit_ids, ids.data, ids.n * sizeof(token_t))
            t.n_exit_ids += <index_t>ids.n
    t.exit_start[t.n_leaves] = t.n_exit_ids
    return 0


cdef int exits_store_shared(trie_t* t, Ids ids) except -1:
    """Write exits that every leaf has into the trie."""
    if ids.n == 0:
        return 0
    t.exit_ids = <token_t*>malloc(ids.n * sizeof(token_t))
    if t.exit_ids == NULL:
        raise OutOfMemory(f"no memory for {ids.n} exit ids")
    memcpy(t.exit_ids, ids.data, ids.n * sizeof(token_t))
    t.n_exit_ids = <index_t>ids.n
    return 0


cdef int assemble(
    Sequences leaves, object exits, Order order, trie_t* t
) except -1:
    cdef dict by_leaf = None
    cdef int failed
    if leaves.names is not None and not leaves.distinct:
        names_check(leaves)
    if order.order == NULL:
        order_fill(order, leaves)
    if leaves.names is not None:
        equal_check(order, leaves.names)
    if type(exits) is dict:
        by_leaf = exits_by_leaf(order, exits)
    t.n_vocab = <token_t>leaves.n_vocab
    with nogil:
        order.n = leaves_squeeze(order.n, order.order, order.lcp)
        failed = trie_build(
            t, leaves.ids, leaves.start, order.n, order.order, order.lcp
        )
    if failed:
        raise OutOfMemory(f"no memory for a trie of {order.n} leaves")
    if by_leaf is not None:
        exits_store(t, by_leaf)
    elif exits is not None:
        exits_store_shared(t, exits)
    return 0
