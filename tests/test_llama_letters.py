"""FC-010: a vocabulary that cannot spell every text, on llama.cpp itself."""

from __future__ import annotations

import pytest

import eliza
from eliza.backends.llama_letters import Letters
from eliza.errors import InvalidArgument
from tiny import tiny_gguf

pytest.importorskip("llama_cpp")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters") / "m.gguf"
    tiny_gguf(path, kind="spm without bytes")
    with eliza.load(path, n_ctx=256, n_threads=1) as model:
        yield model


@pytest.mark.parametrize("text", ["\u65e5", "Yes\x00", "Yes \u00fc", "Q", "\U0001f98a"])
def test_fc010_letters_without_ids_are_refused_and_nothing_ends(model, text):
    """llama.cpp would end the process over each of these."""
    with pytest.raises(InvalidArgument, match="no id for"):
        model.choose("user", ["Yes", text])
    for call in (
        lambda: model.choose(text, ["Yes", "No"]),
        lambda: model.vocab.encode(text, special=True),
        lambda: model.vocab.trie(["Yes"], suffix=text),
        lambda: model.open().prefill(text),
    ):
        with pytest.raises(InvalidArgument, match="no id for"):
            call()
    assert model.choose("user", ["Yes", "No"]).value in ("Yes", "No")


def test_fc010_what_can_be_written_is(model):
    for text in ("Yes", "No", "MUTE ROOM", "<|im_start|>user", "e\u0301"):
        ids = model.vocab.encode(text, special=True)
        assert ids == model.vocab._raw(text, True)
    # Letters of a control text have no ids of their own, and need none in a prompt.
    assert model.vocab.encode("<|im_end|>", special=True)[-1] == 2
    with pytest.raises(InvalidArgument, match="no id for"):
        model.vocab.encode("<|im_end|>")


def test_whole_vocabularies_are_not_searched(tmp_path):
    for kind in ("bpe", "spm"):
        tiny_gguf(tmp_path / f"{kind}.gguf", kind=kind)
        with eliza.load(tmp_path / f"{kind}.gguf", n_ctx=64, n_threads=1) as model:
            assert model.vocab._letters is None


def test_letters():
    letters = Letters(["a", "\u2581", "<0xC3>", "<0xBC>", "b"], ["xyz"], ["<s>"])
    assert not letters.complete
    letters.check("a b\u00fcxyza", False)
    letters.check("a<s>b", True)
    for text, special in (("a<s>b", False), ("xy", True), ("\u00fd", True)):
        with pytest.raises(InvalidArgument, match="no id for"):
            letters.check(text, special)
    every = [f"<0x{byte:02X}>" for byte in range(256)]
    assert Letters([*every, "\u2581"], [], []).complete
