"""Walking the bytes of texts by the ids of a vocabulary: all that needs no Python.

    spell_t    which texts, which of them are live, by which pieces: shared by reference
    pos_t      where in the trie of the texts; its depth counts bytes

A *text* is a choice with all that may follow it in its last id: the suffix. `end` says
where in it the choice ends. From the root, each id whose piece leads on in the trie may
be taken, so one text is spelled in many ways.

A text is *possible* at a position if it is live, goes on from there, and pieces can
spell the rest of it. A span is done where one text is possible and its choice has
ended; or, where a text ends that others continue, by an exit id.
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ._pieces cimport pieces_t
from ._position cimport bound_t, live, live_leaf_at, node_depth, pos_t, rank_find
from ._types cimport index_t, node_t, token_t

cdef struct spell_t:
    bound_t texts            # of bytes as ids, without exits
    const pieces_t *pieces
    const index_t *end       # [n_leaves] bytes of a text up to the end of its choice
    # Bit rest_start[i] + d of `rest`: whether pieces spell text i from byte d on. NULL
    # if they always do, because each byte of the texts is a piece by itself.
    const uint8_t *rest
    const int64_t *rest_start
    const token_t *exits     # sorted, unique
    index_t n_exits

cdef struct pair_t:          # a position in both tries
    index_t piece            # node in the trie of the pieces
    index_t node             # node in the trie of the texts
    index_t depth            # in that of the texts

cdef struct scratch_t:       # of a cursor, which frees it; all 0 at first
    uint64_t *bits           # one per id; 0 but between spell_mark and marks_take
    pair_t *stack
    index_t room             # of the stack


cdef inline bint spells_rest(
    const spell_t* s, index_t leaf, index_t depth
) noexcept nogil:
    cdef int64_t bit
    if s.rest == NULL:
        return True
    bit = s.rest_start[leaf] + depth
    return s.rest[bit >> 3] >> (bit & 7) & 1


cdef inline index_t spell_possible(
    const spell_t* s, index_t node, index_t depth, index_t most, index_t* leaf
) noexcept nogil:
    """Count the possible texts at a position up to `most`; `leaf` is the first one."""
    cdef const node_t* n = s.texts.trie.node + node
    cdef const index_t* rank = s.texts.rank
    cdef index_t at = n.lo, found = 0
    if s.rest == NULL:
        found = live(&s.texts, n.lo, n.hi)
        if found and rank != NULL:
            at = rank_find(rank, n.lo, n.hi, rank[n.lo])
        leaf[0] = at
        return min(found, most)
    while found < most and live(&s.texts, at, n.hi):
        if rank != NULL:
            at = rank_find(rank, at, n.hi, rank[at])
        if spells_rest(s, at, depth):
            if found == 0:
                leaf[0] = at
            found += 1
        at += 1
    return found


cdef inline bint spell_viable(
    const spell_t* s, index_t node, index_t depth
) noexcept nogil:
    cdef index_t leaf
    return spell_possible(s, node, depth, 1, &leaf) == 1


cdef inline index_t spell_leaf(const spell_t* s, const pos_t* p) noexcept nogil:
    """Return the text whose choice is complete at p, which is done."""
    cdef index_t leaf = s.texts.trie.node[p.node].lo
    if p.exit < 0:
        spell_possible(s, p.node, p.depth, 1, &leaf)
    return leaf


cdef inline bint spell_may_exit(const spell_t* s, const pos_t* p) noexcept nogil:
    cdef const node_t* n = s.texts.trie.node + p.node
    cdef index_t leaf
    return (
        not p.done and p.depth == node_depth(n) and live_leaf_at(&s.texts, n)
        and spell_possible(s, p.node, p.depth, 2, &leaf) == 2
    )


# Go on by id; False, and nothing changed, if it is not allowed.
cdef bint spell_accept(const spell_t* s, pos_t* p, token_t id) noexcept nogil

# Take back the last ids that led to p.
cdef void spell_rollback(
    const spell_t* s, pos_t* p, const token_t* ids, index_t count
) noexcept nogil

# Mark the ids allowed at p; returns how many. Without memory -1, and nothing is marked.
cdef int64_t spell_mark(
    const spell_t* s, const pos_t* p, scratch_t* scratch
) noexcept nogil

# Write the marked ids to out, sorted, and clear the marks.
cdef void marks_take(scratch_t* scratch, token_t n_vocab, token_t* out) noexcept nogil

# For each id allowed at p, the text that it completes, or -1.
cdef void spell_completes(
    const spell_t* s, const pos_t* p, const token_t* ids, index_t n, token_t* out
) noexcept nogil

# Set the n + 1 bits from `first` on: whether pieces spell a text of n bytes from each
# byte on. `length` has room for max_depth of the pieces.
cdef void rest_mark(
    const pieces_t* pieces, const uint8_t* text, index_t n,
    uint8_t* rest, int64_t first, index_t* length,
) noexcept nogil

# Return how many bytes of a text the pieces can spell at most; `seen` has n + 1 bytes.
cdef index_t pieces_reach(
    const pieces_t* pieces, const uint8_t* text, index_t n,
    uint8_t* seen, index_t* length,
) noexcept nogil
