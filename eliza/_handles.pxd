"""Tries and cursors as C hands them around: what needs no Python.

    handle       what an `eliza_trie*` and an `eliza_cursor*` of eliza.h point to
    shared_t     a counted reference to the Python object behind it

The functions of `eliza_api` that need no GIL are here, each checking its arguments: it
may be called with anything but dangling pointers. Those that need it are in `_capi`.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from ._position cimport bound_t, pos_t
from ._types cimport index_t, token_t, trie_t


cdef extern from "_shared.h" nogil:
    ctypedef struct shared_t:
        void *object
        shared_t *next
    shared_t* shared_make(void* object)
    void shared_retain(shared_t* shared)
    void shared_release(shared_t* shared, shared_t** list)
    shared_t* shared_take(shared_t** list)


cdef extern from "include/eliza.h" nogil:
    enum:
        ELIZA_OK
        ELIZA_TOO_SMALL
        ELIZA_INVALID_ARGUMENT
        ELIZA_BUNDLE_ERROR
        ELIZA_BACKEND_ERROR
        ELIZA_OUT_OF_MEMORY
        ELIZA_CANCELLED
        ELIZA_OFF_PATH
        ELIZA_NO_CANDIDATE
        ELIZA_ARMED
        ELIZA_INSIDE
        ELIZA_DONE
    ctypedef struct eliza_trie:
        pass
    ctypedef struct eliza_cursor:
        pass


cdef struct trie_handle:
    uint64_t kind            # TRIE_KIND while it lives
    shared_t *shared         # a Trie
    const trie_t *t          # of that Trie
    const char *text         # the names end to end, NULL without names
    const int64_t *start     # [n_leaves + 1] offsets into text
    int64_t n_text

cdef struct cursor_handle:
    uint64_t kind            # CURSOR_KIND while it lives
    shared_t *shared         # a Bound, which copies share
    bound_t b                # of that Bound
    pos_t p
    token_t *scratch         # owned; allowed ids that had to be gathered
    index_t room             # of scratch

# The last references that were given up without the GIL: a list for shared_take.
cdef shared_t** let_go() noexcept nogil

# Write an error and return its code; "" and ELIZA_OK.
cdef int32_t fail(char* err, size_t cap, int32_t code, const char* text) noexcept nogil
cdef int32_t succeed(char* err, size_t cap) noexcept nogil
# Write n bytes of UTF-8 as far as they fit, with a NUL behind, whole characters only.
cdef void write_text(
    char* out, size_t cap, const char* text, size_t n
) noexcept nogil

# Of a living handle, else NULL.
cdef trie_handle* trie_of(const eliza_trie* trie) noexcept nogil
cdef cursor_handle* cursor_of(const eliza_cursor* cursor) noexcept nogil

# New handles, which take over the reference to `object`; NULL: no memory.
cdef eliza_trie* trie_wrap(
    void* object, const trie_t* t, const char* text, const int64_t* start,
    int64_t n_text,
) noexcept nogil
cdef eliza_cursor* cursor_wrap(void* object, const bound_t* b) noexcept nogil

# See eliza.h.
cdef void trie_free(eliza_trie** trie) noexcept nogil
cdef int32_t trie_n_leaves(
    const eliza_trie* trie, size_t* n, char* err, size_t err_cap
) noexcept nogil
cdef int32_t trie_n_vocab(
    const eliza_trie* trie, int32_t* n, char* err, size_t err_cap
) noexcept nogil
cdef int32_t trie_name(
    const eliza_trie* trie, int64_t leaf, char* name, size_t cap, size_t* length,
    char* err, size_t err_cap,
) noexcept nogil
cdef int32_t cursor_copy(
    const eliza_cursor* cursor, eliza_cursor** out, char* err, size_t err_cap
) noexcept nogil
cdef void cursor_free(eliza_cursor** cursor) noexcept nogil
cdef int32_t cursor_state(
    const eliza_cursor* cursor, int32_t* state, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_leaf(
    const eliza_cursor* cursor, int64_t* leaf, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_remaining(
    const eliza_cursor* cursor, size_t* n, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_path(
    const eliza_cursor* cursor, int32_t* ids, size_t cap, size_t* n, char* err,
    size_t err_cap,
) noexcept nogil
cdef int32_t cursor_allowed(
    eliza_cursor* cursor, int32_t* ids, size_t cap, size_t* n, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_forced(
    const eliza_cursor* cursor, int32_t* ids, size_t cap, size_t* n, char* err,
    size_t err_cap,
) noexcept nogil

# For `_picks`: the allowed ids, valid until the next call; ELIZA_OK or an error, which
# is one when the cursor is done.
cdef int32_t open_ids(
    cursor_handle* c, const token_t** ids, index_t* n, char* err, size_t err_cap
) noexcept nogil
