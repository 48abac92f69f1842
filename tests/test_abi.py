"""The streaming C names, called by ctypes, on a small model.

R3, R7, R8, R10; FC-083 (cancel), FC-085 (close meanwhile), FC-124 (buffers).
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
import time

import pytest

import eliza
from capi import Library, StreamConfig, ids
from forks import can_fork, forks, in_child
from support import on_linux, resident
from tiny import tiny_gguf

pytest.importorskip("llama_cpp")

lib = Library(eliza.abi_library())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("abi") / "tiny.gguf")


@pytest.fixture(scope="module")
def ctx(path):
    out = ctypes.c_void_p()
    assert lib.create(str(path).encode(), ctypes.byref(out)) == 0, lib.text
    yield out
    lib.destroy(out)


@pytest.fixture(scope="module")
def model(path):
    with eliza.load(path) as model:
        yield model


@pytest.fixture
def open_stream(ctx):
    opened = []

    def call(prompt="The user", **options):
        out, config = ctypes.c_void_p(), StreamConfig(**options)
        status = lib.open(ctx, *sized(config), ctypes.byref(out))
        assert status == 0, lib.text
        opened.append(out)
        if prompt:
            tokens = tokenize(ctx, prompt)
            assert lib.prefill(out, ids(tokens), len(tokens)) == 0, lib.text
        return out

    yield call
    for stream in opened:
        lib.close(stream)


def sized(config):
    return ctypes.addressof(config), ctypes.sizeof(config)


def tokenize(ctx, text, add=0, parse=0):
    data = text.encode() if isinstance(text, str) else text
    buffer, n = (ctypes.c_int32 * 500)(), ctypes.c_size_t()
    status = lib.tokenize(
        ctx, data, len(data), add, parse, buffer, 500, ctypes.byref(n)
    )
    assert status == 0, lib.text
    return buffer[: n.value]


def step(stream, ids_cap=64, text_cap=1024):
    """Return the status, the ids and the text of one call."""
    tokens, n = (ctypes.c_int32 * max(ids_cap, 1))(), ctypes.c_size_t(99)
    text, n_text = ctypes.create_string_buffer(max(text_cap, 1)), ctypes.c_size_t(99)
    drafted, accepted = ctypes.c_int32(99), ctypes.c_int32(99)
    status = lib.next(
        stream, tokens, ids_cap, ctypes.byref(n), text, text_cap, ctypes.byref(n_text),
        ctypes.byref(drafted), ctypes.byref(accepted),
    )  # fmt: skip
    assert text.raw[n_text.value] == 0
    return status, tokens[: n.value], text.raw[: n_text.value]


def run(stream, ids_cap=64, text_cap=1024):
    """Return the last status, all ids, and the pieces of text."""
    tokens, pieces = [], []
    for _ in range(10_000):
        status, some, text = step(stream, ids_cap, text_cap)
        tokens += some
        pieces.append(text)
        if status not in (0, 2):
            return status, tokens, pieces
    raise AssertionError("it does not end")


def bind(stream, choices, ctx, mode=0, path=None, model_id=""):
    leaves = [{"name": name, "tokens": tokenize(ctx, text)} for name, text in choices]
    descriptor = {"path": "action", "leaves": leaves}
    data = json.dumps({"modelId": model_id, "descriptors": [descriptor]}).encode()
    return lib.set_token_trie(stream, data, len(data), path, mode)


def name_of(stream):
    buffer, n = ctypes.create_string_buffer(100), ctypes.c_size_t()
    assert lib.token_trie_name(stream, buffer, 100, ctypes.byref(n)) == 0
    return buffer.value.decode()


# What it gives


def test_the_version_is_a_text():
    assert lib.lib.eliza_inference_abi_version() == b"100"
    assert lib.lib.eliza_abi_init(None, None, None, 0) == 0  # Python runs already


def test_it_hands_out_the_other_api():
    assert lib.lib.eliza_get_api(1, None, 0) == eliza.c_api().address
    err = ctypes.create_string_buffer(100)
    assert lib.lib.eliza_get_api(2, ctypes.cast(err, ctypes.c_void_p), 100) is None
    assert b"version 1" in err.value


def test_a_stream_gives_what_a_session_gives(open_stream, model):
    stream = open_stream(max_tokens=40)
    status, tokens, pieces = run(stream)
    with model.open(max_tokens=40) as session:
        session.prefill(model.vocab.encode("The user"))
        steps = list(session)
    assert status == 1
    assert tokens == [token for s in steps for token in s.ids]
    assert b"".join(pieces).decode() == "".join(s.text for s in steps)
    for _ in range(3):  # the end is the end
        assert step(stream) == (1, [], b"")


def test_draws_follow_the_seed(open_stream):
    options = {"max_tokens": 20, "temperature": 1.5, "top_k": 50, "min_p": 0.01}
    a, b, c = (run(open_stream(**options, seed=seed))[1] for seed in (5, 5, 6))
    assert a == b != c


@pytest.mark.parametrize("mode", [0, 1])
def test_choices_bind_until_they_are_cleared(open_stream, ctx, mode):
    stream = open_stream(max_tokens=30, temperature=1.0, seed=3)
    choices = [("a", "REPLY"), ("b", "SEND_MESSAGE"), ("c", "SEND_EMAIL")]
    assert bind(stream, choices, ctx, mode) == 0, lib.text
    assert name_of(stream) == ""
    status, tokens, pieces = run(stream)
    assert status == 1
    text = b"".join(pieces).decode()
    assert (name_of(stream), text) in choices
    assert tokens == tokenize(ctx, text)
    assert lib.clear_token_trie(stream) == 0
    assert name_of(stream) == ""
    assert run(stream)[0] == 1


def test_a_choice_that_others_continue(open_stream, ctx, model):
    stream = open_stream()
    assert bind(stream, [("a", "SEND"), ("b", "SEND_EMAIL")], ctx) == 0
    status, _, pieces = run(stream)
    assert status == 1
    assert b"".join(pieces) in (b"SEND", b"SEND_EMAIL")


def test_rtkt_and_paths(open_stream, ctx, model):
    leaves = tuple(
        eliza.TokenTreeLeaf(name, tuple(tokenize(ctx, name))) for name in ("Yes", "No")
    )
    one = eliza.TokenTreeDescriptor("sign", leaves)
    two = eliza.TokenTreeDescriptor("other", leaves[:1])
    payload = eliza.TokenTreePayload("", [one, two])
    stream = open_stream()
    data = payload.to_json()
    assert lib.set_token_trie(stream, data, len(data), None, 0) == -2
    assert "sign" in lib.text
    assert lib.set_token_trie(stream, data, len(data), b"sign", 0) == 0
    data = payload.to_rtkt("sign")
    assert lib.set_token_trie(stream, data, len(data), None, 0) == 0
    assert b"".join(run(stream)[2]) in (b"Yes", b"No")


def test_r3_the_limit_inside_a_choice_is_an_error(open_stream, ctx):
    stream = open_stream(max_tokens=1)
    spelled = "Maybe Maybe Maybe"
    assert bind(stream, [("a", spelled), ("b", spelled + " Yes")], ctx) == 0
    status, tokens, _ = run(stream)
    assert status == -12
    assert tokens == tokenize(ctx, spelled)[:1]
    assert run(stream)[:2] == (-12, [])


def test_r3_a_grammar_is_refused(ctx):
    out, config = ctypes.c_void_p(1), StreamConfig(gbnf_grammar=b'root ::= "a"')
    assert lib.open(ctx, *sized(config), ctypes.byref(out)) == -1
    assert "grammar" in lib.text
    assert out.value is None


def test_guesses_change_nothing(open_stream, path):
    plain = run(open_stream(max_tokens=40))
    for options in ({"draft_max": 8}, {"mtp_drafter_path": str(path).encode()}):
        assert run(open_stream(max_tokens=40, **options))[:2] == plain[:2]


def test_context_overflow_is_its_own_error(open_stream):
    stream = open_stream(None)
    assert lib.prefill(stream, ids([5] * 5000), 5000) == -9
    assert run(open_stream(max_tokens=3))[0] == 1


# Ids and texts


def test_tokens_and_back(ctx, model):
    for text in ("Yes, a user \U0001f408", "", "a\0b"):
        tokens = tokenize(ctx, text)
        assert tokens == model.vocab.encode(text)
        data, n = ctypes.create_string_buffer(100), ctypes.c_size_t()
        args = ctx, ids(tokens), len(tokens)
        assert lib.detokenize(*args, data, 100, ctypes.byref(n)) == 0
        assert data.raw[: n.value] == text.encode()
        for cap in range(n.value + 1):  # FC-124
            assert lib.detokenize(*args, data, cap, ctypes.byref(n)) == 2
            assert n.value == len(text.encode())
        assert lib.detokenize(*args, data, n.value + 1, ctypes.byref(n)) == 0
    control = "<|im_end|>"
    assert tokenize(ctx, control, parse=1) == [2]
    assert len(tokenize(ctx, control)) > 1
    n = ctypes.c_size_t()
    assert lib.tokenize(ctx, b"Yes No", 6, 0, 0, None, 0, ctypes.byref(n)) == 2
    assert n.value == len(tokenize(ctx, "Yes No"))
    assert lib.tokenize(ctx, b"a\xff", 2, 0, 0, None, 0, ctypes.byref(n)) == -2
    assert "byte 1" in lib.text
    assert lib.detokenize(ctx, ids([10**6]), 1, None, 0, ctypes.byref(n)) == -2


@pytest.mark.parametrize("ids_cap", [1, 2, 64])
@pytest.mark.parametrize("text_cap", [5, 6, 7, 1024])
def test_small_buffers_lose_nothing(open_stream, ctx, ids_cap, text_cap):
    """A forced run of many ids and of characters of four bytes, through a keyhole."""
    whole = "REPLY\U0001f408\U0001f408e\u0301 the user\U0001f408"
    stream = open_stream()
    assert bind(stream, [("a", whole), ("b", whole + "Yes")], ctx) == 0
    status, tokens, pieces = run(stream, ids_cap, text_cap)
    assert status == 1
    text = b"".join(pieces).decode()
    assert text in (whole, whole + "Yes")
    assert tokens == tokenize(ctx, text)
    for piece in pieces:
        piece.decode()  # no piece ends in a character
        assert len(piece) < text_cap


def test_what_has_no_room_at_all_is_an_error_and_kept(open_stream, ctx):
    stream = open_stream()
    assert bind(stream, [("a", "\U0001f408")], ctx) == 0
    size = len(tokenize(ctx, "\U0001f408"))
    assert step(stream, size, 4) == (2, tokenize(ctx, "\U0001f408"), b"")
    for _ in range(2):
        assert step(stream, size, 4) == (-2, [], b"")
        assert "it is kept" in lib.text
    assert step(stream, 0, 5) == (1, [], "\U0001f408".encode())


def test_waiting_output_belongs_to_its_generation(open_stream, ctx, tmp_path):
    stream = open_stream()
    spelled = tokenize(ctx, "Maybe Yes No")
    assert bind(stream, [("a", "Maybe Yes No")], ctx) == 0
    assert step(stream, 1)[:2] == (2, spelled[:1])
    slot = str(tmp_path / "slot").encode()
    assert lib.save_slot(stream, slot) == -2
    assert "wait to be fetched" in lib.text
    assert lib.cancel(stream) == 0
    assert step(stream, 1)[0] == -7
    assert lib.reset(stream) == 0  # drops it, and the choices bind from the beginning
    tokens = tokenize(ctx, "A")
    assert lib.prefill(stream, ids(tokens), len(tokens)) == 0
    assert run(stream)[1] == spelled


# State


def test_slots(open_stream, ctx, tmp_path):
    slot = str(tmp_path / "größe.slot").encode()
    stream = open_stream(max_tokens=30)
    first = step(stream)
    assert first[0] == 0
    assert lib.save_slot(stream, slot) == 0, lib.text
    rest = run(stream)
    other = open_stream(None, max_tokens=30)
    assert lib.restore_slot(other, slot) == 0, lib.text
    assert run(other)[:2] == rest[:2]
    assert lib.restore_slot(other, b"/nowhere") == -3
    assert "/nowhere" in lib.text


def test_reset_keep_says_how_many(open_stream, ctx):
    stream = open_stream(max_tokens=8)
    n = len(tokenize(ctx, "The user"))
    whole = run(stream)
    assert lib.reset_keep(stream, n) == n
    assert run(stream)[:2] == whole[:2]
    assert lib.reset_keep(stream, -5) == 0
    assert lib.reset_keep(stream, 100) == 0


# Cancelling and ending


def test_fc083_cancel_from_another_thread(open_stream):
    stream = open_stream(None, max_tokens=100_000)
    tokens = [5 + i % 200 for i in range(3500)]
    begun, statuses = threading.Event(), []

    def work():
        begun.set()
        statuses.append(lib.prefill(stream, ids(tokens), len(tokens)))
        statuses.append(step(stream)[0])

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    time.sleep(0.02)
    assert lib.cancel(stream) == 0
    thread.join()
    assert statuses == [-7, -7]
    assert step(stream)[0] == -7  # until it is reset
    assert lib.reset(stream) == 0
    assert lib.prefill(stream, ids(tokens[:5]), 5) == 0
    assert step(stream)[0] == 0


def test_fc085_destroy_while_another_thread_generates(path):
    out, stream = ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.create(str(path).encode(), ctypes.byref(out)) == 0
    assert lib.open(out, None, 0, ctypes.byref(stream)) == 0
    assert lib.prefill(stream, ids([5, 6]), 2) == 0
    statuses, begun = [], threading.Event()

    def work():
        for _ in range(100_000):
            statuses.append(step(stream)[0])
            begun.set()
            if statuses[-1] < 0:
                return

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    lib.destroy(out)
    thread.join()
    assert statuses[-1] in (-11, -7)
    assert step(stream)[0] == -11
    lib.destroy(out)
    lib.close(stream)


def test_use_after_the_end(ctx, open_stream):
    stream = open_stream()
    for _ in range(2):
        lib.close(stream)
    assert lib.cancel(stream) == 0
    n = ctypes.c_size_t()
    for status in (
        step(stream)[0],
        lib.prefill(stream, ids([5]), 1),
        lib.reset(stream),
        lib.reset_keep(stream, 1),
        lib.save_slot(stream, b"x"),
        lib.restore_slot(stream, b"x"),
        lib.clear_token_trie(stream),
        lib.set_token_trie(stream, b"{}", 2, None, 0),
        lib.token_trie_name(stream, None, 0, ctypes.byref(n)),
    ):
        assert status == -11
        assert "closed" in lib.text
    assert lib.reset(ctx) == -2  # the handle of something else


@can_fork
@forks
def test_fc120_a_forked_child_is_told(open_stream):
    """Whatever a thread of the parent held when it forked."""
    stream = open_stream(None)
    tokens, begun = ids([5 + i % 200 for i in range(3500)]), threading.Event()

    def work():
        begun.set()
        lib.prefill(stream, tokens, 3500)

    def child():
        assert step(stream)[0] == -4
        assert "another process" in lib.text
        assert lib.reset(stream) == -4
        lib.cancel(stream)
        lib.close(stream)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    time.sleep(0.05)
    try:
        in_child(child)
    finally:
        lib.cancel(stream)
        thread.join()


# What is refused


def test_null_is_refused_by_code(ctx, open_stream):
    stream = open_stream()
    n, buffer, tokens = ctypes.c_size_t(), ctypes.create_string_buffer(9), ids([5])
    out, some = ctypes.c_void_p(), ctypes.byref(n)
    for status in (
        lib.create(None, ctypes.byref(out)),
        lib.create(b"x", None),
        lib.open(None, None, 0, ctypes.byref(out)),
        lib.open(ctx, None, 0, None),
        lib.tokenize(None, b"a", 1, 0, 0, tokens, 1, some),
        lib.tokenize(ctx, None, 1, 0, 0, tokens, 1, some),
        lib.tokenize(ctx, b"a", 1, 0, 0, None, 1, some),
        lib.tokenize(ctx, b"a", 1, 0, 0, tokens, 1, None),
        lib.detokenize(None, tokens, 1, buffer, 9, some),
        lib.detokenize(ctx, None, 1, buffer, 9, some),
        lib.detokenize(ctx, tokens, 1, None, 9, some),
        lib.detokenize(ctx, tokens, 1, buffer, 9, None),
        lib.prefill(None, tokens, 1),
        lib.prefill(stream, None, 1),
        lib.next(None, tokens, 1, some, buffer, 9, None, None, None),
        lib.next(stream, None, 1, some, buffer, 9, None, None, None),
        lib.next(stream, tokens, 1, None, buffer, 9, None, None, None),
        lib.next(stream, tokens, 1, some, None, 9, None, None, None),
        lib.next(stream, tokens, 1, some, buffer, 0, None, None, None),
        lib.reset(None),
        lib.reset_keep(None, 0),
        lib.save_slot(stream, None),
        lib.save_slot(None, b"x"),
        lib.restore_slot(stream, None),
        lib.set_token_trie(None, b"{}", 2, None, 0),
        lib.set_token_trie(stream, None, 2, None, 0),
        lib.clear_token_trie(None),
        lib.token_trie_name(None, buffer, 9, some),
        lib.token_trie_name(stream, buffer, 9, None),
    ):
        assert status == -2
    assert lib.cancel(None) == 0
    lib.close(None)
    lib.destroy(None)
    assert lib.prefill(stream, None, 0) == 0  # no ids are no change
    assert lib.next(stream, tokens, 1, some, buffer, 9, None, None, None) in (0, 2)


@pytest.mark.parametrize("cap", [0, 1, 5, 30])
def test_error_buffers_of_any_size(ctx, open_stream, cap):
    stream = open_stream()
    err = ctypes.create_string_buffer(b"#" * 63, 64)
    function = lib.lib.eliza_inference_set_token_trie
    where = ctypes.cast(err, ctypes.c_void_p)
    path = "größer".encode()
    assert bind(stream, [("a", "Yes")], ctx) == 0
    good = eliza.TokenTreePayload(
        "", [eliza.TokenTreeDescriptor("ö" * 20, (eliza.TokenTreeLeaf("a", (5,)),))]
    ).to_json()
    assert function(stream, good, len(good), path, 0, where, cap) == -2
    assert err.raw[cap:63] == b"#" * (63 - cap)
    if cap:
        assert b"\0" in err.raw[:cap]
        err.value.decode()
    assert function(stream, b"{", 1, None, 0, None, 10) == -2


def test_a_wrong_payload_leaves_the_former_choices(open_stream, ctx):
    stream = open_stream()
    assert bind(stream, [("a", "Yes"), ("b", "No")], ctx) == 0
    assert bind(stream, [], ctx) == -2
    assert bind(stream, [("a", "Maybe")], ctx, mode=2) == -2
    assert "mode is 2" in lib.text
    assert bind(stream, [("a", "Maybe")], ctx, mode=1) == -2  # temperature 0
    assert bind(stream, [("a", "Maybe")], ctx, path=b"other") == -2
    assert bind(stream, [("a", "Maybe")], ctx, model_id="another") == -2
    assert "another" in lib.text
    assert b"".join(run(stream)[2]) in (b"Yes", b"No")


def test_configs_of_other_versions(ctx):
    out = ctypes.c_void_p()
    config = StreamConfig(max_tokens=3)
    size = ctypes.sizeof(config)
    assert (StreamConfig.context_size.offset, size) == (80, 104)
    for wrong in (0, 4, 79, 4097, 2**63, 2**64 - 1):
        assert lib.open(ctx, ctypes.addressof(config), wrong, ctypes.byref(out)) == -2
    assert lib.open(ctx, ctypes.addressof(config), 80, ctypes.byref(out)) == 0
    lib.close(out)
    longer = ctypes.create_string_buffer(size + 8)
    assert lib.open(ctx, ctypes.addressof(longer), size + 8, ctypes.byref(out)) == 0
    lib.close(out)
    longer[size] = 1
    assert lib.open(ctx, ctypes.addressof(longer), size + 8, ctypes.byref(out)) == -6


def test_options_of_the_model_hold_for_all_its_streams(path):
    out, a, b = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.create(str(path).encode(), ctypes.byref(out)) == 0
    small = StreamConfig(context_size=64)
    tokens = tokenize(out, "Yes" * 100)  # loads it
    assert lib.open(out, *sized(small), ctypes.byref(a)) == 0, lib.text
    assert lib.prefill(a, ids(tokens), len(tokens)) == -9
    assert lib.open(out, None, 0, ctypes.byref(b)) == -2
    assert "n_ctx" in lib.text
    uneven = StreamConfig(cache_type_k=b"f32", cache_type_v=b"f16")
    assert lib.open(out, *sized(uneven), ctypes.byref(b)) == -1
    lib.close(a)
    assert lib.open(out, None, 0, ctypes.byref(b)) == 0
    assert lib.prefill(b, ids(tokens), len(tokens)) == 0
    lib.destroy(out)


def test_bundles_that_are_none(tmp_path):
    out = ctypes.c_void_p(1)
    bad, empty = tmp_path / "bad.gguf", tmp_path / "empty"
    bad.write_bytes(b"GGUF")
    empty.mkdir()
    for bundle, code in (
        (tmp_path / "missing.gguf", -3),
        (empty, -3),
        (tmp_path / ("x" * 5000), -3),
    ):
        assert lib.create(str(bundle).encode(), ctypes.byref(out)) == code, lib.text
        assert lib.text
        assert out.value is None
    assert lib.create(b"\xff\xfe", ctypes.byref(out)) == -2
    assert lib.create(str(bad).encode(), ctypes.byref(out)) == 0
    stream = ctypes.c_void_p()
    assert lib.open(out, None, 0, ctypes.byref(stream)) == -3
    assert "bad.gguf" in lib.text
    lib.destroy(out)


def test_backends_are_selected_as_elsewhere(path, monkeypatch):
    monkeypatch.setenv("ELIZA_LLM_BACKEND", "nothing")
    out = ctypes.c_void_p()
    assert lib.create(str(path).encode(), ctypes.byref(out)) < 0
    assert "nothing" in lib.text


# Exceptions


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (ValueError("so"), -2, "ValueError: so"),
        (TypeError("so"), -2, "TypeError: so"),
        (MemoryError(), -5, "MemoryError: "),
        (OSError(2, "gone", "x"), -3, "[Errno 2] gone: 'x'"),
        (RuntimeError("a\0b"), -4, "RuntimeError: a\\0b"),
        (SystemExit(3), -4, "SystemExit: 3"),
        (eliza.BackendError("half \udc80"), -4, "half \\udc80"),
    ],
)
def test_fc116_no_exception_crosses(open_stream, monkeypatch, raised, code, text):
    stream = open_stream()

    def fail(*_):
        raise raised

    monkeypatch.setattr(eliza.Session, "next", fail)
    assert step(stream) == (code, [], b"")
    assert lib.text == text
    monkeypatch.undo()
    assert step(stream)[0] >= 0


def test_fc116_an_interrupt_reaches_the_python_around(open_stream, monkeypatch):
    stream = open_stream()

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(eliza.Session, "next", fail)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        step(stream)
        time.sleep(1)
    monkeypatch.undo()
    assert lib.text == "KeyboardInterrupt: "
    assert step(stream)[0] >= 0


def test_fc101_a_process_that_closes_nothing_ends_quietly(path):
    code = (
        "import ctypes, sys; sys.path.insert(0, sys.argv[1]); import eliza\n"
        "from capi import Library, ids\n"
        "lib = Library(eliza.abi_library()); ctx = ctypes.c_void_p()\n"
        "assert lib.create(sys.argv[2].encode(), ctypes.byref(ctx)) == 0\n"
        "stream = ctypes.c_void_p()\n"
        "assert lib.open(ctx, None, 0, ctypes.byref(stream)) == 0\n"
        "assert lib.prefill(stream, ids([5, 6]), 2) == 0\n"
        "sys.exit(3)"
    )
    folder = __file__.rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, folder, path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "")


# Memory


@on_linux
def test_r8_streams_leave_nothing_behind(ctx, open_stream):
    tokens = tokenize(ctx, "The user")

    def rounds(n):
        stream, config = ctypes.c_void_p(), StreamConfig(max_tokens=2)
        for _ in range(n):
            assert lib.open(ctx, *sized(config), ctypes.byref(stream)) == 0
            assert lib.prefill(stream, ids(tokens), len(tokens)) == 0
            assert bind(stream, [("a", "Yes"), ("b", "No")], ctx) == 0
            assert run(stream)[0] == 1
            lib.set_token_trie(stream, b"{", 1, None, 0)
            lib.close(stream)

    rounds(200)
    before = resident()
    rounds(1000)
    assert resident() - before < 5 << 20


def test_python_m_prints_what_a_host_needs():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "eliza.abi"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert set(found) == {"library", "libpython", "executable", "include"}
    assert found["library"] == eliza.abi_library()
    assert found["executable"] == sys.executable
