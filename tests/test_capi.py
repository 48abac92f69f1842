"""The C interface through its address: eliza.h says what must hold.

R5, R7, R8; FC-099 (release in every order), FC-116 (nothing crosses).
"""

from __future__ import annotations

import ctypes
import json
import math
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from capi import Api, functions, header, ids
from eliza.reference import Reference
from support import END, V, choice_sets, on_linux, resident

api = Api(eliza.c_api().address)

LEAVES = {"go": [7], "go on": [7, 8, 9], "stop": [20, 21], "größer": [30, 31, 32]}


def row_of(values):
    return (ctypes.c_float * len(values))(*values)


@pytest.fixture
def trie():
    made = api.trie(LEAVES, V)
    yield made
    api.trie_free(ctypes.byref(made))


@pytest.fixture
def cursor(trie):
    made = api.cursor(trie, exits=[END])
    yield made
    api.cursor_free(ctypes.byref(made))


# How it is found


def test_the_struct_says_its_size_and_version():
    found = eliza.c_api()
    assert found is eliza.c_api()
    assert (found.version, found.size) == (1, api.sizeof)
    assert (api.struct.version, api.struct.size) == (1, api.sizeof)


def test_the_capsule_holds_the_address():
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = (
        ctypes.c_void_p,
        [ctypes.py_object, ctypes.c_char_p],
    )
    capsule = eliza.c_api().capsule
    assert pointer(capsule, b"eliza._capi._API") == eliza.c_api().address
    imported = ctypes.pythonapi.PyCapsule_Import
    imported.restype, imported.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_char_p, ctypes.c_int],
    )
    assert imported(b"eliza._capi._API", 0) == eliza.c_api().address


def test_nobody_else_makes_one():
    with pytest.raises(eliza.InvalidType, match=r"eliza\.c_api"):
        type(eliza.c_api())()


def test_codes_are_those_of_the_errors():
    codes = dict(re_enum(header("eliza.h")))
    for error in (
        "NotSupported", "InvalidArgument", "BundleError", "BackendError", "OutOfMemory",
        "AbiMismatch", "Cancelled", "OffPathError", "ContextOverflow",
        "NoCandidateError", "Closed", "TokenLimit",
    ):  # fmt: skip
        words = "".join(f"_{c}" if c.isupper() else c.upper() for c in error)
        name = f"ELIZA{words}"
        if name not in codes:
            name = name.removesuffix("_ERROR")
        assert codes[name] == getattr(eliza, error).code


def re_enum(text):
    return [
        (name, int(value)) for name, value in re.findall(r"(ELIZA_\w+) = (-?\d+)", text)
    ]


# What it does


@settings(max_examples=80, deadline=None)
@given(choice_sets(), st.data())
def test_it_agrees_with_the_reference(leaves, data):
    reference = Reference(leaves, exits=[END])
    trie = api.trie(leaves, V)
    cursor = api.cursor(trie, exits=[END])
    api.trie_free(ctypes.byref(trie))  # a cursor keeps what it needs
    number = st.floats(-5, 5, width=32) | st.sampled_from(
        [math.nan, -math.inf, math.inf]
    )
    path = ()
    while True:
        allowed = sorted(reference.allowed(path))
        assert api.read("cursor_allowed", cursor) == allowed
        assert api.read("cursor_forced", cursor) == list(reference.forced(path))
        assert api.read("cursor_path", cursor) == list(path)
        state, leaf = ctypes.c_int32(), ctypes.c_int64()
        assert api.cursor_state(cursor, ctypes.byref(state)) == 0
        assert api.cursor_leaf(cursor, ctypes.byref(leaf)) == 0
        done = reference.leaf(path) is not None
        assert state.value == (2 if done else 1 if path else 0)
        assert (leaf.value >= 0) == done
        for token in range(V):  # allowed and accept agree for every id
            status = api.cursor_accept(cursor, token)
            assert status == (0 if token in allowed else -8)
            if status == 0:
                assert api.cursor_rollback(cursor, 1) == 0
        if done:
            break
        row = data.draw(st.lists(number, min_size=V, max_size=V + 3))
        check_row(cursor, reference, path, row)
        token = data.draw(st.sampled_from(allowed))
        assert api.cursor_accept(cursor, token) == 0
        path += (token,)
    if data.draw(st.booleans()):
        assert api.cursor_rollback(cursor, len(path)) == 0
    else:
        assert api.cursor_reset(cursor) == 0
    assert api.read("cursor_path", cursor) == []
    api.cursor_free(ctypes.byref(cursor))


