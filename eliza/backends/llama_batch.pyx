"""llama.cpp's batch, filled and decoded in C; see the .pxd.

With NumPy and ctypes this was 65 us of each decode, as cold as code is just after
another one.
"""

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    Py_buffer,
    PyBuffer_Release,
    PyObject_GetBuffer,
)

import numpy as np

__all__ = ["LlamaBatch", "read_ids"]

cdef object empty = np.empty
cdef object INT32 = np.dtype(np.int32)


def read_ids(ids, int64_t n_vocab):
    """Return a list of ids as an array, if there is nothing wrong with it.

    Parameters
    ----------
    ids : object
        What a caller gave.
    n_vocab : int
        What the ids must lie below.

    Returns
    -------
    ndarray of int32, shape (n,), or None
        None: `eliza.backends.base.ids_array` is to look into it, and to say why.
    """
    cdef Py_buffer view
    cdef int32_t* out
    cdef int overflow = 0
    cdef int64_t value, i, n
    cdef bint good = True
    if type(ids) is not list or not ids:
        return None
    n = len(<list>ids)
    array = empty(n, INT32)
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    out = <int32_t*>view.buf
    for i in range(n):
        item = (<list>ids)[i]
        if type(item) is not int:
            good = False
            break
        value = PyLong_AsLongLongAndOverflow(item, &overflow)
        if overflow or not 0 <= value < n_vocab:
            good = False
            break
        out[i] = <int32_t>value
    PyBuffer_Release(&view)
    return array if good else None


cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1


cdef void batch_chain(
    batch_t* batch, const int32_t* ids, int32_t n, int32_t first, bint all_rows
) noexcept nogil:
    cdef int32_t i
    batch.n_tokens = n
    memcpy(batch.token, ids, n * sizeof(int32_t))
    memset(batch.logits, all_rows, n)
    batch.logits[n - 1] = True
    for i in range(n):
        batch.pos[i] = first + i


