"""Some of the leaves of a trie."""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free

from ._arrays cimport ints_copy
from ._ingest cimport exact_str, label
from ._names cimport Names
from ._types cimport index_t, token_t, trie_t

import numpy as np

from .errors import InvalidArgument, InvalidType, OutOfMemory

__all__ = ["Subset"]

cdef object KEY = object()   # what only this module can give to a constructor


@cython.auto_pickle(False)
cdef class Subset:
    """Some of the leaves of a trie; made by `Trie.subset`, immutable.

    Give it to `Trie.cursor(allow=)`: making it costs a pass over the leaves, using it
    nothing.
    """

    def __cinit__(self, key=None):
        if key is not KEY:
            raise InvalidType("subsets are made by Trie.subset()")

    def __dealloc__(self):
        free(self.rank)

    def __len__(self):
        return self.rank[self.t.n_leaves]

    @property
    def trie(self):
        """The `Trie` whose leaves these are."""
        return self.whole

    @property
    def nbytes(self):
        """int: the memory that the subset takes."""
        return (<int64_t>self.t.n_leaves + 1) * sizeof(index_t)

    def leaves(self):
        """Return the numbers of the permitted leaves.

        Returns
        -------
        ndarray of int32, shape (n,)
            Sorted, a copy.
        """
        rank = ints_copy(<token_t*>self.rank, <int64_t>self.t.n_leaves + 1)
        return np.flatnonzero(np.diff(rank)).astype(np.int32)

    def __repr__(self):
        return f"<Subset of {len(self)} of {self.t.n_leaves} leaves>"


cdef Subset subset_make(object trie, const trie_t* t, Names names, object allow):
    cdef Subset out
    cdef index_t i
    if isinstance(allow, Subset):
        out = allow
        if out.whole is not trie:
            raise InvalidArgument("allow is a subset of another trie")
        return out
    out = Subset.__new__(Subset, KEY)
    out.whole = trie
    out.t = t
    out.names = names
    out.rank = <index_t*>calloc(<size_t>t.n_leaves + 1, sizeof(index_t))
    if out.rank == NULL:
        raise OutOfMemory(f"no memory for a subset of {t.n_leaves} leaves")
    # First rank[i + 1] is 1 if leaf i is permitted; then it is summed up.
    if isinstance(allow, np.ndarray):
        allow_array(out, allow)
    else:
        allow_items(out, allow)
    for i in range(t.n_leaves):
        out.rank[i + 1] += out.rank[i]
    if out.rank[t.n_leaves] == 0:
        raise InvalidArgument(
            f"allow permits none of the {t.n_leaves} leaves: give at least one"
        )
    return out


cdef object wrong_allow(object allow):
    got = type(allow).__name__
    if isinstance(allow, np.ndarray):
        got += f" of dtype {allow.dtype} and shape {allow.shape}"
    return InvalidType(
        "allow must be a 1-D array of bool or int, an iterable of names, or a Subset; "
        f"got {got}"
    )


cdef int allow_array(Subset out, object allow) except -1:
    cdef const uint8_t[::1] mask
    cdef const int64_t[::1] numbers
    cdef int64_t i, n = out.t.n_leaves
    if allow.ndim != 1:
        raise wrong_allow(allow)
    if allow.dtype.kind == "b":
        if len(allow) != n:
            raise InvalidArgument(
                f"an allow mask is as long as there are leaves, {n}; got {len(allow)}"
            )
        mask = np.ascontiguousarray(allow).view(np.uint8)
        for i in range(n):
            out.rank[i + 1] = mask[i] != 0
        return 0
    if allow.dtype.kind not in "iu":
        raise wrong_allow(allow)
    # What int64 cannot hold becomes negative, and is refused with its own value.
    numbers = np.ascontiguousarray(allow).astype(np.int64, copy=False)
    for i in range(numbers.shape[0]):
        if not 0 <= numbers[i] < n:
            raise InvalidArgument(f"allow[{i}]: leaf {allow[i]} is outside [0, {n})")
        out.rank[numbers[i] + 1] = 1
    return 0


cdef int allow_items(Subset out, object allow) except -1:
    cdef int64_t leaf
    if isinstance(allow, (str, bytes)):
        raise wrong_allow(allow)
    try:
        items = list(allow)
    except TypeError:
        raise wrong_allow(allow) from None
    if not items:
        return 0
    if not isinstance(items[0], str):
        return allow_array(out, np.asarray(items))
    if out.names is None:
        raise InvalidArgument("allow holds names, but the trie was built without names")
    for i, name in enumerate(items):
        if not isinstance(name, str):
            raise InvalidType(
                f"allow[{i}]: a name is a str, got {type(name).__name__}"
            )
        leaf = out.names.find(exact_str(name))
        if leaf < 0:
            raise InvalidArgument(f"allow[{i}]: there is no {label('leaf', name)}")
        out.rank[leaf + 1] = 1
    return 0
