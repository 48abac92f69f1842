"""Packed masks for engines that take one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from eliza.errors import InvalidArgument, OffPathError, TokenLimit
from eliza.hooks.bitmask import Matcher, allocate, fill_free
from support import END, choice_sets

V = 70


def trie_of(leaves, n_vocab=V):
    return eliza.Trie.from_tokens(leaves, n_vocab=n_vocab)


def ids_of(words):
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


@given(choice_sets(), st.data())
@settings(max_examples=100, deadline=None)
def test_masks_are_what_a_cursor_allows(leaves, data):
    matcher = Matcher(trie_of(leaves), eog=[END])
    cursor = trie_of(leaves).cursor(exits=[END])
    words = allocate(1, V)
    taken = 0
    for _ in range(12):
        matcher.fill(words)
        expected = [END] if cursor.done else cursor.allowed().tolist()
        assert ids_of(words[0]) == expected
        if taken and data.draw(st.booleans()):
            n = data.draw(st.integers(0, taken))
            matcher.rollback(n)
            cursor.rollback(n)
            taken -= n
        elif not cursor.done:
            token = data.draw(st.sampled_from(expected))
            matcher.accept(token)
            cursor.accept(token)
            taken += 1
        assert matcher.done == cursor.done
        assert matcher.path == cursor.path


def test_fc_038_masks_are_not_shared():
    """A kept mask stays; other requests are not masked by it."""
    trie = trie_of({"a": [10, 11], "b": [20, 21]})
    a, b = Matcher(trie, eog=[END]), Matcher(trie, eog=[END])
    words = allocate(3, V)
    a.fill(words, 0)
    kept = words[0].copy()
    a.accept(10)
    a.accept(11)
    b.fill(words, 1)
    assert ids_of(words[1]) == [10, 20]
    assert ids_of(words[0]) == ids_of(kept) == [10, 20]
    assert ids_of(words[2])[:V] == list(range(V))
    a.fill(words, 2)
    assert ids_of(words[2]) == [END]
    fill_free(words, 2)
    assert ids_of(words[2])[:V] == list(range(V))


def test_the_life_of_a_matcher():
    matcher = Matcher(trie_of({"a": [10, 11], "b": [20]}), eog=[END])
    assert matcher.follows([10, 11, END])
    assert not matcher.follows([10, 20])
    with pytest.raises(TokenLimit):
        _ = matcher.name
    with pytest.raises(OffPathError):
        matcher.accept(11)
    assert matcher.path == ()
    for token in (10, 11, END, END):
        assert not matcher.ended
        matcher.accept(token) if token != END else None
        if matcher.done:
            break
    assert (matcher.name, matcher.ended) == ("a", False)
    with pytest.raises(OffPathError):
        matcher.accept(5)
    matcher.accept(END)
    matcher.accept(END)
    assert matcher.ended
    matcher.rollback(2)
    assert (matcher.done, matcher.ended) == (True, False)
    matcher.rollback(1)
    assert matcher.path == (10,)
    for n in (-1, 2):
        with pytest.raises(InvalidArgument):
            matcher.rollback(n)
    matcher.reset()
    matcher.accept(20)
    assert matcher.name == "b"


def test_a_cursor_that_is_on_its_way():
    cursor = trie_of({"a": [10, 11], "b": [20]}).cursor()
    cursor.accept(10)
    matcher = Matcher(cursor, eog=[END])
    matcher.accept(11)
    matcher.rollback(1)
    with pytest.raises(InvalidArgument):
        matcher.rollback(1)
    matcher.reset()
    assert matcher.path == (10,)


def test_free_text_after_the_choice():
    matcher = Matcher(trie_of({"a": [10]}), after="free")
    words = allocate(1, V)
    for token in (10, 5, 69, 3):
        matcher.accept(token)
        matcher.fill(words)
        assert ids_of(words[0]) == list(range(V))  # none beyond the vocabulary
    matcher.rollback(4)
    matcher.fill(words)
    assert ids_of(words[0]) == [10]


@pytest.mark.parametrize("n_vocab", [31, 32, 33, 63, 64, 65, 100])
def test_free_text_has_no_ids_beyond_the_vocabulary(n_vocab):
    matcher = Matcher(trie_of({"a": [n_vocab - 1]}, n_vocab), after="free")
    matcher.accept(n_vocab - 1)
    for words in (allocate(1, n_vocab)[0], np.zeros(9, np.int32)):
        matcher.fill(words)
        assert ids_of(words) == list(range(n_vocab))


@pytest.mark.parametrize("after", ["end", "free"])
def test_fc_037_ids_are_checked_after_the_choice_too(after):
    matcher = Matcher(trie_of({"a": [10]}), eog=[END], after=after)
    for path in ((), (10,), (10, END)):
        matcher.reset()
        for token in path:
            matcher.accept(np.int64(token))
        for wrong in (-5, V, 2**70, "x", 1.0, True, None, np.float32(2)):
            with pytest.raises(InvalidArgument):  # and InvalidType
                matcher.accept(wrong)
            with pytest.raises(InvalidArgument):
                matcher.follows([wrong])
            assert matcher._place.length == len(path)


@pytest.mark.parametrize("n_vocab", [31, 32, 33, 63, 64, 65, 100])
def test_sizes(n_vocab):
    matcher = Matcher(trie_of({"a": [n_vocab - 1]}, n_vocab), eog=[END])
    words = allocate(2, n_vocab)
    assert words.shape == (2, (n_vocab + 31) // 32)
    matcher.fill(words, 1)
    assert ids_of(words[1]) == [n_vocab - 1]
    for wrong in (words[:, :-1].copy(), words.astype(np.int64), np.int32(5)):
        with pytest.raises((InvalidArgument, TypeError, ValueError)):
            matcher.fill(np.asarray(wrong), 0)
    matcher.accept(n_vocab - 1)
    padded = np.full(9, -1, np.int32)
    matcher.fill(padded)
    assert ids_of(padded) == [END]
    if n_vocab > 32:
        with pytest.raises(InvalidArgument):
            matcher.fill(np.zeros(1, np.int32))
    with pytest.raises(InvalidArgument):
        allocate(1, 0)


def test_other_engines_apply_it():
    xgrammar = pytest.importorskip("xgrammar")
    torch = pytest.importorskip("torch")
    matcher = Matcher(trie_of({"a": [10, 11], "b": [20]}), eog=[END])
    words = xgrammar.allocate_token_bitmask(2, V)
    logits = torch.zeros(2, V)
    matcher.fill(words.numpy(), 1)
    xgrammar.apply_token_bitmask_inplace(logits, words)
    assert torch.isfinite(logits[1]).nonzero().flatten().tolist() == [10, 20]
    assert torch.isfinite(logits[0]).all()
