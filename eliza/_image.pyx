"""A trie as one block of bytes; see the .pxd."""

cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from ._check cimport damaged, shared_check, trie_check
from ._names cimport Names, names_view
from ._types cimport index_t, node_t, token_t, trie_t

import zlib

from .errors import BundleError

cdef enum:
    BYTE_ORDER_MARK = 0x01020304
    VERSION = 1

cdef const char* MAGIC = b"elizaTRI"

cdef struct sections_t:      # offsets from the beginning of the image
    uint64_t name_start
    uint64_t node
    uint64_t key
    uint64_t pool
    uint64_t leaf_node
    uint64_t inner
    uint64_t exit_ids
    uint64_t exit_start
    uint64_t text
    uint64_t fingerprint
    uint64_t end


cdef sections_t layout(const header_t* h) noexcept:
    """Where the sections are; n_text must be below 2**62, nothing else can overflow."""
    cdef sections_t s
    cdef uint64_t own_exits = (h.flags & IMAGE_OWN_EXITS) != 0
    s.name_start = sizeof(header_t)
    s.node = s.name_start
    if h.flags & IMAGE_NAMES:
        s.node += (<uint64_t>h.n_leaves + 1) * sizeof(int64_t)
    s.key = s.node + (<uint64_t>h.n_nodes + 1) * sizeof(node_t)
    s.pool = s.key + <uint64_t>h.n_nodes * sizeof(token_t)
    s.leaf_node = s.pool + <uint64_t>h.n_pool * sizeof(token_t)
    s.inner = s.leaf_node + <uint64_t>h.n_leaves * sizeof(index_t)
    s.exit_ids = s.inner + <uint64_t>h.n_inner * sizeof(index_t)
    s.exit_start = s.exit_ids + <uint64_t>h.n_exit_ids * sizeof(token_t)
    s.text = s.exit_start + own_exits * (<uint64_t>h.n_leaves + 1) * sizeof(index_t)
    s.fingerprint = s.text + h.n_text
    s.end = s.fingerprint + h.n_fingerprint
    return s


cdef uint32_t header_crc(const header_t* h):
    cdef bytes start = (<const char*>h)[: sizeof(header_t) - 2 * sizeof(uint32_t)]
    return zlib.crc32(start)


cdef bint counts_agree(const header_t* h) noexcept:
    return (
        h.n_vocab > 0 and 0 < h.n_leaves < 2**31 - 1 and h.max_depth > 0
        and 1 < h.n_nodes <= 2 * <uint64_t>h.n_leaves and h.n_pool >= h.n_leaves
        and h.n_inner < h.n_leaves and h.n_text < 2**62 and h.zero == 0
        and h.flags <= (IMAGE_NAMES | IMAGE_OWN_EXITS)
    )


cdef int header_check(const header_t* h, int64_t size) except -1:
    cdef bytes magic = h.magic[:8]
    if memcmp(h.magic, MAGIC, 8) != 0:
        raise BundleError(f"not a trie: it starts with {magic}")
    if h.byte_order != BYTE_ORDER_MARK:
        raise BundleError("the trie was written on a machine of another byte order")
    if h.version != VERSION:
        raise BundleError(
            f"the trie has version {h.version} of the format; this eliza reads "
            f"{VERSION}"
        )
    if header_crc(h) != h.header_crc or not counts_agree(h):
        raise BundleError("the trie's header is damaged")
    if h.n_bytes != <uint64_t>size or layout(h).end != h.n_bytes:
        raise BundleError(
            f"the trie is cut short or longer than it was: its header says "
            f"{h.n_bytes} bytes, there are {size}"
        )
    return 0


@cython.auto_pickle(False)
cdef class Image:
    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef int verify(self) except -1:
        if zlib.crc32(memoryview(self.data)[sizeof(header_t):]) != self.header.body_crc:
            raise BundleError("the trie's file is damaged: its checksum differs")
        if not trie_check(&self.t):
            raise damaged()
        if self.names is not None:
            self.names.verify()
        self.t.trusted = True
        return 0


