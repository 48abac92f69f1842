"""`Vocab.place`: where the trie starts, what its leaves are, what ends them."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import Trie, TrieCache, tails
from eliza.errors import InvalidArgument, InvalidType, OffPathError
from eliza.vocab import Vocab
from t32 import BOS, END, IM_END, byte_pair, t32


def leaves(placed):
    """Return the ids of each choice, by name."""
    trie = placed.trie
    return {name: trie.tokens(i) for i, name in enumerate(trie.names)}


def exits(placed):
    """Return the exit ids of each choice that has some, by name."""
    trie = placed.trie
    return {name: trie.exits(i) for i, name in enumerate(trie.names) if trie.exits(i)}


def walk(placed, ids):
    """Feed ids until the span is done; return the cursor."""
    cursor = placed.trie.cursor()
    for token in ids:
        if cursor.done:
            break
        cursor.accept(int(token))
    return cursor


def greedy(placed, score):
    """Take the allowed id with the highest score, ties to the lowest id."""
    cursor = placed.trie.cursor()
    while not cursor.done:
        cursor.accept(max(cursor.allowed().tolist(), key=lambda i: (score(i), -i)))
    return cursor.name


# -- field cases over T32 --------------------------------------------------------------


def test_fc002_complete_choice_ends_there():
    placed = t32().place("A", ["Yes", "No", "Maybe"])
    cursor = walk(placed, [13, 14])
    assert cursor.done
    assert cursor.name == "Maybe"
    with pytest.raises(OffPathError):
        cursor.accept(15)


def test_fc005_the_tokenizer_s_own_way_is_reachable():
    placed = t32().place("A", [" Yes", " No"])
    assert 11 in placed.trie.cursor().allowed()
    assert leaves(placed) == {" Yes": (11,), " No": (21, 12)}


def test_fc006_a_space_at_the_border_does_not_favour_nonsense():
    words = [
        "[",
        "/INST]",
        "Hello",
        " Hello",
        "Goodbye",
        " Goodbye",
        "^*B^&A",
        " ^*B",
        "^&A",
    ]
    vocab = Vocab.from_tokens(["</s>", *words, " "], eog=[0])

    def score(token):
        return float("Hello".startswith(vocab.piece(token).decode().strip() or "?"))

    for prompt in ("[/INST]", "[/INST] "):
        placed = vocab.place(prompt, ["^*B^&A", "Goodbye", "Hello"])
        assert greedy(placed, score) == "Hello"


def test_fc008_spaces_within_and_around():
    words = ["x", "y", " x", " y", " ", "  ", "\t", "\n", "</s>"]
    vocab = Vocab.from_tokens(words, eog=[8])
    choices = ["x y", " x", "x ", "x  y", "x\ty", "x\ny", " "]
    placed = vocab.place("y", choices)
    assert [vocab.decode(ids).decode() for ids in leaves(placed).values()] == list(
        placed.trie.names
    )


@pytest.mark.parametrize(
    ("prompt", "choices", "root", "ids"),
    [
        ("A", ["Yes", "No"], [BOS, 4], [(9,), (12,)]),
        ("A ", ["Yes", "No"], [BOS, 4], [(11,), (21, 12)]),  # " Yes" is one id
        ("A ", [" No", "  No"], [BOS, 4, 21], [(21, 12), (21, 21, 12)]),
        ("AA", ["B", "C"], [BOS, 4], [(6,), (4, 7)]),  # in the middle of AB
        ("Ma", ["ybe", "n"], [BOS, 13], [(14,), (30,)]),
    ],
)
def test_fc009_prompt_ends_in_a_space_or_within_a_word(prompt, choices, root, ids):
    vocab = t32()
    placed = vocab.place(prompt, choices)
    assert placed.prompt_ids.tolist() == root
    assert leaves(placed) == dict(zip(choices, ids, strict=True))
    for choice, leaf in leaves(placed).items():
        text = vocab.decode([*placed.prompt_ids.tolist(), *leaf])
        assert text == (prompt + choice).encode()
        assert vocab.decode(leaf)[placed.overlap :] == choice.encode()


@pytest.mark.parametrize("choices", [["Yes", "ok"], ["ok"]])
def test_fc010_a_choice_that_cannot_be_spelled(choices):
    with pytest.raises(
        InvalidArgument, match=r"choices\[\d\] 'ok': .* no piece for 'o'"
    ):
        t32().place("A", choices)


def test_fc010_the_unknown_id_never_spells_a_choice():
    known = {"A": 4, "B": 5}
    vocab = t32(encode=lambda text, special: [known.get(c, 0) for c in text])
    with pytest.raises(
        InvalidArgument, match=r"choices\[1\] 'AC': .* id 0 \('<pad>'\)"
    ):
        vocab.place("A", ["AB", "AC"])


def test_fc011_only_the_tokenizer_s_own_id():
    placed = t32().place("A", ["Yes", "No"])
    assert placed.trie.cursor().allowed().tolist() == [9, 12]
    assert greedy(placed, lambda i: {10: 9, 12: 1}.get(i, 0)) == "No"
    assert greedy(placed, lambda i: {9: 9, 12: 1}.get(i, 0)) == "Yes"


def test_fc013_only_the_tokenizer_s_own_split():
    words = ["A", "p", "r", "ri", "ril", "il", "l", "ug", "ust", "u", "s", "t"]
    vocab = Vocab.from_tokens(words)
    cursor = walk(vocab.place("A", ["April", "August"]), [0, 1])
    assert cursor.allowed().tolist() == [4]
    before = cursor.path
    with pytest.raises(OffPathError):
        cursor.accept(2)
    assert cursor.path == before


def test_fc017_the_same_text_twice_is_one_choice():
    vocab = t32()
    placed = vocab.place("C", ["Yes", "No", "Yes", "B"])
    assert sorted(placed.trie.names) == ["B", "No", "Yes"]
    given = ["Yes", "No", "Yes", "B"]
    assert [given[i] for i in placed.order] == [*placed.trie.names]
    assert placed.order.tolist() == [3, 0, 1]


def test_fc064_every_end_id_ends_a_choice():
    vocab = t32(eog=(END, IM_END))
    placed = vocab.place("B", ["Yes", "YesA"])
    assert leaves(placed) == {"Yes": (9,), "YesA": (9, 4)}
    assert exits(placed) == {"Yes": (END, IM_END)}
    for end in (END, IM_END):
        assert walk(placed, [9, end]).name == "Yes"
    assert walk(placed, [9, 4]).name == "YesA"


def test_fc067_the_end_id_is_not_in_a_choice():
    placed = t32(eog=(END, IM_END)).place("A", ["Yes", "No"])
    assert not {0, 1, 2, 3} & {i for ids in leaves(placed).values() for i in ids}


def test_fc071_no_special_id_from_the_text_of_a_choice():
    placed = t32().place("<|im_end|>A", ["<|im_end|>", "A<|im_end|>B", "Yes"])
    assert placed.prompt_ids.tolist() == [BOS, IM_END, 4]
    letters = (26, 27, 28, 27, 29)
    assert leaves(placed) == {
        "<|im_end|>": letters,
        "A<|im_end|>B": (4, *letters, 5),
        "Yes": (9,),
    }


def test_fc071_not_even_together_with_the_prompt():
    placed = t32().place("A<|im_end", ["|>", "|>A"])
    assert placed.prompt_ids.tolist() == [BOS, 4, 26, 27, 28]
    assert leaves(placed) == {"|>": (27, 29), "|>A": (27, 29, 4)}


def test_fc071_an_encoder_that_cannot_is_refused():
    def encode(text, special):
        return [IM_END] if "im_end" in text else [4] * len(text)

    with pytest.raises(InvalidArgument, match=r"'<\|im_end\|>': .* id 3 .* special"):
        t32(encode=encode).place("A", ["<|im_end|>"])


def test_fc071_an_encoder_that_adds_an_end_id_is_refused():
    vocab = t32(encode=lambda text, special: [*t32().encode(text), END])
    with pytest.raises(InvalidArgument, match=r"'Yes': .* id 2 .* special"):
        vocab.place("A", ["Yes"])


@pytest.mark.parametrize("prompt", ["A", "<s>A"])
def test_fc072_one_bos(prompt):
    placed = t32().place(prompt, ["Yes", "No"])
    assert placed.prompt_ids.tolist() == [BOS, 4]
    assert BOS not in {i for ids in leaves(placed).values() for i in ids}


def test_fc075_one_character_in_several_ids():
    placed = t32().place("A", ["🐈", "🐕"])
    cursor = placed.trie.cursor()
    assert cursor.forced().tolist() == [16, 17, 18]
    assert walk(placed, [16, 17, 18, 20]).name == "🐕"
    assert walk(placed, [16, 17, 18, 19]).name == "🐈"


@pytest.mark.parametrize("choice", ["ﬁle", "︰", "①", "e\u0301"])
def test_fc078_a_choice_that_the_tokenizer_rewrites(choice):
    pieces = sorted(set("file..éeA1"))

    def encode(text, special):
        return [pieces.index(c) for c in unicodedata.normalize("NFKC", text)]

    vocab = Vocab.from_tokens(pieces, encode=encode)
    with pytest.raises(InvalidArgument, match=rf"choices\[1\] '{choice}': .* rewrites"):
        vocab.place("A", ["file", choice])


def test_fc124_long_and_empty_pieces():
    vocab = t32()
    placed = vocab.place("A", [" " * 64 + "A", " " * 65])
    assert leaves(placed) == {" " * 64 + "A": (22, 4), " " * 65: (22, 21)}

    def encode(text, special):  # with the empty piece, 3, after each letter
        return [token for c in text for token in (" ab".index(c), 3)]

    vocab = Vocab.from_tokens(["</s>", "a", "b", ""], eog=[0], encode=encode)
    placed = vocab.place("a", ["a", "b", "bb"])
    assert placed.prompt_ids.tolist() == [1, 3]
    assert walk(placed, [2, 3, 2, 3]).name == "bb"
    assert leaves(placed) == {"a": (1,), "b": (2, 3), "bb": (2, 3, 2)}
    assert exits(placed) == {"b": (0,)}


# -- the prompt ------------------------------------------------------------------------


def test_no_id_before_the_choices():
    vocab = t32(bos=None)
    for prompt in ("", []):
        with pytest.raises(InvalidArgument, match="empty prompt"):
            vocab.place(prompt, ["Yes"])
    with pytest.raises(InvalidArgument, match="prompt is too short"):
        vocab.place("A", ["B", "BC"])  # AB takes the prompt's only id
    assert t32().place("", ["Yes"]).prompt_ids.tolist() == [BOS]


def test_a_start_that_all_choices_share_is_in_the_trie():
    placed = t32().place("A", ["Yes", "YesC"])
    assert placed.prompt_ids.tolist() == [BOS, 4]
    placed = t32().place("A", ["CYes"])
    assert leaves(placed) == {"CYes": (7, 9)}


def test_ids_as_prompt():
    vocab = t32()
    for ids in ([BOS, 4, 21], (BOS, 4, 21), np.array([BOS, 4, 21], np.int64)):
        placed = vocab.place(ids, ["Yes", "No"])
        assert placed.prompt_ids.tolist() == [BOS, 4]
        assert leaves(placed) == {"Yes": (11,), "No": (21, 12)}
    assert vocab.place([9], ["Yes"]).prompt_ids.tolist() == [9]  # no BOS is added


def test_ids_that_the_tokenizer_would_not_write_stay():
    vocab = t32()
    # A, B apart; then a space by itself, which agrees
    placed = vocab.place([BOS, 4, 5, 21], ["Yes", "No"])
    assert placed.prompt_ids.tolist() == [BOS, 4, 5]
    assert leaves(placed) == {"Yes": (11,), "No": (21, 12)}
    # A, B apart at the end: ABC is [6, 7]
    placed = vocab.place([BOS, 4, 5], ["C", "Yes"])
    assert placed.prompt_ids.tolist() == [BOS, 4, 5]
    assert leaves(placed) == {"C": (7,), "Yes": (9,)}
    # within a character, and in no character at all
    for bad in ([BOS, 16, 17], [BOS, *[17] * 50], [BOS, 4, *[17] * 50, 16]):
        placed = vocab.place(bad, ["C", "Yes"])
        assert placed.prompt_ids.tolist() == bad
        assert leaves(placed) == {"C": (7,), "Yes": (9,)}
    # the other id for Yes
    placed = vocab.place([BOS, 10], ["C", "Yes"])
    assert placed.prompt_ids.tolist() == [BOS, 10]


def test_the_prompt_s_ids_and_the_arguments_are_left_alone():
    vocab = t32()
    ids = np.array([BOS, 4, 21], np.int32)
    choices = ["Yes", "No"]
    placed = vocab.place(ids, choices)
    assert ids.tolist() == [BOS, 4, 21]
    assert choices == ["Yes", "No"]
    for array in (placed.prompt_ids, placed.order):
        assert array.dtype == np.int32
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        (None, InvalidType, "a prompt must be"),
        (b"A", InvalidType, "a prompt must be"),
        (7, InvalidType, "a prompt must be"),
        ([BOS, 32], InvalidArgument, r"prompt\[1\]: 32 is outside"),
        ([BOS, -1], InvalidArgument, r"prompt\[1\]: -1 is outside"),
        ([[BOS]], InvalidType, r"prompt\[0\]: must be an integer; got \[1\]"),
        (np.array([[BOS]]), InvalidType, r"prompt\[0\]: must be an integer"),
        (np.array([1.0]), InvalidType, r"prompt\[0\]: must be an integer; got 1.0"),
        ([BOS, 1.5], InvalidType, r"prompt\[1\]: must be an integer; got 1.5"),
        ("A\ud800", InvalidArgument, "lone surrogate"),
    ],
)
def test_bad_prompts(prompt, error, message):
    with pytest.raises(error, match=message):
        t32().place(prompt, ["Yes"])


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ([], InvalidArgument, "no choices"),
        ((), InvalidArgument, "no choices"),
        (["A", ""], InvalidArgument, r"choices\[1\] is the empty string"),
        (["A", 7], InvalidType, r"choices\[1\] must be a string; got 7"),
        ([None], InvalidType, r"choices\[0\] must be a string; got None"),
        (["A", b"B"], InvalidType, r"choices\[1\] must be a string; got b'B'"),
        (range(3), InvalidType, r"choices\[0\] must be a string; got 0"),
        ("abc", InvalidType, "sequence of strings.*'abc'"),
        (b"abc", InvalidType, "sequence of strings"),
        ({"A"}, InvalidType, "sequence of strings"),
        ({"A": 1}, InvalidType, "sequence of strings"),
        (["A", "B\udc00"], InvalidArgument, r"choices\[1\].*lone surrogate at 1"),
    ],
)
def test_fc131_bad_choices(choices, error, message):
    with pytest.raises(error, match=message):
        t32().place("A", choices)


def test_bad_suffix():
    with pytest.raises(InvalidType, match="suffix must be a string; got None"):
        t32().place("A", ["Yes"], None)
    with pytest.raises(InvalidArgument, match=r"suffix.*lone surrogate"):
        t32().place("A", ["Yes"], "\ud800")
    with pytest.raises(InvalidArgument, match=r"choices\[0\] 'Yes': .*piece for 'z'"):
        t32().place("A", ["Yes"], "z")


# -- the end of a choice ---------------------------------------------------------------


def test_exits_without_a_suffix():
    placed = t32(eog=(END, IM_END)).place("B", ["A", "AC", "ABC"])
    assert leaves(placed) == {"A": (4,), "AC": (4, 7), "ABC": (6, 7)}
    assert exits(placed) == {"A": (END, IM_END)}


def test_the_exit_is_the_next_id_of_the_suffix():
    placed = t32().place("B", ["A", "AC", "AA"], '"A')
    assert leaves(placed) == {"A": (4,), "AC": (4, 7), "AA": (4, 4)}
    assert exits(placed) == {"A": (23,)}
    assert walk(placed, [4, 23]).name == "A"


def test_a_merge_into_the_suffix_ends_the_leaf():
    placed = t32().place("C", ["A", "C"], "B")
    assert leaves(placed) == {"A": (6,), "C": (7,)}
    assert exits(placed) == {}


def test_an_exit_that_continues_another_choice_joins_the_leaf():
    placed = t32().place("B", ["Yes", "Yes/No"], '/"')
    # after Yes, `/` would be both; after Yes/, `"` and No are not the same
    assert leaves(placed) == {"Yes": (9, 25), "Yes/No": (9, 25, 12)}
    assert exits(placed) == {"Yes": (23,)}
    assert walk(placed, [9, 25, 23]).name == "Yes"
    assert walk(placed, [9, 25, 12]).name == "Yes/No"


def test_a_suffix_that_is_used_up_ends_with_the_end_ids():
    placed = t32().place("B", ["Yes", "Yes/No"], "/")
    assert leaves(placed) == {"Yes": (9, 25), "Yes/No": (9, 25, 12)}
    assert exits(placed) == {"Yes": (END,)}


def test_leaves_that_become_equal_grow_until_they_differ():
    placed = t32().place("B", ["Yes", "Yes/", "Yes//"], "/")
    assert leaves(placed) == {
        "Yes": (9, 25),
        "Yes/": (9, 25, 25),
        "Yes//": (9, 25, 25, 25),
    }
    assert exits(placed) == {"Yes": (END,), "Yes/": (END,)}


def test_merged_leaf_equal_to_another_choice():
    # A with the suffix is one id, and so is the choice AB; its own B follows
    placed = t32().place("C", ["A", "AB"], "B")
    assert leaves(placed) == {"A": (6,), "AB": (6, 5)}
    assert exits(placed) == {"A": (END,)}


def test_what_cannot_be_told_apart_is_an_error():
    vocab = Vocab.from_tokens(["Yes", "A", "/"])  # nothing ends a generation
    with pytest.raises(InvalidArgument, match=r"'Yes' cannot be told from 'YesA'"):
        vocab.place("A", ["YesA", "Yes"])
    with pytest.raises(InvalidArgument, match=r"'Yes' cannot be told from 'Yes/'"):
        vocab.place("A", ["Yes", "Yes/"], "/")
    assert exits(vocab.place("A", ["YesA", "Yes"], "/")) == {"Yes": (2,)}


# -- trie ------------------------------------------------------------------------------


def test_trie_after_a_prefix():
    trie = t32().trie(["Yes", "No"], prefix='"', suffix='"')
    assert [trie.tokens(i) for i in range(2)] == [(9,), (12,)]
    assert trie.names == ("Yes", "No")
    # no special ids, no BOS; the whole prefix may be in the leaves
    trie = t32().trie(["B", "C"], prefix="A")
    assert [trie.tokens(i) for i in range(2)] == [(4, 7), (6,)]
    trie = t32().trie(["Yes"], prefix="<|im_end|>")
    assert trie.tokens(0) == (9,)


def test_trie_from_texts_is_the_vocabularys_trie():
    """DESIGN 11: `Trie.from_texts(vocab, ...)` beside `vocab.trie(...)`."""
    vocab, cache = t32(), TrieCache()
    for texts, prefix, suffix in (
        (["Yes", "No"], '"', '"'),
        (["B", "C"], "A", ""),
        (["Maybe"], "", ""),
    ):
        trie = Trie.from_texts(vocab, texts, prefix=prefix, suffix=suffix)
        own = vocab.trie(texts, prefix, suffix)
        assert trie.to_bytes() == own.to_bytes()
        assert sorted(trie.names) == sorted(texts)
        kept = Trie.from_texts(vocab, texts, prefix, suffix, cache=cache)
        assert Trie.from_texts(vocab, texts, prefix, suffix, cache=cache) is kept
    assert (cache.stats().hits, cache.stats().misses) == (3, 3)


@pytest.mark.parametrize("vocab", [None, "vocab", {"a": [1]}, Vocab])
def test_trie_from_texts_of_something_else(vocab):
    with pytest.raises(InvalidType, match=r"first argument is a Vocab.* got \w+"):
        Trie.from_texts(vocab, ["Yes"])


# -- against the whole text ------------------------------------------------------------


def check(vocab, prompt, choices, suffix):
    """Compare a placement with the encodings of the whole texts."""
    whole = {c: vocab.encode(prompt + c + suffix, bos=True) for c in choices}
    before = len(vocab.text_start + prompt.encode())

    def spelled(ids):
        return len(vocab.decode(ids))

    # The root: the longest start of all, as far as it lies in the prompt.
    one = min(whole.values())
    root = 0
    while (
        root < len(one)
        and all(ids[: root + 1] == one[: root + 1] for ids in whole.values())
        and spelled(one[: root + 1]) <= before
    ):
        root += 1
    if not root:
        with pytest.raises(InvalidArgument, match="must read at least one id"):
            vocab.place(prompt, choices, suffix)
        return

    placed = vocab.place(prompt, choices, suffix)
    assert placed.prompt_ids.tolist() == one[:root]
    assert placed.overlap == before - spelled(one[:root])

    shortest = {}
    for choice, ids in whole.items():
        end = root
        while spelled(ids[:end]) < before + len(choice.encode()):
            end += 1
        shortest[choice] = tuple(ids[root:end])
    found = leaves(placed)
    assert {choices[i]: placed.trie.names[n] for n, i in enumerate(placed.order)} == {
        name: name for name in found
    }
    for choice, ids in whole.items():
        leaf = found[choice]
        assert leaf == tuple(ids[root : root + len(leaf)])
        assert leaf[: len(shortest[choice])] == shortest[choice]
        assert walk(placed, [*ids[root:], *vocab.eog]).name == choice
    # Nothing is longer than it must be: where it is, the exit was ambiguous before.
    ordered = sorted(shortest.values())
    if not any(b[: len(a)] == a for a, b in pairwise(ordered)):
        assert found == shortest
        assert exits(placed) == {}


LETTERS = "ab "
texts = st.text(LETTERS, max_size=6)


@st.composite
def byte_pairs(draw):
    """Draw merges in which each part is a letter or an earlier merge."""
    known = list(LETTERS)
    pairs = []
    for _ in range(draw(st.integers(0, 20))):
        left, right = draw(st.sampled_from(known)), draw(st.sampled_from(known))
        if left + right not in known:
            known.append(left + right)
            pairs.append((left, right))
    return pairs


@settings(max_examples=400, deadline=None)
@given(
    pairs=byte_pairs(),
    start=st.sampled_from(["", " "]),
    prompt=st.text(LETTERS, max_size=60),
    choices=st.lists(texts.filter(bool), min_size=1, max_size=6, unique=True),
    suffix=texts,
)
def test_as_in_the_whole_text(pairs, start, prompt, choices, suffix):
    check(byte_pair(pairs, LETTERS, start), prompt, choices, suffix)


@settings(max_examples=200, deadline=None)
@given(
    prompt=st.lists(st.integers(4, 31), max_size=40),
    choices=st.lists(
        st.sampled_from(
            ["A", "B", "AB", "C", " A", "Yes", "No", " ", "🐈", "🐕", "ABC"]
        ),
        min_size=1,
        unique=True,
    ),
    suffix=st.sampled_from(["", '"', "B", " ", "Yes"]),
)
def test_any_ids_as_prompt(prompt, choices, suffix):
    vocab = t32()
    placed = vocab.place([BOS, *prompt], choices, suffix)
    before = vocab.decode(prompt)
    for choice, leaf in leaves(placed).items():
        text = vocab.decode([*placed.prompt_ids.tolist(), *leaf])
        assert text.startswith(before + choice.encode())
        assert vocab.decode(leaf)[placed.overlap :].startswith(choice.encode())
    # The given ids stay, but for those that the tokenizer merges with a choice.
    kept = placed.prompt_ids.tolist()
    assert kept == [BOS, *prompt][: len(kept)]


@pytest.mark.parametrize(
    "prompt", ['A"Bn' * 500, "🐈" * 500, "🐈" * 500 + "A", "🐈n🐈A" * 500]
)
def test_a_long_prompt_is_encoded_once(prompt):
    lengths = []
    inner = t32()

    def encode(text, special):
        lengths.append(len(text))
        return inner.encode(text)

    vocab = t32(encode=encode)
    vocab.place(prompt, ["B", "C", "AC"])
    assert lengths.count(len(prompt)) == 1
    lengths.remove(len(prompt))
    assert max(lengths) <= tails.STRETCH + 2


def test_an_encoder_that_looks_far_ahead():
    # Digits in threes from the right: one more digit changes the whole run.
    numbers = [str(n).zfill(k) for k in (1, 2, 3) for n in range(10**k)]
    index = {number: i for i, number in enumerate(numbers)}

    def encode(text, special):
        first = len(text) % 3
        cuts = (
            [0, *range(first, len(text), 3), len(text)]
            if first
            else [*range(0, len(text), 3), len(text)]
        )
        return [index[text[a:b]] for a, b in pairwise(cuts)]

    vocab = Vocab.from_tokens(
        [*numbers, "</s>", "<s>"], eog=[1110], bos=1111, encode=encode
    )
    for n in (5, 30, 31, 32, 200, 301):
        prompt = "".join(str(k % 7) for k in range(n))
        check(vocab, prompt, ["1", "12", "123", "9"], "")
        check(vocab, prompt, ["444", "555"], "")


def test_a_stretch_that_is_too_short_is_doubled():
    # Whether pairs start at even or odd places depends on the start of the run.
    pairs = [("a", "b"), ("ab", "ab"), ("abab", "abab"), ("b", "b"), ("bb", "a")]
    vocab = byte_pair(pairs, LETTERS)
    for n in range(1, 130):
        check(vocab, " " + "b" * (n % 3) + "ab" * n, ["ab", "b", "a"], "")
        check(vocab, " " + "a" * n, ["ab", "b", "a"], "")
