"""The C interface: `eliza_api` of include/eliza.h, filled and handed out."""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport strlen

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject

from . cimport _handles as handles
from . cimport _picks as picks
from ._cursor cimport Cursor
from ._handles cimport (
    ELIZA_BACKEND_ERROR,
    ELIZA_BUNDLE_ERROR,
    ELIZA_CANCELLED,
    ELIZA_INVALID_ARGUMENT,
    ELIZA_OUT_OF_MEMORY,
    eliza_cursor,
    eliza_trie,
    fail,
    let_go,
    shared_t,
    shared_take,
    succeed,
    write_text,
)
from ._trie cimport Trie

import os
import sys

import numpy as np

from .errors import ElizaError, InvalidArgument, InvalidType, OutOfMemory

__all__ = ["CApi", "c_api", "get_include"]

cdef enum:
    MOST_LEAVES = 0x7FFFFFFE  # of a trie


cdef extern from "Python.h":
    void PyErr_SetInterrupt() noexcept nogil


cdef extern from "include/eliza.h" nogil:
    const char* ELIZA_API_CAPSULE
    uint32_t ELIZA_API_VERSION
    ctypedef struct eliza_api:
        uint32_t size
        uint32_t version
        void *trie_from_arrays
        void *trie_from_payload
        void *trie_from_bytes
        void *trie_open
        void *trie_free
        void *trie_n_leaves
        void *trie_n_vocab
        void *trie_name
        void *trie_find
        void *cursor_new
        void *cursor_copy
        void *cursor_free
        void *cursor_state
        void *cursor_leaf
        void *cursor_remaining
        void *cursor_path
        void *cursor_allowed
        void *cursor_forced
        void *cursor_accept
        void *cursor_rollback
        void *cursor_reset
        void *cursor_argmax
        void *cursor_sample
        void *cursor_mask
        void *cursor_bitmask
        void *cursor_logprobs


# What crosses

cdef int32_t code_of(object error) except 0:
    if isinstance(error, ElizaError):
        return error.code if error.code < 0 else ELIZA_BACKEND_ERROR
    if isinstance(error, KeyboardInterrupt):
        return ELIZA_CANCELLED
    if isinstance(error, MemoryError):
        return ELIZA_OUT_OF_MEMORY
    if isinstance(error, OSError):
        return ELIZA_BUNDLE_ERROR
    if isinstance(error, (TypeError, ValueError, OverflowError)):
        return ELIZA_INVALID_ARGUMENT
    return ELIZA_BACKEND_ERROR


cdef int32_t note(object error, char* err, size_t err_cap) noexcept:
    cdef int32_t code = ELIZA_BACKEND_ERROR
    cdef bytes text
    try:
        code = code_of(error)
        message = str(error)
        if not isinstance(error, (ElizaError, OSError)) or not message:
            message = f"{type(error).__name__}: {message}"
        text = message.replace("\0", "\\0").encode("utf-8", "backslashreplace")
        write_text(err, err_cap, text, len(text))
    except BaseException:        # no memory, most likely
        fail(err, err_cap, code, b"an error, of which nothing could be written down")
    if isinstance(error, KeyboardInterrupt):
        PyErr_SetInterrupt()     # raised again where Python goes on, so not before here
    return code


cdef str text_of(const char* text, str what):
    if text == NULL:
        raise InvalidArgument(f"{what} is NULL")
    try:
        return text[:strlen(text)].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{what} is no UTF-8 text ({error.reason})") from None


cdef object view_of(const void* data, size_t n, size_t size, str what):
    if data == NULL and n > 0:
        raise InvalidArgument(f"{what} is NULL, but there should be {n}")
    if n > <size_t>(2**62) // size:
        raise InvalidArgument(f"{what}: {n} are more than memory can hold")
    return PyMemoryView_FromMemory(<char*>data, <Py_ssize_t>(n * size), PyBUF_READ)


cdef object ids_of(const int32_t* ids, size_t n, str what):
    view = view_of(ids, n, sizeof(int32_t), what)
    return np.frombuffer(view, np.int32) if n else np.empty(0, np.int32)


cdef object numbers_of(const int64_t* numbers, size_t n, str what):
    view = view_of(numbers, n, sizeof(int64_t), what)
    return np.frombuffer(view, np.int64) if n else np.empty(0, np.int64)


