"""Texts with every way in which a vocabulary can spell them."""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc

from ._ingest cimport Ids, exact_str, label, read_exits
from ._pieces cimport Pieces
from ._position cimport node_depth, pos_reset, pos_t
from ._spell cimport (
    pieces_reach,
    rest_mark,
    spell_accept,
    spell_may_exit,
    spell_possible,
    spell_t,
    spells_rest,
)
from ._spelling_cursor cimport SpellingBound, spelling_cursor
from ._subset cimport Subset
from ._types cimport index_t, trie_t

import numpy as np

from ._spelling_cursor import SpellingCursor
from ._trie import from_arrays_with_order
from .errors import InvalidArgument, InvalidType, OutOfMemory

__all__ = ["SpellingCursor", "Spellings"]

cdef object KEY = object()   # what only this module can give to a constructor


cdef bytes utf8_of(object name, int64_t at):
    if not isinstance(name, str):
        raise InvalidType(f"names[{at}]: a text is a str, got {type(name).__name__}")
    if not name:
        raise InvalidArgument(f"names[{at}] is the empty string ''")
    try:
        return exact_str(name).encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{label('names', at)}: {label('text', name)} has a lone surrogate, which "
            "stands for no character"
        ) from None


@cython.auto_pickle(False)
cdef class Spellings:
    """A set of texts, each with every sequence of ids that spells it.

    Made by `Vocab.trie(spelling="all")` and `from_texts`. Where a `Trie` holds the ids
    that a tokenizer writes, here any id may follow whose bytes go on with one of the
    texts, if ids can spell the rest of it; ids with equal bytes are equally good.
    Leaves are numbered in the lexicographic order of their bytes, suffix included.
    Immutable: any number of threads may use one; each generation has a `cursor` of its
    own.

    A text is a choice between what leads up to it, if anything, and a suffix. A span is
    complete as soon as its ids reach the end of a choice and only that choice is still
    possible: the last id may cover a part of the suffix. Where more are possible, the
    suffix goes on, by any ids, until it tells them apart. Where the whole text of one
    choice is the beginning of another text, an exit id ends it.
    """

    def __cinit__(self, key=None):
        if key is not KEY:
            raise InvalidType("spellings are made by Vocab.trie() and from_texts()")

    def __dealloc__(self):
        free(self.end)
        free(self.rest)
        free(self.rest_start)

    @staticmethod
    def from_texts(Pieces pieces not None, names, *, lead=b"", suffix=b"", exits=()):
        """Compile texts.

        Parameters
        ----------
        pieces : Pieces
            The bytes of the vocabulary's ids.
        names : sequence of str
            The choices. The same text twice is one choice.
        lead : bytes
            What stands before each choice and belongs to the span.
        suffix : bytes
            What follows each choice.
        exits : iterable of int
            Ids that say "the choice ends here" where a text ends that others continue.

        Returns
        -------
        Spellings

        Raises
        ------
        InvalidArgument
            No texts; an empty one; one that no ids spell.
        InvalidType
            Something that is no str for a text.
        """
        cdef Spellings out = Spellings.__new__(Spellings, KEY)
        cdef index_t leaf
        cdef const int[::1] places
        if isinstance(names, (str, bytes)):
            raise InvalidType("names must be a sequence of str, such as a list")
        names = list(names)
        encoded = [utf8_of(name, i) for i, name in enumerate(names)]
        if not encoded:
            raise InvalidArgument("there are no texts; give at least one")
        raw = b"".join([lead + text + suffix for text in encoded])
        sizes = np.fromiter(map(len, encoded), np.int64, len(encoded))
        offsets = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum(sizes + (len(lead) + len(suffix)), out=offsets[1:])
        trie, order = from_arrays_with_order(
            np.frombuffer(raw, np.uint8).astype(np.int32), offsets, names, 256
        )
        out.texts = trie
        out.pieces = pieces
        out.exits = read_exits(exits, pieces.p.n_vocab, "exits", None)
        out.s.texts.trie = &out.texts.t
        out.s.pieces = &pieces.p
        out.s.exits = out.exits.data
        out.s.n_exits = <index_t>out.exits.n
        out.end = <index_t*>malloc(len(trie) * sizeof(index_t))
        if out.end == NULL:
            raise OutOfMemory(f"no memory for {len(trie)} texts")
        places = (sizes[order] + len(lead)).astype(np.int32)
        for leaf in range(out.texts.t.n_leaves):
            out.end[leaf] = places[leaf]
        out.s.end = out.end
        out.mark_rests(raw, offsets, order)
        return out

    cdef int mark_rests(self, bytes raw, offsets, order) except -1:
        """Find out from where on each text can be spelled; raise if it cannot be."""
        cdef const uint8_t* text = raw
        cdef const int64_t[::1] start = offsets
        cdef const int[::1] place = order
        cdef const trie_t* t = &self.texts.t
        cdef int64_t i, bits = 0, n = len(raw)
        cdef index_t leaf
        cdef index_t* length
        cdef bint simple = True
        with nogil:
            for i in range(n):
                simple &= self.s.pieces.single[text[i]]
        if simple:           # true of every vocabulary that has all bytes
            return 0
        self.rest_start = <int64_t*>malloc(t.n_leaves * sizeof(int64_t))
        length = <index_t*>malloc((self.s.pieces.trie.max_depth + 1) * sizeof(index_t))
        for leaf in range(t.n_leaves):
            bits += start[place[leaf] + 1] - start[place[leaf]] + 1
        self.n_rest = (bits >> 3) + 1
        self.rest = <uint8_t*>calloc(self.n_rest, 1)
        if self.rest_start == NULL or self.rest == NULL or length == NULL:
            free(length)
            raise OutOfMemory(f"no memory for {bits} places in texts")
        bits = 0
        with nogil:
            for leaf in range(t.n_leaves):
                i = place[leaf]
                self.rest_start[leaf] = bits
                rest_mark(
                    self.s.pieces, text + start[i], <index_t>(start[i + 1] - start[i]),
                    self.rest, bits, length,
                )
                bits += start[i + 1] - start[i] + 1
        free(length)
        self.s.rest = self.rest
        self.s.rest_start = self.rest_start
        for leaf in range(t.n_leaves):
            if not spells_rest(&self.s, leaf, 0):
                i = place[leaf]
                raise unspelled(self, leaf, raw[start[i]:start[i + 1]])
        return 0

    def __len__(self):
        return self.texts.t.n_leaves

    @property
    def names(self):
        """tuple of str: the choices in leaf order, made anew at each call."""
        return self.texts.names

    @property
    def n_vocab(self):
        """int: ids lie in [0, n_vocab)."""
        return self.s.pieces.n_vocab

    @property
    def nbytes(self):
        """int: the memory that the texts take, the vocabulary's pieces aside."""
        cdef int64_t n = self.texts.t.n_leaves
        return (
            self.texts.nbytes + n * sizeof(index_t) + self.n_rest
            + (n * sizeof(int64_t) if self.n_rest else 0)
        )

    @property
    def needs_exits(self):
        """bool: some text is the beginning of another one."""
        return self.texts.needs_exits

    def name(self, leaf):
        """Return the text of a choice.

        Parameters
        ----------
        leaf : int
            Its number.

        Returns
        -------
        str
        """
        return self.texts.name(leaf)

    def subset(self, allow):
        """Permit some of the choices, for use with any number of cursors.

        Parameters
        ----------
        allow : array of bool, array of int, iterable of str, or Subset
            A mask over the leaves, leaf numbers, names, or a subset made here.

        Returns
        -------
        Subset

        Raises
        ------
        InvalidArgument, InvalidType
            As `Trie.subset`.
        """
        return self.texts.subset(allow)

    def cursor(self, exits=(), allow=None):
        """Start a walk at the root.

        Parameters
        ----------
        exits : iterable of int
            Exit ids beside those that the spellings were made with.
        allow : array of bool, array of int, iterable of str, or Subset, optional
            The choices to permit, as in `subset`; all by default. The cursor then
            behaves as one of spellings made from those choices alone.

        Returns
        -------
        SpellingCursor

        Raises
        ------
        InvalidArgument
            A permitted text is the beginning of others and there is no exit id; an exit
            id would also go on with another text; and what `subset` raises.
        """
        cdef Subset subset = None
        cdef Ids ids = self.exits
        if allow is not None:
            subset = self.texts.subset(allow)
        if not (exits is None or isinstance(exits, tuple) and len(exits) == 0):
            ids = read_exits(exits, self.s.pieces.n_vocab, "exits", None)
            ids.add(self.exits)
            ids.sort()
        return spelling_cursor(spelling_bind(self, subset, ids))

    def __repr__(self):
        return f"<Spellings of {len(self)} texts, {self.nbytes} bytes>"


