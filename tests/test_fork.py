"""A fork while other threads work (K30): the child works, or is told; it never hangs.

What a thread holds when the process forks is never let go of in the child. Each test
forks at such a moment, and fails after 20 seconds.
"""

from __future__ import annotations

import threading
import time

import pytest

from eliza import BackendError, ChatTemplate, Vocab
from eliza.backends.llama_cpp import LlamaBackend
from eliza.model import Model
from forks import can_fork, forks, in_child
from t32 import t32
from tiny import CHAT_TEMPLATE, tiny_gguf

pytestmark = [can_fork, forks]


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    pytest.importorskip("llama_cpp")
    path = tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with LlamaBackend(path, n_threads=1, n_ctx=4096) as backend:
        yield backend


def fork_amid(work, child, seconds=0.1):
    """Fork while another thread is in the middle of work, and wait for both."""
    started, failed = threading.Event(), []

    def run():
        started.set()
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(10)
    time.sleep(seconds)
    assert thread.is_alive(), "the work was over before the fork"
    try:
        in_child(child)
    finally:
        thread.join(60)
    assert not failed


def test_fc120_a_child_tokenizes_while_the_parent_does(backend):
    """Text in the prompt, the choices and the messages, by llama.cpp's tokenizer."""
    vocab, text = backend.vocab, "Yes No Maybe " * 60_000
    chat = ChatTemplate(CHAT_TEMPLATE, vocab)
    expected = vocab.encode("REPLY to all")

    def child():
        assert vocab.encode("REPLY to all") == expected
        assert vocab.decode(expected) == b"REPLY to all"
        assert vocab.piece(expected[0])
        placed = vocab.place("Answer: ", ["Yes", "No"])
        assert set(placed.trie.names) == {"Yes", "No"}
        assert chat.ids([{"role": "user", "content": "Yes"}])

    fork_amid(lambda: vocab.encode(text), child)


def test_fc120_a_child_is_told_while_the_parent_decodes(backend):
    """Whoever uses a backend without a Model waits for its own lock."""
    sequence = backend.open()
    busy = threading.Event()

    def slow():
        busy.set()
        time.sleep(0.5)

    def child():
        for use in (lambda: sequence.decode([5]), backend.open, sequence.tree_room):
            with pytest.raises(BackendError, match="another process"):
                use()
        sequence.close()
        backend.close()

    sequence.on_piece = slow
    thread = threading.Thread(target=sequence.decode, args=([5, 6],))
    thread.start()
    assert busy.wait(10)
    in_child(child)
    thread.join(10)
    assert sequence.position == 2
    sequence.close()


def test_fc120_a_model_can_be_loaded_in_the_child(backend, tmp_path):
    """Also while the parent takes or gives back llama.cpp's log."""
    from eliza.backends import llama_log

    path = tiny_gguf(tmp_path / "tiny.gguf")

    def hold():
        with llama_log._lock:
            time.sleep(0.3)

    def child():
        with LlamaBackend(path, n_threads=1) as own, Model(own) as model:
            assert model.choose("Is it? ", ["Yes", "No"]).value in ("Yes", "No")

    fork_amid(hold, child)


class SlowVocab(Vocab):
    """One that takes its time over everything that is found once."""

    def __init__(self):
        super().__init__(4)

    def _encode(self, text, special):
        time.sleep(0.05)
        return [1] * len(text)

    def _piece(self, token):
        return b"a"

    def _is_special(self, token):
        return token == 0

    def _find_eog(self):
        time.sleep(0.5)
        return [0]

    def _contents(self):
        time.sleep(0.5)
        return super()._contents()


@pytest.mark.parametrize("name", ["eog", "fingerprint"])
def test_fc120_what_a_vocabulary_finds_once(name):
    """Another thread, and another vocabulary, is in the middle of finding it."""
    mine, other = SlowVocab(), t32()
    expected = getattr(t32(), name)

    def child():
        assert getattr(other, name) == expected
        assert getattr(mine, name)

    fork_amid(lambda: getattr(mine, name), child)
    assert getattr(mine, name) is getattr(mine, name)


def test_fc120_a_child_renders_while_the_parent_does():
    pytest.importorskip("jinja2")
    endless = (
        "{% for i in range(100000) %}{% for m in messages %}{% endfor %}{% endfor %}"
    )
    chat = ChatTemplate(endless + CHAT_TEMPLATE, t32())
    messages = [{"role": "user", "content": "A"}]
    fork_amid(
        lambda: chat.render(messages * 5), lambda: chat.render(messages), seconds=0.05
    )


def test_turns_are_counted_for_each_thread():
    """Threads that render at once do not use up each other's turns."""
    pytest.importorskip("jinja2")
    from eliza.sandbox import MAX_TURNS, Sandboxed

    n = int(MAX_TURNS * 0.6)
    template = Sandboxed("{% for i in items %}{% endfor %}done")
    out = []
    threads = [
        threading.Thread(target=lambda: out.append(template.render(items=range(n))))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert out == ["done", "done"]
