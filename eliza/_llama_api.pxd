"""The part of llama.cpp that samples: its structs, and its functions by pointer.

The structs are declared as they were in llama.h when this was written. `layout` tells
what that comes to, `eliza.hooks.llama` compares it with the library in use, and nothing
is called before it agreed. This module is not linked with llama.cpp.
"""

from libc.stdint cimport int32_t, int64_t

from ._types cimport token_t

cdef struct llama_token_data:
    token_t id
    float logit
    float p

cdef struct llama_token_data_array:
    llama_token_data *data
    size_t size
    int64_t selected         # where in data, or -1
    char sorted              # a C bool: by logit, highest first

cdef struct llama_sampler:
    llama_sampler_i *iface
    void *ctx                # the sampler's own; of ours a link_t

cdef struct llama_sampler_i:
    const char *(*name)(const llama_sampler*) noexcept nogil
    void (*accept)(llama_sampler*, token_t) noexcept nogil
    void (*apply)(llama_sampler*, llama_token_data_array*) noexcept nogil
    void (*reset)(llama_sampler*) noexcept nogil
    llama_sampler *(*clone)(const llama_sampler*) noexcept nogil
    void (*free)(llama_sampler*) noexcept nogil
    # Sampling within the graph: NULL, so that llama.cpp calls apply on the processor.
    void *backend_init
    void *backend_accept
    void *backend_apply
    void *backend_set_input
    void *backend_reset
    void (*copy_state)(const llama_sampler*, llama_sampler*) noexcept nogil

# What eliza calls of the library, set once.
cdef struct llama_calls:
    llama_sampler *(*sampler_init)(llama_sampler_i*, void*) noexcept nogil
    llama_sampler *(*sampler_clone)(const llama_sampler*) noexcept nogil
    void (*sampler_free)(llama_sampler*) noexcept nogil
    void (*sampler_apply)(llama_sampler*, llama_token_data_array*) noexcept nogil
    void (*sampler_accept)(llama_sampler*, token_t) noexcept nogil
    void (*sampler_reset)(llama_sampler*) noexcept nogil
    llama_sampler *(*chain_get)(llama_sampler*, int32_t) noexcept nogil
    int32_t (*chain_n)(const llama_sampler*) noexcept nogil
    void (*chain_add)(llama_sampler*, llama_sampler*) noexcept nogil
    llama_sampler *(*chain_remove)(llama_sampler*, int32_t) noexcept nogil
    float *(*get_logits_ith)(void*, int32_t) noexcept nogil
    const void *(*get_model)(const void*) noexcept nogil
    const void *(*model_get_vocab)(const void*) noexcept nogil
    int32_t (*vocab_n_tokens)(const void*) noexcept nogil
    unsigned char (*vocab_is_eog)(const void*, token_t) noexcept nogil

cdef llama_calls llama      # all NULL until it was set

# InvalidArgument before `bind_library`.
cdef int must_be_bound() except -1

# The chain at an address. InvalidArgument.
cdef llama_sampler* chain_at(object address) except NULL

# Which link of a chain a sampler is, or -1.
cdef int32_t place_in(llama_sampler* chain, const llama_sampler* smpl) noexcept

# What a sampler calls itself, without marks; "" if it has no name.
cdef str name_of(const llama_sampler* smpl)

# The first link after which ours would come too late, or None.
cdef object truncating(llama_sampler* chain)
