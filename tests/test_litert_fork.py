"""A fork while LiteRT works: the child works, or is told; it never hangs (FC-120)."""

from __future__ import annotations

import os
import threading
import time

import pytest

from eliza.backends import litert_log
from eliza.backends.litert import LitertBackend
from eliza.convert.source import GgufSource
from eliza.convert.tflite import write_tflite
from eliza.errors import BackendError
from eliza.model import Model
from forks import can_fork, forks, in_child
from tiny import tiny_gguf

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
pytest.importorskip("tokenizers")

pytestmark = [can_fork, forks]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    with GgufSource(tiny_gguf(folder / "tiny.gguf")) as source:
        write_tflite(source, folder / "m.tflite", "f32", n_ctx=64)
    return folder / "m.tflite"


@pytest.mark.parametrize("interface", ["compiled", "interpreter"])
def test_fc120_a_child_is_told_and_may_close(path, interface):
    """Also while another thread of the parent decodes."""
    with LitertBackend(path, interface=interface) as backend:
        sequence = backend.open()
        busy, go_on = threading.Event(), threading.Event()

        def slow():
            busy.set()
            assert go_on.wait(30)

        def child():
            for use in (lambda: sequence.decode([5]), backend.open, sequence.logits):
                with pytest.raises(BackendError, match="loaded in another process"):
                    use()
            sequence.close()
            backend.close()
            with backend:
                pass

        sequence.on_piece = slow
        thread = threading.Thread(target=sequence.decode, args=([5, 6],))
        thread.start()
        assert busy.wait(10)
        try:
            in_child(child)
        finally:
            go_on.set()
            thread.join(10)
        assert sequence.position == 2
        sequence.close()


def test_fc120_a_model_can_be_loaded_in_the_child(path, tmp_path):
    """Also while the parent loads one, and standard error is a file."""
    holds = threading.Event()

    def hold():
        with litert_log.captured():
            holds.set()
            time.sleep(0.3)

    def child():
        os.dup2(os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT), 2)
        with LitertBackend(path) as own, Model(own) as model:
            assert model.choose("Is it? ", ["Yes", "No"]).value in ("Yes", "No")

    before = os.fstat(2)
    seen, says = os.pipe()
    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(10)

    def child_with_its_stderr():
        mine = os.fstat(2)
        os.write(says, b"same" if os.path.samestat(mine, before) else b"a file")
        child()

    in_child(child_with_its_stderr)
    thread.join(10)
    assert os.read(seen, 10) == b"same"
    os.close(seen)
    os.close(says)
