"""Saved sessions: whole or absent, checked, tied to what made them, and never run."""

import base64
import hashlib
import json
import os
import pickle
import random
import signal
import stat
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import eliza
from eliza import (
    BundleError,
    ContextOverflow,
    ElizaError,
    InvalidArgument,
    NotSupported,
    TokenTreePayload,
    Trie,
    Vocab,
)
from eliza.testing import ScriptedBackend
from support import END, hashed, model_of, plain_vocab
from t32 import PIECES, t32
from tiny import tiny_gguf

FIXED = struct.Struct("<8sIIQ")
LEAVES = {"one": (10, 11, 12), "two": (10, 20), "three": (10, 11, 12, 30)}
TRIE = Trie.from_tokens(LEAVES, n_vocab=64)
LOGITS = hashed(11, 64)
HERE = Path(__file__).parent


def opened(model=None, **options):
    session = (model or model_of(LOGITS)).open(**options)
    session.prefill([4, 5, 6])
    return session


def picks(session, n=10):
    session.max_tokens = len(session.ids) + n
    list(session)
    return session.ids[-n:]


def whole(session):
    """Return all that a refused file must leave as it was."""
    generation = session._generation
    return (
        session.history,
        session.ids,
        session.finish_reason,
        session.name,
        session.timeline.sequence.position,
        session.counters,
        generation.text.state(),
        str(generation.sampler.rng.bit_generator.state),
    )


@pytest.fixture
def good(tmp_path):
    """A slot inside a span, with something in each of its parts."""
    session = opened(temperature=1.0, seed=3)
    session.set_token_trie(TRIE)
    session.next()
    path = tmp_path / "good"
    session.save_slot(path)
    return path


@pytest.fixture
def target():
    session = opened(temperature=1.0, seed=4)
    session.prefill([7, 8])
    session.set_token_trie(TRIE)
    session.next()
    return session


def refused(session, path, data, kinds=BundleError):
    path.write_bytes(data)
    before = whole(session)
    with pytest.raises(kinds) as caught:
        session.restore_slot(path)
    assert whole(session) == before
    return str(caught.value)


# -- FC-087: any order ---------------------------------------------------------------


def test_fc087_states_in_any_order(tmp_path):
    sizes = {"long": 200, "short": 3, "one": 1}
    expected = {}
    for name, n in sizes.items():
        session = model_of(LOGITS).open()
        session.prefill([4 + i % 50 for i in range(n)])
        session.save_slot(tmp_path / name)
        expected[name] = picks(session)
    session = model_of(LOGITS).open()
    for name in ("long", "short", "long", "short", "short", "one", "long", "one"):
        session.restore_slot(tmp_path / name)
        assert len(session.history) == sizes[name]
        assert picks(session) == expected[name]
    larger = model_of(LOGITS, n_ctx=8192).open()
    smaller = model_of(LOGITS, n_ctx=100).open()
    for name in ("short", "one", "short"):
        for other in (larger, smaller):
            other.restore_slot(tmp_path / name)
            assert picks(other) == expected[name]
    before = whole(smaller)
    with pytest.raises(ContextOverflow):
        smaller.restore_slot(tmp_path / "long")
    assert whole(smaller) == before
    assert picks(smaller) == smaller.ids[-10:]


def test_fc103_the_size_follows_what_is_used(tmp_path):
    vocab = Vocab.from_tokens([b"x"] * 5000)
    session = model_of(lambda history: {5: 1.0}, vocab, n_ctx=32_768).open()
    session.prefill([1] * 10)
    session.save_slot(tmp_path / "slot")
    assert (tmp_path / "slot").stat().st_size < 5000 * 4 + 2000


# -- FC-088: cut or damaged ----------------------------------------------------------


def test_fc088_a_file_cut_anywhere(good, target, tmp_path):
    data = good.read_bytes()
    for n in range(len(data)):
        message = refused(target, tmp_path / "cut", data[:n])
        assert "cut" in message  # the name of the file
    assert refused(target, tmp_path / "longer", data + b"\0")
    assert refused(target, tmp_path / "longer", data + data)
    target.restore_slot(good)