def check_row(cursor, reference, path, row):
    logits = row_of(row)
    token = ctypes.c_int32(-5)
    status = api.cursor_argmax(cursor, logits, len(row), ctypes.byref(token))
    best = reference.argmax(path, list(logits))
    assert status == (-10 if best is None else 0)
    assert token.value == (-5 if best is None else best)
    words = (ctypes.c_uint32 * 3)(7, 7, 7)
    assert api.cursor_bitmask(cursor, words, 3) == 0
    allowed = reference.allowed(path)
    assert list(words) == [
        sum(1 << i for i in range(32) if 32 * word + i in allowed) for word in range(3)
    ]
    n, found = ctypes.c_size_t(), (ctypes.c_double * V)()
    for whole in (0, 1):
        status = api.cursor_logprobs(
            cursor, logits, len(row), whole, found, V, ctypes.byref(n)
        )
        assert status == (-10 if best is None else 0)
        if best is not None:
            wanted = reference.logprobs(path, list(logits)[:V], bool(whole))
            np.testing.assert_allclose(
                found[: n.value], [wanted[i] for i in sorted(wanted)], atol=1e-6
            )
    masked = row_of(row)
    assert api.cursor_mask(cursor, masked, len(row)) == 0
    want = reference.mask(path, list(logits)[:V]) + [-math.inf] * (len(row) - V)
    np.testing.assert_array_equal(list(masked), want)


@given(st.integers(0, 2**32), st.floats(0, 1, exclude_max=True))
@settings(max_examples=30, deadline=None)
def test_a_draw_is_that_of_a_cursor_with_the_same_number(seed, uniform):
    trie, made = eliza.Trie.from_tokens(LEAVES, n_vocab=V), api.trie(LEAVES, V)
    cursor = api.cursor(made, exits=[END])
    logits = np.random.default_rng(seed).standard_normal(V).astype(np.float32)
    token = ctypes.c_int32()
    options = 0.7, 2, 0.9, 0.05
    status = api.cursor_sample(
        cursor, row_of(logits), V, *options, uniform, ctypes.byref(token)
    )
    assert status == 0
    kept = cumulative(trie.cursor(exits=[END]), logits, *options)
    assert token.value == next(i for i, end in kept if end > uniform)
    api.cursor_free(ctypes.byref(cursor))
    api.trie_free(ctypes.byref(made))


def cumulative(cursor, logits, temperature, top_k, top_p, min_p):
    """Return the ids that are left, in their order, and where their shares end."""
    allowed = cursor.allowed().tolist()
    weight = {i: math.exp(logits[i] / temperature) for i in allowed}
    order = sorted(allowed, key=lambda i: (-weight[i], i))[:top_k]
    total, reached, nucleus = sum(weight[i] for i in order), 0.0, []
    for i in order:
        nucleus.append(i)
        reached += weight[i]
        if reached >= top_p * total:
            break
    left = sorted(i for i in nucleus if weight[i] >= min_p * weight[order[0]])
    total, end, out = sum(weight[i] for i in left), 0.0, []
    for i in left:
        end += weight[i] / total
        out.append((i, end))
    return [*out[:-1], (out[-1][0], 1.0)]


def test_a_subset_is_a_trie_of_those_leaves(trie):
    leaf = ctypes.c_int64()
    assert api.trie_find(trie, b"stop", ctypes.byref(leaf)) == 0
    cursor = api.cursor(trie, allow=[leaf.value])
    assert api.read("cursor_allowed", cursor) == [20]
    n = ctypes.c_size_t()
    assert api.cursor_remaining(cursor, ctypes.byref(n)) == 0
    assert n.value == 1
    api.cursor_free(ctypes.byref(cursor))


def test_a_copy_goes_its_own_way(cursor):
    assert api.cursor_accept(cursor, 7) == 0
    copy = ctypes.c_void_p()
    assert api.cursor_copy(cursor, ctypes.byref(copy)) == 0
    assert api.cursor_accept(copy, 8) == 0
    assert api.read("cursor_path", copy) == [7, 8]
    assert api.read("cursor_path", cursor) == [7]
    api.cursor_free(ctypes.byref(copy))