@cython.auto_pickle(False)
cdef class LlamaBatch:
    """LlamaBatch(n_batch, decode=0, get_logits_ith=0)
    --

    A batch for one context, used again for each decode.

    Parameters
    ----------
    n_batch : int
        The most tokens that it can hold; more are the caller's error.
    decode, get_logits_ith : int
        The addresses of `llama_decode` and `llama_get_logits_ith`.

    Attributes
    ----------
    address : int
        Of the C structure, which lives as long as this object.
    layout : dict of str to int
        Where in it each field stands, and its size as "".
    """

    def __cinit__(self, int32_t n_batch, size_t decode=0, size_t get_logits_ith=0):
        cdef size_t n = max(1, n_batch)
        self.n_batch = n_batch
        self.call_decode = <decode_t>decode
        self.call_row_at = <row_at_t>get_logits_ith
        self.b.token = <int32_t*>calloc(n, sizeof(int32_t))
        self.b.pos = <int32_t*>calloc(n, sizeof(int32_t))
        self.b.n_seq_id = <int32_t*>calloc(n, sizeof(int32_t))
        self.b.seq_id = <int32_t**>calloc(n, sizeof(int32_t*))
        self.b.logits = <int8_t*>calloc(n, sizeof(int8_t))
        if (
            self.b.token == NULL or self.b.pos == NULL or self.b.n_seq_id == NULL
            or self.b.seq_id == NULL or self.b.logits == NULL
        ):
            raise MemoryError(f"no memory for a batch of {n_batch} tokens")

    def __dealloc__(self):
        free(self.b.token)
        free(self.b.pos)
        free(self.b.n_seq_id)
        free(self.b.seq_id)
        free(self.b.logits)
        free(self.flat)

    @property
    def address(self):
        return <size_t>&self.b

    @property
    def layout(self):
        cdef char* start = <char*>&self.b
        return {
            "n_tokens": <char*>&self.b.n_tokens - start,
            "token": <char*>&self.b.token - start,
            "embd": <char*>&self.b.embd - start,
            "pos": <char*>&self.b.pos - start,
            "n_seq_id": <char*>&self.b.n_seq_id - start,
            "seq_id": <char*>&self.b.seq_id - start,
            "logits": <char*>&self.b.logits - start,
            "": sizeof(batch_t),
        }

    cdef int link(self) except -1:
        cdef int32_t i
        if not self.chained:
            for i in range(self.n_batch):
                self.b.n_seq_id[i] = 1
                self.b.seq_id[i] = &self.one
            self.chained = True
        return 0

    def chain(self, ids, int32_t first, int32_t owner, bint all_rows):
        """Fill in tokens that follow one another.

        Parameters
        ----------
        ids : ndarray of int32, shape (n,)
            Contiguous.
        first : int
            The position of the first of them.
        owner : int
            The sequence that they belong to.
        all_rows : bool
            Whether each has a row of logits, or the last one only.
        """
        cdef Py_buffer view
        cdef int64_t n = len(ids)
        if not 0 < n <= self.n_batch:
            raise ValueError(f"{n} tokens for a batch of {self.n_batch}")
        self.link()
        self.one = owner
        PyObject_GetBuffer(ids, &view, PyBUF_SIMPLE)
        batch_chain(&self.b, <const int32_t*>view.buf, n, first, all_rows)
        PyBuffer_Release(&view)

    def tree(self, ids, list depths, int32_t first, list owners):
        """Fill in the nodes of a tree; each has a row.

        Parameters
        ----------
        ids : ndarray of int32, shape (n,)
            Contiguous.
        depths : list of n int
            Of each node; a depth of 1 stands at the position `first`.
        owners : list of n lists of int
            The sequences that each belongs to.
        """
        cdef Py_buffer view
        cdef int32_t i, n = len(depths)
        cdef int64_t at = 0, total = 0
        cdef int32_t* grown
        cdef list own
        if not 0 < n <= self.n_batch or len(owners) != n or len(ids) != n:
            raise ValueError(f"{n} tokens for a batch of {self.n_batch}")
        for own in owners:
            total += len(own)
        if total > self.room:
            grown = <int32_t*>realloc(self.flat, total * sizeof(int32_t))
            if grown == NULL:
                raise MemoryError(f"no memory for a batch with {total} sequence ids")
            self.flat = grown
            self.room = total
        self.chained = False
        PyObject_GetBuffer(ids, &view, PyBUF_SIMPLE)
        memcpy(self.b.token, view.buf, n * sizeof(int32_t))
        PyBuffer_Release(&view)
        self.b.n_tokens = n
        memset(self.b.logits, True, n)
        for i in range(n):
            own = owners[i]
            self.b.pos[i] = first - 1 + <int32_t>depths[i]
            self.b.n_seq_id[i] = len(own)
            self.b.seq_id[i] = self.flat + at
            for id in own:
                self.flat[at] = id
                at += 1

    def decode(self, size_t context):
        """Compute the batch; other threads run meanwhile.

        Parameters
        ----------
        context : int
            The address of a ``llama_context``.

        Returns
        -------
        int
            What `llama_decode` returned: 0 if all is well.
        """
        cdef int32_t code
        if context == 0 or self.call_decode == NULL:
            raise ValueError("no context, or a batch that was made without llama.cpp")
        with nogil:
            code = self.call_decode(<void*>context, self.b)
        return code

    def row_at(self, size_t context, int32_t i):
        """Wait for the computation and return the address of a row of logits.

        Parameters
        ----------
        context : int
            As in `decode`.
        i : int
            Index in the batch of a token that has a row.

        Returns
        -------
        int
            Of the first of its float32, or 0 if there is no such row.
        """
        cdef float* row
        if context == 0 or self.call_row_at == NULL:
            raise ValueError("no context, or a batch that was made without llama.cpp")
        with nogil:
            row = self.call_row_at(<void*>context, i)
        return <size_t>row

    def contents(self):
        """Return what the batch holds, for tests: (id, position, owners, row)."""
        return [
            (
                self.b.token[i],
                self.b.pos[i],
                [self.b.seq_id[i][k] for k in range(self.b.n_seq_id[i])],
                bool(self.b.logits[i]),
            )
            for i in range(self.b.n_tokens)
        ]