def test_fc088_each_bit_of_the_beginning_and_others(good, target, tmp_path):
    data = good.read_bytes()
    rng = random.Random(0)
    places = [(i, b) for i in range(min(256, len(data))) for b in range(8)]
    places += [(rng.randrange(len(data)), rng.randrange(8)) for _ in range(2000)]
    for at, bit in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        refused(target, tmp_path / "flipped", flipped)
    target.restore_slot(good)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 100, b"\0" * 4096, b"ELIZSLOT", b"ELIZSLOT" * 10, b"x" * 99]
)
def test_fc088_files_that_are_something_else(data, target, tmp_path):
    refused(target, tmp_path / "other", data)


@pytest.mark.parametrize("value", [2**31, 2**63, -1, 0, 1, 2**32 - 1])
def test_fc088_lengths_that_lie(value, good, target, tmp_path):
    data = good.read_bytes()
    tracemalloc.start()
    for at, size in ((12, 4), (16, 8)):
        raw = (value % 256**size).to_bytes(size, "little")
        changed = data[:at] + raw + data[at + size :]
        refused(target, tmp_path / "length", changed)
        refused(target, tmp_path / "length", signed(changed[:-32]))
    for field in ("n_ids", "n_row", "n_state"):
        changed = rebuilt(data, {field: value})
        assert "damaged" in refused(target, tmp_path / "length", changed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def signed(body):
    return body + hashlib.sha256(body).digest()


def parts_of(data):
    _, _, n_header, _ = FIXED.unpack(data[: FIXED.size])
    end = FIXED.size + n_header
    return json.loads(data[FIXED.size : end]), data[end:-32]


def rebuilt(data, changes=None, raw=None, rest=None):
    """Return the slot with other values in its header, and a checksum that holds."""
    header, old = parts_of(data)
    text = raw if raw is not None else json.dumps(header | (changes or {})).encode()
    rest = old if rest is None else rest
    return signed(FIXED.pack(b"ELIZSLOT", 1, len(text), len(rest)) + text + rest)


def test_a_slot_rebuilt_is_the_slot(good, target, tmp_path):
    path = tmp_path / "rebuilt"
    path.write_bytes(rebuilt(good.read_bytes()))
    target.restore_slot(path)
    assert target.history[:3] == (4, 5, 6)


@pytest.mark.parametrize(
    "changes",
    [
        {"pending": [64]},
        {"pending": [-1]},
        {"pending": [2**70]},
        {"pending": ["10"]},
        {"pending": None},
        {"generated": [2**31]},
        {"generated": [99]},
        {"path": [11]},
        {"path": [10, 20, 20]},
        {"path": [2**40]},
        {"path": [-1]},
        {"finish": "over"},
        {"finish": 5},
        {"held": None},
        {"unread": "***"},
        {"rng": ""},
        {"rng": "{}"},
        {"rng": "[]"},
        {"rng": "null"},
        {"rng": "[" * 100_000},
        {"rng": '{"bit_generator": "PCG64", "state": {}}'},
        {"rng": '{"bit_generator": "PCG64", "state": {"state": -1, "inc": 1}}'},
        {"rng": json.dumps({"bit_generator": "PCG64", "state": {"state": 2**200}})},
        {
            "rng": json.dumps(
                {
                    "bit_generator": "PCG64",
                    "state": {"state": 2**200, "inc": 2**200},
                    "has_uint32": 0,
                    "uinteger": 0,
                }
            )
        },
        {"rng": '{"bit_generator": "eval", "state": {"key": [1]}}'},
        {"identity": {}},
        {"more": 1},
        {"n_ids": 0},
        {"n_ids": 1.5},
        {"n_ids": 2, "n_row": 65},
        {"n_row": 0, "n_state": 12 + 256},
    ],
)
def test_fc088_wrong_values_under_a_right_checksum(changes, good, target, tmp_path):
    data = rebuilt(good.read_bytes(), changes)
    refused(target, tmp_path / "wrong", data, ElizaError)
    target.restore_slot(good)
    assert target.history[:3] == (4, 5, 6)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"[" * 50_000, b"\xff\xfe", b"null"])