cdef Image image_open(object data):
    cdef Image out = Image()
    cdef header_t* h = &out.header
    cdef trie_t* t = &out.t
    cdef sections_t s
    cdef char* at
    PyObject_GetBuffer(data, &out.view, PyBUF_SIMPLE)
    out.held = True
    out.data = data
    at = <char*>out.view.buf
    if out.view.len < <Py_ssize_t>sizeof(header_t):
        raise BundleError(
            f"not a trie: {out.view.len} bytes are fewer than a header's "
            f"{sizeof(header_t)}"
        )
    memcpy(h, at, sizeof(header_t))
    header_check(h, out.view.len)
    s = layout(h)
    t.n_vocab = h.n_vocab
    t.n_nodes = h.n_nodes
    t.n_leaves = h.n_leaves
    t.n_pool = h.n_pool
    t.n_inner = h.n_inner
    t.n_exit_ids = h.n_exit_ids
    t.max_depth = h.max_depth
    t.node = <node_t*>(at + s.node)
    t.key = <token_t*>(at + s.key)
    t.pool = <token_t*>(at + s.pool)
    t.leaf_node = <index_t*>(at + s.leaf_node)
    t.inner = <index_t*>(at + s.inner)
    t.exit_ids = <token_t*>(at + s.exit_ids)
    if h.flags & IMAGE_OWN_EXITS:
        t.exit_start = <index_t*>(at + s.exit_start)
    if h.flags & IMAGE_NAMES:
        out.names = names_view(
            at + s.text, <int64_t>h.n_text, <int64_t*>(at + s.name_start), h.n_leaves,
            data,
        )
    out.fingerprint = at[s.fingerprint : s.end]
    if not shared_check(t):
        raise damaged()
    return out


cdef inline void put(
    char* image, uint64_t first, uint64_t end, const void* section
) noexcept:
    if end > first:          # an empty section may be NULL
        memcpy(image + first, section, end - first)


cdef bytes image_make(const trie_t* t, Names names, bytes fingerprint):
    cdef header_t h
    cdef sections_t s
    cdef bytes out
    cdef char* at
    memset(&h, 0, sizeof(h))
    memcpy(h.magic, MAGIC, 8)
    h.byte_order = BYTE_ORDER_MARK
    h.version = VERSION
    h.n_vocab = t.n_vocab
    h.n_nodes = t.n_nodes
    h.n_leaves = t.n_leaves
    h.n_pool = t.n_pool
    h.n_inner = t.n_inner
    h.n_exit_ids = t.n_exit_ids
    h.max_depth = t.max_depth
    h.n_fingerprint = len(fingerprint)
    if t.exit_start != NULL:
        h.flags |= IMAGE_OWN_EXITS
    if names is not None:
        h.flags |= IMAGE_NAMES
        h.n_text = names.n_text
    s = layout(&h)
    h.n_bytes = s.end
    out = PyBytes_FromStringAndSize(NULL, s.end)
    at = PyBytes_AS_STRING(out)
    if names is not None:
        put(at, s.name_start, s.node, names.start)
        put(at, s.text, s.fingerprint, names.text)
    put(at, s.node, s.key, t.node)
    put(at, s.key, s.pool, t.key)
    put(at, s.pool, s.leaf_node, t.pool)
    put(at, s.leaf_node, s.inner, t.leaf_node)
    put(at, s.inner, s.exit_ids, t.inner)
    put(at, s.exit_ids, s.exit_start, t.exit_ids)
    put(at, s.exit_start, s.text, t.exit_start)
    put(at, s.fingerprint, s.end, <const char*>fingerprint)
    h.body_crc = zlib.crc32(memoryview(out)[sizeof(header_t):])
    h.header_crc = header_crc(&h)
    memcpy(at, &h, sizeof(h))
    return out
