"""Building the arrays of a trie; see the .pxd."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from ._types cimport DEPTH_BITS, index_t, node_t, token_t, trie_t

cdef extern from "_bits.h":
    void eliza_prefetch(const void* x) noexcept nogil

cdef enum:
    LEAF_BIT = 0x80000000
    AHEAD = 8                # leaves to ask ahead for

cdef struct draft_t:         # nodes in the order in which they are met
    index_t n
    index_t *depth           # bit 31: a leaf ends here
    index_t *lo
    index_t *hi
    index_t *parent
    index_t *closed          # the nodes again, each after all that lie below it
    index_t *number          # the breadth-first number


cdef bint draft_alloc(draft_t* d, index_t n) noexcept nogil:
    cdef size_t room = <size_t>n * 2 * sizeof(index_t)  # root, leaves, n - 1 branchings
    d.n = 0
    d.depth = <index_t*>malloc(room)
    d.lo = <index_t*>malloc(room)
    d.hi = <index_t*>malloc(room)
    d.parent = <index_t*>malloc(room)
    d.closed = <index_t*>malloc(room)
    d.number = <index_t*>malloc(room)
    return (
        d.depth != NULL and d.lo != NULL and d.hi != NULL
        and d.parent != NULL and d.closed != NULL and d.number != NULL
    )


cdef void draft_free(draft_t* d) noexcept nogil:
    free(d.depth)
    free(d.lo)
    free(d.hi)
    free(d.parent)
    free(d.closed)
    free(d.number)


cdef inline index_t draft_add(draft_t* d, index_t depth, index_t lo) noexcept nogil:
    d.depth[d.n] = depth
    d.lo[d.n] = lo
    d.n += 1
    return d.n - 1


cdef void draft_nodes(
    draft_t* d, index_t n, const index_t* pool_start, const index_t* lcp,
    index_t* stack,
) noexcept nogil:
    """Walk over the sorted leaves; the stack holds the path to the last one."""
    cdef index_t i, shared, last, top = 0, n_closed = 0
    stack[0] = draft_add(d, 0, 0)
    d.parent[0] = 0
    for i in range(n + 1):
        shared = lcp[i] if i < n else 0
        while (d.depth[stack[top]] & DEPTH_BITS) > shared:
            last = stack[top]
            top -= 1
            d.hi[last] = i
            d.closed[n_closed] = last
            n_closed += 1
            if (d.depth[stack[top]] & DEPTH_BITS) < shared:
                top += 1
                stack[top] = draft_add(d, shared, d.lo[last])
            d.parent[last] = stack[top]
        if i < n:
            top += 1
            stack[top] = draft_add(
                d, (pool_start[i + 1] - pool_start[i] + lcp[i]) | LEAF_BIT, i
            )
    d.hi[0] = n
    d.closed[n_closed] = 0


cdef bint draft_number(draft_t* d) noexcept nogil:
    """Number the nodes breadth first: a counting sort by level."""
    cdef index_t i, x, level, total, count, deepest = 0
    cdef index_t* first = <index_t*>calloc(<size_t>d.n + 1, sizeof(index_t))
    if first == NULL:
        return False
    d.number[0] = 0
    first[0] = 1
    for i in range(1, d.n):  # backwards through `closed`: parents come first
        x = d.closed[d.n - 1 - i]
        level = d.number[d.parent[x]] + 1
        d.number[x] = level
        first[level] += 1
        if level > deepest:
            deepest = level
    total = 0
    for i in range(deepest + 1):
        count = first[i]
        first[i] = total
        total += count
    for i in range(d.n):     # forwards: within a level, from left to right
        x = d.closed[i]
        level = d.number[x]
        d.number[x] = first[level]
        first[level] += 1
    free(first)
    return True


cdef bint pool_fill(
    trie_t* t, const token_t* ids, const int64_t* start, const index_t* order,
    const index_t* lcp, index_t* pool_start,
) noexcept nogil:
    """Copy of each leaf what the leaf before does not start with.

    In sorted order the input is read all over the place. Asking ahead, here and in the
    sort, brings a build of a million leaves from 200 ms to 110.
    """
    cdef int64_t total = 0, length
    cdef index_t i, n = t.n_leaves
    for i in range(n):
        if i + AHEAD < n:
            eliza_prefetch(start + order[i + AHEAD])
        length = start[order[i] + 1] - start[order[i]]
        if length > t.max_depth:
            t.max_depth = <index_t>length
        pool_start[i] = <index_t>total
        total += length - lcp[i]
    pool_start[n] = <index_t>total
    t.n_pool = <index_t>total
    t.pool = <token_t*>malloc(total * sizeof(token_t))
    if t.pool == NULL:
        return False
    for i in range(n):
        if i + 2 * AHEAD < n:
            eliza_prefetch(start + order[i + 2 * AHEAD])
        if i + AHEAD < n:
            eliza_prefetch(ids + start[order[i + AHEAD]] + lcp[i + AHEAD])
        memcpy(
            t.pool + pool_start[i], ids + start[order[i]] + lcp[i],
            (pool_start[i + 1] - pool_start[i]) * sizeof(token_t),
        )
    return True


cdef bint nodes_fill(
    trie_t* t, const draft_t* d, const index_t* lcp, const index_t* pool_start
) noexcept nogil:
    """Write the nodes at their final numbers."""
    cdef index_t i, x, p, lo, next_child = 1, n = d.n
    cdef node_t* node
    t.n_nodes = n
    t.node = <node_t*>malloc((<size_t>n + 1) * sizeof(node_t))
    t.key = <token_t*>malloc(n * sizeof(token_t))
    t.leaf_node = <index_t*>malloc(t.n_leaves * sizeof(index_t))
    if t.node == NULL or t.key == NULL or t.leaf_node == NULL:
        return False
    for i in range(n):
        x = d.closed[i]
        p = d.parent[x]
        lo = d.lo[x]
        node = t.node + d.number[x]
        node.lo = lo
        node.hi = d.hi[x]
        node.depth = d.depth[x]
        node.parent = d.number[p]
        node.run = pool_start[lo] + (d.depth[p] & DEPTH_BITS) - lcp[lo]
        t.key[d.number[x]] = t.pool[node.run]
        if d.depth[x] & LEAF_BIT:
            t.leaf_node[lo] = d.number[x]
    t.key[0] = -1
    t.node[n].run = t.n_pool
    t.node[n].depth = 0
    t.node[n].lo = t.node[n].hi = t.n_leaves
    t.node[n].parent = 0
    # The blocks of children lie in the order of their parents.
    for i in range(n):
        t.node[i].child = next_child
        while next_child < n and t.node[next_child].parent == i:
            next_child += 1
    t.node[n].child = n
    return inner_fill(t)


cdef inline bint is_inner(const node_t* n) noexcept nogil:
    return n.depth & LEAF_BIT and n.hi - n.lo > 1


cdef bint inner_fill(trie_t* t) noexcept nogil:
    """List the nodes at which a leaf ends that others continue."""
    cdef index_t i, count = 0
    for i in range(t.n_nodes):
        count += is_inner(t.node + i)
    if count == 0:
        return True
    t.inner = <index_t*>malloc(count * sizeof(index_t))
    if t.inner == NULL:
        return False
    for i in range(t.n_nodes):
        if is_inner(t.node + i):
            t.inner[t.n_inner] = i
            t.n_inner += 1
    return True


cdef int trie_build(
    trie_t* trie, const token_t* ids, const int64_t* start, index_t n,
    const index_t* order, const index_t* lcp,
) noexcept nogil:
    cdef draft_t draft
    cdef bint ok
    cdef index_t* pool_start = <index_t*>malloc((<size_t>n + 1) * sizeof(index_t))
    cdef index_t* stack = <index_t*>malloc((<size_t>n + 2) * sizeof(index_t))
    trie.n_leaves = n
    trie.trusted = True
    ok = draft_alloc(&draft, n) and pool_start != NULL and stack != NULL
    ok = ok and pool_fill(trie, ids, start, order, lcp, pool_start)
    if ok:
        draft_nodes(&draft, n, pool_start, lcp, stack)
        ok = draft_number(&draft) and nodes_fill(trie, &draft, lcp, pool_start)
    draft_free(&draft)
    free(pool_start)
    free(stack)
    return 0 if ok else -1


cdef void trie_free(trie_t* trie) noexcept nogil:
    free(trie.node)
    free(trie.key)
    free(trie.pool)
    free(trie.leaf_node)
    free(trie.inner)
    free(trie.exit_ids)
    free(trie.exit_start)
    memset(trie, 0, sizeof(trie_t))