def test_fc088_headers_that_are_none(raw, good, target, tmp_path):
    refused(target, tmp_path / "header", rebuilt(good.read_bytes(), raw=raw))


def test_fc088_ids_that_the_model_does_not_have(good, target, tmp_path):
    header, rest = parts_of(good.read_bytes())
    ids = np.array([4, 64, 6], "<i4").tobytes()
    changed = rebuilt(good.read_bytes(), rest=ids + rest[12:])
    assert header["n_ids"] == 3
    assert "does not have" in refused(target, tmp_path / "ids", changed)


def test_a_state_that_the_runtime_refuses(good, tmp_path):
    """The runtime may have lost its rows over it; the session goes on all the same."""

    class Forgetful(ScriptedBackend):
        def open(self):
            sequence = super().open()

            def restore(state, n):
                sequence._rows = None
                raise eliza.BackendError("no")

            sequence.restore = restore
            return sequence

    session = opened(eliza.Model(Forgetful(plain_vocab(), LOGITS)))
    session.set_token_trie(TRIE)
    with pytest.raises(eliza.BackendError):
        session.restore_slot(good)
    session.clear_token_trie()
    assert picks(session) == picks(opened())


# -- FC-090: code --------------------------------------------------------------------


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_fc090_a_pickle_is_not_run(good, target, tmp_path):
    marker, path = tmp_path / "marker", tmp_path / "bomb"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(Bomb(marker), protocol)
        refused(target, path, data)
        refused(target, path, b"ELIZSLOT" + data)
        refused(target, path, signed(FIXED.pack(b"ELIZSLOT", 1, 0, len(data)) + data))
        refused(target, path, rebuilt(good.read_bytes(), raw=data))
        _, rest = parts_of(good.read_bytes())
        with_state = rebuilt(
            good.read_bytes(),
            {"n_state": len(data)},
            rest=rest[: len(rest) - 12] + data,
        )
        refused(target, path, with_state, ElizaError)
        rng = rebuilt(good.read_bytes(), {"rng": base64.b64encode(data).decode()})
        refused(target, path, rng)
        path.write_bytes(data)
        with pytest.raises(ElizaError):
            Trie.open(path).verify()
        with pytest.raises(ElizaError):
            TokenTreePayload.from_rtkt(data)
    assert not marker.exists()


# -- FC-091: random state ------------------------------------------------------------


def equal_logits(history):
    return {}


GO_ON = """
import sys
sys.path.insert(0, {here!r})
from test_slots import *
session = model_of(equal_logits).open(temperature=1.0, seed={seed})
session.restore_slot({path!r})
print(*picks(session, 5))
"""


def in_another_process(path, seed=99):
    script = GO_ON.format(here=str(HERE), path=str(path), seed=seed)
    out = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    return tuple(map(int, out.stdout.split()))


def test_fc091_the_random_state_is_part_of_it(tmp_path):
    path = tmp_path / "slot"
    session = opened(model_of(equal_logits), temperature=1.0, seed=7)
    uninterrupted = picks(session, 10)
    session = opened(model_of(equal_logits), temperature=1.0, seed=7)
    assert picks(session, 5) == uninterrupted[:5]
    session.save_slot(path)
    assert in_another_process(path) == uninterrupted[5:]
    for _ in range(2):
        session.restore_slot(path)
        assert picks(session, 5) == uninterrupted[5:]
    # An explicit seed wins, and means the same each time.
    seeded = []
    for seed in (8, 8, np.random.default_rng(8), 7):
        session.restore_slot(path, seed)
        seeded.append(picks(session, 5))
    assert seeded[0] == seeded[1] == seeded[2] != uninterrupted[5:]
    assert seeded[3] != seeded[0]


