"""Tries and cursors as C hands them around; see the .pxd and include/eliza.h."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, strlen

from ._check cimport leaf_check
from ._position cimport (
    bound_t,
    live,
    path_copy,
    pos_force,
    pos_gather,
    pos_length,
    pos_reset,
    pos_room,
    pos_span,
    pos_t,
)
from ._types cimport index_t, node_t, token_t, trie_t

cdef extern from "<stdio.h>" nogil:
    int snprintf(char* out, size_t cap, const char* form, ...)

cdef enum:
    TEXT = 192               # bytes of the longest message that is made here

cdef uint64_t TRIE_KIND = 0x454C495A41545249
cdef uint64_t CURSOR_KIND = 0x454C495A41435552
cdef const char* NOT_A_TRIE = b"trie is NULL, or was freed"
cdef const char* NOT_A_CURSOR = b"cursor is NULL, or was freed"
cdef const char* NO_OUT = b"a place for the result is NULL"
cdef const char* NO_MEMORY = b"no memory"
cdef const char* DAMAGED = b"the trie's file is damaged"

cdef shared_t* dead = NULL


cdef shared_t** let_go() noexcept nogil:
    return &dead


# Texts

cdef void write_text(
    char* out, size_t cap, const char* text, size_t n
) noexcept nogil:
    cdef size_t room
    if out == NULL or cap == 0:
        return
    room = min(n, cap - 1)
    if room < n:
        # text[room] is the first byte left out: it must not continue a character.
        while room > 0 and (<unsigned char>text[room] & 0xC0) == 0x80:
            room -= 1
    memcpy(out, text, room)
    out[room] = 0


cdef int32_t fail(char* err, size_t cap, int32_t code, const char* text) noexcept nogil:
    write_text(err, cap, text, strlen(text))
    return code


cdef int32_t succeed(char* err, size_t cap) noexcept nogil:
    if err != NULL and cap > 0:
        err[0] = 0
    return ELIZA_OK


# Handles

cdef trie_handle* trie_of(const eliza_trie* trie) noexcept nogil:
    cdef trie_handle* handle = <trie_handle*>trie
    return handle if handle != NULL and handle.kind == TRIE_KIND else NULL


cdef cursor_handle* cursor_of(const eliza_cursor* cursor) noexcept nogil:
    cdef cursor_handle* handle = <cursor_handle*>cursor
    return handle if handle != NULL and handle.kind == CURSOR_KIND else NULL


cdef eliza_trie* trie_wrap(
    void* object, const trie_t* t, const char* text, const int64_t* start,
    int64_t n_text,
) noexcept nogil:
    cdef trie_handle* handle = <trie_handle*>malloc(sizeof(trie_handle))
    if handle == NULL:
        return NULL
    handle.shared = shared_make(object)
    if handle.shared == NULL:
        free(handle)
        return NULL
    handle.kind = TRIE_KIND
    handle.t = t
    handle.text = text
    handle.start = start
    handle.n_text = n_text
    return <eliza_trie*>handle


cdef eliza_cursor* cursor_wrap(void* object, const bound_t* b) noexcept nogil:
    cdef cursor_handle* handle = <cursor_handle*>calloc(1, sizeof(cursor_handle))
    if handle == NULL:
        return NULL
    handle.shared = shared_make(object)
    if handle.shared == NULL:
        free(handle)
        return NULL
    handle.kind = CURSOR_KIND
    handle.b = b[0]
    pos_reset(&handle.p)
    return <eliza_cursor*>handle


cdef void trie_free(eliza_trie** trie) noexcept nogil:
    cdef trie_handle* handle
    if trie == NULL:
        return
    handle = trie_of(trie[0])
    trie[0] = NULL
    if handle != NULL:
        handle.kind = 0
        shared_release(handle.shared, &dead)
        free(handle)


cdef void cursor_free(eliza_cursor** cursor) noexcept nogil:
    cdef cursor_handle* handle
    if cursor == NULL:
        return
    handle = cursor_of(cursor[0])
    cursor[0] = NULL
    if handle != NULL:
        handle.kind = 0
        shared_release(handle.shared, &dead)
        free(handle.scratch)
        free(handle)


# Tries

cdef int32_t trie_n_leaves(
    const eliza_trie* trie, size_t* n, char* err, size_t err_cap
) noexcept nogil:
    cdef trie_handle* handle = trie_of(trie)
    if handle == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_TRIE)
    if n == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    n[0] = handle.t.n_leaves
    return succeed(err, err_cap)


cdef int32_t trie_n_vocab(
    const eliza_trie* trie, int32_t* n, char* err, size_t err_cap
) noexcept nogil:
    cdef trie_handle* handle = trie_of(trie)
    if handle == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_TRIE)
    if n == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    n[0] = handle.t.n_vocab
    return succeed(err, err_cap)


cdef int32_t trie_name(
    const eliza_trie* trie, int64_t leaf, char* name, size_t cap, size_t* length,
    char* err, size_t err_cap,
) noexcept nogil:
    cdef trie_handle* handle = trie_of(trie)
    cdef char text[TEXT]
    cdef int64_t start = 0, end = 0
    if handle == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_TRIE)
    if length == NULL or (name == NULL and cap > 0):
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    if not 0 <= leaf < handle.t.n_leaves:
        snprintf(
            text, TEXT, b"leaf %lld is outside [0, %u)", <long long>leaf,
            handle.t.n_leaves,
        )
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, text)
    if not handle.t.trusted and not leaf_check(handle.t, <index_t>leaf):
        return fail(err, err_cap, ELIZA_BUNDLE_ERROR, DAMAGED)
    if handle.text != NULL:
        start = handle.start[leaf]
        end = handle.start[leaf + 1]
        if not 0 <= start <= end <= handle.n_text:
            return fail(err, err_cap, ELIZA_BUNDLE_ERROR, DAMAGED)
    length[0] = <size_t>(end - start)
    if length[0] >= cap:
        if cap > 0:
            name[0] = 0
        return too_small(err, err_cap, b"a name of %zu bytes needs one more", length[0])
    if end > start:
        memcpy(name, handle.text + start, length[0])
    name[length[0]] = 0
    return succeed(err, err_cap)


cdef int32_t too_small(
    char* err, size_t err_cap, const char* form, size_t n
) noexcept nogil:
    cdef char text[TEXT]
    snprintf(text, TEXT, form, n)
    return fail(err, err_cap, ELIZA_TOO_SMALL, text)


# Where a cursor is

cdef int32_t cursor_copy(
    const eliza_cursor* cursor, eliza_cursor** out, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef cursor_handle* other
    if out == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    out[0] = NULL
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    other = <cursor_handle*>malloc(sizeof(cursor_handle))
    if other == NULL:
        return fail(err, err_cap, ELIZA_OUT_OF_MEMORY, NO_MEMORY)
    other[0] = c[0]
    other.scratch = NULL
    other.room = 0
    shared_retain(other.shared)
    out[0] = <eliza_cursor*>other
    return succeed(err, err_cap)


cdef int32_t cursor_state(
    const eliza_cursor* cursor, int32_t* state, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if state == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    if c.p.done:
        state[0] = ELIZA_DONE
    else:
        state[0] = ELIZA_INSIDE if c.p.depth else ELIZA_ARMED
    return succeed(err, err_cap)


cdef int32_t cursor_leaf(
    const eliza_cursor* cursor, int64_t* leaf, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if leaf == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    leaf[0] = <int64_t>c.b.trie.node[c.p.node].lo if c.p.done else -1
    return succeed(err, err_cap)


cdef int32_t cursor_remaining(
    const eliza_cursor* cursor, size_t* n, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef const node_t* node
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if n == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    node = c.b.trie.node + c.p.node
    n[0] = 1 if c.p.done else live(&c.b, node.lo, node.hi)
    return succeed(err, err_cap)


cdef int32_t copy_out(
    const token_t* ids, size_t found, int32_t* out, size_t cap, char* err,
    size_t err_cap,
) noexcept nogil:
    if found > cap:
        return too_small(err, err_cap, b"the buffer must hold %zu ids", found)
    if found > 0:
        memcpy(out, ids, found * sizeof(token_t))
    return succeed(err, err_cap)


cdef int32_t cursor_path(
    const eliza_cursor* cursor, int32_t* ids, size_t cap, size_t* n, char* err,
    size_t err_cap,
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if n == NULL or (ids == NULL and cap > 0):
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    n[0] = pos_length(&c.p)
    if n[0] > cap:
        return too_small(err, err_cap, b"the buffer must hold %zu ids", n[0])
    path_copy(c.b.trie, c.p.node, 0, c.p.depth, ids)
    if c.p.exit >= 0:
        ids[c.p.depth] = c.p.exit
    return succeed(err, err_cap)


cdef bint gather(cursor_handle* c, const token_t** ids, index_t* n) noexcept nogil:
    """Point at the allowed ids; False if there is no memory."""
    cdef index_t room
    cdef token_t* grown
    if pos_span(&c.b, &c.p, ids, n):
        return True
    room = pos_room(&c.b, &c.p)
    if room > c.room:
        grown = <token_t*>realloc(c.scratch, room * sizeof(token_t))
        if grown == NULL:
            return False
        c.scratch = grown
        c.room = room
    ids[0] = c.scratch
    n[0] = pos_gather(&c.b, &c.p, c.scratch)
    return True


cdef int32_t open_ids(
    cursor_handle* c, const token_t** ids, index_t* n, char* err, size_t err_cap
) noexcept nogil:
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if c.p.done:
        return fail(
            err, err_cap, ELIZA_NO_CANDIDATE,
            b"the choice is complete: no id follows it",
        )
    if not gather(c, ids, n):
        return fail(err, err_cap, ELIZA_OUT_OF_MEMORY, NO_MEMORY)
    return ELIZA_OK


cdef int32_t cursor_allowed(
    eliza_cursor* cursor, int32_t* ids, size_t cap, size_t* n, char* err, size_t err_cap
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef const token_t* found = NULL
    cdef index_t count = 0
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if n == NULL or (ids == NULL and cap > 0):
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    if not gather(c, &found, &count):
        return fail(err, err_cap, ELIZA_OUT_OF_MEMORY, NO_MEMORY)
    n[0] = count
    return copy_out(found, count, ids, cap, err, err_cap)


cdef int32_t cursor_forced(
    const eliza_cursor* cursor, int32_t* ids, size_t cap, size_t* n, char* err,
    size_t err_cap,
) noexcept nogil:
    cdef cursor_handle* c = cursor_of(cursor)
    cdef pos_t end
    if c == NULL:
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NOT_A_CURSOR)
    if n == NULL or (ids == NULL and cap > 0):
        return fail(err, err_cap, ELIZA_INVALID_ARGUMENT, NO_OUT)
    end = c.p
    if not pos_force(&c.b, &end):
        return fail(err, err_cap, ELIZA_BUNDLE_ERROR, DAMAGED)
    n[0] = end.depth - c.p.depth
    if n[0] > cap:
        return too_small(err, err_cap, b"the buffer must hold %zu ids", n[0])
    path_copy(c.b.trie, end.node, c.p.depth, end.depth, ids)
    return succeed(err, err_cap)
