"""What C does with a cursor: going on, and picking by a row; see include/eliza.h."""

from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc

from ._handles cimport (
    ELIZA_BUNDLE_ERROR,
    ELIZA_INVALID_ARGUMENT,
    ELIZA_NO_CANDIDATE,
    ELIZA_OFF_PATH,
    ELIZA_OK,
    ELIZA_OUT_OF_MEMORY,
    ELIZA_TOO_SMALL,
    cursor_handle,
    cursor_of,
    eliza_cursor,
    fail,
    open_ids,
    succeed,
)
from ._logits cimport row_argmax, row_logprobs, row_mask, words_set
from ._position cimport (
    STEP_DAMAGED,
    STEP_DONE,
    pos_accept,
    pos_length,
    pos_reset,
    pos_rollback,
    step_t,
)
from ._rows cimport ROW_F32, row_t
from ._sample cimport bitgen_t, options_t, row_sample, sample_room
from ._types cimport index_t, token_t

cdef extern from "<stdio.h>" nogil:
    int snprintf(char* out, size_t cap, const char* form, ...)

cdef enum:
    TEXT = 192               # bytes of the longest message that is made here

cdef size_t MOST_BYTES = 0x7FFFFFFFFFFFFFFF  # no array is larger

cdef const char* NO_OUT = b"a place for the result is NULL"
cdef const char* NONE_LEFT = b"every allowed id has a logit of NaN or -inf"
cdef const char* NOT_A_CURSOR = b"cursor is NULL, or was freed"


cdef int32_t cursor_accept(
    eliza_cursor* cursor, int32_t id, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef char text[TEXT]
    cdef step_t step
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if not 0 <= id < c.b.trie.n_vocab:
        snprintf(text, TEXT, b"id %d is outside [0, %d)", id, c.b.trie.n_vocab)
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, text)
    step = pos_accept(&c.b, &c.p, id)
    if step == STEP_DONE:
        return succeed(err, err_cap)
    if step == STEP_DAMAGED:
        return fail(err, err_cap, ELIZA_BUNDLE_ERROR, b"the trie's file is damaged")
    snprintf(
        text, TEXT, b"id %d is not allowed after %u ids%s", id, pos_length(&c.p),
        <const char*>b": the choice is complete" if c.p.done else <const char*>b"",
    )
    return fail(err, err_cap, ELIZA_OFF_PATH, text)


cdef int32_t cursor_rollback(
    eliza_cursor* cursor, size_t n, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef char text[TEXT]
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if n > pos_length(&c.p):
        snprintf(
            text, TEXT, b"rollback: %zu is outside [0, %u]", n, pos_length(&c.p)
        )
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, text)
    pos_rollback(&c.b, &c.p, <index_t>n)
    return succeed(err, err_cap)


cdef int32_t cursor_reset(
    eliza_cursor* cursor, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    pos_reset(&c.p)
    return succeed(err, err_cap)


# Rows

cdef int32_t read_row(
    const cursor_handle* c, const void* data, size_t n, row_t* row, char* err,
    size_t err_cap,
) noexcept nogil:
    """Describe a row that a caller gave, or say what is wrong with it."""
    cdef char text[TEXT]
    if data == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, b"row is NULL")
    if <uintptr_t>data % sizeof(float):
        return fail(
            err, err_cap, ELIZA_INVALID_ARGUMENT, b"row is not aligned to a float"
        )
    if n < <size_t>c.b.trie.n_vocab or n > MOST_BYTES // sizeof(float):
        snprintf(
            text, TEXT, b"a row of %zu logits; the trie needs at least %d", n,
            c.b.trie.n_vocab,
        )
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, text)
    row.data = <char*>data
    row.stride = sizeof(float)
    row.n = <int64_t>n
    row.n_vocab = c.b.trie.n_vocab
    row.kind = ROW_F32
    row.flat = True
    return ELIZA_OK


