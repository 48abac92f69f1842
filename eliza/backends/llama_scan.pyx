"""Asking llama.cpp about every id of a vocabulary; see the .pxd."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t

import numpy as np

__all__ = ["attributes", "flagged"]


def attributes(size_t llama_vocab_get_attr, size_t vocab, int32_t n_vocab):
    """Return the attributes of all ids.

    Parameters
    ----------
    llama_vocab_get_attr : int
        The address of that function.
    vocab : int
        The address of a ``llama_vocab``.
    n_vocab : int
        How many ids it has.

    Returns
    -------
    ndarray of uint32, shape (n_vocab,)
    """
    found = np.empty(n_vocab, np.uint32)
    cdef uint32_t[::1] values = found
    cdef attribute_t ask = <attribute_t>llama_vocab_get_attr
    cdef int32_t i
    if ask == NULL or vocab == 0:
        raise ValueError("no function, or no vocabulary")
    with nogil:
        for i in range(n_vocab):
            values[i] = ask(<const void*>vocab, i)
    return found


def flagged(size_t llama_vocab_is, size_t vocab, int32_t n_vocab):
    """Return the ids of which a function of llama.cpp is true.

    Parameters
    ----------
    llama_vocab_is : int
        The address of one like `llama_vocab_is_eog`.
    vocab, n_vocab
        As in `attributes`.

    Returns
    -------
    ndarray of int64
        Sorted.
    """
    found = np.empty(n_vocab, np.uint8)
    cdef unsigned char[::1] values = found
    cdef flag_t ask = <flag_t>llama_vocab_is
    cdef int32_t i
    if ask == NULL or vocab == 0:
        raise ValueError("no function, or no vocabulary")
    with nogil:
        for i in range(n_vocab):
            values[i] = ask(<const void*>vocab, i)
    return np.flatnonzero(found)
