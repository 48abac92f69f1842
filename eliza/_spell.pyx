"""Walking the bytes of texts by ids; see the .pxd."""

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, realloc
from libc.string cimport memset

from ._pieces cimport pieces_at, pieces_t
from ._position cimport (
    find_child,
    has_id,
    live,
    node_depth,
    node_is_leaf,
    pos_accept,
    pos_rollback,
    pos_t,
    run_from,
)
from ._types cimport index_t, node_t, token_t, trie_t

cdef extern from "_bits.h":
    int eliza_clz64(uint64_t x) noexcept nogil


cdef bint spell_accept(const spell_t* s, pos_t* p, token_t id) noexcept nogil:
    cdef pos_t next = p[0]
    cdef int64_t i
    cdef index_t leaf = 0, possible
    if p.done:
        return False
    if spell_may_exit(s, p) and has_id(s.exits, s.n_exits, id):
        p.exit = id
        p.done = True
        return True
    for i in range(s.pieces.start[id], s.pieces.start[id + 1]):
        if not pos_accept(&s.texts, &next, s.pieces.text[i]):
            return False
    if next.depth == p.depth:
        return False
    possible = spell_possible(s, next.node, next.depth, 2, &leaf)
    if possible == 0:
        return False
    next.done = possible == 1 and next.depth >= s.end[leaf]
    p[0] = next
    return True


cdef void spell_rollback(
    const spell_t* s, pos_t* p, const token_t* ids, index_t count
) noexcept nogil:
    cdef index_t i, units = 0
    for i in range(count):
        if p.exit >= 0 and i == count - 1:
            units += 1       # the exit id, the last of all
        else:
            units += <index_t>(s.pieces.start[ids[i] + 1] - s.pieces.start[ids[i]])
    pos_rollback(&s.texts, p, units)


cdef int stack_grow(scratch_t* scratch, index_t room) noexcept nogil:
    cdef pair_t* grown
    if room <= scratch.room:
        return 0
    room = max(room, 2 * scratch.room)
    grown = <pair_t*>realloc(scratch.stack, room * sizeof(pair_t))
    if grown == NULL:
        return -1
    scratch.stack = grown
    scratch.room = room
    return 0


cdef index_t pair_fork(
    const spell_t* s, const node_t* piece, const pair_t* pair, pair_t* out
) noexcept nogil:
    """Write the pairs of children that start with the same byte; at most 256."""
    cdef const trie_t* v = s.pieces.trie
    cdef const trie_t* t = s.texts.trie
    cdef const node_t* text = t.node + pair.node
    cdef index_t i = piece.child, j = text.child, count = 0
    cdef index_t i_end = (piece + 1).child, j_end = (text + 1).child
    while i < i_end and j < j_end:
        if v.key[i] < t.key[j]:
            i += 1
        elif v.key[i] > t.key[j]:
            j += 1
        else:
            if live(&s.texts, t.node[j].lo, t.node[j].hi):
                out[count].piece = i
                out[count].node = j
                out[count].depth = pair.depth + 1
                count += 1
            i += 1
            j += 1
    return count


cdef bint pair_step(
    const spell_t* s, const node_t* piece, pair_t* pair, index_t base
) noexcept nogil:
    """Go on by the one byte that one of the two allows; False if the other does not."""
    cdef const trie_t* v = s.pieces.trie
    cdef const trie_t* t = s.texts.trie
    cdef const node_t* text = t.node + pair.node
    cdef index_t depth = pair.depth - base, child
    cdef token_t wanted = -1
    if pair.depth < node_depth(text):
        wanted = t.pool[text.run + pair.depth - run_from(t, pair.node)]
    if depth == node_depth(piece):
        child = find_child(v, piece, wanted)
        if child == 0:
            return False
        pair.piece = child
    elif wanted < 0:
        child = find_child(
            t, text, v.pool[piece.run + depth - run_from(v, pair.piece)]
        )
        if child == 0 or not live(&s.texts, t.node[child].lo, t.node[child].hi):
            return False
        pair.node = child
    elif v.pool[piece.run + depth - run_from(v, pair.piece)] != wanted:
        return False
    pair.depth += 1
    return True


