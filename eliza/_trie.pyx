"""Immutable tries of token ids."""

cimport cython
from libc.stdint cimport int64_t

from cpython.buffer cimport PyObject_CheckBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from ._arrays cimport ints_copy, ints_view
from ._assemble cimport Order, assemble
from ._bound cimport Bound, bind, bound_verify
from ._build cimport trie_free
from ._check cimport damaged, leaf_check
from ._cursor cimport cursor_make
from ._image cimport Image, image_make, image_open
from ._ingest cimport (
    Ids,
    Sequences,
    plain_int,
    read_all_exits,
    read_arrays,
    read_exits,
    read_leaves,
    vocab_size,
)
from ._names cimport names_make
from ._position cimport leaf_exits, node_depth, path_copy
from ._subset cimport Subset, subset_make
from ._types cimport index_t, node_t, token_t, trie_t

import os
from mmap import ACCESS_READ, mmap

from ._atomic import write_atomically
from .errors import BundleError, InvalidArgument, InvalidType

__all__ = ["Trie", "from_arrays_with_order"]

cdef object KEY = object()   # what only this module can give to a constructor
cdef Ids NO_EXITS = Ids()


cdef bytes fingerprint_of(object fingerprint):
    if not isinstance(fingerprint, bytes):
        raise InvalidType(
            f"a fingerprint is bytes, got {type(fingerprint).__name__}"
        )
    return fingerprint


cdef Trie trie_make(Sequences leaves, object exits, object fingerprint, Order order):
    cdef Trie trie = Trie.__new__(Trie, KEY)
    trie.tokenizer = fingerprint_of(fingerprint)
    trie.owned = True
    assemble(leaves, exits, order, &trie.t)
    if leaves.names is not None:
        trie.name_table = names_make(leaves.names, order.order, order.n)
    return trie


cdef Trie trie_from(Image image):
    cdef Trie trie = Trie.__new__(Trie, KEY)
    trie.image = image
    trie.t = image.t
    trie.name_table = image.names
    trie.tokenizer = image.fingerprint
    return trie


