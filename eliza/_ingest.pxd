"""Reading sequences of ids from Python objects, with every check and its message."""

cimport cython
from libc.stdint cimport int64_t

from ._types cimport token_t


@cython.final
cdef class Ids:
    # A growing array of checked ids, owned.
    cdef token_t *data
    cdef int64_t n
    cdef int64_t room
    cdef int64_t n_vocab

    # Append the ids of one sequence; `what` and `name` say in a message whose they are.
    cdef int extend(self, object sequence, str what, object name) except -1
    cdef int add(self, Ids other) except -1
    # Sort, and drop what is there twice.
    cdef void sort(self) noexcept
    cdef bint equals(self, Ids other) noexcept
    cdef int reserve(self, int64_t extra) except -1


@cython.final
cdef class Sequences:
    # Leaves as a caller gave them, checked.
    cdef const token_t *ids      # end to end
    cdef const int64_t *start    # [n + 1]
    cdef int64_t n
    cdef int64_t n_vocab
    cdef list names              # exact strs, or None
    cdef bint distinct           # no name comes twice
    cdef object owner            # of ids; without own_start of start too
    cdef int64_t *own_start      # owned

# One id, checked to lie in [0, n_vocab); `at` below 0 is left out of the message.
# InvalidType, InvalidArgument.
cdef token_t id_of(
    object item, int64_t n_vocab, str what, object name, int64_t at
) except -1

# Anything with __index__ but a bool, as an int; `what` opens the message. InvalidType.
cdef object plain_int(object value, str what)

cdef int64_t vocab_size(object n_vocab) except -1

# A str of exactly that class, whatever subclass it is given.
cdef str exact_str(object text)

# "leaf 'REPLY'" or "leaf 3": what a message calls something.
cdef str label(str what, object name)

# From a mapping or an iterable of (name, ids) pairs.
cdef Sequences read_leaves(object leaves, int64_t n_vocab)

# From ids end to end and offsets; `names` may be None.
cdef Sequences read_arrays(object tokens, object offsets, object names, int64_t n_vocab)

# What a constructor got as exits=: None, Ids for every leaf, or a dict from places in
# `leaves` to Ids, where the keys of a mapping are names or places.
cdef object read_all_exits(object exits, Sequences leaves, bint by_name)

# A set of exit ids, sorted.
cdef Ids read_exits(object exits, int64_t n_vocab, str what, object name)
