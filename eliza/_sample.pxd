"""Drawing one of the allowed ids.

The steps, over the allowed set and in this order: temperature, top-k, top-p, min-p, one
double. As the constraint comes first, there is always something left to draw from.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._rows cimport row_t
from ._types cimport index_t, token_t

# What a numpy.random.BitGenerator hands out in its capsule: NumPy's documented C
# interface, declared here so that no NumPy headers are needed.
cdef struct bitgen_t:
    void *state
    uint64_t (*next_uint64)(void* state) noexcept nogil
    uint32_t (*next_uint32)(void* state) noexcept nogil
    double (*next_double)(void* state) noexcept nogil
    uint64_t (*next_raw)(void* state) noexcept nogil

cdef struct options_t:
    double temperature       # 0: greedy
    int64_t top_k            # 0: off
    double top_p             # 1: off
    double min_p             # 0: off

# Check what a caller gave. InvalidArgument, InvalidType.
cdef int options_read(
    options_t* out, object temperature, object top_k, object top_p, object min_p
) except -1

# Get the C interface of a numpy.random.Generator or BitGenerator, valid while that
# lives. To be used with its lock held. InvalidType.
cdef bitgen_t* bitgen_of(object source) except NULL
cdef object bit_generator_of(object rng)

# Draw one of ids by a row that a caller gave; -1 if none has a logit above -inf. With
# the generator's lock held. OutOfMemory, and what row_open raises.
cdef int64_t ids_sample(
    object logits, object dtype, token_t n_vocab, const token_t* ids, index_t n,
    const options_t* options, bitgen_t* bits,
) except -2

# Memory that row_sample needs for n ids, in bytes.
cdef size_t sample_room(index_t n) noexcept nogil

# Return which of ids was drawn, or -1 if none has a logit above -inf. Takes one double
# if two or more ids are left, none otherwise.
cdef int64_t row_sample(
    const row_t* row, const token_t* ids, index_t n, const options_t* options,
    void* room, bitgen_t* bits,
) noexcept nogil