# Where tries come from

PAYLOAD = {
    "modelId": "",
    "descriptors": [
        {"path": "action", "leaves": [{"name": "THINK", "tokens": [10, 11]}]},
        {"path": "other", "leaves": [{"name": "EXECUTE", "tokens": [20]}]},
    ],
}


@pytest.mark.parametrize("form", ["json", "rtkt"])
def test_tries_from_payloads(form):
    read = eliza.TokenTreePayload.from_json(json.dumps(PAYLOAD))
    data = read.to_json() if form == "json" else read.to_rtkt("action")
    trie = ctypes.c_void_p()
    status = api.trie_from_payload(data, len(data), b"action", V, ctypes.byref(trie))
    assert status == 0, api.text
    cursor = api.cursor(trie)
    assert api.read("cursor_forced", cursor) == [10, 11]
    api.cursor_free(ctypes.byref(cursor))
    api.trie_free(ctypes.byref(trie))


def test_tries_from_bytes_and_files(tmp_path):
    made = eliza.Trie.from_tokens(LEAVES, n_vocab=V)
    path, data = tmp_path / "größe.trie", made.to_bytes()
    made.save(path)
    for status, trie in (
        create("trie_from_bytes", data, len(data)),
        create("trie_open", str(path).encode()),
    ):
        assert status == 0, api.text
        n, vocab = ctypes.c_size_t(), ctypes.c_int32()
        assert api.trie_n_leaves(trie, ctypes.byref(n)) == 0
        assert api.trie_n_vocab(trie, ctypes.byref(vocab)) == 0
        assert (n.value, vocab.value) == (4, V)
        assert [name_of(trie, leaf) for leaf in range(4)] == list(made.names)
        api.trie_free(ctypes.byref(trie))


def create(name, *arguments):
    out = ctypes.c_void_p(1)
    return getattr(api, name)(*arguments, ctypes.byref(out)), out


def name_of(trie, leaf, cap=100):
    buffer, n = ctypes.create_string_buffer(b"?" * (cap - 1), cap), ctypes.c_size_t()
    status = api.trie_name(trie, leaf, buffer, cap, ctypes.byref(n))
    assert status == (2 if n.value >= cap else 0)
    return buffer.value.decode() if status == 0 else (buffer.value, n.value)


def test_names(trie):
    assert name_of(trie, 3) == "größer"
    assert name_of(trie, 3, cap=9) == "größer"  # 8 bytes and a NUL
    assert name_of(trie, 3, cap=8) == (b"", 8)
    n = ctypes.c_size_t()
    assert api.trie_name(trie, 3, None, 0, ctypes.byref(n)) == 2
    assert n.value == 8
    for leaf in (-1, 4, 2**40):
        assert api.trie_name(trie, leaf, None, 0, ctypes.byref(n)) == -2
        assert api.text == f"leaf {leaf} is outside [0, 4)"


def test_a_trie_without_names():
    status, trie = create(
        "trie_from_arrays",
        ids([4, 5]),
        (ctypes.c_int64 * 3)(0, 1, 2),
        2,
        None,
        V,
        None,
        0,
    )
    assert status == 0
    assert name_of(trie, 1) == ""
    leaf = ctypes.c_int64(-7)
    assert api.trie_find(trie, b"", ctypes.byref(leaf)) == -2
    assert leaf.value == -7
    api.trie_free(ctypes.byref(trie))


def test_exits_of_the_trie_itself():
    trie = api.trie(LEAVES, V, exits=[END])
    cursor = api.cursor(trie)
    assert api.cursor_accept(cursor, 7) == 0
    assert api.read("cursor_allowed", cursor) == [END, 8]
    api.cursor_free(ctypes.byref(cursor))
    api.trie_free(ctypes.byref(trie))


# What is refused


