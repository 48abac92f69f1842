"""The C interface: `eliza_api` of include/eliza.h. Its functions without Python are in
`_handles` and `_picks`.
"""

from libc.stdint cimport int32_t, int64_t

# Turn an exception into a code, and its message into the caller's buffer. To be called
# where it was caught, before anything else.
cdef int32_t note(object error, char* err, size_t err_cap) noexcept

# A text of the caller's; InvalidArgument for NULL and what is no UTF-8.
cdef str text_of(const char* text, str what)

# Arrays of the caller's memory, int32 and int64, not copied; InvalidArgument for NULL.
cdef object ids_of(const int32_t* ids, size_t n, str what)
cdef object numbers_of(const int64_t* numbers, size_t n, str what)
cdef bytes bytes_of(const void* data, size_t size, str what)
