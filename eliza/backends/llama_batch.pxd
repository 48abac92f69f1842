"""llama.cpp's batch: the tokens of one decode, where they stand and whose they are.

The functions that compute it are called from here, by pointer: this module is not
linked with llama.cpp.
"""

cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t

cdef struct batch_t:
    # Field for field `llama_batch` of llama.h; LlamaBatch.layout is compared with it.
    int32_t n_tokens
    int32_t *token           # [n_batch] owned, as are the others
    float *embd              # NULL: token is used
    int32_t *pos
    int32_t *n_seq_id        # how many sequences each token belongs to
    int32_t **seq_id         # which: into `one` or `flat`
    int8_t *logits           # whether a row is wanted

# The two functions of llama.h that a decode needs.
ctypedef int32_t (*decode_t)(void* context, batch_t batch) noexcept nogil
ctypedef float* (*row_at_t)(void* context, int32_t i) noexcept nogil

# Write a chain of n tokens at `first` and after; whose they are is not touched.
cdef void batch_chain(
    batch_t* batch, const int32_t* ids, int32_t n, int32_t first, bint all_rows
) noexcept nogil


@cython.final
cdef class LlamaBatch:
    cdef batch_t b
    cdef int32_t n_batch
    cdef int32_t one         # the sequence of a chain
    cdef int32_t *flat       # [room] owned; the sequences of a tree, node after node
    cdef int64_t room
    cdef bint chained        # n_seq_id and seq_id say `one` throughout
    cdef decode_t call_decode        # NULL where nothing is computed
    cdef row_at_t call_row_at

    cdef int link(self) except -1
