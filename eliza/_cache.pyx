"""What a trie is built from, checked once, and its key in a cache.

A trie of 30 leaves is built in 5 us, and its key in plain Python would take 40; so the
key is made here, in 6. The leaves are read, checked and sorted once: `Recipe.build`
goes on from there.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cpython.bytes cimport PyBytes_FromStringAndSize

from ._assemble cimport Order, order_fill
from ._ingest cimport Ids, read_all_exits, read_leaves, vocab_size
from ._names cimport utf8
from ._sort cimport LCP_EQUAL
from ._trie cimport fingerprint_of, trie_make
from ._types cimport index_t, token_t

from .errors import OutOfMemory

__all__ = ["Recipe"]

cdef enum:
    ROOM = 1 << 16           # bytes that are collected for one call of the hash
    HEAD = 1 + sizeof(int64_t)

cdef bytes FORMAT = b"eliza trie 1"   # to be changed with the form

cdef object sha256 = None    # hashlib's; 3 ms of an import that may not need it


cdef object new_sha():
    global sha256
    if sha256 is None:
        import hashlib

        sha256 = hashlib.sha256
    return sha256()


@cython.auto_pickle(False)
cdef class Form:
    def __cinit__(self):
        self.data = <char*>malloc(ROOM)
        if self.data == NULL:
            raise OutOfMemory(f"no memory for {ROOM} bytes")

    def __dealloc__(self):
        free(self.data)

    cdef int put(self, char kind, const void* data, int64_t n) except -1:
        if self.n + HEAD + n > ROOM:
            self.flush()
        self.data[self.n] = kind
        memcpy(self.data + self.n + 1, &n, sizeof(int64_t))
        self.n += HEAD
        if self.n + n <= ROOM:
            memcpy(self.data + self.n, data, n)
            self.n += n
        else:
            self.flush()
            self.sha.update(PyBytes_FromStringAndSize(<const char*>data, n))
        return 0

    cdef int put_text(self, char kind, str text) except -1:
        cdef bytes raw = utf8(text)
        return self.put(kind, <const char*>raw, len(raw))

    cdef int flush(self) except -1:
        if self.sha is None:
            self.sha = new_sha()
        self.sha.update(PyBytes_FromStringAndSize(self.data, self.n))
        self.n = 0
        return 0

    cdef bytes digest(self):
        self.flush()
        return self.sha.digest()


cdef int put_exits(Form form, object exits, list names) except -1:
    """Put exit ids for all leaves, or by name."""
    cdef Ids ids
    if type(exits) is not dict:
        ids = exits
        if ids is not None and ids.n:
            form.put(b"x", ids.data, ids.n * sizeof(token_t))
        return 0
    for name, at in sorted([(names[at], at) for at in exits]):
        ids = exits[at]
        if ids.n:
            form.put_text(b"e", name)
            form.put(b"x", ids.data, ids.n * sizeof(token_t))
    return 0


@cython.auto_pickle(False)
cdef class Recipe:
    """Recipe(leaves, n_vocab, exits=None, fingerprint=b"", origin=())
    --

    What a trie is built from.

    Parameters
    ----------
    leaves, n_vocab, exits, fingerprint
        As in `Trie.from_tokens`; read and checked, and not kept.
    origin : tuple of str
        Where the leaves come from; recipes that differ in it have different keys.

    Attributes
    ----------
    key : bytes
        SHA-256 of all of the above. The order in which leaves and exits were given,
        and how often, makes no difference. Of this machine and this version only:
        nothing that is written to a file.

    Raises
    ------
    InvalidArgument, InvalidType
        As `Trie.from_tokens`, but for leaves that contradict each other: `build` says
        that.
    """

    def __cinit__(self, leaves, n_vocab, exits=None, fingerprint=b"", origin=()):
        cdef int64_t size = vocab_size(n_vocab)
        self.leaves = read_leaves(leaves, size)
        self.exits = read_all_exits(exits, self.leaves, True)
        self.fingerprint = fingerprint_of(fingerprint)
        self.order = Order()
        order_fill(self.order, self.leaves)
        self.key = self.make_key(origin)

    cdef bytes make_key(self, tuple origin):
        cdef const int64_t* start = self.leaves.start
        cdef Order order = self.order
        cdef list names = self.leaves.names
        cdef Form form = Form()
        cdef index_t i, at
        form.put(b"f", <const char*>FORMAT, len(FORMAT))
        form.put(b"v", &self.leaves.n_vocab, sizeof(int64_t))
        form.put(b"t", <const char*>self.fingerprint, len(self.fingerprint))
        for part in origin:
            form.put_text(b"o", part)
        put_exits(form, self.exits, names)
        for i in range(order.n):
            at = order.order[i]
            if order.lcp[i] == LCP_EQUAL and names[at] == names[order.order[i - 1]]:
                continue
            form.put(
                b"i", self.leaves.ids + start[at],
                (start[at + 1] - start[at]) * sizeof(token_t),
            )
            form.put_text(b"n", names[at])
        return form.digest()

    def build(self):
        """Build the trie.

        Returns
        -------
        Trie

        Raises
        ------
        InvalidArgument
            Two names for the same ids; two sequences of ids for the same name.
        """
        return trie_make(self.leaves, self.exits, self.fingerprint, self.order)