cdef bytes bytes_of(const void* data, size_t size, str what):
    return bytes(view_of(data, size, 1, what))


cdef void sweep() noexcept:
    """Drop what was let go without the GIL."""
    cdef shared_t* shared = shared_take(let_go())
    cdef shared_t* following
    while shared != NULL:
        following = shared.next
        Py_DECREF(<object><PyObject*>shared.object)
        free(shared)
        shared = following


# Making tries

cdef int hand_out(Trie trie, eliza_trie** out) except -1:
    cdef eliza_trie* made
    if trie.name_table is None:
        made = handles.trie_wrap(<void*>trie, &trie.t, NULL, NULL, 0)
    else:
        made = handles.trie_wrap(
            <void*>trie, &trie.t, trie.name_table.text, trie.name_table.start,
            trie.name_table.n_text,
        )
    if made == NULL:
        raise OutOfMemory("no memory for a trie's handle")
    Py_INCREF(trie)
    out[0] = made
    return 0


cdef int begin(void** out) except -1:
    sweep()
    if out == NULL:
        raise InvalidArgument("a place for the result is NULL")
    out[0] = NULL
    return 0


cdef Trie trie_behind(const eliza_trie* trie):
    cdef handles.trie_handle* handle = handles.trie_of(trie)
    if handle == NULL:
        raise InvalidArgument("trie is NULL, or was freed")
    return <Trie><PyObject*>handle.shared.object


