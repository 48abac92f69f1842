"""Prompts that begin as the last one did, under a small model of llama.cpp's rules."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza.backends.llama_prompts as prompts
from eliza.backends.llama_prompts import Borders, PromptMemo

CHARS = "<|>ab "


class Tokenizer:
    """Cuts texts out, the longest first, and makes ids of what is left between them.

    Between them an id depends on the one before it: a tokenizer that goes on where it
    should have begun afresh is found out.
    """

    def __init__(self, control, others):
        self.ids = {text: 1000 + i for i, text in enumerate([*control, *others])}
        self.control = {self.ids[text]: text for text in control}
        self.others = list(others)
        self.encoded = []

    def encode(self, text):
        self.encoded.append(text)
        parts = [text]
        for cut in sorted(self.ids, key=len, reverse=True):
            parts = [piece for part in parts for piece in self.split(part, cut)]
        out = []
        for part in parts:
            if isinstance(part, int):
                out.append(part)
                continue
            last = 0
            for char in part:
                last = (last * 7 + CHARS.index(char) + 1) % 997
                out.append(last)
        return out

    def split(self, part, cut):
        if isinstance(part, int):
            return [part]
        pieces = []
        for i, rest in enumerate(part.split(cut)):
            pieces += [self.ids[cut]] if i else []
            pieces += [rest] if rest else []
        return pieces

    def memo(self):
        return PromptMemo(self.encode, lambda: Borders(self.control, self.others))


@pytest.fixture(autouse=True)
def all_prompts(monkeypatch):
    monkeypatch.setattr(prompts, "SHORTEST", 0)


texts = st.text(CHARS, max_size=8)
cuts = st.lists(st.text(CHARS, min_size=1, max_size=4), max_size=5, unique=True)


@settings(max_examples=1500, deadline=None)
@given(st.data(), cuts, st.integers(0, 5))
def test_the_ids_are_those_of_the_whole_text(data, cut_out, n_control):
    tokenizer = Tokenizer(cut_out[:n_control], cut_out[n_control:])
    memo = tokenizer.memo()
    part = st.one_of(st.sampled_from(cut_out), texts) if cut_out else texts
    text = ""
    for _ in range(5):
        keep = data.draw(st.integers(0, len(text)))
        text = text[:keep] + "".join(data.draw(st.lists(part, max_size=5)))
        assert memo.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("control", "others", "border"),
    [
        (["<|x|>"], [], True),
        (["<|x|>", "<|y|>"], [], True),
        (["<|x|>"], ["|"], False),  # within it
        (["<|x|>", "a<|x|>b"], [], False),  # around it
        (["<|x|>", ">>"], [], False),  # begins where it ends
        (["<|x|>"], ["a<"], False),  # ends where it begins
        (["<a<"], [], False),  # overlaps itself
        (["<|x|>"], ["<|x|>"], False),  # twice
    ],
)
def test_borders(control, others, border):
    found = Borders(dict(enumerate(control)), others)
    assert found.text(0) == (control[0] if border else "")
    assert found.text(len(control)) == found.text(99) == ""


def test_only_what_is_new_is_encoded():
    tokenizer = Tokenizer(["<|>"], [])
    memo = tokenizer.memo()
    text = "ab" * 50 + "<|>" + "ba" * 50
    for i in range(4):
        text += f"<|>{'a' * i}"
        memo.encode(text)
    assert len(tokenizer.encoded) == 4
    assert max(map(len, tokenizer.encoded[2:])) < 16


def test_the_list_is_the_callers_own():
    memo = Tokenizer(["<|>"], []).memo()
    first = memo.encode("ab<|>b")
    expected = first.copy()
    for _ in range(3):
        memo.encode("ab<|>b").clear()
        assert memo.encode("ab<|>b") == expected
