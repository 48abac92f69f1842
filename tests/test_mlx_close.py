"""Letting go of a model in MLX: its memory, in a forked child, and when Python ends."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import subprocess
import sys
import threading
import weakref

import pytest

import eliza
from eliza.errors import BackendError, Closed
from forks import can_fork, forks, in_child

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
if importlib.util.find_spec("mlx_lm") is None:
    pytest.skip("mlx-lm is not installed", allow_module_level=True)

from eliza.backends.mlx import MlxBackend  # noqa: E402
from mlx_models import choose, converted, some_ids  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("model"))


@pytest.fixture
def backend(folder):
    with MlxBackend(folder, n_ctx=256, n_batch=4) as backend:
        yield backend


def gone(*references):
    gc.collect()
    return [reference() is None for reference in references]


# -- memory ----------------------------------------------------------------------------


def test_closing(folder):
    backend = MlxBackend(folder)
    sequence, other = backend.open(), backend.open()
    sequence.decode([5])
    sequence.close()
    sequence.close()
    with pytest.raises(Closed, match="open another"):
        sequence.decode([5])
    with pytest.raises(Closed):
        sequence.logits()
    backend.close()
    backend.close()
    for call in (backend.open, lambda: other.decode([5]), lambda: backend.vocab):
        with pytest.raises(Closed, match="load the model again"):
            call()
    other.close()


def test_a_closed_backend_holds_no_weights(backend):
    """Nor do its open sequences, which hold no keys and values either."""
    sequence, other = backend.open(), backend.open()
    sequence.decode([5, 6])
    sequence.decode_tree([7, 8], [-1, -1])
    other.close()
    held = [
        weakref.ref(backend._shared.model._model),
        weakref.ref(sequence._cache[0]),
        weakref.ref(sequence._tree._nodes[0].branch.cache[0]),
    ]
    assert gone(*held) == [False] * 3
    backend.close()
    assert gone(*held) == [True] * 3
    with pytest.raises(Closed, match="load the model again"):
        sequence.decode([5])


def test_a_closed_sequence_holds_no_tree(backend):
    sequence = backend.open()
    sequence.decode([5])
    sequence.decode_tree([7, 8], [-1, -1])
    held = [
        weakref.ref(sequence._cache[0]),
        weakref.ref(sequence._tree._nodes[0].branch.cache[0]),
    ]
    assert gone(*held) == [False] * 2
    sequence.close()
    assert gone(*held) == [True] * 2


def test_a_model_closes_while_a_session_is_open(folder):
    model = eliza.load(folder, n_ctx=64)
    session = model.open(max_tokens=5)
    session.prefill("an action")
    session.next()
    weights = weakref.ref(model.backend._shared.model._model)
    model.close()
    assert gone(weights) == [True]
    with pytest.raises(Closed):
        session.next()
    session.close()


@pytest.mark.parametrize("what", ["sequence", "backend"])
def test_whoever_is_asked_between_two_pieces_may_close(backend, what):
    sequence = backend.open()
    closing = {"sequence": sequence, "backend": backend}[what]
    asked = []

    def close():
        asked.append(1)
        if len(asked) == 2:
            closing.close()

    sequence.on_piece = close
    with pytest.raises(Closed, match="another" if what == "sequence" else "again"):
        sequence.decode(some_ids(10))
    assert len(asked) == 2


# -- a fork ----------------------------------------------------------------------------


@can_fork
@forks
@pytest.mark.parametrize("amid", ["a pause", "a computation"])
def test_fc120_a_child_is_told_while_the_parent_decodes(backend, folder, amid):
    """Its calls raise, what is closed there is left alone; nothing waits for ever."""
    sequence, mine = backend.open(), backend.open()
    mine.decode([5])
    busy, done = threading.Event(), threading.Event()

    def child():
        calls = [
            lambda: mine.decode([5]),
            lambda: mine.logits(),
            lambda: mine.truncate(0),
            mine.tree_room,
            mine.save,
            backend.open,
        ]
        for call in calls:
            with pytest.raises(BackendError, match="another process"):
                call()
        for _ in range(2):
            mine.close()
            sequence.close()
            with backend:
                pass
        for load in (MlxBackend, eliza.load):
            with pytest.raises(BackendError, match="spawn"):
                load(folder)

    def decode():
        if amid == "a pause":
            sequence.decode([5, 6])
        while not done.is_set() and amid == "a computation":
            sequence.truncate(0)
            busy.set()
            sequence.decode(some_ids(8))

    def pause():
        busy.set()
        done.wait(10)

    if amid == "a pause":
        sequence.on_piece = pause
    thread = threading.Thread(target=decode)
    thread.start()
    assert busy.wait(10)
    try:
        for _ in range(3):
            in_child(child)
    finally:
        done.set()
        thread.join(20)
    assert mine.position == 1
    mine.decode([6])  # the parent goes on
    mine.close()


@can_fork
@forks
def test_fc120_a_model_and_its_sessions_are_closed_in_a_child(folder):
    with eliza.load(folder, n_ctx=64) as model, model.open(max_tokens=3) as session:
        session.prefill("an action")

        def child():
            with pytest.raises(BackendError, match="another process"):
                session.next()
            session.close()
            with model:
                pass
            model.backend.close()

        in_child(child)
        assert [step.ids for step in session]


def test_fc120_a_process_started_anew_works(folder):
    """What the message in a child advises."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    choose(folder, out)
    expected = out.get(timeout=20)
    process = context.Process(target=choose, args=(folder, out))
    process.start()
    assert out.get(timeout=60) == expected
    process.join(20)
    assert process.exitcode == 0


# -- the end of the process ------------------------------------------------------------


def test_a_state_is_read_without_a_file_of_python(backend, monkeypatch):
    """MLX would read it in a thread, which aborts the process if it is still there."""
    sequence = backend.open()
    sequence.decode([5, 6])
    state = sequence.save()
    monkeypatch.setattr(mx, "load", None)
    sequence.restore(state, 2)
    assert sequence.position == 2


def test_a_process_may_end_right_after_loading(folder):
    code = "import sys, eliza; eliza.load(sys.argv[1]).close()"
    command = [sys.executable, "-P", "-c", code, str(folder)]
    for _ in range(5):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
