"""Asking llama.cpp about every id of a vocabulary, by pointers to its functions.

By way of ctypes, 49,152 ids take 10 to 15 ms, and five times as many 80; here 0.1 ms
and 0.6.
"""

from libc.stdint cimport int32_t, uint32_t

ctypedef uint32_t (*attribute_t)(const void* vocab, int32_t token) noexcept nogil
# A C bool is one byte: what stands above it in the register is not defined.
ctypedef unsigned char (*flag_t)(const void* vocab, int32_t token) noexcept nogil
ctypedef int32_t (*piece_t)(
    const void* vocab, int32_t token, char* out, int32_t size, int32_t lstrip,
    bint special
) noexcept nogil
