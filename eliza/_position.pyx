"""The larger functions on positions; see the .pxd."""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from ._types cimport index_t, node_t, token_t, trie_t

cdef enum:
    SPARSE = 16              # fewer live leaves than children / 16: look each one up


cdef bint pos_force(const bound_t* b, pos_t* p) noexcept nogil:
    cdef const node_t* n = b.trie.node + p.node
    cdef index_t child
    while not p.done:
        if p.depth == node_depth(n):
            if may_exit(b, n):
                return True
            child = only_child(b, n)
            if child == 0:
                return True
            if not may_enter(b.trie, child):
                return False
            p.node = child
            n = b.trie.node + child
        p.depth = node_depth(n)
        p.done = live_leaf_at(b, n) and live(b, n.lo, n.hi) == 1
    return True


cdef index_t pos_room(const bound_t* b, const pos_t* p) noexcept nogil:
    cdef const node_t* n = b.trie.node + p.node
    cdef index_t room = (n + 1).child - n.child + 1, own
    if may_exit(b, n):
        leaf_exits(b.trie, n.lo, &own)
        room += own + b.n_exits
    return room


cdef inline index_t keys_live(
    const node_t* child, const token_t* key, int64_t n, const index_t* rank,
    index_t before, token_t* out,
) noexcept nogil:
    """Write the keys of those of n neighbours that have live leaves.

    They share out the leaves of their parent in order: what is live before the end of
    one is live before the next, `before` before the first. Without a branch and four
    at a time, 0.6 ns for each; one at a time it is 0.75, counting both ends 1.0.
    """
    cdef int64_t i = 0, count = 0
    cdef index_t first, second, third, fourth
    while n - i >= 4:
        first = rank[child[i].hi]
        second = rank[child[i + 1].hi]
        third = rank[child[i + 2].hi]
        fourth = rank[child[i + 3].hi]
        out[count] = key[i]
        count += first != before
        out[count] = key[i + 1]
        count += second != first
        out[count] = key[i + 2]
        count += third != second
        out[count] = key[i + 3]
        count += fourth != third
        before = fourth
        i += 4
    while i < n:
        first = rank[child[i].hi]
        out[count] = key[i]
        count += first != before
        before = first
        i += 1
    return <index_t>count


cdef index_t children_gather(
    const bound_t* b, const node_t* n, token_t* out
) noexcept nogil:
    """Write the first ids of the children with live leaves."""
    cdef const trie_t* t = b.trie
    cdef index_t i, end = (n + 1).child, count = 0, leaf = n.lo
    if b.rank == NULL:
        count = end - n.child
        memcpy(out, t.key + n.child, count * sizeof(token_t))
    elif live(b, n.lo, n.hi) < (end - n.child) // SPARSE:
        # 30 permitted of 100,000 children: 30 look-ups, not a pass over them all.
        leaf = n.lo + node_is_leaf(n)
        while live(b, leaf, n.hi):
            leaf = rank_find(b.rank, leaf, n.hi, b.rank[leaf])
            i = child_with(t, n, leaf)
            out[count] = t.key[i]
            count += 1
            leaf = t.node[i].hi
    else:
        count = keys_live(
            t.node + n.child, t.key + n.child, end - n.child, b.rank,
            b.rank[leaf + node_is_leaf(n)], out,
        )
    return count


cdef index_t pos_gather(
    const bound_t* b, const pos_t* p, token_t* out
) noexcept nogil:
    cdef const node_t* n = b.trie.node + p.node
    cdef const token_t* own
    cdef const token_t* keys
    cdef index_t n_own = 0, n_keys, i = 0, j = 0, k = 0, count = 0
    cdef token_t id
    if not may_exit(b, n):
        return children_gather(b, n, out)
    own = leaf_exits(b.trie, n.lo, &n_own)
    # Merge in place: the keys wait behind room for all exit ids, so that writing never
    # overtakes reading.
    keys = out + n_own + b.n_exits
    n_keys = children_gather(b, n, out + n_own + b.n_exits)
    while i < n_keys or j < n_own or k < b.n_exits:
        id = 0x7FFFFFFF
        if i < n_keys:
            id = keys[i]
        if j < n_own:
            id = min(id, own[j])
        if k < b.n_exits:
            id = min(id, b.exits[k])
        i += i < n_keys and keys[i] == id
        j += j < n_own and own[j] == id
        k += k < b.n_exits and b.exits[k] == id
        out[count] = id
        count += 1
    return count


cdef bint pos_completes(
    const bound_t* b, const pos_t* p, const token_t* ids, index_t n, token_t* out
) noexcept nogil:
    cdef pos_t next
    cdef index_t i
    for i in range(n):
        next = p[0]
        if pos_accept(b, &next, ids[i]) == STEP_DAMAGED:
            return False
        out[i] = <token_t>b.trie.node[next.node].lo if next.done else -1
    return True


cdef index_t conflicting(
    const bound_t* b, const node_t* n, const token_t* ids, index_t count
) noexcept nogil:
    """Return which of ids also leads on from n, or `count`."""
    cdef index_t i, child
    for i in range(count):
        child = find_child(b.trie, n, ids[i])
        if child and live(b, b.trie.node[child].lo, b.trie.node[child].hi):
            return i
    return count


cdef bound_fault bound_check(
    const bound_t* b, index_t* leaf, index_t* other, token_t* id
) noexcept nogil:
    cdef const trie_t* t = b.trie
    cdef const node_t* n
    cdef const token_t* own
    cdef index_t i, at, child, n_own
    if not may_enter(t, 0):
        return BOUND_DAMAGED
    for i in range(t.n_inner):
        if not may_enter(t, t.inner[i]):
            return BOUND_DAMAGED
        n = t.node + t.inner[i]
        if not may_exit(b, n):
            continue
        leaf[0] = n.lo
        own = leaf_exits(t, n.lo, &n_own)
        if n_own + b.n_exits == 0:
            return BOUND_NO_EXIT
        at = conflicting(b, n, own, n_own)
        if at < n_own:
            id[0] = own[at]
        else:
            at = conflicting(b, n, b.exits, b.n_exits)
            if at == b.n_exits:
                continue
            id[0] = b.exits[at]
        child = find_child(t, n, id[0])
        other[0] = t.node[child].lo
        if b.rank != NULL:
            other[0] = rank_find(
                b.rank, t.node[child].lo, t.node[child].hi, b.rank[t.node[child].lo]
            )
        return BOUND_CONFLICT
    return BOUND_OK
