"""The pieces of a vocabulary; see the .pxd."""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from cpython.bytes cimport PyBytes_AS_STRING

from ._position cimport pos_accept, pos_reset, pos_t, bound_t
from ._trie cimport Trie
from ._types cimport index_t, token_t

import numpy as np

from ._trie import from_arrays_with_order
from .errors import InvalidArgument, OutOfMemory

__all__ = ["Pieces"]


@cython.auto_pickle(False)
cdef class Pieces:
    """Pieces(texts)\n--

    The bytes of all ids of a vocabulary, as a trie.

    Immutable: any number of threads, and of `Spellings`, may use one.

    Parameters
    ----------
    texts : sequence of bytes
        What each id stands for; b"" for those that must not be used in a text.

    Raises
    ------
    InvalidArgument
        No id stands for anything.
    """

    def __cinit__(self, texts):
        cdef const int64_t[::1] start
        cdef int64_t n = len(texts)
        cdef Trie trie
        sizes = np.fromiter(map(len, texts), np.int64, n)
        if not sizes.any():
            raise InvalidArgument("no id of the vocabulary stands for any text")
        self.text = b"".join(texts)
        self.start = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        edges = np.unique(self.start)  # without the empty ones
        self.trie, _ = from_arrays_with_order(
            np.frombuffer(self.text, np.uint8).astype(np.int32), edges, None, 256
        )
        trie = self.trie
        start = self.start
        self.p.trie = &trie.t
        self.p.text = <const uint8_t*>PyBytes_AS_STRING(self.text)
        self.p.start = &start[0]
        self.p.n_vocab = <token_t>n
        self.p.ids_start = <index_t*>calloc(trie.t.n_leaves + 2, sizeof(index_t))
        self.p.ids = <token_t*>malloc(n * sizeof(token_t))
        if (
            self.p.ids_start == NULL or self.p.ids == NULL or not pieces_link(&self.p)
        ):
            raise OutOfMemory(f"no memory for the pieces of {n} ids")

    def __dealloc__(self):
        free(self.p.ids_start)
        free(self.p.ids)

    @property
    def n_vocab(self):
        """int: the number of ids, those without a piece included."""
        return self.p.n_vocab

    @property
    def nbytes(self):
        """int: the memory that the pieces take."""
        return (
            self.trie.nbytes + len(self.text) + self.start.nbytes
            + (<int64_t>self.p.trie.n_leaves + 2) * sizeof(index_t)
            + <int64_t>self.p.n_vocab * sizeof(token_t)
        )

    def __repr__(self):
        return f"<Pieces of {self.n_vocab} ids, {self.nbytes} bytes>"


cdef bint pieces_link(pieces_t* p) noexcept nogil:
    """List the ids of each piece, sorted; False without memory."""
    cdef const trie_t* t = p.trie
    cdef index_t* leaf = <index_t*>malloc(p.n_vocab * sizeof(index_t))
    cdef index_t j
    cdef token_t id
    cdef int64_t i
    cdef bound_t all_of
    cdef pos_t at
    if leaf == NULL:
        return False
    all_of.trie = t
    all_of.rank = NULL
    all_of.exits = NULL
    all_of.n_exits = 0
    for id in range(p.n_vocab):
        pos_reset(&at)
        for i in range(p.start[id], p.start[id + 1]):
            pos_accept(&all_of, &at, p.text[i])
        if at.depth:
            leaf[id] = t.node[at.node].lo
            # Two places further on, so that filling moves each start to its own.
            p.ids_start[leaf[id] + 2] += 1
            p.single[p.text[p.start[id]]] |= at.depth == 1
    for j in range(1, t.n_leaves + 1):
        p.ids_start[j + 1] += p.ids_start[j]
    for id in range(p.n_vocab):
        if p.start[id + 1] > p.start[id]:
            p.ids[p.ids_start[leaf[id] + 1]] = id
            p.ids_start[leaf[id] + 1] += 1
    free(leaf)
    return True