cdef int32_t cursor_argmax(
    eliza_cursor* cursor, const float* row, size_t n, int32_t* id, char* err,
    size_t err_cap,
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef const token_t* ids = NULL
    cdef index_t count = 0
    cdef row_t read
    cdef int64_t best
    cdef int32_t status = open_ids(c, &ids, &count, err, err_cap)
    if status == ELIZA_OK:
        status = read_row(c, row, n, &read, err, err_cap)
    if status != ELIZA_OK:
        return status
    if id == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    best = row_argmax(&read, ids, count)
    if best < 0:
        return fail(err, err_cap, ELIZA_NO_CANDIDATE, NONE_LEFT)
    id[0] = ids[best]
    return succeed(err, err_cap)


cdef double the_double(void* state) noexcept nogil:
    return (<double*>state)[0]


cdef int32_t cursor_sample(
    eliza_cursor* cursor, const float* row, size_t n, double temperature,
    int64_t top_k, double top_p, double min_p, double uniform, int32_t* id, char* err,
    size_t err_cap,
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef const token_t* ids = NULL
    cdef index_t count = 0
    cdef row_t read
    cdef options_t options
    cdef bitgen_t bits
    cdef void* room
    cdef int64_t drawn
    cdef int32_t status = open_ids(c, &ids, &count, err, err_cap)
    if status == ELIZA_OK:
        status = read_row(c, row, n, &read, err, err_cap)
    if status != ELIZA_OK:
        return status
    if id == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    # Each comparison is false for NaN.
    if not (0 <= temperature < INFINITY and top_k >= 0 and 0 < top_p <= 1
            and 0 <= min_p <= 1 and 0 <= uniform < 1):
        return fail(
            err, err_cap, ELIZA_INVALID_ARGUMENT,
            b"temperature is finite and 0 or more, top_k 0 or more, top_p in (0, 1], "
            b"min_p in [0, 1], uniform in [0, 1)",
        )
    options.temperature = temperature
    options.top_k = top_k
    options.top_p = top_p
    options.min_p = min_p
    bits.state = &uniform
    bits.next_double = the_double
    room = malloc(sample_room(count))
    if room == NULL:
        return fail(err, err_cap, ELIZA_OUT_OF_MEMORY, b"no memory")
    drawn = row_sample(&read, ids, count, &options, room, &bits)
    free(room)
    if drawn < 0:
        return fail(err, err_cap, ELIZA_NO_CANDIDATE, NONE_LEFT)
    id[0] = ids[drawn]
    return succeed(err, err_cap)


cdef int32_t cursor_mask(
    eliza_cursor* cursor, float* row, size_t n, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef const token_t* ids = NULL
    cdef index_t count = 0
    cdef row_t read
    cdef int32_t status = open_ids(c, &ids, &count, err, err_cap)
    if status == ELIZA_OK:
        status = read_row(c, row, n, &read, err, err_cap)
    if status != ELIZA_OK:
        return status
    row_mask(&read, ids, count)
    return succeed(err, err_cap)


cdef int32_t cursor_bitmask(
    eliza_cursor* cursor, uint32_t* words, size_t n_words, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef const token_t* ids = NULL
    cdef index_t count = 0
    cdef char text[TEXT]
    cdef size_t wanted
    cdef int32_t status = open_ids(c, &ids, &count, err, err_cap)
    if status != ELIZA_OK:
        return status
    if words == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, b"words is NULL")
    wanted = (<size_t>c.b.trie.n_vocab + 31) // 32
    if (
        n_words < wanted or n_words > MOST_BYTES // sizeof(uint32_t) or
        <uintptr_t>words % sizeof(uint32_t)
    ):
        snprintf(
            text, TEXT, b"%zu words; the trie needs at least %zu, aligned", n_words,
            wanted,
        )
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, text)
    words_set(words, <int64_t>n_words, ids, count)
    return succeed(err, err_cap)


cdef int32_t cursor_logprobs(
    eliza_cursor* cursor, const float* row, size_t n, int32_t whole_row,
    double* logprobs, size_t cap, size_t* n_logprobs, char* err, size_t err_cap,
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef const token_t* ids = NULL
    cdef index_t count = 0
    cdef row_t read
    cdef char text[TEXT]
    cdef int32_t status = open_ids(c, &ids, &count, err, err_cap)
    if status == ELIZA_OK:
        status = read_row(c, row, n, &read, err, err_cap)
    if status != ELIZA_OK:
        return status
    if n_logprobs == NULL or (logprobs == NULL and cap > 0):
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    n_logprobs[0] = count
    if count > cap:
        snprintf(text, TEXT, b"the buffer must hold %u numbers", count)
        return fail(err, err_cap, ELIZA_TOO_SMALL, text)
    if not row_logprobs(&read, ids, count, whole_row != 0, logprobs):
        return fail(err, err_cap, ELIZA_NO_CANDIDATE, NONE_LEFT)
    return succeed(err, err_cap)
