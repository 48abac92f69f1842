# What other people may write: built by tests/test_capi_outside.py, not with eliza.

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from eliza.cimports cimport (
    STEP_DONE,
    Cursor,
    bound_t,
    ids_at,
    ids_room,
    index_t,
    leaf_at,
    pos_accept,
    pos_length,
    pos_rollback,
    pos_t,
    row_argmax,
    row_mask,
    row_of,
    row_t,
    token_t,
)

from eliza import NoCandidateError

cdef extern from "eliza.h":
    ctypedef struct eliza_api:
        uint32_t size
        uint32_t version
    const eliza_api* eliza_import() except NULL


def greedy(Cursor cursor, const float[:, ::1] rows):
    """Take the argmax of one row after the other; return the leaf."""
    cdef const bound_t* b = &cursor.bound.b
    cdef pos_t p = cursor.p
    cdef const token_t* ids
    cdef index_t n
    cdef int64_t best = 0, i
    cdef row_t row
    cdef token_t* room = <token_t*>malloc(ids_room(b) * sizeof(token_t))
    if room == NULL:
        raise MemoryError
    with nogil:
        for i in range(rows.shape[0]):
            if p.done:
                break
            row = row_of(&rows[i, 0], rows.shape[1], b.trie.n_vocab)
            n = ids_at(b, &p, room, &ids)
            best = row_argmax(&row, ids, n)
            if best < 0 or pos_accept(b, &p, ids[best]) != STEP_DONE:
                break
    free(room)
    if best < 0:
        raise NoCandidateError("nothing is left")
    cursor.p = p
    return leaf_at(b, &p)


def allowed(Cursor cursor):
    cdef const bound_t* b = &cursor.bound.b
    cdef const token_t* ids
    cdef token_t* room = <token_t*>malloc(ids_room(b) * sizeof(token_t))
    cdef index_t i, n = ids_at(b, &cursor.p, room, &ids)
    found = [ids[i] for i in range(n)]
    free(room)
    return found


def mask(Cursor cursor, float[::1] logits):
    cdef const bound_t* b = &cursor.bound.b
    cdef row_t row = row_of(&logits[0], logits.shape[0], b.trie.n_vocab)
    cdef const token_t* ids
    cdef token_t* room = <token_t*>malloc(ids_room(b) * sizeof(token_t))
    cdef index_t n = ids_at(b, &cursor.p, room, &ids)
    row_mask(&row, ids, n)
    free(room)


def back(Cursor cursor, int n):
    if not 0 <= n <= <int64_t>pos_length(&cursor.p):
        raise ValueError(n)
    pos_rollback(&cursor.bound.b, &cursor.p, n)


def api_version():
    return eliza_import().version


def api_size():
    return eliza_import().size