def test_a_trie_is_refused_with_a_reason(tmp_path):
    offsets = (ctypes.c_int64 * 3)(0, 1, 2)
    two = ids([4, 5])
    bad_name = (ctypes.c_char_p * 2)(b"a", b"\xff")
    no_name = (ctypes.c_char_p * 2)(b"a", None)
    cut = eliza.Trie.from_tokens(LEAVES, n_vocab=V).to_bytes()[:-9]
    wrong = (ctypes.c_int64 * 3)(0, 10**12, 2)
    below = (ctypes.c_int64 * 3)(0, 1, -2)
    arrays = "trie_from_arrays"
    for name, arguments, code, text in (
        (arrays, (two, offsets, 0, None, V, None, 0), -2, "no leaves"),
        (arrays, (None, offsets, 2, None, V, None, 0), -2, "tokens is NULL"),
        (arrays, (two, None, 2, None, V, None, 0), -2, "offsets is NULL"),
        (arrays, (two, wrong, 2, None, V, None, 0), -2, "not decrease"),
        (arrays, (two, below, 2, None, V, None, 0), -2, r"offsets\[2\] is -2"),
        *(
            (arrays, (two, offsets, n, names, V, None, 0), -2, f"offsets: {n} leaves")
            for n in (2**31 - 1, 2**31, 2**32 + 2, 2**61, 2**63, 2**64 - 2, 2**64 - 1)
            for names in (None, bad_name)
        ),
        (arrays, (two, offsets, 2, None, V, two, 2**64 - 1), -2, "exits"),
        (arrays, (two, offsets, 2, bad_name, V, None, 0), -2, r"names\[1\]"),
        (arrays, (two, offsets, 2, no_name, V, None, 0), -2, r"names\[1\]"),
        (arrays, (two, offsets, 2, None, 5, None, 0), -2, "leaf 1.* 5"),
        (arrays, (two, offsets, 2, None, 0, None, 0), -2, "vocab"),
        (arrays, (two, offsets, 2, None, V, None, 3), -2, "exits is NULL"),
        ("trie_from_payload", (None, 3, None, V), -2, "data is NULL"),
        ("trie_from_payload", (b"{}", 2, None, V), -2, "descriptors|modelId"),
        ("trie_from_payload", (b"RTKT", 4, None, V), -2, "cut short"),
        ("trie_from_payload", (b"[" * 10**6, 10**6, None, V), -2, "nested|deep"),
        ("trie_from_bytes", (cut, len(cut)), -3, ""),
        ("trie_from_bytes", (b"", 0), -3, ""),
        ("trie_from_bytes", (b"x", 2**64 - 1), -2, "more than memory"),
        ("trie_from_payload", (b"x", 2**64 - 1, None, V), -2, "more than memory"),
        ("trie_open", (None,), -2, "path is NULL"),
        ("trie_open", (b"/nowhere/at/all",), -3, "/nowhere/at/all"),
    ):  # fmt: skip
        status, trie = create(name, *arguments)
        assert (status, trie.value) == (code, None), (name, arguments, api.text)
        assert api.text not in ("", "untouched")
        assert re.search(text, api.text), api.text
    data = json.dumps(PAYLOAD).encode()
    assert create("trie_from_payload", data, len(data), None, V)[0] == -2
    assert create("trie_from_payload", data, len(data), b"nothing", V)[0] == -2


def test_a_cursor_is_refused_with_a_reason(trie):
    out = ctypes.c_void_p(1)
    allow = (ctypes.c_int64 * 1)(99)
    for arguments, text in (
        ((None, None, 0, None, 0), "trie is NULL"),
        ((trie, None, 0, None, 0), "'go' is the beginning of other leaves"),
        ((trie, ids([8]), 1, None, 0), "also leads on"),
        ((trie, ids([END]), 1, allow, 1), "99"),
        ((trie, ids([END]), 1, allow, 0), "permits none"),
        ((trie, ids([END]), 1, None, 2), "allow is NULL"),
        ((trie, ids([V]), 1, None, 0), f"{V}"),
        ((trie, ids([END]), 2**64 - 1, None, 0), "more than memory"),
        ((trie, ids([END]), 1, allow, 2**64 - 1), "more than memory"),
    ):
        assert api.cursor_new(*arguments, ctypes.byref(out)) == -2
        assert text in api.text
        assert out.value is None


