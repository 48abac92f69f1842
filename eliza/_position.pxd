"""A position in a trie, and what it is bound to: all that needs no Python.

    bound_t    which trie, which of its leaves, which exit ids: shared by reference
    pos_t      where: 16 bytes, copied by value

Every function that takes both trusts them: the bound was checked when it was made
(`bound_check`), and a position is only changed by functions from here. In a trie from a
file each node is checked when a position enters it, before anything else is read there.

A leaf is *live* if the bound permits it. A point *may exit* where a live leaf ends and
other live ones go on: there its exit ids are allowed too. A position is *done* at the
end of a live leaf that no live one continues, or after an exit id.
"""

from libc.string cimport memcpy

from ._check cimport node_check
from ._types cimport DEPTH_BITS, index_t, node_t, token_t, trie_t

cdef struct bound_t:
    const trie_t *trie
    const index_t *rank      # [n_leaves + 1] live leaves before leaf i; NULL: all live
    const token_t *exits     # sorted, unique; they hold for each leaf beside its own
    index_t n_exits

cdef struct pos_t:           # 16 bytes
    index_t node             # the node into whose run the path leads, or at whose end
    index_t depth            # ids accepted, an exit id aside
    token_t exit             # the exit id accepted, or -1
    index_t done


# What became of a step.
cdef enum step_t:
    STEP_DAMAGED = -1        # the file that the trie is from is not what it was
    STEP_OFF = 0             # the id is not allowed; the position is unchanged
    STEP_DONE = 1


cdef inline index_t node_depth(const node_t* n) noexcept nogil:
    return n.depth & DEPTH_BITS


cdef inline bint node_is_leaf(const node_t* n) noexcept nogil:
    return n.depth > DEPTH_BITS


cdef inline index_t run_from(const trie_t* t, index_t i) noexcept nogil:
    """Return the depth at which the run into node i starts."""
    return node_depth(t.node + t.node[i].parent)


cdef inline index_t live(const bound_t* b, index_t lo, index_t hi) noexcept nogil:
    """Count the live leaves among [lo, hi)."""
    return hi - lo if b.rank == NULL else b.rank[hi] - b.rank[lo]


cdef inline bint live_leaf_at(const bound_t* b, const node_t* n) noexcept nogil:
    return node_is_leaf(n) and live(b, n.lo, n.lo + 1)


cdef inline bint may_exit(const bound_t* b, const node_t* n) noexcept nogil:
    return live_leaf_at(b, n) and live(b, n.lo, n.hi) > 1


cdef inline void pos_reset(pos_t* p) noexcept nogil:
    p.node = 0
    p.depth = 0
    p.exit = -1
    p.done = False


cdef inline index_t find_child(
    const trie_t* t, const node_t* n, token_t id
) noexcept nogil:
    """Return the child whose run starts with id, or 0, which is nobody's child."""
    cdef index_t lo = n.child, hi = (n + 1).child, middle
    while hi - lo > 8:       # the keys of eight children are half a cache line
        middle = (lo + hi) >> 1
        if t.key[middle] <= id:
            lo = middle
        else:
            hi = middle
    while lo < hi:
        if t.key[lo] == id:
            return lo
        lo += 1
    return 0


cdef inline bint has_id(const token_t* ids, index_t n, token_t id) noexcept nogil:
    cdef index_t lo = 0, hi = n, middle
    while lo < hi:
        middle = (lo + hi) >> 1
        if ids[middle] < id:
            lo = middle + 1
        else:
            hi = middle
    return lo < n and ids[lo] == id


cdef inline const token_t* leaf_exits(
    const trie_t* t, index_t leaf, index_t* n
) noexcept nogil:
    """Return the exit ids that a leaf has of its own, and how many."""
    if t.exit_start == NULL:
        n[0] = t.n_exit_ids
        return t.exit_ids
    n[0] = t.exit_start[leaf + 1] - t.exit_start[leaf]
    return t.exit_ids + t.exit_start[leaf]


cdef inline bint is_exit(const bound_t* b, index_t leaf, token_t id) noexcept nogil:
    cdef index_t n
    cdef const token_t* own = leaf_exits(b.trie, leaf, &n)
    return has_id(own, n, id) or has_id(b.exits, b.n_exits, id)


cdef inline bint may_enter(const trie_t* t, index_t i) noexcept nogil:
    return t.trusted or node_check(t, i)


cdef inline step_t pos_accept(const bound_t* b, pos_t* p, token_t id) noexcept nogil:
    """Go on by id. The position is only changed by STEP_DONE."""
    cdef const trie_t* t = b.trie
    cdef const node_t* n = t.node + p.node
    cdef index_t child
    if p.done:
        return STEP_OFF
    if p.depth < node_depth(n):
        if t.pool[n.run + p.depth - run_from(t, p.node)] != id:
            return STEP_OFF
    else:
        child = find_child(t, n, id)
        if child and live(b, t.node[child].lo, t.node[child].hi):
            if not may_enter(t, child):
                return STEP_DAMAGED
            p.node = child
            n = t.node + child
        elif may_exit(b, n) and is_exit(b, n.lo, id):
            p.exit = id
            p.done = True
            return STEP_DONE
        else:
            return STEP_OFF
    p.depth += 1
    p.done = (
        p.depth == node_depth(n) and live_leaf_at(b, n) and live(b, n.lo, n.hi) == 1
    )
    return STEP_DONE


