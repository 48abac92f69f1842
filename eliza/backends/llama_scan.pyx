"""Asking llama.cpp about every id of a vocabulary; see the .pxd."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

import numpy as np

__all__ = ["attributes", "flagged", "piece"]

cdef enum:
    USUAL = 256              # bytes; longer pieces take two calls


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


def piece(size_t llama_token_to_piece, size_t vocab, int32_t token):
    """Return the bytes that an id stands for, the name of a control id included.

    By way of ctypes this was 20 us of each new id of a text, as cold as code is just
    after a decode.

    Parameters
    ----------
    llama_token_to_piece : int
        The address of that function.
    vocab : int
        As in `attributes`.
    token : int
        One of its ids.

    Returns
    -------
    bytes
    """
    cdef char[USUAL] usual
    cdef piece_t ask = <piece_t>llama_token_to_piece
    cdef int32_t n
    cdef bytes out
    if ask == NULL or vocab == 0:
        raise ValueError("no function, or no vocabulary")
    n = ask(<const void*>vocab, token, usual, USUAL, 0, True)
    if n >= 0:
        return usual[:n]
    out = PyBytes_FromStringAndSize(NULL, -n)  # minus the size that is needed
    n = ask(<const void*>vocab, token, PyBytes_AS_STRING(out), -n, 0, True)
    return out
