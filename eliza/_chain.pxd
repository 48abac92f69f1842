"""Owners of chains that one link of ours is in."""

from libc.stdint cimport int32_t

from ._llama_api cimport llama_sampler, llama_token_data
from ._sampler cimport Link
from ._types cimport token_t


cdef class Chain:
    cdef llama_sampler *chain    # owned; NULL: closed
    cdef readonly Link link
    cdef llama_token_data *data  # [room] owned
    cdef size_t room
    cdef object __weakref__

    cdef int must_live(self) except -1
    cdef object draw(self, const float* logits, int32_t n_vocab)
    cdef int reserve(self, size_t n) except -1
    cdef int accept_everywhere(self, token_t id) except -1