cdef void piece_mark(
    const pieces_t* pieces, index_t piece, uint64_t* bits, int64_t* count
) noexcept nogil:
    cdef index_t i
    for i in range(pieces.ids_start[piece], pieces.ids_start[piece + 1]):
        bits[pieces.ids[i] >> 6] |= <uint64_t>1 << (pieces.ids[i] & 63)
        count[0] += 1


cdef int64_t spell_mark(
    const spell_t* s, const pos_t* p, scratch_t* scratch
) noexcept nogil:
    # Depth first through both tries at once: what is visited are beginnings of pieces
    # that the texts go on with.
    cdef const node_t* piece
    cdef pair_t pair
    cdef index_t height = 1, i
    cdef int64_t count = 0, words = (s.pieces.n_vocab >> 6) + 1
    if p.done:
        return 0
    if scratch.bits == NULL:
        scratch.bits = <uint64_t*>calloc(words, sizeof(uint64_t))
    if scratch.bits == NULL or stack_grow(scratch, 1) < 0:
        return -1
    scratch.stack[0].piece = 0
    scratch.stack[0].node = p.node
    scratch.stack[0].depth = p.depth
    while height:
        height -= 1
        pair = scratch.stack[height]
        while True:
            piece = s.pieces.trie.node + pair.piece
            if pair.depth - p.depth == node_depth(piece):
                if node_is_leaf(piece) and spell_viable(s, pair.node, pair.depth):
                    piece_mark(s.pieces, piece.lo, scratch.bits, &count)
                if pair.depth == node_depth(s.texts.trie.node + pair.node):
                    if stack_grow(scratch, height + 256) < 0:
                        memset(scratch.bits, 0, words * sizeof(uint64_t))
                        return -1
                    height += pair_fork(s, piece, &pair, scratch.stack + height)
                    break
            if not pair_step(s, piece, &pair, p.depth):
                break
    if spell_may_exit(s, p):
        for i in range(s.n_exits):
            scratch.bits[s.exits[i] >> 6] |= <uint64_t>1 << (s.exits[i] & 63)
        count += s.n_exits
    return count


cdef void marks_take(scratch_t* scratch, token_t n_vocab, token_t* out) noexcept nogil:
    cdef uint64_t word, low
    cdef token_t i
    cdef int64_t n = 0
    for i in range((n_vocab >> 6) + 1):
        word = scratch.bits[i]
        if word == 0:
            continue
        scratch.bits[i] = 0
        while word:
            low = word & (~word + 1)
            out[n] = (i << 6) + 63 - eliza_clz64(low)
            n += 1
            word ^= low


cdef void spell_completes(
    const spell_t* s, const pos_t* p, const token_t* ids, index_t n, token_t* out
) noexcept nogil:
    cdef pos_t next
    cdef index_t i
    for i in range(n):
        next = p[0]
        spell_accept(s, &next, ids[i])
        out[i] = <token_t>spell_leaf(s, &next) if next.done else -1


cdef void rest_mark(
    const pieces_t* pieces, const uint8_t* text, index_t n,
    uint8_t* rest, int64_t first, index_t* length,
) noexcept nogil:
    cdef index_t d = n, i, count
    cdef int64_t bit = first + n
    rest[bit >> 3] |= 1 << (bit & 7)
    while d:
        d -= 1
        count = pieces_at(pieces.trie, text + d, n - d, length)
        for i in range(count):
            bit = first + d + length[i]
            if rest[bit >> 3] >> (bit & 7) & 1:
                bit = first + d
                rest[bit >> 3] |= 1 << (bit & 7)
                break


cdef index_t pieces_reach(
    const pieces_t* pieces, const uint8_t* text, index_t n,
    uint8_t* seen, index_t* length,
) noexcept nogil:
    cdef index_t d, i, count, farthest = 0
    memset(seen, 0, n + 1)
    seen[0] = 1
    for d in range(n):
        if seen[d]:
            count = pieces_at(pieces.trie, text + d, n - d, length)
            for i in range(count):
                seen[d + length[i]] = 1
                farthest = max(farthest, d + length[i])
    return farthest
