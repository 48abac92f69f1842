"""LiteRT: the logits of NumPy, one call at a time, and being selected.

That its answers are those of the other runtimes is in `test_parity`.
"""

import itertools
import logging
import os
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest

import eliza
from eliza import conformance
from eliza.backends.litert import LitertBackend
from eliza.backends.litert_layout import discover
from eliza.backends.litert_sequence import LitertSequence, Shared
from eliza.convert.source import GgufSource
from eliza.errors import (
    BackendError,
    BundleError,
    ContextOverflow,
    InvalidArgument,
    InvalidType,
    NotSupported,
)
from eliza.files.bundle import Bundle
from eliza.locking import ModelLock
from litert_files import IDS, TOLERANCE, rows_of, signature, write_files
from llama_reference import forward
from support import on_linux, resident
from tiny import tiny_gguf

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
pytest.importorskip("tokenizers")

OPTIONS = (
    {},
    {"in_place": False},
    {"interface": "interpreter"},
    {"n_threads": 2},
)


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def source(gguf_path):
    with GgufSource(gguf_path) as source:
        yield source


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELIZA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def files(source, tmp_path_factory):
    return write_files(source, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def path(files):
    return files / "m.tflite"


@pytest.fixture(scope="module")
def wanted(source):
    """Return the rows after each of IDS, by NumPy."""
    return forward(source, IDS)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("m.tflite", {}),
        ("m.litertlm", {}),
        ("m.tflite", {"interface": "interpreter"}),
        ("m.tflite", {"in_place": False}),
        ("m8.tflite", {}),
        ("m8.tflite", {"interface": "interpreter"}),
    ],
    ids=str,
)
def test_conformance(files, name, options):
    """FC-082, FC-118 and the rest of the contract."""
    make = partial(LitertBackend, files / name, **options)
    report = conformance.check(make)
    assert report.ok, str(report)
    declared = {r.name for r in report.results if r.status == "declared"}
    assert all(name.startswith(("tree.", "cancel.on-piece-tree")) for name in declared)


# The same numbers


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["m.tflite", "m.litertlm"])
def test_rows_are_those_of_the_model(files, wanted, name, options):
    with LitertBackend(files / name, **options) as backend:
        sequence = backend.open()
        for n in (1, 2, 3, 4, 5, 8, 9, 17, len(IDS)):
            sequence.truncate(0)
            sequence.decode_many(IDS[:n])
            assert np.abs(rows_of(sequence, n) - wanted[:n]).max() < TOLERANCE
            sequence.truncate(0)
            sequence.decode(IDS[:n])
            assert np.abs(sequence.logits_window() - wanted[n - 1]).max() < TOLERANCE
            assert sequence.position == n
        for cut in (0, 1, 7, 20):
            sequence.truncate(cut)
            sequence.decode(IDS[cut:])
            assert np.abs(sequence.logits() - wanted[-1]).max() < TOLERANCE


def test_int8_stays_near(files, wanted):
    with LitertBackend(files / "m8.tflite") as backend:
        sequence = backend.open()
        sequence.decode_many(IDS)
        rows = rows_of(sequence, len(IDS))
    assert 0 < np.abs(rows - wanted).max() < 0.7
    clear = np.sort(wanted, 1)
    clear = clear[:, -1] - clear[:, -2] > 0.5
    assert clear.any()
    assert (rows.argmax(1) == wanted.argmax(1))[clear].all()


def test_a_state_goes_elsewhere(files, wanted):
    states = []
    for name, options in itertools.product(("m.tflite", "m.litertlm"), OPTIONS):
        with LitertBackend(files / name, **options) as backend:
            sequence = backend.open()
            sequence.decode(IDS[:20])
            states.append(sequence.save())
            other = backend.open()
            other.decode([7] * 40)
            other.restore(states[0], 20)
            with pytest.raises(InvalidArgument, match="no logits"):
                other.logits()
            other.decode(IDS[20:])
            assert np.abs(other.logits() - wanted[-1]).max() < TOLERANCE
            for bad in (states[0][:-1], states[0] + b"x", b""):
                with pytest.raises(BackendError, match="are no state of 20 ids"):
                    other.restore(bad, 20)
            assert other.position == len(IDS)
    assert {len(state) for state in states} == {2 * 2 * 32 * 4 * 20}


def test_what_it_says_of_itself(files):
    with LitertBackend(files / "m.tflite", n_ctx=32) as backend:
        assert (backend.name, backend.n_ctx) == ("litert-lm", 32)
        assert backend.vocab.n_vocab == 372
        can = backend.capabilities
        assert (can.truncate, can.tree, can.save) == (True, False, True)
        sequence = backend.open()
        assert sequence.max_rows == (64 << 20) // (4 * 372)
        sequence.decode([5] * 32)
        with pytest.raises(ContextOverflow, match="33 ids do not fit"):
            sequence.decode([5])
        with pytest.raises(NotSupported, match="no trees"):
            sequence.decode_tree([5], [-1])
        marks = {backend.fingerprint}
    for name in ("m.litertlm", "m8.tflite"):
        with LitertBackend(files / name) as backend:
            marks.add(backend.fingerprint)
    assert len(marks) == 3