@pytest.mark.parametrize(
    "kind", [np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]
)
def test_fc091_other_generators(kind, tmp_path):
    def session():
        return opened(temperature=1.0, seed=np.random.Generator(kind(5)))

    first = session()
    picks(first, 3)
    first.save_slot(tmp_path / "slot")
    rest = picks(first, 5)
    second = session()
    second.restore_slot(tmp_path / "slot")
    assert picks(second, 5) == rest
    third = opened(temperature=1.0, seed=1)
    with pytest.raises(InvalidArgument, match=f"{kind.__name__} generator"):
        third.restore_slot(tmp_path / "slot")
    third.restore_slot(tmp_path / "slot", seed=2)
    assert third.ids == first.ids[:3]


@pytest.mark.parametrize("at", [-1, -5, 625, 10**6, -(10**6), None])
@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.Philox])
def test_a_place_outside_of_a_generators_buffer(kind, at, tmp_path):
    """NumPy takes it, and reads from there."""
    session = opened(temperature=1.0, seed=np.random.Generator(kind(5)))
    path = tmp_path / "slot"
    session.save_slot(path)
    state = json.loads(parts_of(path.read_bytes())[0]["rng"])
    (state["state"] if "pos" in state["state"] else state).update(
        {"pos" if "pos" in state["state"] else "buffer_pos": at}
    )
    changed = rebuilt(path.read_bytes(), {"rng": json.dumps(state)})
    assert "random state" in refused(session, path, changed)


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_seeds_that_are_none(seed, good, target):
    before = whole(target)
    with pytest.raises(InvalidArgument, match="seed"):
        target.restore_slot(good, seed)
    assert whole(target) == before


# -- what it is tied to --------------------------------------------------------------


def test_another_model_tokenizer_runtime_or_set(good, tmp_path):
    class Other(ScriptedBackend):
        name = "other"

    def with_set(backend, leaves=LEAVES):
        session = opened(eliza.Model(backend))
        n_vocab = backend.vocab.n_vocab
        session.set_token_trie(Trie.from_tokens(leaves, n_vocab=n_vocab))
        return session

    vocab = plain_vocab()
    with_set(ScriptedBackend(vocab, LOGITS)).restore_slot(good)
    for session, message in (
        (with_set(ScriptedBackend(vocab, LOGITS, fingerprint=b"x")), "another model"),
        (with_set(Other(vocab, LOGITS)), "another runtime"),
        (with_set(ScriptedBackend(plain_vocab(65), LOGITS)), "another tokenizer"),
        (with_set(ScriptedBackend(plain_vocab(64, (2, 3)), LOGITS)), "tokenizer"),
        (with_set(ScriptedBackend(vocab, LOGITS), {"one": (10, 11)}), "other choices"),
        (
            with_set(ScriptedBackend(vocab, LOGITS), dict(LEAVES, four=(9,))),
            "other choices",
        ),
        (
            # The same ids by other names: what was said would be called otherwise.
            with_set(
                ScriptedBackend(vocab, LOGITS), {k + "!": v for k, v in LEAVES.items()}
            ),
            "other choices",
        ),
        (opened(), "set of choices"),
    ):
        before = whole(session)
        with pytest.raises(InvalidArgument, match=message):
            session.restore_slot(good)
        assert whole(session) == before
    free = tmp_path / "free"
    opened().save_slot(free)
    session = with_set(ScriptedBackend(vocab, LOGITS))
    with pytest.raises(InvalidArgument, match="without choices"):
        session.restore_slot(free)


def test_what_cannot_be_saved(tmp_path):
    session = opened()
    session.set_constraint(TRIE.cursor(exits=[END]))
    with pytest.raises(NotSupported, match="set_token_trie"):
        session.save_slot(tmp_path / "slot")
    session = opened(model_of(LOGITS, save=False))
    with pytest.raises(NotSupported, match="saves no states"):
        session.save_slot(tmp_path / "slot")
    assert list(tmp_path.iterdir()) == []


# -- where it was saved --------------------------------------------------------------


