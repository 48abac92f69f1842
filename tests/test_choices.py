import enum
from typing import Literal

import numpy as np
import pytest

from eliza import InvalidArgument, InvalidType, Trie
from eliza.choosing.choices import Choices


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def parse(given):
    return Choices.parse(given, n_vocab=64)


@pytest.mark.parametrize(
    ("given", "texts", "values"),
    [
        (["a", "b"], ("a", "b"), ("a", "b")),
        (("b", "a"), ("b", "a"), ("b", "a")),
        (Color, ("red", "green"), (Color.RED, Color.GREEN)),
        (Level, ("LOW", "HIGH"), (Level.LOW, Level.HIGH)),
        (Literal["x", 3, None], ("x", "3", "null"), ("x", 3, None)),
        ([True, False], ("true", "false"), (True, False)),
        ({"yes": 1, "no": 0}, ("yes", "no"), (1, 0)),
        (range(3), ("0", "1", "2"), (0, 1, 2)),
        ((c for c in "ab"), ("a", "b"), ("a", "b")),
        ({"a": 1, "b": 2}.keys(), ("a", "b"), ("a", "b")),
    ],
)
def test_fc131_forms_of_choices(given, texts, values):
    choices = parse(given)
    assert choices.texts == texts
    assert all(
        a is b or (type(a) is type(b) and a == b)
        for a, b in zip(choices.values, values, strict=True)
    )


@pytest.mark.parametrize("given", [{"a", "b"}, frozenset("a"), b"ab", "abc", 5, None])
def test_fc131_what_is_no_list_of_choices(given):
    with pytest.raises(InvalidType, match="choices is"):
        parse(given)


@pytest.mark.parametrize("entry", [1.5, b"x", ["a"], object])
def test_fc131_entries_without_a_text(entry):
    with pytest.raises(InvalidType, match=r"choices\[1\] is"):
        parse(["a", entry])


@pytest.mark.parametrize("given", [[], (), {}, range(0)])
def test_fc014_no_choices(given):
    with pytest.raises(InvalidArgument, match="no choices"):
        parse(given)


def test_empty_choice():
    with pytest.raises(InvalidArgument, match=r"choices\[1\] is the empty string"):
        parse(["a", ""])


def test_fc017_the_same_choice_twice_is_one():
    choices = parse(["go", "stop", "go"])
    assert choices.texts == ("go", "stop")
    assert choices.index == (0, 1)
    assert choices.given == (0, 1, 0)


def test_one_text_with_two_values_is_refused():
    with pytest.raises(InvalidArgument, match=r"choices\[0\] and choices\[1\].*'1'"):
        parse([1, "1"])
    assert parse([True, "True"]).texts == ("true", "True")
    assert parse(["None", None]).texts == ("None", "null")


def test_sets_given_by_ids():
    pairs = [("b", [9]), ("a", [7, 8]), ("b", [9])]
    choices = parse(pairs)
    assert choices.values == ("a", "b")  # leaf order
    assert choices.index == (1, 0)
    assert choices.given == (1, 0, 1)
    trie = Trie.from_tokens(dict(pairs), n_vocab=64)
    assert parse(trie).values == ("a", "b")
    nameless = Trie.from_arrays(
        np.array([7, 8, 9], np.int32), np.array([0, 2, 3]), n_vocab=64
    )
    assert parse(nameless).values == (0, 1)


@pytest.mark.parametrize(
    "allow",
    [["go", "wait"], [0, 2], np.array([2, 0]), [True, False, True, False], [3, 2]],
)
def test_permitted_forms(allow):
    choices = parse(["go", "stop", "wait", "go"])
    assert choices.permitted(allow).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("allow", "error", "message"),
    [
        ([], InvalidArgument, "permits none"),
        ([False] * 3, InvalidArgument, "permits none"),
        ([True], InvalidType, "mask of 3 bools"),
        ([3], InvalidArgument, r"position 3.*\[0, 3\)"),
        ([-1], InvalidArgument, r"position -1"),
        ([0.5], InvalidType, "dtype float64"),
        (["go", "fly"], InvalidArgument, r"allow\[1\] is 'fly'"),
        ("go", InvalidType, "allow is 'go'"),
        (3, InvalidType, "allow is 3"),
    ],
)
def test_permitted_errors(allow, error, message):
    with pytest.raises(error, match=message):
        parse(["go", "stop", "wait"]).permitted(allow)


def test_permitted_by_member():
    assert parse(Color).permitted([Color.GREEN]).tolist() == [False, True]


def test_the_same_texts_again_are_not_read_again():
    first = Choices.parse(["a", "b"], 64)
    assert Choices.parse(("a", "b"), 64) is first
    assert Choices.parse(["b", "a"], 64).texts == ("b", "a")

    class Letter(enum.StrEnum):
        A = "a"
        B = "b"

    # Equal to the texts, and not the same: what comes back is what was given.
    assert Choices.parse(["a", "b"], 64).values == ("a", "b")
    found = Choices.parse([Letter.A, Letter.B], 64).values
    assert [type(value) for value in found] == [Letter, Letter]
    assert Choices.parse(["a", "b", "a"], 64).texts == ("a", "b")
