"""Single steps of a position again and again in C, so that they can be timed.

A call from Python takes longer than the step itself; see bench/cursor.py.
"""

cimport cython
from libc.stdint cimport int64_t

from ._cursor cimport Cursor
from ._ingest cimport Ids
from ._position cimport STEP_DONE, pos_accept, pos_rollback, pos_t
from ._types cimport index_t

from .errors import InvalidArgument, OffPathError

__all__ = ["copy_rounds", "walk_rounds"]

cdef enum:
    PLACES = 8               # positions that are copied to and from


@cython.critical_section
def copy_rounds(Cursor cursor, int64_t rounds):
    """Copy the position of a cursor to another place, and back from a third.

    Parameters
    ----------
    cursor : Cursor
        It does not move.
    rounds : int
        How often; a round is two copies.

    Returns
    -------
    int
        The depth of the last copy, which is that of the cursor.
    """
    cdef pos_t[PLACES] places
    cdef pos_t p = cursor.p
    cdef int64_t i
    for i in range(PLACES):
        places[i] = p
    with nogil:
        for i in range(rounds):
            places[i % PLACES] = p
            p = places[(i + 3) % PLACES]
    return p.depth


@cython.critical_section
def walk_rounds(Cursor cursor, ids, int64_t rounds, str back):
    """Accept ids and take them back.

    Parameters
    ----------
    cursor : Cursor
        It ends where it starts.
    ids : iterable of int
        What to accept in each round.
    rounds : int
        How often.
    back : {"one", "all", "copy"}
        Whether to take back one id after the other, all in one step, or by a copy of
        the position that was made before.

    Returns
    -------
    int
        How many ids were accepted in all.

    Raises
    ------
    OffPathError
        An id is not allowed where it comes.
    """
    cdef Ids path = Ids(cursor.bound.b.trie.n_vocab)
    cdef pos_t p = cursor.p, start
    cdef int64_t _i, k, _k, count = 0
    cdef bint one = back == "one", copied = back == "copy"
    if back not in ("one", "all", "copy"):
        raise InvalidArgument(f"back must be 'one', 'all' or 'copy', got {back!r}")
    path.n_vocab = cursor.bound.b.trie.n_vocab
    path.extend(ids, "walk_rounds", None)
    for k in range(path.n):  # below, what is taken back is not checked
        if pos_accept(&cursor.bound.b, &p, path.data[k]) != STEP_DONE:
            raise OffPathError(f"walk_rounds: id {path.data[k]} is not allowed there")
    p = cursor.p
    with nogil:
        for _i in range(rounds):
            start = p
            for k in range(path.n):
                count += pos_accept(&cursor.bound.b, &p, path.data[k]) == STEP_DONE
            if copied:
                p = start
            elif one:
                for _k in range(path.n):
                    pos_rollback(&cursor.bound.b, &p, 1)
            else:
                pos_rollback(&cursor.bound.b, &p, <index_t>path.n)
    return count
