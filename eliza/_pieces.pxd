"""The pieces of a vocabulary: the bytes of its ids, forwards and backwards.

A piece is the bytes of an id. Ids that never stand for text, and those without bytes,
have none; several ids may have the same one.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t

from ._position cimport find_child, node_depth, node_is_leaf, run_from
from ._types cimport index_t, node_t, token_t, trie_t

cdef struct pieces_t:
    const trie_t *trie       # of bytes as ids; leaf j is the j-th different piece
    index_t *ids_start       # [n_leaves + 1]
    token_t *ids             # piece j is that of ids[ids_start[j] : ids_start[j + 1]]
    const uint8_t *text      # all pieces end to end
    const int64_t *start     # [n_vocab + 1] id i is text[start[i] : start[i + 1]]
    token_t n_vocab
    uint8_t[256] single      # whether a byte is a piece


@cython.final
cdef class Pieces:
    # Immutable once made.
    cdef pieces_t p          # owned, but for what these keep alive
    cdef object trie         # a Trie
    cdef object text         # bytes
    cdef object start        # an ndarray of int64


cdef inline index_t pieces_at(
    const trie_t* t, const uint8_t* text, int64_t n, index_t* length
) noexcept nogil:
    """Find the pieces that a text begins with.

    Writes their lengths, ascending, to length[trie.max_depth]; returns how many.
    """
    cdef index_t node = 0, count = 0, child
    cdef int64_t i
    cdef const node_t* at = t.node
    for i in range(n):
        if i < node_depth(at):
            if t.pool[at.run + i - run_from(t, node)] != text[i]:
                break
        else:
            child = find_child(t, at, text[i])
            if child == 0:
                break
            node = child
            at = t.node + child
        if i + 1 == node_depth(at) and node_is_leaf(at):
            length[count] = <index_t>i + 1
            count += 1
    return count
