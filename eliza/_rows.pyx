"""Rows of logits as a caller hands them in; see the .pxd."""

from libc.stdint cimport int64_t, uintptr_t

from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_STRIDES,
    Py_buffer,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)

import sys

from .errors import InvalidArgument, InvalidType

cdef char NATIVE = c"<" if sys.byteorder == "little" else c">"


cdef char format_of(const Py_buffer* view) noexcept:
    """Return the one letter of a buffer's format, 0 if it is not one native letter."""
    cdef const char* form = view.format
    if form == NULL:
        return c"B"
    if form[0] == c"@" or form[0] == c"=" or form[0] == NATIVE:
        form += 1
    return form[0] if form[0] != 0 and form[1] == 0 else 0


cdef bint says_bfloat16(object logits):
    """Recognise the bfloat16 of ml_dtypes, MLX and others by its name."""
    dtype = getattr(logits, "dtype", None)
    name = getattr(dtype, "name", None)
    return str(dtype if name is None else name).rpartition(".")[2] == "bfloat16"


cdef row_kind named_kind(object logits, object dtype, const Py_buffer* view) except *:
    """Tell what a buffer that is not simply float32 or float16 holds."""
    if dtype is not None and dtype != "bfloat16":
        raise InvalidArgument(f"dtype must be None or 'bfloat16', got {dtype!r}")
    if view.itemsize == 2 and (
        says_bfloat16(logits) or dtype is not None and format_of(view) == c"H"
    ):
        return ROW_BF16
    return ROW_NONE


cdef str wanted(int ndim, int64_t n_vocab):
    form = "one row, 1-D," if ndim == 1 else "one row per cursor, 2-D,"
    return (
        f"logits must be {form} at least {n_vocab} long, float32, float16 or bfloat16"
    )


cdef str wanted_words(int ndim, int64_t n_vocab):
    form = "1-D" if ndim == 1 else "2-D, one row per cursor"
    return (
        f"a bit mask must be int32, {form}, writable, at least "
        f"{(n_vocab + 31) // 32} words long without gaps"
    )


cdef str described(object logits):
    """Name the type, dtype and shape of what was given in place of a row."""
    cdef str kind = type(logits).__name__
    dtype = getattr(logits, "dtype", None)
    shape = getattr(logits, "shape", None)
    if dtype is None or shape is None:
        return kind
    return f"{kind} of dtype {dtype} and shape {tuple(shape)}"


cdef int buffer_open(
    object source, int ndim, int64_t n_vocab, bint words, Py_buffer* view
) except -1:
    """Get the buffer of what should be a row of logits or of words."""
    cdef int flags = PyBUF_STRIDES | PyBUF_FORMAT
    if PyObject_CheckBuffer(source):
        try:
            PyObject_GetBuffer(source, view, flags)
            return 0
        except (BufferError, ValueError):
            pass
        # NumPy knows no format letter for the types of ml_dtypes.
        if says_bfloat16(source) and hasattr(source, "view"):
            PyObject_GetBuffer(source.view("u2"), view, flags)
            return 0
    want = wanted_words(ndim, n_vocab) if words else wanted(ndim, n_vocab)
    raise InvalidType(f"{want}; got {described(source)}")


cdef object refusal(
    object logits, int ndim, int64_t n_vocab, row_kind kind, const Py_buffer* view,
    bint read_only,
):
    """Make the error for a buffer that is not a row."""
    cdef str message = f"{wanted(ndim, n_vocab)}; got {described(logits)}"
    if kind == ROW_NONE:
        if format_of(view) in b"bBhHiIlLqQ":
            message += "; dequantize it to float32 first"
        elif format_of(view) == c"d":
            message += "; convert it with .astype(numpy.float32)"
        return InvalidType(message)
    if read_only:
        message += ", read-only: it must be writable"
    elif view.ndim == ndim and view.shape[ndim - 1] >= n_vocab:
        message += ", not aligned to its item size: copy it"
    return InvalidArgument(message)


cdef int row_open(
    object logits, int ndim, int64_t n_vocab, bint writable, object dtype,
    Py_buffer* view, row_t* row,
) except -1:
    cdef char letter
    cdef row_kind kind
    cdef bint aligned, read_only
    cdef int i
    buffer_open(logits, ndim, n_vocab, False, view)
    letter = format_of(view)
    if dtype is None and letter == c"f":
        kind = ROW_F32
    elif dtype is None and letter == c"e":
        kind = ROW_F16
    else:
        try:
            kind = named_kind(logits, dtype, view)
        except BaseException:
            PyBuffer_Release(view)
            raise
    read_only = writable and view.readonly
    if kind != ROW_NONE and view.ndim == ndim and not read_only:
        aligned = <uintptr_t>view.buf % <size_t>view.itemsize == 0
        for i in range(ndim):
            aligned = aligned and view.strides[i] % view.itemsize == 0
        if view.shape[ndim - 1] >= n_vocab and aligned:
            row.data = <char*>view.buf
            row.stride = view.strides[ndim - 1]
            row.n = view.shape[ndim - 1]
            row.n_vocab = n_vocab
            row.kind = kind
            row.flat = kind == ROW_F32 and row.stride == sizeof(float)
            return 0
    try:
        raise refusal(logits, ndim, n_vocab, kind, view, read_only)
    finally:
        PyBuffer_Release(view)


cdef int words_open(object out, int ndim, int64_t n_vocab, Py_buffer* view) except -1:
    cdef int64_t n_words = (n_vocab + 31) // 32
    buffer_open(out, ndim, n_vocab, True, view)
    if (
        format_of(view) in b"iIlL" and view.itemsize == 4 and view.ndim == ndim
        and view.strides[ndim - 1] == 4 and view.shape[ndim - 1] >= n_words
        and <uintptr_t>view.buf % 4 == 0 and view.strides[0] % 4 == 0
        and not view.readonly
    ):
        return 0
    try:
        message = f"{wanted_words(ndim, n_vocab)}; got {described(out)}"
        if view.itemsize != 4 or format_of(view) not in b"iIlL":
            raise InvalidType(message)
        raise InvalidArgument(message + (", read-only" if view.readonly else ""))
    finally:
        PyBuffer_Release(view)
