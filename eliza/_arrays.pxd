"""NumPy arrays made without NumPy's headers, through the buffer protocol."""

from libc.stdint cimport int64_t

from ._types cimport token_t

# A new int32 array, writable, of n values from `values`.
cdef object ints_copy(const token_t* values, int64_t n)

# A view of the whole of `raw` as int32; read-only, as bytes are.
cdef object ints_view(bytes raw)

# A new int32 array of n values that are not set.
cdef object ints_new(int64_t n)

# A new float64 array of n values that are not set.
cdef object doubles_new(int64_t n)