def test_bad_options(path):
    with pytest.raises(InvalidArgument, match=r"n_ctx is 65, but .* made for 64"):
        LitertBackend(path, n_ctx=65)
    for name, value in (("n_ctx", 0), ("n_threads", -1), ("interface", "gpu")):
        with pytest.raises(InvalidArgument, match=f"{name} is"):
            LitertBackend(path, **{name: value})
    with pytest.raises(InvalidType):
        LitertBackend(path, n_ctx=1.5)
    with pytest.raises(InvalidType, match=r"no option 'n_gpu_layers'.*in_place"):
        eliza.load(path, backend_options={"n_gpu_layers": 3})


# One call at a time


class Overlapping:
    """A runtime that notices two calls at once."""

    def __init__(self, layout):
        self.layout = layout
        self.busy = threading.Lock()
        self.runs = 0

    def new_cache(self):
        return {}

    def run(self, step, inputs, cache):
        assert self.busy.acquire(blocking=False), "two calls overlap"
        try:
            self.runs += 1
            cache[int(inputs["input_pos"][0])] = inputs["tokens"].copy()
            threading.Event().wait(0.001)
            return np.full((step.n, 500), len(cache), np.float32)
        finally:
            self.busy.release()

    def free(self, cache):
        pass


def test_two_threads_queue():
    """FC-082."""
    runtime = Overlapping(discover({"decode": signature(1, logits=1)}, "m"))
    shared = Shared(runtime, ModelLock(), 64, 500)
    sequences = [LitertSequence(shared) for _ in range(4)]
    faults = []

    def work(sequence):
        try:
            for i in range(30):
                sequence.decode([i])
                assert sequence.logits()[0] == i + 1
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(s,)) for s in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert runtime.runs == 120


def test_a_failed_decode_changes_nothing(path, wanted, monkeypatch):
    """R7."""
    with LitertBackend(path) as backend:
        sequence = backend.open()
        sequence.decode(IDS[:10])
        runtime = backend._shared.runtime
        run, calls = runtime.run, []

        def failing(step, inputs, cache):
            calls.append(step.name)
            if len(calls) == 2:
                raise BackendError("LiteRT failed: on purpose")
            return run(step, inputs, cache)

        monkeypatch.setattr(runtime, "run", failing)
        with pytest.raises(BackendError, match="on purpose"):
            sequence.decode_many([8] * 20)
        monkeypatch.undo()
        assert sequence.position == 10
        sequence.decode(IDS[10:])
        assert np.abs(sequence.logits() - wanted[-1]).max() < TOLERANCE


@on_linux
def test_memory_stays_flat(path):
    """R8: caches of closed and of forgotten sequences are given back."""
    with LitertBackend(path) as backend:
        for i in range(3000):
            sequence = backend.open()
            if i % 2:
                sequence.decode([5])
                sequence.close()
            if i == 300:
                before = resident()
        assert resident() - before < 20 << 20


# Being selected


def test_selected_where_it_can_serve(files, monkeypatch):
    monkeypatch.delenv("ELIZA_LLM_BACKEND", raising=False)
    selection = eliza.select(files / "m.tflite")
    assert selection.unwrap().name == "litert-lm"
    with pytest.raises(BundleError, match=r"m\.tflite, m8\.tflite"):
        Bundle.of(files).only("tflite")
    # A container comes first: it has its tokenizer with it.
    with eliza.load(files) as model:
        assert model.backend._path.endswith("m.litertlm")


def test_without_the_package(files, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "ai_edge_litert" else find(name, *rest),
    )
    monkeypatch.delenv("ELIZA_LLM_BACKEND", raising=False)
    assert eliza.select(files / "m.tflite").unwrap().name == "llama.cpp"
    with pytest.raises(NotSupported, match=r"pip install 'eliza\[litert\]'"):
        eliza.load(files / "m.tflite", backend="litert-lm")


def test_the_old_runtime_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(NotSupported, match="ai-edge-litert: pip install"):
        LitertBackend(path)


# What the library prints


def test_nothing_on_the_terminal(path):
    """DESIGN 12.7."""
    code = (
        "import eliza, sys\n"
        f"model = eliza.load({str(path)!r})\n"
        "print(model.choose('an action', ['REPLY']).value)\n"
        "print('mine', file=sys.stderr)\n"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("REPLY\n", "mine\n", 0)


def test_it_goes_to_the_logger(path, caplog, capfd):
    with caplog.at_level(logging.DEBUG, "eliza.litert"):
        LitertBackend(path).close()
    assert "INFO: " in caplog.text
    assert capfd.readouterr().err == ""


def test_what_others_write_meanwhile_arrives(capfd):
    from eliza.backends.litert_log import captured

    with captured():
        os.write(2, b"INFO: theirs\nours\n")
    assert capfd.readouterr().err == "ours\n"