cdef object unspelled(Spellings self, index_t leaf, bytes text):
    cdef bytearray seen = bytearray(len(text) + 1)
    cdef bytearray lengths = bytearray(
        (self.s.pieces.trie.max_depth + 1) * sizeof(index_t)
    )
    cdef int64_t reach = pieces_reach(
        self.s.pieces, text, <index_t>len(text),
        <uint8_t*><char*>seen, <index_t*><char*>lengths,
    )
    after = f" after {text[max(0, reach - 20):reach]!r}" if reach else ""
    return InvalidArgument(
        f"{label('text', self.texts.name(leaf))} cannot be spelled with this "
        f"vocabulary: no id goes on{after} with {text[reach:reach + 8]!r}"
    )


cdef SpellingBound spelling_bind(Spellings owner, Subset subset, Ids exits):
    cdef SpellingBound bound = SpellingBound()
    bound.owner = owner
    bound.subset = subset
    bound.exits = exits
    bound.s = owner.s
    bound.s.texts.rank = NULL if subset is None else subset.rank
    bound.s.exits = exits.data
    bound.s.n_exits = <index_t>exits.n
    exits_verify(bound)
    return bound


cdef int exits_verify(SpellingBound bound) except -1:
    """Check that each text that others continue can end, and in one way only."""
    cdef const spell_t* s = &bound.s
    cdef const trie_t* t = s.texts.trie
    cdef spell_t inside = bound.s
    cdef index_t i, k, written = 0, other = 0
    cdef pos_t end, next
    cdef str name
    for k in range(s.n_exits):
        written += s.pieces.start[s.exits[k]] < s.pieces.start[s.exits[k] + 1]
    if s.n_exits and not written:
        return 0             # control ids: no text goes on with them
    inside.n_exits = 0
    pos_reset(&end)
    for i in range(t.n_inner):
        end.node = t.inner[i]
        end.depth = node_depth(t.node + end.node)
        if not spell_may_exit(s, &end):
            continue
        name = label("text", bound.owner.name(t.node[end.node].lo))
        if s.n_exits == 0:
            raise InvalidArgument(
                f"{name} is the beginning of other texts and there is no exit id, so "
                "it could never come out: give exits=, or a suffix that ends it"
            )
        for k in range(s.n_exits):
            next = end
            if spell_accept(&inside, &next, s.exits[k]):
                spell_possible(s, next.node, next.depth, 1, &other)
                raise InvalidArgument(
                    f"exit id {s.exits[k]} of {name} also goes on with "
                    f"{label('text', bound.owner.name(other))}"
                )
    return 0
