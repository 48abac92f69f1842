"""Arrays of candidates for llama.cpp's samplers, and what a link must make of them."""

import ctypes

import numpy as np
import pytest

L = pytest.importorskip("llama_cpp.llama_cpp")


class Candidates:
    """A `llama_token_data_array` over (id, logit) pairs."""

    def __init__(self, pairs, selected=-1, is_sorted=False):
        data = [(id, logit, 0.0) for id, logit in pairs]
        self.data = (L.llama_token_data * max(len(data), 1))(*data)
        self.array = L.llama_token_data_array(self.data, len(data), selected, is_sorted)

    def apply(self, sampler):
        L.llama_sampler_apply(pointer(sampler), ctypes.byref(self.array))
        return self

    @property
    def logits(self):
        return [self.array.data[i].logit for i in range(self.array.size)]

    @property
    def ids(self):
        return [self.array.data[i].id for i in range(self.array.size)]

    @property
    def left(self):
        return {
            id
            for id, logit in zip(self.ids, self.logits, strict=True)
            if logit > -np.inf
        }

    @property
    def selected(self):
        return self.array.selected

    @property
    def token(self):
        return self.array.data[self.array.selected].id


def pointer(sampler):
    """Return a ctypes pointer to a sampler: ours, or an address."""
    address = getattr(sampler, "pointer", sampler)
    if not isinstance(address, int):
        return address
    return ctypes.cast(address, L.llama_sampler_p_ctypes)


def address(sampler):
    return ctypes.cast(sampler, ctypes.c_void_p).value


def new_chain():
    return L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