def test_null_is_refused_everywhere_by_code(trie, cursor):
    """Each pointer of each function in turn; nothing but the buffer for texts."""
    other = ctypes.c_void_p()
    good = {
        ctypes.POINTER(ctypes.c_int32): (ctypes.c_int32 * 64)(7),
        ctypes.POINTER(ctypes.c_int64): (ctypes.c_int64 * 64)(),
        ctypes.POINTER(ctypes.c_uint32): (ctypes.c_uint32 * 64)(),
        ctypes.POINTER(ctypes.c_size_t): (ctypes.c_size_t * 64)(),
        ctypes.POINTER(ctypes.c_float): (ctypes.c_float * 64)(),
        ctypes.POINTER(ctypes.c_double): (ctypes.c_double * 64)(),
        ctypes.POINTER(ctypes.c_void_p): ctypes.byref(other),
        ctypes.c_size_t: 64,
        ctypes.c_double: 0.5,
        ctypes.c_int32: 7,
        ctypes.c_int64: 0,
        ctypes.c_char_p: b"go",
    }
    name = ctypes.create_string_buffer(64)
    seen = 0
    for function, kind in functions(header("eliza.h")):
        if not function.startswith(("cursor_", "trie_n")):
            continue
        if function in ("cursor_free", "cursor_new"):
            continue
        types = kind._argtypes_[:-2]
        first = trie if function.startswith("trie") else cursor
        arguments = [first]
        arguments += [name if t is ctypes.c_void_p else good[t] for t in types[1:]]
        if function == "cursor_rollback":
            arguments[1] = 0
        assert getattr(api, function)(*arguments) >= 0, function
        api.cursor_reset(cursor)
        for i, t in enumerate(types):
            if t in (ctypes.c_size_t, ctypes.c_double, ctypes.c_int32, ctypes.c_int64):
                continue
            broken = [*arguments[:i], None, *arguments[i + 1 :]]
            assert getattr(api, function)(*broken) == -2, (function, i)
            assert "NULL" in api.text
            seen += 1
        assert api.read("cursor_path", cursor) == []  # R7
        api.cursor_free(ctypes.byref(other))
    assert seen > 30
    api.trie_free(None)
    api.cursor_free(None)


def test_a_handle_of_the_other_kind_is_refused(trie, cursor):
    n = ctypes.c_size_t()
    assert api.trie_n_leaves(cursor, ctypes.byref(n)) == -2
    assert api.cursor_reset(trie) == -2


@pytest.mark.parametrize(
    ("options", "ok"),
    [
        ((0.0, 0, 1.0, 0.0, 0.0), True),
        ((1.0, 0, 1.0, 0.0, 1.0), False),
        ((1.0, 0, 1.0, 0.0, -0.1), False),
        ((1.0, 0, 1.0, 0.0, math.nan), False),
        ((-1.0, 0, 1.0, 0.0, 0.5), False),
        ((math.nan, 0, 1.0, 0.0, 0.5), False),
        ((math.inf, 0, 1.0, 0.0, 0.5), False),
        ((1.0, -1, 1.0, 0.0, 0.5), False),
        ((1.0, 0, 0.0, 0.0, 0.5), False),
        ((1.0, 0, 1.1, 0.0, 0.5), False),
        ((1.0, 0, 1.0, 1.1, 0.5), False),
    ],
)
def test_fc025_options_of_a_draw(cursor, options, ok):
    token = ctypes.c_int32(-5)
    status = api.cursor_sample(
        cursor, row_of([0] * V), V, *options, ctypes.byref(token)
    )
    assert status == (0 if ok else -2)
    assert (token.value == -5) != ok


def test_fc033_rows_too_short_or_not_aligned(cursor):
    token = ctypes.c_int32(-5)
    row = row_of([0] * V)
    assert api.cursor_argmax(cursor, row, V - 1, ctypes.byref(token)) == -2
    assert api.text == f"a row of {V - 1} logits; the trie needs at least {V}"
    crooked = ctypes.cast(ctypes.addressof(row) + 1, ctypes.POINTER(ctypes.c_float))
    assert api.cursor_argmax(cursor, crooked, V, ctypes.byref(token)) == -2
    assert api.cursor_bitmask(cursor, (ctypes.c_uint32 * 1)(), 1) == -2
    for n in (2**62, 2**63, 2**64 - 1):  # sizes that no array has
        assert api.cursor_mask(cursor, row, n) == -2
        assert api.cursor_bitmask(cursor, (ctypes.c_uint32 * 2)(), n) == -2
        assert api.cursor_rollback(cursor, n) == -2
    assert token.value == -5


