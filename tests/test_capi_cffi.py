"""The C interface through cffi, which reads the declarations of the headers."""

import re

import numpy as np
import pytest

import eliza
from capi import header
from eliza.abi import abi_library
from support import END, V

cffi = pytest.importorskip("cffi")

LEAVES = {"go": [7], "go on": [7, 8, 9], "stop": [20, 21]}


def declarations(name):
    """Return what cffi can read of a header: no macros, no code."""
    text = re.sub(r"\\\n", " ", header(name))
    text = re.sub(r"#ifdef (__cplusplus|Py_PYTHON_H)\n.*?#endif", "", text, flags=re.S)
    return re.sub(r"^#.*$", "", text, flags=re.M)


@pytest.fixture(scope="module")
def ffi():
    ffi = cffi.FFI()
    ffi.cdef(declarations("eliza.h"))
    ffi.cdef(declarations("eliza_inference.h"))
    return ffi


@pytest.fixture(scope="module")
def lib(ffi):
    return ffi.dlopen(abi_library())


def test_a_walk_by_the_address(ffi, lib):
    api = ffi.cast("const eliza_api *", eliza.c_api().address)
    assert (api.version, api.size) == (1, ffi.sizeof("eliza_api"))
    err = ffi.new("char[200]")
    error = err, len(err)
    trie, cursor = ffi.new("eliza_trie **"), ffi.new("eliza_cursor **")
    names = [ffi.new("char[]", name.encode()) for name in LEAVES]
    status = api.trie_from_arrays(
        [7, 7, 8, 9, 20, 21], [0, 1, 4, 6], 3, names, V, [END], 1, trie, *error
    )
    assert (status, ffi.string(err)) == (0, b"")
    assert api.cursor_new(trie[0], ffi.NULL, 0, ffi.NULL, 0, cursor, *error) == 0
    api.trie_free(trie)
    assert trie[0] == ffi.NULL
    twin = eliza.Trie.from_tokens(LEAVES, n_vocab=V, exits=[END]).cursor()
    rng = np.random.default_rng(1)
    token, n, state = ffi.new("int32_t *"), ffi.new("size_t *"), ffi.new("int32_t *")
    ids = ffi.new("int32_t[]", V)
    while not twin.done:
        row = rng.standard_normal(V).astype(np.float32)
        logits = ffi.from_buffer("float[]", row)
        assert api.cursor_argmax(cursor[0], logits, V, token, *error) == 0
        assert token[0] == twin.argmax(row)
        assert api.cursor_accept(cursor[0], 50, *error) == lib.ELIZA_OFF_PATH
        assert api.cursor_accept(cursor[0], V, *error) == lib.ELIZA_INVALID_ARGUMENT
        assert ffi.string(err).decode() == f"id {V} is outside [0, {V})"
        assert api.cursor_accept(cursor[0], token[0], *error) == 0
        twin.accept(token[0])
        assert api.cursor_allowed(cursor[0], ids, V, n, *error) == 0
        assert ffi.unpack(ids, n[0]) == twin.allowed().tolist()
        twin_row = row.copy()
        if not twin.done:
            writable = ffi.from_buffer("float[]", row, require_writable=True)
            assert api.cursor_mask(cursor[0], writable, V, *error) == 0
            twin.mask(twin_row)
        np.testing.assert_array_equal(row, twin_row)
    assert api.cursor_state(cursor[0], state, *error) == 0
    assert state[0] == lib.ELIZA_DONE
    api.cursor_free(cursor)
    api.cursor_free(cursor)


def test_the_library_of_streams(ffi, lib, tmp_path):
    assert ffi.string(lib.eliza_inference_abi_version()) == b"100"
    err = ffi.new("char[300]")
    api = lib.eliza_get_api(1, err, len(err))
    assert int(ffi.cast("uintptr_t", api)) == eliza.c_api().address
    assert lib.eliza_get_api(2, err, len(err)) == ffi.NULL
    assert ffi.sizeof("eliza_llm_stream_config_t") == 104
    context = ffi.new("EliInferenceContext **")
    path = str(tmp_path / "none.gguf")
    status = lib.eliza_inference_create(path.encode(), context, err, len(err))
    assert (status, context[0]) == (lib.ELIZA_BUNDLE_ERROR, ffi.NULL)
    assert "none.gguf" in ffi.string(err).decode()
    lib.eliza_inference_destroy(context[0])
