"""Reading sequences of ids from Python objects; see the .pxd."""

cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcmp, memcpy

from cpython.bool cimport PyBool_Check
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.number cimport PyIndex_Check

from ._types cimport token_t

import operator
from collections.abc import Mapping, Set

import numpy as np

from .errors import InvalidArgument, InvalidType, OutOfMemory

cdef enum:
    LABEL_LENGTH = 60        # a name in a message is cut to this


cdef str shorten(object value):
    cdef str text = repr(value)
    return text if len(text) <= LABEL_LENGTH else text[: LABEL_LENGTH - 1] + "…"


cdef str label(str what, object name):
    return what if name is None else f"{what} {shorten(name)}"


cdef str exact_str(object text):
    """Turn a subclass, such as a member of a str enum, into what it says."""
    return text if type(text) is str else str.__str__(text)


cdef str place(str what, object name, int64_t at):
    return label(what, name) if at < 0 else f"{label(what, name)} [{at}]"


cdef object plain_int(object value, str what):
    if PyLong_CheckExact(value):
        return value
    # np.bool_ passes PyIndex_Check in NumPy 1.
    if (
        PyBool_Check(value) or isinstance(value, np.bool_) or not PyIndex_Check(value)
    ):
        raise InvalidType(
            f"{what} must be an int, got {type(value).__name__} {shorten(value)}"
        )
    return operator.index(value)


cdef int64_t vocab_size(object n_vocab) except -1:
    """Check a vocabulary size."""
    value = plain_int(n_vocab, "n_vocab")
    if not 1 <= value < 2**31:
        raise InvalidArgument(f"n_vocab must lie in [1, 2**31), got {value}")
    return value


cdef token_t id_of(
    object item, int64_t n_vocab, str what, object name, int64_t at
) except -1:
    cdef int overflow = 0
    cdef long long value
    if not PyLong_CheckExact(item):
        item = plain_int(item, f"{place(what, name, at)}: an id")
    value = PyLong_AsLongLongAndOverflow(item, &overflow)
    if overflow or value < 0 or value >= n_vocab:
        raise InvalidArgument(
            f"{place(what, name, at)}: id {item} is outside [0, {n_vocab})"
        )
    return <token_t>value


@cython.auto_pickle(False)
cdef class Ids:
    def __dealloc__(self):
        free(self.data)

    cdef int reserve(self, int64_t extra) except -1:
        cdef token_t* grown
        cdef int64_t room
        if self.n + extra <= self.room:
            return 0
        room = max(self.n + extra, 2 * self.room)
        grown = <token_t*>realloc(self.data, room * sizeof(token_t))
        if grown == NULL:
            raise OutOfMemory(f"no memory for {room} ids")
        self.data = grown
        self.room = room
        return 0

    cdef int extend(self, object sequence, str what, object name) except -1:
        cdef tuple items = items_of(sequence, what, name)
        cdef int64_t i, count = len(items)
        self.reserve(count)
        for i in range(count):
            self.data[self.n + i] = id_of(items[i], self.n_vocab, what, name, i)
        self.n += count
        return 0

    cdef int add(self, Ids other) except -1:
        if other.n:
            self.reserve(other.n)
            memcpy(self.data + self.n, other.data, other.n * sizeof(token_t))
            self.n += other.n
        return 0

    cdef void sort(self) noexcept:
        cdef int64_t i, kept = 0
        if self.n:
            qsort(self.data, self.n, sizeof(token_t), compare_ids)
        for i in range(self.n):
            if kept == 0 or self.data[i] != self.data[kept - 1]:
                self.data[kept] = self.data[i]
                kept += 1
        self.n = kept

    cdef bint equals(self, Ids other) noexcept:
        if self.n != other.n:
            return False
        return self.n == 0 or (
            memcmp(self.data, other.data, self.n * sizeof(token_t)) == 0
        )


cdef int compare_ids(const void* a, const void* b) noexcept nogil:
    cdef token_t x = (<const token_t*>a)[0], y = (<const token_t*>b)[0]
    return (x > y) - (x < y)


cdef tuple items_of(object sequence, str what, object name):
    """Take the items of a sequence of ids; NumPy arrays as exact ints."""
    if isinstance(sequence, (list, tuple)):
        return tuple(sequence)
    # Text iterates too, and a set has no order.
    if not isinstance(sequence, (str, bytes, bytearray, Set, Mapping)):
        try:
            if isinstance(sequence, np.ndarray):
                sequence = sequence.tolist()
            return tuple(sequence)
        except TypeError:
            pass
    raise InvalidType(
        f"{label(what, name)}: expected a sequence of ints, got "
        f"{type(sequence).__name__}"
    )


@cython.auto_pickle(False)
cdef class Sequences:
    def __dealloc__(self):
        free(self.own_start)


cdef object pairs_of(object leaves):
    """Take the (name, ids) pairs of a mapping or an iterable."""
    if isinstance(leaves, Mapping):
        return leaves.items()
    if not isinstance(leaves, (str, bytes, bytearray)):
        try:
            return iter(leaves)
        except TypeError:
            pass
    raise InvalidType(
        "leaves must be a mapping from names to ids or an iterable of (name, ids) "
        f"pairs, got {type(leaves).__name__}"
    )