def test_saved_at_any_step_it_goes_on_the_same(tmp_path):
    """Inside a span, a character, a possible stop text, at a limit, after the end."""
    model = eliza.Model(ScriptedBackend(t32(), hashed(5, 32)))
    cats = Trie.from_tokens(
        {"🐈": [16, 17, 18, 19], "🐕": [16, 17, 18, 20], "🐈A": [16, 17, 18, 19, 4]},
        n_vocab=32,
    )
    inside = set()
    for seed in range(60):
        options = {
            "temperature": 1.2,
            "stop": ["AB", " Yes", '"\\', "ent"],
            "repeat_penalty": 1.1,
        }

        def make(options=options, seed=seed):
            session = model.open(seed=seed, **options)
            if seed % 2:
                session.set_token_trie(
                    cats, mode="sample" if seed % 4 == 1 else "greedy"
                )
            return session

        first = make()
        first.prefill([4, 5])
        first.max_tokens = seed % 13
        steps, saved = [], []
        while True:
            path = tmp_path / f"{len(saved)}"
            first.save_slot(path)
            saved.append((path, len(steps), first.max_tokens))
            held, unread = first._generation.text.state()
            inside |= {"stop"} if held else set()
            inside |= {"character"} if unread else set()
            inside |= {"end"} if first.finish_reason else set()
            try:
                steps.append(first.next())
            except eliza.TokenLimit:
                inside.add("limit")
                first.max_tokens += 3
                continue
            if len(steps) > 3 and steps[-1].final:
                break
            if steps[-1].finish_reason == "length":
                first.max_tokens += 5
        for path, n, limit in saved:
            second = make()
            second.prefill([9] * 7)
            second.max_tokens = first.max_tokens
            if limit != first.max_tokens:
                continue  # the limit is the session's, not the slot's
            second.restore_slot(path)
            again = []
            while n + len(again) < len(steps):
                again.append(second.next())
            assert again == steps[n:]
            assert whole(second)[:4] == whole(first)[:4]
    assert inside == {"stop", "character", "end", "limit"}


def test_a_slot_of_a_session_without_a_prompt(tmp_path):
    session = model_of(LOGITS).open(seed=1, temperature=1.0)
    session.save_slot(tmp_path / "slot")
    other = opened(seed=2, temperature=1.0)
    other.restore_slot(tmp_path / "slot")
    assert other.history == ()
    other.prefill([4, 5, 6])
    session.prefill([4, 5, 6])
    assert picks(other) == picks(session)


def test_a_slot_of_a_frontier_begins_there(tmp_path):
    """Not with what was generated before the prompt: that turn is over."""
    session = opened(max_tokens=4)
    list(session)
    assert session.finish_reason
    path = tmp_path / "slot"
    session.prefill([7] * 10, lambda frontier: frontier.save_slot(path))
    list(session)
    other = model_of(LOGITS).open(max_tokens=4)
    other.restore_slot(path)
    assert (other.ids, other.finish_reason) == ((), None)
    list(other)
    assert (other.ids, other.history) == (session.ids, session.history)


def test_restoring_is_refused_after_a_cancel(good, target):
    target.cancel()
    with pytest.raises(eliza.Cancelled):
        target.restore_slot(good)
    with pytest.raises(eliza.Cancelled):
        target.next()


# -- FC-092: interrupted -------------------------------------------------------------


def test_the_file_is_readable_by_its_owner_alone(tmp_path):
    session, path = opened(), tmp_path / "slot"
    for before in (None, 0o644):
        if before:
            path.chmod(before)
        old = os.umask(0)
        try:
            session.save_slot(path)
        finally:
            os.umask(old)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["slot"]


def test_fc092_places_where_nothing_can_be_written(tmp_path):
    session = opened()
    before = whole(session)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    for path in (
        tmp_path / "folder",
        tmp_path / "missing" / "slot",
        tmp_path / "file" / "slot",
        tmp_path / ("n" * 300),
        Path("/proc/slot"),  # where nobody can write
    ):
        with pytest.raises(OSError):
            session.save_slot(path)
    assert whole(session) == before
    names = sorted(p.name for p in tmp_path.rglob("*"))
    assert names == ["file", "folder"]


