"""What C does with a cursor: going on, and picking by a row; see include/eliza.h."""

from libc.stdint cimport int32_t, int64_t, uint32_t

from ._handles cimport eliza_cursor

cdef int32_t cursor_accept(
    eliza_cursor* cursor, int32_t id, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_rollback(
    eliza_cursor* cursor, size_t n, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_reset(
    eliza_cursor* cursor, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_argmax(
    eliza_cursor* cursor, const float* row, size_t n, int32_t* id, char* err,
    size_t err_cap,
) noexcept nogil
cdef int32_t cursor_sample(
    eliza_cursor* cursor, const float* row, size_t n, double temperature,
    int64_t top_k, double top_p, double min_p, double uniform, int32_t* id, char* err,
    size_t err_cap,
) noexcept nogil
cdef int32_t cursor_mask(
    eliza_cursor* cursor, float* row, size_t n, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_bitmask(
    eliza_cursor* cursor, uint32_t* words, size_t n_words, char* err, size_t err_cap
) noexcept nogil
cdef int32_t cursor_logprobs(
    eliza_cursor* cursor, const float* row, size_t n, int32_t whole_row,
    double* logprobs, size_t cap, size_t* n_logprobs, char* err, size_t err_cap,
) noexcept nogil
