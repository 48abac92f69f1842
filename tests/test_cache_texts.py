"""Choices found by their texts in a `TrieCache`, by `place`, `trie` and models."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from eliza import TrieCache, Vocab
from eliza.errors import InvalidArgument
from eliza.tails import STRETCH
from support import content, model_of, on_linux, plain_vocab, resident
from t32 import BOS, PIECES, byte_pair, t32
from test_place import LETTERS, byte_pairs, texts


def test_fc094_the_tokenizer_is_in_the_key_of_texts():
    """The same texts in vocabularies that differ in ids, end ids, size, or spaces."""
    shifted = [*PIECES[:4], *(f"<{i}>" for i in range(100)), *PIECES[4:]]
    spaced = byte_pair([(" ", "Y")], " YNoes", start=" ")
    vocabs = {
        "A": t32(),
        "B": Vocab.from_tokens(shifted, range(4), [2], BOS),
        "end ids": t32(eog=(2, 3)),
        "size": Vocab.from_tokens([*PIECES, "longer"], range(4), [2], BOS),
        "spaces": spaced,
        "equal to A": t32(),
    }
    cache = TrieCache()
    names = ["Yes", "No", "YesNo"]
    for vocab in vocabs.values():
        want = vocab.trie(names, prefix="No")
        trie = vocab.trie(names, prefix="No", cache=cache)
        assert content(trie) == content(want)
        assert vocab.trie(names, prefix="No", cache=cache) is trie
    assert cache.stats().misses == len(vocabs)
    assert cache.stats().hits == len(vocabs)
    # A number that belonged to another one is not given again.
    before = {vocab._serial for vocab in vocabs.values()}
    vocabs.clear()
    del vocab
    assert t32()._serial not in before


PAIRS = {
    "the border between texts": (["ab", "c"], ["a", "bc"]),
    "a separator": (["a|b"], ["a", "b"]),
    "a zero": (["a\0", "b"], ["a", "\0b"]),
    "a separator of fields": (["a\x1fb"], ["a", "b"]),
    "one more": (["a"], ["a", "ab"]),
    "case": (["a"], ["A"]),
    "composed and not": (["é"], ["e\u0301"]),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_fc095_texts_that_run_together(pair):
    vocab = Vocab.from_tokens([bytes([i]) for i in range(256)] + ["</s>"], eog=[256])
    cache = TrieCache()
    for choices in pair:
        placed = vocab.place("x", choices, cache=cache)
        assert sorted(placed.trie.names) == sorted(choices)
    assert cache.stats().misses == 2
    # what is chosen and what follows, and the prompt before
    for prompt, choice, suffix in (
        ("x", "ab", "c"),
        ("x", "a", "bc"),
        ("xa", "b", "c"),
    ):
        trie = vocab.place(prompt, [choice, choice + "!"], suffix, cache).trie
        assert trie.tokens(0) == tuple(choice.encode())
        assert trie.exits(0) == (ord(suffix[0]),)
    assert cache.stats().misses == 5


@on_linux
def test_fc096_texts():
    vocab = Vocab.from_tokens([bytes([i]) for i in range(256)] + ["</s>"], eog=[256])
    cache = TrieCache()
    levels = []
    for i in range(3_000):
        vocab.place(f"prompt {i}: ", [f"CHOICE {i} {k}" for k in range(10)], "", cache)
        if i >= 500 and i % 500 == 0:
            levels.append(resident())
    assert cache.stats().entries == 128
    assert max(levels) - levels[0] < 4 << 20


class Counted:
    """T32 or another vocabulary that notes what is encoded."""

    def __init__(self, inner=None):
        self.texts = []
        inner = inner or t32()

        def encode(text, special):
            self.texts.append(text)
            return inner.encode(text, special=special)

        self.vocab = t32(encode=encode)

    def take(self):
        texts, self.texts = self.texts, []
        return texts


def test_a_hit_encodes_the_prompt_alone():
    counted, cache = Counted(), TrieCache()
    choices = ["Yes", "No", "YesA"]
    first = counted.vocab.place("<|im_end|>A", choices, '"', cache)
    assert len(counted.take()) > 4
    for prompt in ("<|im_end|>A", "No<|im_end|>A", 'B"' * 50 + "<|im_end|>A"):
        placed = counted.vocab.place(prompt, choices, '"', cache)
        assert counted.take() == [prompt]
        assert placed.trie is first.trie
        assert placed.prompt_ids.tolist() == counted.vocab.prompt_ids(prompt)
        counted.take()
    counted.vocab.place(tuple(first.prompt_ids.tolist()), tuple(choices), '"', cache)
    assert counted.take() == []
    # without a special id near, by as many ids as are encoded again
    long = 'A"' * 20
    counted.vocab.place(long, choices, '"', cache)
    counted.take()
    counted.vocab.place("C" * 30 + long, choices, '"', cache)
    assert len(counted.take()) == 1
    for prompt, other, suffix in (
        ("<|im_end|>AA", choices, '"'),
        ("<|im_end|>A", choices[::-1], '"'),
        ("<|im_end|>A", choices, ""),
        ("B", choices, '"'),
    ):
        counted.vocab.place(prompt, other, suffix, cache)
        assert len(counted.take()) > 3


def test_the_rest_of_the_prompt_is_the_call_s_own():
    cache = TrieCache()
    vocab = t32()
    for prompt in ([BOS, 7, 4], [BOS, 4], [BOS, 7, 7, 4]):
        placed = vocab.place(prompt, ["B", "C"], cache=cache)
        assert placed.prompt_ids.tolist() == prompt[:-1]
        assert [placed.trie.tokens(i) for i in range(2)] == [(4, 7), (6,)]
        assert placed.overlap == 1
    # Whether an id is left before the root is no matter of the choices.
    free = t32(bos=None)
    assert free.trie(["B", "C"], prefix="A", cache=cache).tokens(0) == (4, 7)
    misses = cache.stats().misses
    with pytest.raises(InvalidArgument, match="too short: the tokenizer merges"):
        free.place("A", ["B", "C"], cache=cache)
    assert cache.stats().misses == misses


def test_an_end_that_is_too_short_is_lengthened_and_found():
    """Whether pairs start at even or odd places is seen at the start of the run."""
    pairs = [("a", "b"), ("ab", "ab"), ("abab", "abab"), ("b", "b"), ("bb", "a")]
    vocab = byte_pair(pairs, LETTERS)
    cache = TrieCache()
    choices = ["ab", "b", "a"]
    for n in range(1, 90):
        for prompt in (" " + "b" * (n % 3) + "ab" * n, " " + "a" * n):
            ids = vocab.prompt_ids(prompt)
            # as many ids as are looked at, but they are the whole prompt
            vocab.place(ids[-STRETCH:], choices, cache=cache)
            want = vocab.place(ids, choices)
            for _ in range(2):
                got = vocab.place(ids, choices, cache=cache)
                assert got.prompt_ids.tolist() == want.prompt_ids.tolist()
                assert content(got.trie) == content(want.trie)


def test_a_prompt_and_a_longer_one_that_ends_in_it():
    """Digits in pairs from the right: one more changes every id before it."""
    numbers = [str(n).zfill(k) for k in (1, 2) for n in range(10**k)]

    def encode(text, special):
        pairs = [text[max(0, i - 2) : i] for i in range(len(text), 0, -2)]
        return [numbers.index(pair) for pair in pairs[::-1]]

    vocab = Vocab.from_tokens([*numbers, "</s>"], eog=[110], encode=encode)
    cache = TrieCache()
    ids = vocab.prompt_ids("12" * 50)
    choices = ["1", "123", "31"]
    short = ids[-STRETCH:]
    for prompt in (short, [110, *ids], [110, *short], [110, *ids]):
        if prompt is short:
            with pytest.raises(InvalidArgument, match="prompt is too short"):
                vocab.place(prompt, choices, cache=cache)
            continue
        got = vocab.place(prompt, choices, cache=cache)
        want = vocab.place(prompt, choices)
        assert got.prompt_ids.tolist() == want.prompt_ids.tolist() == [110]
        assert content(got.trie) == content(want.trie)
    assert cache.stats().entries == 2


def check_sequence(vocab, requests):
    """Place in turn with one cache, and compare with places without any."""
    cache = TrieCache(max_entries=3)
    for prompt, choices, suffix in requests:
        try:
            want = vocab.place(prompt, choices, suffix)
        except InvalidArgument as error:
            for _ in range(2):
                with pytest.raises(InvalidArgument, match=re.escape(str(error))):
                    vocab.place(prompt, choices, suffix, cache)
            continue
        for _ in range(2):
            got = vocab.place(prompt, choices, suffix, cache)
            assert got.prompt_ids.tolist() == want.prompt_ids.tolist()
            assert content(got.trie) == content(want.trie)
            assert got.order.tolist() == want.order.tolist()
            assert got.overlap == want.overlap


@settings(max_examples=100, deadline=None)
@given(
    pairs=byte_pairs(),
    start=st.sampled_from(["", " "]),
    prompts=st.lists(st.text(LETTERS, max_size=60), min_size=1, max_size=3),
    choices=st.lists(texts, min_size=1, max_size=5),
    suffix=texts,
)
def test_a_cache_never_changes_a_placement(pairs, start, prompts, choices, suffix):
    vocab = byte_pair(pairs, LETTERS, start)
    requests = [
        (prompt, some, end)
        for prompt in prompts
        for some in (choices, choices[::-1], choices[:1])
        for end in (suffix, "")
    ]
    check_sequence(vocab, requests)


@settings(max_examples=100, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 31), max_size=40), min_size=1, max_size=4),
    choices=st.lists(
        st.sampled_from(["A", "B", "AB", "C", " A", "Yes", "🐈", "🐕", "ABC", "?"]),
        min_size=1,
        max_size=4,
    ),
    suffix=st.sampled_from(["", '"', "B", " "]),
)
def test_nor_after_any_ids(prompts, choices, suffix):
    # what shares an end comes one after the other
    shared = [first + last for first in prompts for last in prompts]
    check_sequence(t32(), [(ids, choices, suffix) for ids in shared])


def test_strings_of_other_classes():
    class Name(str):
        def __eq__(self, other):
            return True

        __hash__ = str.__hash__

    cache, vocab = TrieCache(), t32()
    plain = vocab.place("A", ["Yes", "No"], "", cache).trie
    named = vocab.place("A", [Name("Yes"), Name("No")], Name(""), cache).trie
    assert named is plain
    assert vocab.place("A", [Name("No"), Name("A")], "", cache).trie is not plain


def test_bytes_of_texts_count():
    cache = TrieCache()
    vocab = Vocab.from_tokens([bytes([i]) for i in range(256)] + ["</s>"], eog=[256])
    choices = [str(i) * 20 for i in range(50)]
    trie = vocab.place("x", choices, cache=cache).trie
    assert cache.stats().bytes >= trie.nbytes + sum(map(len, choices))


def test_place_evicts_and_finds_again():
    cache, counted = TrieCache(max_entries=1), Counted()
    placed = counted.vocab.place("C", ["B", "A", "B"], cache=cache)
    counted.vocab.place("C", ["A"], cache=cache)
    counted.take()
    again = counted.vocab.place("C", ["B", "A", "B"], cache=cache)
    assert counted.take() == ["C"]
    assert again.trie is placed.trie
    assert again.order.tolist() == placed.order.tolist() == [1, 0]


def test_all_spellings_are_entries_of_their_own():
    cache, vocab = TrieCache(), t32()
    names = ["AB", "A"]
    trie = vocab.trie(names, prefix="C", cache=cache)
    spelled = vocab.trie(names, prefix="C", spelling="all", cache=cache)
    assert spelled is not trie
    assert spelled.names == vocab.trie(names, prefix="C", spelling="all").names
    assert vocab.trie(names, prefix="C", spelling="all", cache=cache) is spelled
    assert cache.stats().misses == 2
    for other in (
        vocab.trie(names, prefix="C", suffix="B", spelling="all", cache=cache),
        vocab.trie(["AB", "B"], prefix="C", spelling="all", cache=cache),
        t32().trie(names, prefix="C", spelling="all", cache=cache),
    ):
        assert other is not spelled


# -- in a model ------------------------------------------------------------------------


def test_r4_choose_answers_alike_from_the_cache():
    counted = Counted()
    model = model_of(lambda history: {9: 1.0, 12: 0.5}, counted.vocab)
    assert isinstance(model.cache, TrieCache)
    first = model.choose("A", ["No", "Yes"], suffix='"', ranking="whole")
    counted.take()
    for method in ("exact", "greedy"):
        again = model.choose("A", ["No", "Yes"], suffix='"', method=method)
        assert counted.take() == ["A"]
        assert (again.value, again.index) == (first.value, first.index) == ("Yes", 1)
    assert model.cache.stats().entries == 1
    other = model.choose("A", ["Yes", "No"], suffix='"')
    assert (other.value, other.index) == ("Yes", 0)
    allowed = model.choose("A", ["No", "Yes"], suffix='"', allow=["No"])
    assert (allowed.value, allowed.index) == ("No", 0)
    before = model.cache.stats().misses
    for _ in range(2):
        answer = model.choose("A", ["No", "Yes"], method="greedy", spelling="all")
        assert (answer.value, answer.index) == ("Yes", 1)
    assert model.cache.stats().misses == before + 2  # without a suffix, and spelled
    model.close()


def test_models_may_share_a_cache():
    cache = TrieCache()
    answers = []
    for vocab in (t32(), t32(), plain_vocab()):
        model = model_of(lambda history: {9: 1.0}, vocab)
        model.cache = cache
        names = ["Yes", "No"] if vocab.n_vocab == 32 else ["<9>", "<12>"]
        prompt = "A" if vocab.n_vocab == 32 else "<7>"
        answers += [model.choose(prompt, names).value for _ in range(2)]
        model.close()
    assert answers == ["Yes"] * 4 + ["<9>"] * 2
    assert (cache.stats().misses, cache.stats().hits) == (3, 3)


def test_a_name_for_each_thing():
    assert eliza.TrieCache is TrieCache
    fields = eliza.CacheStats._fields
    assert fields == ("hits", "misses", "evictions", "entries", "bytes")
