"""What Cython code of other packages may cimport, all from here.

    from eliza.cimports cimport Cursor, Trie, pos_t, pos_accept, row_of, ...

`Trie` and `Cursor` are the classes of Python. Below a cursor lie two structs, which
need no Python and no GIL:

    cursor.bound.b   a bound_t: the trie and what is permitted in it; never changes,
                     shared by all cursors and positions that came from this one
    cursor.p         a pos_t: where it is, 16 bytes, copied by assignment

A loop without the GIL copies the position, works on the copy, and writes it back:

    cdef const bound_t* b = &cursor.bound.b
    cdef pos_t p = cursor.p
    with nogil:
        ...
    cursor.p = p

Ownership: both structs are the cursor's. `b` is valid as long as any cursor that shares
it lives, so keep one. A cursor, and a position, belong to one thread at a time.

    pos_accept(b, &p, id)     STEP_DONE; STEP_OFF: not allowed; STEP_DAMAGED: its file
    pos_rollback(b, &p, n)    at most pos_length(&p); unchecked
    pos_reset(&p)
    pos_force(b, &p)          go on to where there is a choice; False: file damaged
    ids_room(b)               how many ids `ids_at` may need room for, at any position
    ids_at(b, &p, room, &ids) the allowed ids, sorted: their number; ids points into the
                              trie or to room
    leaf_at(b, &p)            the leaf of a complete choice, else -1
    row_of(data, n, n_vocab)  a row of float32; data must have n >= n_vocab logits
    row_argmax(&row, ids, n)  which of ids is the highest, -1 if all are NaN or -inf
    row_mask(&row, ids, n)    in place: -inf everywhere else
    row_logprobs(...)         see `_logits.pxd`

What is declared here stays as it is within a minor version. The sizes of the structs
may change with a minor version: compile again.
"""

from libc.stdint cimport int64_t

from ._bound cimport Bound
from ._cursor cimport Cursor
from ._logits cimport row_argmax, row_logprobs, row_mask
from ._position cimport (
    STEP_DAMAGED,
    STEP_DONE,
    STEP_OFF,
    bound_t,
    live,
    pos_accept,
    pos_force,
    pos_gather,
    pos_length,
    pos_reset,
    pos_rollback,
    pos_room,
    pos_span,
    pos_t,
    step_t,
)
from ._rows cimport ROW_F32, row_t
from ._trie cimport Trie
from ._types cimport index_t, token_t


cdef inline index_t ids_room(const bound_t* b) noexcept nogil:
    """Return for how many ids a buffer suffices at every position."""
    return b.trie.n_leaves + b.trie.n_exit_ids + b.n_exits + 1


cdef inline index_t ids_at(
    const bound_t* b, const pos_t* p, token_t* room, const token_t** ids
) noexcept nogil:
    """Point at the allowed ids, gathering them in `room` if they must be."""
    cdef index_t n = 0
    if pos_span(b, p, ids, &n):
        return n
    ids[0] = room
    return pos_gather(b, p, room)


cdef inline int64_t leaf_at(const bound_t* b, const pos_t* p) noexcept nogil:
    """Return the leaf of a complete choice, else -1."""
    return <int64_t>b.trie.node[p.node].lo if p.done else -1


cdef inline row_t row_of(const float* data, int64_t n, int64_t n_vocab) noexcept nogil:
    """Describe a row of float32 without gaps; for row_mask it must be writable."""
    cdef row_t row
    row.data = <char*>data
    row.stride = sizeof(float)
    row.n = n
    row.n_vocab = n_vocab
    row.kind = ROW_F32
    row.flat = True
    return row
