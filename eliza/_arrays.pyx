"""NumPy arrays made without NumPy's headers; see the .pxd."""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from cpython.buffer cimport (
    PyBUF_WRITABLE,
    Py_buffer,
    PyBuffer_Release,
    PyObject_GetBuffer,
)

from ._types cimport token_t

import numpy as np

cdef object empty = np.empty
cdef object frombuffer = np.frombuffer
cdef object INT32 = np.dtype(np.int32)
cdef object FLOAT64 = np.dtype(np.float64)


cdef object ints_copy(const token_t* values, int64_t n):
    cdef Py_buffer view
    out = empty(n, INT32)
    if n:                    # of no values there may be no pointer
        PyObject_GetBuffer(out, &view, PyBUF_WRITABLE)
        memcpy(view.buf, values, n * sizeof(token_t))
        PyBuffer_Release(&view)
    return out


cdef object ints_view(bytes raw):
    return frombuffer(raw, INT32)


cdef object ints_new(int64_t n):
    return empty(n, INT32)


cdef object doubles_new(int64_t n):
    return empty(n, FLOAT64)