cdef int32_t trie_from_arrays(
    const int32_t* tokens, const int64_t* offsets, size_t n_leaves,
    const char* const* names, int32_t n_vocab, const int32_t* exits, size_t n_exits,
    eliza_trie** out, char* err, size_t err_cap,
) noexcept with gil:
    cdef size_t i
    cdef int64_t n_tokens
    cdef list texts = None
    try:
        begin(<void**>out)
        if n_leaves == 0:
            raise InvalidArgument("there are no leaves; give at least one")
        if n_leaves > MOST_LEAVES:  # before anything is added to it
            raise InvalidArgument(
                f"offsets: {n_leaves} leaves, and a trie holds up to {MOST_LEAVES}"
            )
        start = numbers_of(offsets, n_leaves + 1, "offsets")
        n_tokens = offsets[n_leaves]
        if n_tokens < 0:
            raise InvalidArgument(f"offsets[{n_leaves}] is {n_tokens}, below 0")
        if names != NULL:
            texts = [text_of(names[i], f"names[{i}]") for i in range(n_leaves)]
        hand_out(
            Trie.from_arrays(
                ids_of(tokens, <size_t>n_tokens, "tokens"), start, texts,
                n_vocab=n_vocab,
                exits=ids_of(exits, n_exits, "exits").tolist() or None,
            ),
            out,
        )
        return succeed(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int32_t trie_from_payload(
    const void* data, size_t size, const char* path, int32_t n_vocab,
    eliza_trie** out, char* err, size_t err_cap,
) noexcept with gil:
    try:
        begin(<void**>out)
        from .payload import TokenTreePayload
        given = bytes_of(data, size, "data")
        where = None if path == NULL else text_of(path, "path")
        if given.startswith(b"RTKT"):
            payload = TokenTreePayload.from_rtkt(given)
        else:
            payload = TokenTreePayload.from_json(given)
        hand_out(payload.trie(where, n_vocab=n_vocab), out)
        return succeed(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int32_t trie_from_bytes(
    const void* data, size_t size, eliza_trie** out, char* err, size_t err_cap
) noexcept with gil:
    try:
        begin(<void**>out)
        hand_out(Trie.from_bytes(bytes_of(data, size, "data")), out)
        return succeed(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int32_t trie_open(
    const char* path, eliza_trie** out, char* err, size_t err_cap
) noexcept with gil:
    try:
        begin(<void**>out)
        if path == NULL:
            raise InvalidArgument("path is NULL")
        hand_out(Trie.open(os.fsdecode(path[:strlen(path)])), out)
        return succeed(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int32_t trie_find(
    const eliza_trie* trie, const char* name, int64_t* leaf, char* err, size_t err_cap
) noexcept with gil:
    cdef Trie behind
    cdef int64_t found = -1
    try:
        sweep()
        behind = trie_behind(trie)
        if leaf == NULL:
            raise InvalidArgument("a place for the result is NULL")
        wanted = text_of(name, "name")
        if behind.name_table is not None:
            found = behind.name_table.find(wanted)
        if found < 0:
            raise InvalidArgument(f"no leaf is called {wanted!r}")
        leaf[0] = found
        return succeed(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef int32_t cursor_new(
    const eliza_trie* trie, const int32_t* exits, size_t n_exits,
    const int64_t* allow, size_t n_allow, eliza_cursor** out, char* err, size_t err_cap,
) noexcept with gil:
    cdef Cursor cursor
    try:
        begin(<void**>out)
        if allow == NULL and n_allow > 0:
            raise InvalidArgument(f"allow is NULL, but there should be {n_allow}")
        cursor = trie_behind(trie).cursor(
            exits=ids_of(exits, n_exits, "exits").tolist(),
            allow=None if allow == NULL else numbers_of(allow, n_allow, "allow"),
        )
        out[0] = handles.cursor_wrap(<void*>cursor.bound, &cursor.bound.b)
        if out[0] == NULL:
            raise OutOfMemory("no memory for a cursor")
        Py_INCREF(cursor.bound)
        return succeed(err, err_cap)
    except BaseException as error:
        return note(error, err, err_cap)


cdef eliza_api API

API.size = sizeof(eliza_api)
API.version = ELIZA_API_VERSION
API.trie_from_arrays = <void*>trie_from_arrays
API.trie_from_payload = <void*>trie_from_payload
API.trie_from_bytes = <void*>trie_from_bytes
API.trie_open = <void*>trie_open
API.trie_free = <void*>handles.trie_free
API.trie_n_leaves = <void*>handles.trie_n_leaves
API.trie_n_vocab = <void*>handles.trie_n_vocab
API.trie_name = <void*>handles.trie_name
API.trie_find = <void*>trie_find
API.cursor_new = <void*>cursor_new
API.cursor_copy = <void*>handles.cursor_copy
API.cursor_free = <void*>handles.cursor_free
API.cursor_state = <void*>handles.cursor_state
API.cursor_leaf = <void*>handles.cursor_leaf
API.cursor_remaining = <void*>handles.cursor_remaining
API.cursor_path = <void*>handles.cursor_path
API.cursor_allowed = <void*>handles.cursor_allowed
API.cursor_forced = <void*>handles.cursor_forced
API.cursor_accept = <void*>picks.cursor_accept
API.cursor_rollback = <void*>picks.cursor_rollback
API.cursor_reset = <void*>picks.cursor_reset
API.cursor_argmax = <void*>picks.cursor_argmax
API.cursor_sample = <void*>picks.cursor_sample
API.cursor_mask = <void*>picks.cursor_mask
API.cursor_bitmask = <void*>picks.cursor_bitmask
API.cursor_logprobs = <void*>picks.cursor_logprobs

_API = PyCapsule_New(&API, ELIZA_API_CAPSULE, NULL)


@cython.final
@cython.auto_pickle(False)
cdef class CApi:
    """Where the C interface is: `eliza_api` of eliza.h, for ctypes, cffi and C.

    Valid as long as the process lives.
    """

    def __cinit__(self):
        if _MADE:
            raise InvalidType("the C interface is handed out by eliza.c_api()")

    @property
    def capsule(self):
        """A capsule named "eliza._capi._API" that holds the address."""
        return _API

    @property
    def address(self):
        """int: the address of the struct."""
        return <uintptr_t>&API

    @property
    def version(self):
        """int: its `version`; what has one version only grows."""
        return API.version

    @property
    def size(self):
        """int: its `size`, in bytes."""
        return API.size

    def __repr__(self):
        return f"<CApi version {self.version}, {self.size} bytes at {self.address:#x}>"


_MADE = False
cdef CApi MADE = CApi()
_MADE = True


def c_api():
    """Return where the C interface is.

    Returns
    -------
    CApi

    Examples
    --------
    >>> import ctypes
    >>> address = c_api().address
    >>> ctypes.c_uint32.from_address(address + 4).value == c_api().version
    True
    """
    sweep()
    return MADE


def get_include():
    """Return the folder of eliza.h and eliza_inference.h, for a compiler's -I.

    Returns
    -------
    str
    """
    return os.path.join(os.path.dirname(sys.modules["eliza"].__file__), "include")
