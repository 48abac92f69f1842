"""Positions that hooks derive from histories, whatever the library calls them with."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from eliza.errors import InvalidArgument, InvalidType, OffPathError, TokenLimit
from eliza.hooks._follow import Follow
from eliza.hooks._processor import Processor
from eliza.hooks._start import Start, end_ids_of
from support import END, choice_sets, plain_vocab

TWO = {"a": [10, 11], "b": [20, 21]}


def start_of(leaves=TWO, **options):
    options.setdefault("eog", [END])
    return Start(eliza.Trie.from_tokens(leaves, n_vocab=64), **options)


def allowed(follow, *histories):
    """Return what may follow each history; None for anything, "dead" for dead rows."""
    places = follow.places(np.array(histories))
    out = []
    for place in places:
        ids = "dead" if place is None else place.allowed()
        out.append(ids if ids is None or isinstance(ids, str) else ids.tolist())
    return out[0] if len(histories) == 1 else out


def walk(follow, prompt, path):
    out = [allowed(follow, prompt)]
    for i in range(len(path)):
        out.append(allowed(follow, [*prompt, *path[: i + 1]]))
    return out


STEPS = [[10, 20], [11], [END], [END]]


def test_fc_042_one_object_for_many_generations():
    """Prompts of 3, 50 and 1 ids, an aborted run, the first prompt again."""
    follow = Follow(start_of())
    for prompt in ([1, 5, 6], [1, 5, 6, *range(3, 50)], [7], [1, 5, 6]):
        assert walk(follow, prompt, [10, 11, END]) == STEPS
    assert walk(follow, [1, 5, 6], [10]) == STEPS[:2]
    assert walk(follow, [1, 5, 6], [10, 11, END]) == STEPS
    assert walk(follow, [9, 9], [10]) == STEPS[:2]
    assert walk(follow, [9], [10, 11, END]) == STEPS


def test_a_chat_that_goes_on_is_another_generation():
    follow = Follow(start_of())
    prompt = [1, 5]
    for _ in range(4):
        assert walk(follow, prompt, [10, 11]) == STEPS[:3]
        prompt = [*prompt, 10, 11, END, 7, 7]
    follow = Follow(start_of())
    assert walk(follow, [1], [10, 11, END]) == STEPS
    assert walk(follow, [1, 10, 11, END, 7], [20, 21]) == [[10, 20], [21], [END]]
    # The loop stopped before the choice was complete, by a limit of tokens.
    follow = Follow(start_of())
    assert walk(follow, [1], [10]) == STEPS[:2]
    assert walk(follow, [1, 10, 11, 7, 8], [20, 21]) == [[10, 20], [21], [END]]


def test_a_call_that_is_repeated_skipped_or_taken_back():
    follow = Follow(start_of())
    assert allowed(follow, [1, 5]) == [10, 20]
    for history, ids in [
        ([1, 5], [10, 20]),
        ([1, 5, 10], [11]),
        ([1, 5, 10], [11]),
        ([1, 5], [10, 20]),
        ([1, 5, 20, 21], [END]),  # two at once
        ([1, 5, 10], [11]),
        ([1, 5, 10, 11, END], [END]),
        ([1, 5, 20], [21]),
    ]:
        assert allowed(follow, history) == ids


def test_an_id_off_the_path_is_an_error_that_changes_nothing():
    """FC-020."""
    follow = Follow(start_of())
    assert allowed(follow, [1]) == [10, 20]
    for wrong in ([1, 11], [1, 10, 20], [1, 7, 7, 7], [1, 63], [1, 64], [1, -1]):
        with pytest.raises((OffPathError, InvalidArgument)):
            allowed(follow, wrong)
    assert walk(follow, [1], [10, 11]) == STEPS[:3]
    with pytest.raises(OffPathError, match="choice is complete"):
        allowed(follow, [1, 10, 11, 7])
    assert allowed(follow, [1, 10, 11, END]) == [END]


def test_fc_049_the_allowed_ids_depend_on_the_whole_path():
    start = start_of({"x": [2, 3, 6, 47], "y": [47, 3, 9]}, eog=[1])
    follow = Follow(start)
    assert walk(follow, [5], [2, 3])[-1] == [6]
    assert walk(follow, [5], [47, 3])[-1] == [9]
    with pytest.raises(OffPathError):
        allowed(follow, [5, 2, 3, 9])


@given(choice_sets(), st.data())
@settings(max_examples=150, deadline=None)
def test_any_order_of_calls_gives_what_a_cursor_says(leaves, data):
    """Repeated, skipped and taken back, over rows that are reordered."""
    start = start_of(leaves)
    prompt = [3, 3]
    follow = Follow(start, data.draw(st.sampled_from([None, 2])))
    allowed(follow, prompt)
    paths = sorted(leaves.values())
    for _ in range(data.draw(st.integers(1, 8))):
        n = data.draw(st.integers(1, 3))
        length = data.draw(st.integers(0, max(map(len, paths))))
        long = [p for p in paths if len(p) >= length]
        rows = [data.draw(st.sampled_from(long))[:length] for _ in range(n)]
        expected = []
        for row in rows:
            cursor = start.cursor.copy()
            for token in row:
                cursor.accept(token)
            expected.append([END] if cursor.done else cursor.allowed().tolist())
        found = allowed(follow, *([*prompt, *row] for row in rows))
        assert (found if n > 1 else [found]) == expected


def test_with_a_prompt_length_nothing_is_guessed():
    follow = Follow(start_of(), 2)
    assert allowed(follow, [1, 5, 10]) == [11]
    assert allowed(follow, [7, 7]) == [10, 20]
    with pytest.raises(OffPathError):
        allowed(follow, [1, 5, 10, 11, 7, 7, 7])
    with pytest.raises(InvalidArgument, match="fewer than prompt_length"):
        allowed(follow, [1])
    with pytest.raises(InvalidArgument):
        Follow(start_of(), -1)
    with pytest.raises(InvalidType):
        Follow(start_of(), True)


def test_free_text_after_the_choice():
    follow = Follow(start_of(after="free"))
    assert walk(follow, [1], [10, 11, 7, 8, 9])[2:] == [None] * 4
    with pytest.raises(InvalidArgument, match="reset"):
        allowed(follow, [1, 10, 11, 7, 8, 9, 5, 5])
    follow.reset()
    assert allowed(follow, [1, 10, 11, 7, 8, 9, 5, 5]) == [10, 20]
    sure = Follow(start_of(after="free"), 1)
    assert allowed(sure, [1, 10, 11, 7, 8, 9, 5, 5]) is None


def test_fc_043_rows_have_places_of_their_own():
    follow = Follow(start_of())
    assert allowed(follow, [1, 5], [3, 5]) == [[10, 20]] * 2
    assert allowed(follow, [1, 5, 10], [3, 5, 20]) == [[11], [21]]
    # Reordered, and one row twice, as beams are.
    assert allowed(follow, [3, 5, 20, 21], [3, 5, 20, 21]) == [[END]] * 2
    assert allowed(follow, [1, 5, 10], [3, 5, 10]) == [[11], [11]]


def test_fc_045_a_row_is_removed():
    follow = Follow(start_of())
    assert allowed(follow, [1, 5], [3, 5], [4, 5]) == [[10, 20]] * 3
    assert allowed(follow, [1, 5, 10], [3, 5, 20], [4, 5, 10]) == [[11], [21], [11]]
    assert allowed(follow, [1, 5, 10, 11], [4, 5, 10, 11]) == [[END]] * 2


def test_finished_rows_may_hold_anything():
    follow = Follow(start_of({"a": [10], "b": [20, 21]}), pads=True)
    assert allowed(follow, [1], [3]) == [[10, 20]] * 2
    assert allowed(follow, [1, 10], [3, 20]) == [[END], [21]]
    assert allowed(follow, [1, 10, END], [3, 20, 21]) == [[END]] * 2
    assert allowed(follow, [1, 10, END, 0], [3, 20, 21, END]) == [[END]] * 2
    follow.reset()
    allowed(follow, [1], [3])
    with pytest.raises(OffPathError):  # not before the end
        allowed(follow, [1, 0], [3, 20])


def test_dead_rows():
    follow = Follow(start_of(), dead=True)
    assert allowed(follow, [1], [1]) == [[10, 20]] * 2
    assert allowed(follow, [1, 10], [1, 0]) == [[11], "dead"]
    assert allowed(follow, [1, 10, 11], [1, 0, 11]) == [[END], "dead"]
    assert allowed(follow, [1, 0, 11, 1], [1, 0, 11, 2]) == ["dead", "dead"]
    # Another generation, whose prompts repeat what is known.
    rows = [1, 10, 11, END, 7, 7], [1, 0, 11, 1, 9, 9]
    assert allowed(follow, *rows) == [[10, 20]] * 2
    assert allowed(follow, [1, 10, 11], [1, 0, 11]) == [[10, 20]] * 2
    other = Follow(start_of(), dead=True)
    assert allowed(other, [1], [1]) == [[10, 20]] * 2
    assert allowed(other, [1, 10], [1, 0]) == [[11], "dead"]
    assert allowed(other, [1, 7, 7, 7], [1, 0, 3, 3]) == [[10, 20]] * 2
    fixed = Follow(start_of(), 1, dead=True)
    with pytest.raises(OffPathError):
        allowed(fixed, [1, 0, 11])


def test_ids_are_checked():
    follow = Follow(start_of())
    for wrong in ([[1.5, 2.0]], [["a"]]):
        with pytest.raises(InvalidType):
            follow.places(np.array(wrong))
    with pytest.raises(InvalidArgument):
        follow.places(np.array([1, 2]))
    for ids in ([1, 5], (1, 5), np.array([1, 5], np.int32), np.array([1, 5], np.uint8)):
        assert follow.place(ids).allowed().tolist() == [10, 20]


def test_places_are_copies():
    """FC-038: what was returned does not change with the next call."""
    follow = Follow(start_of())
    first = follow.place([1])
    follow.place([1, 10])
    assert first.allowed().tolist() == [10, 20]


def test_the_end_of_a_generation():
    class Tokenizer:
        eos_token_id = 7

    class Wrapper:
        eos_token_ids = frozenset({2, 3})

    assert end_ids_of(None) == ()
    assert end_ids_of(2) == (2,)
    assert end_ids_of(np.int64(2)) == (2,)
    assert end_ids_of([2, np.int32(3)]) == (2, 3)
    assert end_ids_of(Tokenizer()) == (7,)
    assert sorted(end_ids_of(Wrapper())) == [2, 3]
    assert end_ids_of(plain_vocab()) == (END,)
    for wrong in ("2", b"2", [True], ["2"], 2.0, object(), True):
        with pytest.raises(InvalidType):
            end_ids_of(wrong)


def test_what_came_out():
    processor = Processor(eliza.Trie.from_tokens(TWO, n_vocab=64), eog=[END])
    processor._follow.place([1, 5])
    assert processor.finish([1, 5, 10, 11]) == "a"
    assert processor.finish([1, 5, 20, 21, END]) == "b"
    with pytest.raises(TokenLimit, match="inside a choice"):
        processor.finish([1, 5, 20])
    with pytest.raises(OffPathError):
        processor.finish([1, 5, 21])
    unnamed = eliza.Trie.from_arrays([10, 11, 20], [0, 2, 3], n_vocab=64)
    assert Processor(unnamed, eog=[END], prompt_length=0).finish([20]) == 1