def test_fc037_ids_outside_the_vocabulary(cursor):
    for token in (-1, V, 2**31 - 1, -(2**31)):
        assert api.cursor_accept(cursor, token) == -2
        assert api.text == f"id {token} is outside [0, {V})"
    assert api.read("cursor_path", cursor) == []


def test_when_it_is_done(cursor):
    for token in (20, 21):
        assert api.cursor_accept(cursor, token) == 0
    token, n = ctypes.c_int32(), ctypes.c_size_t()
    assert api.read("cursor_allowed", cursor) == []
    assert api.cursor_argmax(cursor, row_of([0] * V), V, ctypes.byref(token)) == -10
    assert "complete" in api.text
    assert api.cursor_mask(cursor, row_of([0] * V), V) == -10
    assert api.cursor_accept(cursor, 20) == -8
    assert api.cursor_rollback(cursor, 3) == -2
    assert api.cursor_remaining(cursor, ctypes.byref(n)) == 0
    assert n.value == 1


@pytest.mark.parametrize("name", ["cursor_allowed", "cursor_forced", "cursor_path"])
def test_fc124_a_small_buffer_loses_nothing(name):
    trie = api.trie({"a": [4, 5, 6], "b": [4, 5, 7], "c": [4, 5, 8]}, V)
    cursor = api.cursor(trie)
    if name == "cursor_path":
        for token in (4, 5, 6):
            assert api.cursor_accept(cursor, token) == 0
    if name == "cursor_allowed":
        for token in (4, 5):
            assert api.cursor_accept(cursor, token) == 0
    whole = api.read(name, cursor)
    for cap in range(len(whole)):
        buffer, n = (ctypes.c_int32 * 5)(*[-9] * 5), ctypes.c_size_t()
        assert getattr(api, name)(cursor, buffer, cap, ctypes.byref(n)) == 2
        assert n.value == len(whole)
        assert list(buffer) == [-9] * 5
    n = ctypes.c_size_t()
    assert getattr(api, name)(cursor, None, 0, ctypes.byref(n)) == 2
    assert api.read(name, cursor, cap=len(whole)) == whole
    api.cursor_free(ctypes.byref(cursor))
    api.trie_free(ctypes.byref(trie))


# Texts of errors


@pytest.mark.parametrize("cap", [0, 1, 2, 5, 40, 41, 42, 43, 200])
def test_the_text_fits_and_is_never_cut_in_a_character(cap):
    """Two leaves called the same, with a name of two-byte letters."""
    names = (ctypes.c_char_p * 2)("ö".encode() * 30, "ö".encode() * 30)
    err = ctypes.create_string_buffer(b"#" * 299, 300)
    out = ctypes.c_void_p()
    status = api.struct.trie_from_arrays(
        ids([4, 5]), (ctypes.c_int64 * 3)(0, 1, 2), 2, names, V, None, 0,
        ctypes.byref(out), ctypes.cast(err, ctypes.c_void_p), cap,
    )  # fmt: skip
    assert status == -2
    assert err.raw[cap:299] == b"#" * (299 - cap)
    if cap:
        text = err.raw[:cap].split(b"\0")[0]
        assert text.decode() in api_text(names)
        assert cap - 2 <= len(text) <= cap - 1 or text.decode() == api_text(names)


def api_text(names):
    out = ctypes.c_void_p()
    api.trie_from_arrays(
        ids([4, 5]),
        (ctypes.c_int64 * 3)(0, 1, 2),
        2,
        names,
        V,
        None,
        0,
        ctypes.byref(out),
    )
    return api.text


def test_no_buffer_for_texts(cursor):
    assert api.struct.cursor_accept(cursor, 50, None, 100) == -8
    assert api.struct.cursor_accept(cursor, 50, None, 0) == -8


def test_a_success_empties_the_text(cursor):
    assert api.cursor_accept(cursor, 50) == -8
    assert api.text == "id 50 is not allowed after 0 ids"
    assert api.cursor_accept(cursor, 20) == 0
    assert api.text == ""


# Ownership


