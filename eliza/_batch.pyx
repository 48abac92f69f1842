"""The kernels over many rows in one call: one row for each cursor."""

cimport cython
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free, malloc

from cpython.buffer cimport (
    PyBUF_WRITABLE,
    Py_buffer,
    PyBuffer_Release,
    PyObject_GetBuffer,
)

from ._arrays cimport ints_new
from ._cursor cimport Cursor
from ._logits cimport row_argmax, row_mask, words_set
from ._position cimport pos_gather, pos_room, pos_span, pos_t
from ._rows cimport row_open, row_t, words_open
from ._types cimport index_t, token_t

from .errors import InvalidArgument, InvalidType, NoCandidateError, OutOfMemory

__all__ = ["argmax_batch", "bitmask_batch", "mask_batch"]

cdef struct span_t:
    const token_t *ids       # allowed in this row
    index_t n                # 0: no cursor, the row is none of our business


@cython.final
@cython.auto_pickle(False)
cdef class Spans:
    """The allowed ids of several cursors, taken at once.

    What a cursor does afterwards does not matter: ids inside of tries cannot change,
    and those that had to be gathered are copies.
    """

    cdef tuple cursors       # keep the tries alive
    cdef int64_t n
    cdef int64_t n_vocab     # the largest of all
    cdef span_t *spans       # [n] owned
    cdef token_t *gathered   # owned

    def __dealloc__(self):
        free(self.spans)
        free(self.gathered)


cdef Spans spans_make(object cursors):
    cdef Spans out = Spans()
    cdef Cursor cursor
    cdef pos_t* places
    cdef span_t* span
    cdef int64_t i, room = 0
    out.cursors = tuple(cursors)
    out.n = len(out.cursors)
    out.spans = <span_t*>calloc(out.n + 1, sizeof(span_t))
    places = <pos_t*>malloc((out.n + 1) * sizeof(pos_t))
    try:
        if out.spans == NULL or places == NULL:
            raise OutOfMemory(f"no memory for {out.n} cursors")
        for i in range(out.n):
            if out.cursors[i] is None:
                continue
            if not isinstance(out.cursors[i], Cursor):
                raise InvalidType(
                    f"cursors[{i}]: expected a Cursor or None, got "
                    f"{type(out.cursors[i]).__name__}"
                )
            cursor = <Cursor>out.cursors[i]
            with cython.critical_section(cursor):
                places[i] = cursor.p
            if places[i].done:
                raise NoCandidateError(
                    f"cursors[{i}]: the choice is complete, no id follows it; give "
                    "None for rows that are done"
                )
            span = out.spans + i
            out.n_vocab = max(out.n_vocab, cursor.bound.b.trie.n_vocab)
            if not pos_span(&cursor.bound.b, places + i, &span.ids, &span.n):
                span.ids = NULL
                room += pos_room(&cursor.bound.b, places + i)
        if room:
            spans_gather(out, places, room)
    finally:
        free(places)
    return out


cdef int spans_gather(Spans out, const pos_t* places, int64_t room) except -1:
    """Gather the ids of the cursors that have none in one piece."""
    cdef Cursor cursor
    cdef token_t* to
    cdef int64_t i
    out.gathered = to = <token_t*>malloc(room * sizeof(token_t))
    if to == NULL:
        raise OutOfMemory(f"no memory for {room} ids")
    for i in range(out.n):
        if out.spans[i].ids == NULL and out.cursors[i] is not None:
            cursor = <Cursor>out.cursors[i]
            out.spans[i].ids = to
            out.spans[i].n = pos_gather(&cursor.bound.b, places + i, to)
            to += pos_room(&cursor.bound.b, places + i)
    return 0


cdef int check_count(int64_t rows, Spans spans, Py_buffer* view) except -1:
    if rows != spans.n:
        PyBuffer_Release(view)
        raise InvalidArgument(f"there are {rows} rows, but {spans.n} cursors")
    return 0


def argmax_batch(logits, cursors, dtype=None):
    """Return for each row the allowed id with the highest logit.

    Parameters
    ----------
    logits : buffer of float32, float16 or bfloat16, shape (n, n_logits)
        As in `Cursor.argmax`, a row for each cursor.
    cursors : sequence of Cursor or None, length n
        None where a row has no constraint.
    dtype : {None, "bfloat16"}
        "bfloat16" if the rows hold its bits as uint16.

    Returns
    -------
    ndarray of int32, shape (n,)
        -1 where there is no cursor.

    Raises
    ------
    NoCandidateError
        In some row each allowed logit is NaN or -inf, or a choice is complete.
    InvalidArgument
        The rows have another type or shape.
    """
    cdef Spans spans = spans_make(cursors)
    cdef Py_buffer view, target
    cdef row_t row
    cdef int64_t i, best, failed = -1
    cdef token_t* to
    out = ints_new(spans.n)
    row_open(logits, 2, spans.n_vocab, False, dtype, &view, &row)
    check_count(view.shape[0], spans, &view)
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    to = <token_t*>target.buf
    with nogil:
        for i in range(spans.n):
            to[i] = -1
            if spans.spans[i].n:
                best = row_argmax(&row, spans.spans[i].ids, spans.spans[i].n)
                if best >= 0:
                    to[i] = spans.spans[i].ids[best]
                elif failed < 0:
                    failed = i
            row.data += view.strides[0]
    PyBuffer_Release(&target)
    PyBuffer_Release(&view)
    if failed >= 0:
        raise NoCandidateError(
            f"row {failed}: every allowed id has a logit of NaN or -inf"
        )
    return out


def mask_batch(logits, cursors, dtype=None):
    """Mask each row in place by its cursor.

    Parameters
    ----------
    logits : writable buffer of float32, float16 or bfloat16, shape (n, n_logits)
        As in `Cursor.mask`, a row for each cursor.
    cursors : sequence of Cursor or None, length n
        A row whose cursor is None is not touched.
    dtype : {None, "bfloat16"}
        "bfloat16" if the rows hold its bits as uint16.

    Raises
    ------
    NoCandidateError
        A choice is complete; no row is changed.
    InvalidArgument
        The rows have another type or shape, or cannot be written to.
    """
    cdef Spans spans = spans_make(cursors)
    cdef Py_buffer view
    cdef row_t row
    cdef int64_t i
    row_open(logits, 2, spans.n_vocab, True, dtype, &view, &row)
    check_count(view.shape[0], spans, &view)
    with nogil:
        for i in range(spans.n):
            if spans.spans[i].n:
                row_mask(&row, spans.spans[i].ids, spans.spans[i].n)
            row.data += view.strides[0]
    PyBuffer_Release(&view)


def bitmask_batch(out, cursors):
    """Write the allowed ids of each cursor as bits, as `Cursor.bitmask` does.

    Parameters
    ----------
    out : writable buffer of int32, shape (n, n_words)
        A row for each cursor.
    cursors : sequence of Cursor or None, length n
        A row whose cursor is None is not touched.

    Raises
    ------
    NoCandidateError
        A choice is complete; no row is changed.
    InvalidArgument
        `out` has another type or shape, or cannot be written to.
    """
    cdef Spans spans = spans_make(cursors)
    cdef Py_buffer view
    cdef int64_t i
    cdef char* to
    words_open(out, 2, spans.n_vocab, &view)
    check_count(view.shape[0], spans, &view)
    to = <char*>view.buf
    with nogil:
        for i in range(spans.n):
            if spans.spans[i].n:
                words_set(
                    <uint32_t*>(to + i * view.strides[0]), view.shape[1],
                    spans.spans[i].ids, spans.spans[i].n,
                )
    PyBuffer_Release(&view)
