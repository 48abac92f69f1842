"""Checking the arrays of a trie; see the .pxd."""

from libc.stdint cimport uint64_t

from ._types cimport DEPTH_BITS, index_t, node_t, token_t, trie_t

from .errors import BundleError


cdef object damaged():
    return BundleError(
        "the trie's file is damaged: its arrays contradict each other; make it anew"
    )


cdef bint ids_check(
    const token_t* ids, uint64_t n, token_t n_vocab, bint sorted
) noexcept nogil:
    """Ids of the vocabulary, strictly ascending if so asked."""
    cdef uint64_t i
    for i in range(n):
        if not 0 <= ids[i] < n_vocab or (sorted and i and ids[i - 1] >= ids[i]):
            return False
    return True


cdef bint exits_check(const trie_t* t, index_t leaf) noexcept nogil:
    """The exits of one leaf; those of all are checked by `shared_check`, once."""
    cdef index_t first, end
    if t.exit_start == NULL:
        return True
    first = t.exit_start[leaf]
    end = t.exit_start[leaf + 1]
    return first <= end <= t.n_exit_ids and ids_check(
        t.exit_ids + first, end - first, t.n_vocab, True
    )


cdef bint shared_check(const trie_t* t) noexcept nogil:
    return t.exit_start != NULL or ids_check(
        t.exit_ids, t.n_exit_ids, t.n_vocab, True
    )


cdef bint inner_has(const trie_t* t, index_t i) noexcept nogil:
    """Whether node i is in the list of nodes where a leaf ends and others go on."""
    cdef index_t lo = 0, hi = t.n_inner, middle
    while lo < hi:
        middle = lo + ((hi - lo) >> 1)
        if t.inner[middle] < i:
            lo = middle + 1
        else:
            hi = middle
    return lo < t.n_inner and t.inner[lo] == i


cdef bint children_check(const trie_t* t, index_t i, bint is_leaf) noexcept nogil:
    """Children are mine, ascending by first id, and share out my leaves."""
    cdef const node_t* n = t.node + i
    cdef index_t c, end = (n + 1).child, leaf = n.lo + is_leaf
    for c in range(n.child, end):
        if t.node[c].parent != i or t.node[c].lo != leaf or t.node[c].hi <= leaf:
            return False
        leaf = t.node[c].hi
    return leaf == n.hi and ids_check(
        t.key + n.child, end - n.child, t.n_vocab, True
    )


cdef bint node_check(const trie_t* t, index_t i) noexcept nogil:
    cdef const node_t* n = t.node + i
    cdef index_t depth, above, run
    cdef bint is_leaf
    if i >= t.n_nodes:
        return False
    depth = n.depth & DEPTH_BITS
    is_leaf = n.depth > DEPTH_BITS
    if n.child <= i or n.child > (n + 1).child:
        return False
    if (n + 1).child > t.n_nodes or n.lo >= n.hi or n.hi > t.n_leaves:
        return False
    if i == 0:
        if depth or is_leaf or n.parent or n.child != 1 or n.lo or n.hi != t.n_leaves:
            return False
    else:
        if n.parent >= i:
            return False
        if not t.node[n.parent].child <= i < t.node[n.parent + 1].child:
            return False
        above = t.node[n.parent].depth & DEPTH_BITS
        run = depth - above
        if depth <= above or depth > t.max_depth or n.run > t.n_pool:
            return False
        if run > t.n_pool - n.run or t.key[i] != t.pool[n.run]:
            return False
        if not ids_check(t.pool + n.run, run, t.n_vocab, False):
            return False
    if is_leaf and t.leaf_node[n.lo] != i:
        return False
    if is_leaf and n.hi - n.lo > 1:
        if not inner_has(t, i) or not exits_check(t, n.lo):
            return False
    return children_check(t, i, is_leaf)


cdef bint leaf_check(const trie_t* t, index_t leaf) noexcept nogil:
    cdef index_t i = t.leaf_node[leaf]
    if not 0 < i < t.n_nodes or t.node[i].lo != leaf or not exits_check(t, leaf):
        return False
    if t.node[i].depth <= DEPTH_BITS:
        return False
    while i:
        if not node_check(t, i):
            return False
        i = t.node[i].parent
    return node_check(t, 0)


cdef bint trie_check(const trie_t* t) noexcept nogil:
    cdef index_t i, leaves = 0, inner = 0, deepest = 0
    if not shared_check(t):
        return False
    if t.node[t.n_nodes].child != t.n_nodes:
        return False
    for i in range(t.n_nodes):
        if not node_check(t, i):
            return False
        if i and t.node[i].child < t.node[i - 1].child:
            return False
        deepest = max(deepest, t.node[i].depth & DEPTH_BITS)
        if t.node[i].depth > DEPTH_BITS:
            leaves += 1
            inner += t.node[i].hi - t.node[i].lo > 1
            if not exits_check(t, t.node[i].lo):
                return False
    for i in range(1, t.n_inner):
        if t.inner[i - 1] >= t.inner[i]:
            return False
    if t.exit_start != NULL and (
        t.exit_start[0] != 0 or t.exit_start[t.n_leaves] != t.n_exit_ids
    ):
        return False
    # Each leaf has one node: the counts agree, and leaf_node leads to each of them.
    return leaves == t.n_leaves and inner == t.n_inner and deepest == t.max_depth