@pytest.mark.skipif(os.name != "posix" or os.getuid() == 0, reason="root may do it all")
def test_fc092_a_folder_that_is_read_only(tmp_path):
    session, path = opened(), tmp_path / "slot"
    session.save_slot(path)
    good = path.read_bytes()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            session.save_slot(path)
        assert path.read_bytes() == good
    finally:
        tmp_path.chmod(0o700)


FULL = """
import resource, sys
sys.path.insert(0, {here!r})
from test_slots import *
session = opened()
session.save_slot({path!r})
good = open({path!r}, "rb").read()
session.prefill([9] * 500)
for limit in (0, 1, 100, len(good)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        session.save_slot({path!r})
    except OSError as error:
        print(type(error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
assert open({path!r}, "rb").read() == good
other = opened()
other.restore_slot({path!r})
assert other.history == (4, 5, 6)
assert len(session.history) == 503
"""


@pytest.mark.skipif(os.name != "posix", reason="limits of files are POSIX")
def test_fc092_a_disk_that_is_full(tmp_path):
    script = FULL.format(here=str(HERE), path=str(tmp_path / "slot"))
    out = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert out.stdout.split() == ["OSError"] * 4
    assert [p.name for p in tmp_path.iterdir()] == ["slot"]


SAVE = """
import sys
sys.path.insert(0, {here!r})
from test_slots import *
sessions = [model_of(LOGITS, n_ctx=100_000).open() for _ in range(2)]
for session, token, n in zip(sessions, {tokens}, (30_000, 20_000)):
    session.prefill([token] * n)
for i in range({times}):
    sessions[i % 2].save_slot({path!r})
    if i == 1:
        print("ready", flush=True)
"""


def saving(path, tokens, times):
    script = SAVE.format(here=str(HERE), path=str(path), tokens=tokens, times=times)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


def kill_while_saving(folder, times):
    rng = random.Random(times)
    seen = set()
    for i in range(times):
        path = folder / f"slot{i}"
        child = saving(path, (5, 6), 10**6)
        time.sleep(rng.random() * 0.03)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        session = model_of(LOGITS, n_ctx=100_000).open()
        session.restore_slot(path)
        assert session.history in ((5,) * 30_000, (6,) * 20_000)
        seen.add(session.history[0])
        assert session.next().ids or session.finish_reason
    return seen


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_fc092_killed_while_saving(tmp_path):
    kill_while_saving(tmp_path, 20)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_fc092_killed_while_saving_100_times(tmp_path):
    assert kill_while_saving(tmp_path, 100) == {5, 6}


def test_fc092_two_processes_save_to_one_name(tmp_path):
    path = tmp_path / "slot"
    children = [saving(path, tokens, 60) for tokens in ((5, 6), (7, 8))]
    session = model_of(LOGITS, n_ctx=100_000).open()
    seen = set()
    while any(child.poll() is None for child in children):
        session.restore_slot(path)
        token, n = session.history[0], len(session.history)
        assert (token, n) in ((5, 30_000), (6, 20_000), (7, 30_000), (8, 20_000))
        seen.add(token)
    assert [child.returncode for child in children] == [0, 0]
    for child in children:
        child.communicate()
    assert len(seen) > 1
    assert [p.name for p in tmp_path.iterdir()] == ["slot"]


# -- a real runtime ------------------------------------------------------------------

EXACT = {"kv_type": "f32", "flash_attn": False, "n_threads": 1}
KINDS = {"bpe": {}, "spm": {"kind": "spm"}, "recurrent": {"arch": "mamba"}}


@pytest.fixture(scope="module", params=KINDS)
def path_of_model(request, tmp_path_factory):
    pytest.importorskip("llama_cpp")
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    return tiny_gguf(path, **KINDS[request.param])


@pytest.fixture(scope="module")
def tiny(path_of_model):
    with eliza.load(path_of_model, n_ctx=1024, backend_options=EXACT) as model:
        yield model


NAMES = ["REPLY", "IGNORE", "SEND", "SENDER", "SEARCH"]


