"""Single steps of a position again and again in C, so that they can be timed.

A call from Python takes longer than the step itself; see bench/cursor.py.
"""

cimport cython
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free, malloc

from ._cursor cimport Cursor
from ._ingest cimport Ids
from ._llama_api cimport (
    llama,
    llama_sampler,
    llama_token_data,
    llama_token_data_array,
    must_be_bound,
)
from ._position cimport STEP_DONE, pos_accept, pos_rollback, pos_t
from ._types cimport index_t, token_t

from .errors import InvalidArgument, OffPathError, OutOfMemory

__all__ = ["candidate_rounds", "copy_rounds", "walk_rounds"]

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
    cdef Ids path = Ids()
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


def candidate_rounds(const float[::1] logits not None, int64_t rounds, sampler=0):
    """Write candidates, as `llama_sampler_sample` does, and apply a sampler to them.

    Parameters
    ----------
    logits : contiguous buffer of float32
        A row.
    rounds : int
        How often.
    sampler : int
        The address of a `llama_sampler`; 0 for the writing alone.

    Returns
    -------
    int
        The selected id of the last round, or -1.
    """
    cdef llama_sampler* smpl = <llama_sampler*><uintptr_t>sampler
    cdef llama_token_data_array cur
    cdef llama_token_data* data
    cdef const float* row = &logits[0]
    cdef int64_t n = logits.shape[0], i, _round
    cdef token_t chosen = -1
    must_be_bound()
    data = <llama_token_data*>malloc(n * sizeof(llama_token_data))
    if data == NULL:
        raise OutOfMemory(f"no memory for {n} candidates")
    cur.selected = -1
    with nogil:
        for _round in range(rounds):
            for i in range(n):
                data[i].id = <token_t>i
                data[i].logit = row[i]
                data[i].p = 0
            cur.data = data
            cur.size = n
            cur.selected = -1
            cur.sorted = False
            if smpl != NULL:
                llama.sampler_apply(smpl, &cur)
    if cur.selected >= 0:
        chosen = data[cur.selected].id
    free(data)
    return chosen
