"""Rows of logits as a caller hands them in, checked once."""

from libc.stdint cimport int64_t

from cpython.buffer cimport Py_buffer

cdef enum row_kind:
    ROW_NONE
    ROW_F32
    ROW_F16
    ROW_BF16

cdef struct row_t:
    # Borrowed from the caller until its buffer is released.
    char *data               # the logit of id i is at data + i * stride
    int64_t stride           # in bytes; may be negative
    int64_t n                # length; ids at n_vocab and above are padding
    int64_t n_vocab
    row_kind kind
    bint flat                # float32 without gaps: what the fastest loops are for

# Take a row (ndim 1) or the first of several (ndim 2) from a buffer. `dtype` is None or
# "bfloat16", for which uint16 may then stand. On success the caller releases `view`
# when done; otherwise nothing is held. InvalidType, InvalidArgument.
cdef int row_open(
    object logits, int ndim, int64_t n_vocab, bint writable, object dtype,
    Py_buffer* view, row_t* row,
) except -1

# Take a bit mask of 32-bit words, or several, to write to; in the same way.
cdef int words_open(object out, int ndim, int64_t n_vocab, Py_buffer* view) except -1