def turns(model, session, path=None, at=None):
    """Do some turns; save after so many steps, and come back there. Return the text."""
    out, n = [], 0
    for prompt, names in (("action", NAMES), (" the", None), ("user\n", NAMES)):
        session.prefill(prompt)
        if names:
            session.set_token_trie(model.vocab.trie(names), mode="sample")
        session.max_tokens = 30 if names else 6
        while True:
            if n == at:
                session.save_slot(path)
                session.prefill("something else")
                session.restore_slot(path)
            n += 1
            step = session.next()
            out.append(step.text)
            if step.final:
                break
        session.clear_token_trie()
    return out, session.history, n


def test_a_real_runtime_goes_on_the_same(tiny, tmp_path):
    with tiny.open(temperature=1.0, seed=3) as session:
        *expected, n = turns(tiny, session)
    for at in range(n):
        with tiny.open(temperature=1.0, seed=3) as session:
            *found, _ = turns(tiny, session, tmp_path / "slot", at)
        assert found == expected


def test_fc087_a_real_runtime_in_any_order(tiny, path_of_model, tmp_path):
    expected = {}
    for name, text in (("long", "Maybe SEND the" * 40), ("short", "Yes"), ("one", "N")):
        with tiny.open() as session:
            session.prefill(text)
            session.save_slot(tmp_path / name)
            expected[name] = picks(session)
    sessions = [tiny.open(), tiny.open()]
    for name in ("long", "short", "long", "short", "short", "one", "long"):
        for session in sessions:
            session.restore_slot(tmp_path / name)
            assert picks(session) == expected[name]
    for session in sessions:
        session.close()
    for n_ctx in (64, 2048):
        with (
            eliza.load(path_of_model, n_ctx=n_ctx, backend_options=EXACT) as other,
            other.open() as session,
        ):
            session.restore_slot(tmp_path / "short")
            assert picks(session) == expected["short"]
            if n_ctx == 2048:
                session.restore_slot(tmp_path / "long")
                assert picks(session) == expected["long"]
            else:
                before = whole(session)
                with pytest.raises(ContextOverflow):
                    session.restore_slot(tmp_path / "long")
                assert whole(session) == before
                session.max_tokens += 1
                session.next()


def test_a_real_runtime_refuses_other_options_and_weights(
    tiny, path_of_model, tmp_path
):
    slot = tmp_path / "slot"
    with tiny.open() as session:
        session.prefill("Yes")
        session.save_slot(slot)
    weights = tiny_gguf(tmp_path / "other.gguf", seed=5)
    others = [(path_of_model, EXACT | {"kv_type": "f16"}), (weights, EXACT)]
    for path, options in others:
        with eliza.load(path, n_ctx=256, backend_options=options) as other:
            session = other.open()
            session.prefill("No")
            before = whole(session)
            with pytest.raises(InvalidArgument, match=r"another (model|tokenizer)"):
                session.restore_slot(slot)
            assert whole(session) == before
            session.next()


def test_a_real_runtime_survives_a_damaged_state(tiny, tmp_path):
    """With a checksum that holds, so that it is llama.cpp that has to refuse it."""
    slot, bad = tmp_path / "slot", tmp_path / "bad"
    session = tiny.open()
    session.prefill("Maybe the user")
    session.save_slot(slot)
    expected = picks(session)
    header, rest = parts_of(slot.read_bytes())
    n_before = len(rest) - header["n_state"]
    for cut in (0, 1, 4, 8, 16, header["n_state"] // 2, header["n_state"] - 1):
        state = rest[n_before : n_before + cut]
        bad.write_bytes(
            rebuilt(slot.read_bytes(), {"n_state": cut}, rest=rest[:n_before] + state)
        )
        with pytest.raises(ElizaError):
            session.restore_slot(bad)
    session.restore_slot(slot)
    assert picks(session) == expected
    session.close()


def test_t32_has_the_pieces_that_the_tests_name():
    assert PIECES[16:20] == [b"\xf0", b"\x9f", b"\x90", b"\x88"]