def test_freeing_sets_the_pointer_to_null_and_may_come_twice(trie):
    cursor = api.cursor(trie, exits=[END])
    for _ in range(2):
        api.cursor_free(ctypes.byref(cursor))
        assert cursor.value is None
    assert api.cursor_reset(cursor) == -2


def test_fc099_release_in_every_order():
    """What is behind the handles lives as long as any of them."""
    for seed in range(60):
        draw = random.Random(seed)
        trie = api.trie(LEAVES, V)
        cursors = [api.cursor(trie, exits=[END])]
        for _ in range(4):
            copy = ctypes.c_void_p()
            api.cursor_copy(draw.choice(cursors), ctypes.byref(copy))
            cursors.append(copy)
        everything = [(api.trie_free, trie), *((api.cursor_free, c) for c in cursors)]
        draw.shuffle(everything)
        for free, handle in everything:
            for cursor in cursors:
                if cursor.value is not None:
                    assert api.read("cursor_allowed", cursor) == [7, 20, 30]
            free(ctypes.byref(handle))


@on_linux
def test_fc099_a_file_stays_mapped_as_long_as_a_handle_lives(tmp_path):
    path = tmp_path / "mapped.trie"
    eliza.Trie.from_tokens(LEAVES, n_vocab=V).save(path)

    def mapped():
        eliza.c_api()  # drops what was let go
        return str(path) in Path("/proc/self/maps").read_text()

    for seed in range(20):
        status, trie = create("trie_open", str(path).encode())
        assert status == 0
        handles = [api.cursor(trie, exits=[END]), trie]
        for _ in range(3):
            copy = ctypes.c_void_p()
            api.cursor_copy(handles[0], ctypes.byref(copy))
            handles.insert(0, copy)
        random.Random(seed).shuffle(handles)
        for handle in handles:
            assert mapped()
            free = api.trie_free if handle is trie else api.cursor_free
            free(ctypes.byref(handle))
        assert not mapped()


@on_linux
def test_fc099_memory_stays_flat():
    def rounds(n):
        for _ in range(n):
            trie = api.trie(LEAVES, V)
            cursor = api.cursor(trie, exits=[END], allow=[0, 1])
            copy = ctypes.c_void_p()
            api.cursor_copy(cursor, ctypes.byref(copy))
            api.cursor_accept(copy, 7)
            api.read("cursor_allowed", copy, cap=8)
            for handle in (cursor, copy):
                api.cursor_free(ctypes.byref(handle))
            api.trie_free(ctypes.byref(trie))
            create("trie_from_payload", b"{", 1, None, V)

    rounds(2000)
    before = resident()
    rounds(10_000)
    assert resident() - before < 5 << 20


def test_threads_without_the_gil_share_a_trie(trie):
    """Ctypes lets go of the GIL for each call: eight cursors at once."""
    start = threading.Barrier(8)
    results = []

    def walk(seed):
        draw = random.Random(seed)
        cursor = api.cursor(trie, exits=[END])
        own = Api(eliza.c_api().address)
        start.wait()
        for _ in range(300):
            path = []
            while allowed := own.read("cursor_allowed", cursor, cap=8):
                path.append(draw.choice(allowed))
                assert own.cursor_accept(cursor, path[-1]) == 0
            copy = ctypes.c_void_p()
            own.cursor_copy(cursor, ctypes.byref(copy))
            own.cursor_free(ctypes.byref(cursor))
            cursor = copy
            own.cursor_reset(cursor)
            results.append(tuple(path))
        own.cursor_free(ctypes.byref(cursor))

    threads = [threading.Thread(target=walk, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8 * 300
    assert set(results) == {(7, END), (7, 8, 9), (20, 21), (30, 31, 32)}


def test_fc101_a_process_that_frees_nothing_ends_quietly():
    code = (
        "import ctypes, sys; sys.path.insert(0, sys.argv[1]); import eliza\n"
        "from capi import Api\n"
        "api = Api(eliza.c_api().address)\n"
        "trie = api.trie({'a': [4, 5], 'b': [4, 6]}, 64); cursor = api.cursor(trie)\n"
        "gone = api.cursor(trie); api.cursor_free(ctypes.byref(gone))\n"
        "sys.exit(3)"
    )
    folder = __file__.rpartition("/")[0]
    command = [sys.executable, "-P", "-c", code, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