cdef Sequences read_leaves(object leaves, int64_t n_vocab):
    cdef Sequences out = Sequences()
    cdef Ids ids = Ids()
    cdef int64_t room = 0, before
    cdef int64_t* grown
    out.owner = ids
    out.names = []
    out.n_vocab = ids.n_vocab = n_vocab
    out.distinct = type(leaves) is dict
    for pair in pairs_of(leaves):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidType(
                f"leaves[{out.n}]: expected a (name, ids) pair, got {shorten(pair)}"
            )
        name, sequence = pair
        name = read_name(name, "leaves", out.n)
        before = ids.n
        ids.extend(sequence, "leaf", name)
        if ids.n == before:
            raise InvalidArgument(f"{label('leaf', name)}: it has no ids")
        if out.n == room:
            room = max(2 * room, 64)
            grown = <int64_t*>realloc(out.own_start, (room + 1) * sizeof(int64_t))
            if grown == NULL:
                raise OutOfMemory(f"no memory for {room} leaves")
            out.own_start = grown
        out.names.append(name)
        out.own_start[out.n] = before
        out.n += 1
        out.own_start[out.n] = ids.n
    if out.n == 0:
        raise no_leaves()
    out.ids = ids.data
    out.start = out.own_start
    return out


cdef object no_leaves():
    return InvalidArgument("there are no leaves: give at least one")


cdef str read_name(object name, str what, int64_t at):
    if not isinstance(name, str):
        raise InvalidType(
            f"{what}[{at}]: a name is a str, got {type(name).__name__} {shorten(name)}"
        )
    return exact_str(name)


cdef object int_array(object array, str what):
    """Take a 1-D integer array, of whatever integer type."""
    out = np.asarray(array)
    if not isinstance(array, np.ndarray) and out.ndim == 1 and out.dtype.kind in "fO":
        # A list whose ints fit into no integer type: keep them, for the message.
        if all([type(item) is int for item in array]):
            return np.array(array, object)
    if out.ndim != 1 or (out.size and out.dtype.kind not in "iu"):
        raise InvalidType(
            f"{what} must be a 1-D array of ints, got {type(array).__name__} of dtype "
            f"{out.dtype} and shape {out.shape}"
        )
    return out


cdef list read_names(object names, int64_t n):
    cdef list out
    if isinstance(names, (str, bytes)):
        raise InvalidType(f"names must be a sequence of str, got {shorten(names)}")
    out = [read_name(name, "names", i) for i, name in enumerate(names)]
    if len(out) != n:
        raise InvalidArgument(f"there are {n} leaves, but {len(out)} names")
    return out


cdef object narrow(object array, int64_t top, object dtype):
    """Convert to a smaller integer type; what does not fit becomes -1."""
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    return np.where((array < 0) | (array > top), -1, array).astype(dtype)


cdef Sequences read_arrays(
    object tokens, object offsets, object names, int64_t n_vocab
):
    cdef Sequences out = Sequences()
    cdef const token_t[::1] ids
    cdef const int64_t[::1] start
    cdef int64_t i, leaf
    tokens = int_array(tokens, "tokens")
    offsets = int_array(offsets, "offsets")
    if len(offsets) < 2:
        raise no_leaves()
    ids = narrow(tokens, n_vocab, np.int32)
    start = narrow(offsets, len(tokens), np.int64)
    out.owner = (ids, start)
    out.n = start.shape[0] - 1
    out.n_vocab = n_vocab
    if names is not None:
        out.names = read_names(names, out.n)
    if start[0] != 0 or start[out.n] != ids.shape[0]:
        raise InvalidArgument(
            f"offsets must go from 0 to the number of tokens, {ids.shape[0]}; they go "
            f"from {offsets[0]} to {offsets[out.n]}"
        )
    for leaf in range(out.n):
        if start[leaf + 1] <= start[leaf]:
            name = leaf if out.names is None else out.names[leaf]
            if start[leaf + 1] == start[leaf]:
                raise InvalidArgument(f"{label('leaf', name)}: it has no ids")
            raise InvalidArgument(
                f"offsets must not decrease: offsets[{leaf + 1}] is "
                f"{offsets[leaf + 1]} after {offsets[leaf]}"
            )
    for i in range(ids.shape[0]):
        if <uint32_t>ids[i] >= n_vocab:  # a negative id is a huge one here
            leaf = np.searchsorted(offsets, i, "right") - 1
            name = leaf if out.names is None else out.names[leaf]
            id_of(tokens[i], n_vocab, "leaf", name, i - start[leaf])
    out.ids = &ids[0]
    out.start = &start[0]
    return out


cdef object read_all_exits(object exits, Sequences leaves, bint by_name):
    cdef dict place_of, out = {}
    if exits is None:
        return None
    if not isinstance(exits, Mapping):
        return read_exits(exits, leaves.n_vocab, "exits", None)
    if by_name:
        place_of = {name: i for i, name in enumerate(leaves.names)}
    for key, ids in exits.items():
        if by_name:
            at = place_of.get(exact_str(key) if isinstance(key, str) else key)
        else:
            at = None if PyBool_Check(key) or key not in range(leaves.n) else key
        if at is None:
            raise InvalidArgument(
                f"exits for {shorten(key)}, which is "
                + ("no leaf" if by_name else f"outside [0, {leaves.n})")
            )
        out[at] = read_exits(ids, leaves.n_vocab, "exits of leaf", key)
    return out


cdef Ids read_exits(object exits, int64_t n_vocab, str what, object name):
    cdef Ids out = Ids()
    out.n_vocab = n_vocab
    if isinstance(exits, Set):
        exits = tuple(exits)
    out.extend(exits, what, name)
    out.sort()
    return out
