"""A trie as one block of bytes: what a file holds.

All numbers have the byte order of the machine that wrote them, checked on reading.

    header        header_t, 80 bytes
    name_start    int64 [n_leaves + 1]     with IMAGE_NAMES only
    node          node_t [n_nodes + 1]
    key           int32 [n_nodes]
    pool          int32 [n_pool]
    leaf_node     uint32 [n_leaves]
    inner         uint32 [n_inner]
    exit_ids      int32 [n_exit_ids]
    exit_start    uint32 [n_leaves + 1]    with IMAGE_OWN_EXITS only
    text          UTF-8, n_text bytes
    fingerprint   n_fingerprint bytes

The sections follow each other without gaps; the arrays are those of `trie_t`.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cpython.buffer cimport Py_buffer

from ._names cimport Names
from ._types cimport trie_t

cdef enum:
    IMAGE_NAMES = 1
    IMAGE_OWN_EXITS = 2

cdef struct header_t:
    char magic[8]            # "elizaTRI"
    uint32_t byte_order      # 0x01020304
    uint32_t version         # 1
    uint32_t flags
    int32_t n_vocab
    uint32_t n_nodes
    uint32_t n_leaves
    uint32_t n_pool
    uint32_t n_inner
    uint32_t n_exit_ids
    uint32_t max_depth
    uint64_t n_text
    uint64_t n_bytes         # of the whole image
    uint32_t n_fingerprint
    uint32_t body_crc        # CRC-32 of all after the header
    uint32_t header_crc      # CRC-32 of the header up to here
    uint32_t zero


@cython.final
cdef class Image:
    # Bytes or a mapped file, and a trie whose arrays lie in it.
    cdef Py_buffer view
    cdef bint held           # view is ours to release
    cdef object data
    cdef header_t header
    cdef trie_t t            # not trusted until `verify`
    cdef Names names         # or None
    cdef bytes fingerprint

    # Checksum, arrays, names. BundleError.
    cdef int verify(self) except -1


# Check the header and the sizes, and the exit ids that all leaves share. BundleError.
cdef Image image_open(object data)

cdef bytes image_make(const trie_t* t, Names names, bytes fingerprint)