@cython.auto_pickle(False)
cdef class Trie:
    """An immutable set of choices, each a sequence of token ids.

    Made by `from_tokens`, `from_arrays` and `from_texts`. Leaves are numbered in
    lexicographic order of their ids, whatever the order of input was. Any number of
    threads may use one trie; each generation has a `cursor` of its own.

    Examples
    --------
    >>> trie = Trie.from_tokens({"THINK": [100, 101], "EXECUTE": [200]}, n_vocab=32000)
    >>> trie.names
    ('THINK', 'EXECUTE')
    >>> cursor = trie.cursor()
    >>> cursor.allowed().tolist()
    [100, 200]
    >>> cursor.accept(100)
    >>> cursor.forced().tolist()
    [101]
    """

    def __cinit__(self, key=None):
        if key is not KEY:
            raise InvalidType(
                "tries are made by Trie.from_tokens(), from_arrays() and from_texts()"
            )

    def __dealloc__(self):
        if self.owned:
            trie_free(&self.t)

    @staticmethod
    def from_tokens(leaves, *, n_vocab, exits=None, fingerprint=b""):
        """Build a trie from names and ids.

        Parameters
        ----------
        leaves : mapping of str to sequence of int, or iterable of such pairs
            The name and the ids of each choice. The same name with the same ids may
            come twice and is one leaf.
        n_vocab : int
            Size of the vocabulary; ids lie in [0, n_vocab).
        exits : iterable of int, or mapping of str to iterable of int, optional
            Ids that say "the choice ends here" where other choices go on: for every
            leaf, or by name.
        fingerprint : bytes
            Of the tokenizer that the ids are from.

        Returns
        -------
        Trie

        Raises
        ------
        InvalidArgument
            No leaves; a leaf without ids; an id outside the vocabulary; two names for
            the same ids; two sequences of ids for the same name; exits for a name that
            is no leaf.
        InvalidType
            Something that is no int (or a bool) for an id, no str for a name.
        """
        cdef Sequences read = read_leaves(leaves, vocab_size(n_vocab))
        return trie_make(
            read, read_all_exits(exits, read, True), fingerprint, Order()
        )

    @staticmethod
    def from_arrays(tokens, offsets, names=None, *, n_vocab, exits=None,
                    fingerprint=b""):
        """Build a trie from the ids of all leaves end to end.

        Parameters
        ----------
        tokens : array of int, shape (n_tokens,)
            int32 is read where it is, and must not change meanwhile.
        offsets : array of int, shape (n_leaves + 1,)
            Leaf i is tokens[offsets[i]:offsets[i + 1]]. int64 is read where it is.
        names : sequence of str, optional
            One per leaf. Leaves with the same ids are one leaf.
        n_vocab : int
            Size of the vocabulary; ids lie in [0, n_vocab).
        exits : iterable of int, or mapping of int to iterable of int, optional
            Ids that say "the choice ends here" where other choices go on: for every
            leaf, or by index in `offsets`.
        fingerprint : bytes
            Of the tokenizer that the ids are from.

        Returns
        -------
        Trie

        Raises
        ------
        InvalidArgument
            As `from_tokens`; offsets that do not go from 0 up to n_tokens.
        InvalidType
            As `from_tokens`; arrays of another type or shape.
        """
        cdef Sequences read = read_arrays(tokens, offsets, names, vocab_size(n_vocab))
        return trie_make(
            read, read_all_exits(exits, read, False), fingerprint, Order()
        )

    @staticmethod
    def from_texts(vocab, texts, prefix="", suffix="", cache=None):
        """Build a trie from texts, as a tokenizer writes them after a prefix.

        This is `Vocab.trie`, which also knows other spellings than the tokenizer's.

        Parameters
        ----------
        vocab : Vocab
            Whose tokenizer; such as `Model.vocab`.
        texts : sequence of str
            The choices, byte for byte; they are also the names.
        prefix : str
            What stands before each. Where the tokenizer merges across its end, the
            leaves begin with the rest of it.
        suffix : str
            What follows each.
        cache : TrieCache, optional
            Where the trie is kept: the same texts are then not tokenized again.

        Returns
        -------
        Trie

        Raises
        ------
        InvalidArgument, InvalidType
            As `Vocab.place`; `vocab` is something else.
        """
        make = getattr(vocab, "trie", None)
        if not callable(make) or isinstance(vocab, type):
            raise InvalidType(
                "from_texts: the first argument is a Vocab, such as model.vocab; got "
                f"{type(vocab).__name__}"
            )
        return make(texts, prefix, suffix, cache=cache)

    @staticmethod
    def from_bytes(data):
        """Make a trie from what `to_bytes` gave, checking everything in it.

        Only that no name comes twice is left to the first look-up by name.

        Parameters
        ----------
        data : bytes-like
            It is copied unless it is bytes.

        Returns
        -------
        Trie

        Raises
        ------
        BundleError
            It is no trie, of another version, cut short, or damaged.
        """
        cdef Image image
        if not PyObject_CheckBuffer(data):
            raise InvalidType(f"a trie's bytes are bytes, got {type(data).__name__}")
        image = image_open(bytes(data))
        image.verify()
        return trie_from(image)

    @staticmethod
    def open(path):
        """Map a file that `save` wrote into memory; nothing is read ahead of its use.

        Only the header and the sizes are checked here, and each node when a cursor
        enters it, so that a damaged file raises and never reads outside of itself. A
        changed id that fits in its place goes unnoticed: `verify` finds that.

        Parameters
        ----------
        path : str or os.PathLike
            The file. It must not be changed in place while it is mapped; `save`
            replaces it.

        Returns
        -------
        Trie

        Raises
        ------
        BundleError
            It is no trie, of another version, cut short, or damaged.
        OSError
            It cannot be opened.
        """
        with open(path, "rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            data = b"" if empty else mmap(file.fileno(), 0, access=ACCESS_READ)
        try:
            return trie_from(image_open(data))
        except BundleError as error:
            raise BundleError(f"{os.fspath(path)}: {error}") from None

    def to_bytes(self):
        """Return the trie as bytes, for `from_bytes`.

        Returns
        -------
        bytes
            In the format that `_image.pxd` describes, and in the byte order of this
            machine.
        """
        return image_make(&self.t, self.name_table, self.tokenizer)

    def save(self, path):
        """Write the trie to a file, for `open`.

        Whoever opens the file meanwhile finds the old one or the new one, whole.

        Parameters
        ----------
        path : str or os.PathLike
            Permissions follow the umask.

        Raises
        ------
        OSError
            It cannot be written; what was there before is still there.
        """
        write_atomically(path, self.to_bytes(), 0o666)

    def verify(self):
        """Check everything in a trie that `open` made: 35 ms for a million leaves.

        From then on nodes are not checked again when cursors enter them.

        Raises
        ------
        BundleError
            The file is damaged.
        """
        if self.image is not None and not self.t.trusted:
            self.image.verify()
            self.t.trusted = True

    def __reduce__(self):
        return Trie.from_bytes, (self.to_bytes(),)

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __len__(self):
        return self.t.n_leaves

    @property
    def names(self):
        """tuple of str, or None: the names in leaf order, made anew at each call."""
        cdef index_t leaf
        if self.name_table is None:
            return None
        return tuple([self.name_table.get(leaf) for leaf in range(self.t.n_leaves)])

    @property
    def n_vocab(self):
        """int: ids lie in [0, n_vocab)."""
        return self.t.n_vocab

    @property
    def n_nodes(self):
        """int: the root, branching points and ends of leaves."""
        return self.t.n_nodes

    @property
    def max_depth(self):
        """int: the length of the longest leaf, in ids."""
        return self.t.max_depth

    @property
    def nbytes(self):
        """int: the memory that the trie takes, names and their index included."""
        cdef const trie_t* t = &self.t
        cdef int64_t total = (
            (<int64_t>t.n_nodes + 1) * sizeof(node_t)
            + <int64_t>t.n_nodes * sizeof(token_t)
            + <int64_t>t.n_pool * sizeof(token_t)
            + (<int64_t>t.n_leaves + t.n_inner) * sizeof(index_t)
            + <int64_t>t.n_exit_ids * sizeof(token_t)
        )
        if t.exit_start != NULL:
            total += (<int64_t>t.n_leaves + 1) * sizeof(index_t)
        if self.name_table is not None:
            total += self.name_table.nbytes()
        return total

    @property
    def needs_exits(self):
        """bool: some leaf is the beginning of another one."""
        return self.t.n_inner > 0

    @property
    def fingerprint(self):
        """bytes: of the tokenizer that the ids are from, or empty."""
        return self.tokenizer

    cdef index_t leaf_of(self, object leaf) except? 0xFFFFFFFF:
        """Check a leaf number."""
        number = plain_int(leaf, "a leaf number")
        if not 0 <= number < self.t.n_leaves:
            raise InvalidArgument(
                f"leaf {number} is outside [0, {self.t.n_leaves})"
            )
        if not self.t.trusted and not leaf_check(&self.t, number):
            raise damaged()
        return number

    def name(self, leaf):
        """Return the name of a leaf.

        Parameters
        ----------
        leaf : int
            Its number.

        Returns
        -------
        str or None
            None in a trie without names.
        """
        cdef index_t number = self.leaf_of(leaf)
        return None if self.name_table is None else self.name_table.get(number)

    def tokens(self, leaf):
        """Return the ids of a leaf, exit ids aside.

        Parameters
        ----------
        leaf : int
            Its number.

        Returns
        -------
        tuple of int
        """
        cdef index_t node = self.t.leaf_node[self.leaf_of(leaf)], depth
        cdef bytes ids
        depth = node_depth(self.t.node + node)
        ids = PyBytes_FromStringAndSize(NULL, depth * sizeof(token_t))
        path_copy(&self.t, node, 0, depth, <token_t*>PyBytes_AS_STRING(ids))
        return tuple(ints_view(ids).tolist())

    def exits(self, leaf):
        """Return the exit ids that a leaf was given.

        Parameters
        ----------
        leaf : int
            Its number.

        Returns
        -------
        tuple of int
            Sorted. They are allowed only where other leaves go on.
        """
        cdef index_t i, n = 0
        cdef const token_t* ids = leaf_exits(&self.t, self.leaf_of(leaf), &n)
        return tuple([ids[i] for i in range(n)])

    def subset(self, allow):
        """Permit some of the leaves, for use with any number of cursors.

        Parameters
        ----------
        allow : array of bool, array of int, iterable of str, or Subset
            A mask over the leaves, leaf numbers, names, or a subset of this trie.

        Returns
        -------
        Subset

        Raises
        ------
        InvalidArgument
            No leaf is permitted; a mask of another length; a leaf number or name that
            is not in the trie; a subset of another trie.
        InvalidType
            Something else than the above.
        """
        return subset_make(self, &self.t, self.name_table, allow)

    def cursor(self, exits=(), allow=None):
        """Start a walk at the root.

        Parameters
        ----------
        exits : iterable of int
            Exit ids for every leaf, beside those that leaves have of their own.
        allow : array of bool, array of int, iterable of str, or Subset, optional
            The leaves to permit, as in `subset`; all by default. The cursor then
            behaves as one of a trie made from those leaves alone.

        Returns
        -------
        Cursor

        Raises
        ------
        InvalidArgument
            A permitted leaf is the beginning of others and has no exit id; an exit id
            would also lead on to another leaf; and what `subset` raises.
        """
        cdef Subset subset = None
        cdef Ids ids = NO_EXITS, passed
        cdef Bound bound
        if allow is not None:
            subset = subset_make(self, &self.t, self.name_table, allow)
        if not (exits is None or isinstance(exits, tuple) and len(exits) == 0):
            ids = read_exits(exits, self.t.n_vocab, "exits", None)
        bound = bind(
            self, &self.t, subset, NULL if subset is None else subset.rank, ids
        )
        # The check costs a pass over the leaves that others continue; not made again.
        with cython.critical_section(self):
            passed = self.passed if subset is None else subset.passed
        if passed is None or not passed.equals(ids):
            bound_verify(bound)
            with cython.critical_section(self):
                if subset is None:
                    self.passed = ids
                else:
                    subset.passed = ids
        return cursor_make(bound)

    def __repr__(self):
        return (
            f"<Trie of {self.t.n_leaves} leaves, {self.t.n_nodes} nodes, "
            f"{self.nbytes} bytes>"
        )


def from_arrays_with_order(
    tokens, offsets, names, n_vocab, exits=None, fingerprint=b""
):
    """Build a trie as `Trie.from_arrays` does, and say where its leaves come from.

    Parameters
    ----------
    tokens, offsets, names, n_vocab, exits, fingerprint
        As in `Trie.from_arrays`.

    Returns
    -------
    trie : Trie
    order : ndarray of int32, shape (n_leaves,)
        For each leaf of the trie its index in the input, the first of equal ones.
    """
    cdef Sequences read = read_arrays(tokens, offsets, names, vocab_size(n_vocab))
    cdef Order order = Order()
    cdef Trie trie = trie_make(
        read, read_all_exits(exits, read, False), fingerprint, order
    )
    return trie, ints_copy(<token_t*>order.order, order.n)