cdef inline index_t pos_length(const pos_t* p) noexcept nogil:
    """Count the ids accepted, an exit id included."""
    return p.depth + (p.exit >= 0)


cdef inline void pos_rollback(const bound_t* b, pos_t* p, index_t count) noexcept nogil:
    """Take back the last ids; at most pos_length of them."""
    if count == 0:
        return
    if p.exit >= 0:
        p.exit = -1
        count -= 1
    p.done = False           # what lies before the end is not the end
    p.depth -= count
    while p.node and p.depth <= run_from(b.trie, p.node):
        p.node = b.trie.node[p.node].parent


cdef inline index_t rank_find(
    const index_t* rank, index_t lo, index_t hi, index_t wanted
) noexcept nogil:
    """Return the live leaf in [lo, hi) before which there are `wanted` live ones."""
    cdef index_t middle
    while hi - lo > 1:
        middle = lo + ((hi - lo) >> 1)
        if rank[middle] <= wanted:
            lo = middle
        else:
            hi = middle
    return lo


cdef inline index_t child_with(
    const trie_t* t, const node_t* n, index_t leaf
) noexcept nogil:
    """Return the child that a leaf below n lies at or under."""
    cdef index_t lo = n.child, hi = (n + 1).child, middle
    while hi - lo > 1:
        middle = (lo + hi) >> 1
        if t.node[middle].lo <= leaf:
            lo = middle
        else:
            hi = middle
    return lo


cdef inline index_t only_child(const bound_t* b, const node_t* n) noexcept nogil:
    """Return the one child with live leaves, or 0 if there are none or several."""
    cdef const trie_t* t = b.trie
    cdef index_t first, last, child
    if b.rank == NULL:
        return n.child if (n + 1).child - n.child == 1 else 0
    if live(b, n.lo, n.hi) == 0:
        return 0
    # Through the first and the last live leaf: a node may have 100,000 children.
    first = rank_find(b.rank, n.lo, n.hi, b.rank[n.lo])
    last = rank_find(b.rank, n.lo, n.hi, b.rank[n.hi] - 1)
    child = child_with(t, n, first)
    return child if last < t.node[child].hi else 0


# Move to where the next choice or a possible exit is; False if the trie is damaged.
cdef bint pos_force(const bound_t* b, pos_t* p) noexcept nogil

# The most ids that may be allowed at p.
cdef index_t pos_room(const bound_t* b, const pos_t* p) noexcept nogil

# Write the allowed ids, sorted, to out[pos_room]; returns how many. For positions at
# which pos_span says no.
cdef index_t pos_gather(
    const bound_t* b, const pos_t* p, token_t* out
) noexcept nogil

# For each id allowed at p, the leaf that it completes, or -1; False if the trie is
# damaged.
cdef bint pos_completes(
    const bound_t* b, const pos_t* p, const token_t* ids, index_t n, token_t* out
) noexcept nogil


cdef inline bint pos_span(
    const bound_t* b, const pos_t* p, const token_t** ids, index_t* n
) noexcept nogil:
    """Point at the allowed ids where they stand in the trie as one piece.

    True in a run, at the end, and at a branching point of a bound to all leaves that
    may not exit; else the ids have to be gathered.
    """
    cdef const trie_t* t = b.trie
    cdef const node_t* node = t.node + p.node
    if p.done:
        n[0] = 0
        return True
    if p.depth < node_depth(node):
        ids[0] = t.pool + node.run + p.depth - run_from(t, p.node)
        n[0] = 1
        return True
    ids[0] = t.key + node.child
    n[0] = (node + 1).child - node.child
    return b.rank == NULL and not node_is_leaf(node)


cdef inline void path_copy(
    const trie_t* t, index_t node, index_t first, index_t last, token_t* out
) noexcept nogil:
    """Write the ids of the path through a node from depth `first` up to `last`."""
    cdef index_t start, base
    while last > first:
        base = run_from(t, node)
        if last > base:
            start = max(base, first)
            memcpy(
                out + (start - first), t.pool + t.node[node].run + (start - base),
                (last - start) * sizeof(token_t),
            )
            last = start
        node = t.node[node].parent


# Why cursors cannot be made for a bound.
cdef enum bound_fault:
    BOUND_OK
    BOUND_NO_EXIT            # leaf, which others continue, has no exit id
    BOUND_CONFLICT           # exit id of leaf also leads on to leaf `other`
    BOUND_DAMAGED            # the file that the trie is from is not what it was

cdef bound_fault bound_check(
    const bound_t* b, index_t* leaf, index_t* other, token_t* id
) noexcept nogil
