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


def test_a_prompt_that_an_answer_could_be_needs_a_word():
    """docs/hooks.md: what cannot be told apart, and what to say then."""
    for options in ({}, {"pads": True}, {"pads": True, "dead": True}):
        follow = Follow(start_of(), **options)
        assert walk(follow, [1, 5], [10, 11]) == STEPS[:3]
        assert allowed(follow, [1, 5, 10]) == [11]
        follow.reset()
        assert walk(follow, [1, 5, 10], [10, 11]) == STEPS[:3]
        sure = Follow(start_of(), 3, **options)
        assert walk(sure, [1, 5, 10], [10, 11]) == STEPS[:3]


def test_free_text_after_the_choice():
    follow = Follow(start_of(after="free"))
    assert walk(follow, [1], [10, 11, 7, 8, 9])[2:] == [None] * 4
    with pytest.raises(InvalidArgument, match="reset"):
        allowed(follow, [1, 10, 11, 7, 8, 9, 5, 5])
    follow.reset()
    assert allowed(follow, [1, 10, 11, 7, 8, 9, 5, 5]) == [10, 20]
    follow.reset()
    walk(follow, [1], [10, 11, 7, 8, 9, 7, 8, 9])
    with pytest.raises(InvalidArgument, match="reset"):  # not longer than the last
        allowed(follow, [1, 10, 11, 7, 5, 5])
    assert allowed(follow, [1, 10, 11, 7, 5]) is None  # taken back, another id
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


def test_fc_042_a_chat_that_goes_on_where_rows_hold_pads():
    """Text after an ended answer is the next prompt, not pads of the last row."""
    prompt = [1, 5, 6]
    follow = Follow(start_of(), pads=True)
    for _ in range(3):
        # `generate` stops at the end: it is never called with it.
        assert walk(follow, prompt, [10, 11]) == STEPS[:3]
        prompt = [*prompt, 10, 11, END, 40, 41]
    assert walk(follow, [1, 5, 6], [10, 11, END]) == STEPS
    assert walk(follow, [1, 5, 6, 10, 11, END, 40, 41], [20, 21]) == [
        [10, 20],
        [21],
        [END],
    ]
    # Shorter than what the last generation came to, because another row took longer.
    follow = Follow(start_of({"a": [10, 11], "b": [20, 21, 22, 23, 24, 25]}), pads=True)
    assert allowed(follow, [1], [3]) == [[10, 20]] * 2
    a, b = [1, 10, 11, END, 0, 0, 0], [3, 20, 21, 22, 23, 24, 25]
    for length in range(2, 8):
        allowed(follow, a[:length], b[:length])
    chat = [1, 10, 11, END, 40, 41]
    assert allowed(follow, chat) == [10, 20]
    assert walk(follow, chat, [10, 11]) == [[10, 20], [11], [END]]


def test_pads_or_another_prompt_is_not_guessed_for_some_rows():
    """A skipped call; or the next turn of one row."""
    follow = Follow(start_of({"a": [10, 11], "b": [20, 21, 22, 23, 24]}), pads=True)
    assert allowed(follow, [1], [3]) == [[10, 20]] * 2
    with pytest.raises(InvalidArgument, match="reset"):
        allowed(follow, [1, 10, 11, END, 0], [3, 20, 21, 22, 23])
    with pytest.raises(OffPathError):
        allowed(follow, [1, 10, 11, 7, 7], [3, 20, 21, 22, 23])
    assert allowed(follow, [1, 10], [3, 20]) == [[11], [21]]
    sure = Follow(start_of({"a": [10, 11], "b": [20, 21, 22, 23, 24]}), 1, pads=True)
    rows = [1, 10, 11, END, 0], [3, 20, 21, 22, 23]
    assert allowed(sure, *rows) == [[END], [24]]


def test_what_came_out_begins_no_generation():
    """FC-042: `finish` does not answer for another turn."""
    follow = Follow(start_of(), pads=True)
    walk(follow, [1, 5, 6], [10, 11])
    for other in ([1, 5, 6, 10, 11, END, 40, 41], [1, 5, 6, 10, 11, END, 40, 40]):
        with pytest.raises(InvalidArgument, match="reset"):
            follow.place(other, finished=True)
    for other in ([7], [7, 7, 7, 7, 7]):
        with pytest.raises(InvalidArgument, match="does not begin"):
            follow.place(other, finished=True)
    with pytest.raises(OffPathError):
        follow.place([1, 5, 6, 20, 9, 9, 9], finished=True)
    # What the last step put out; and a beam that ended before, with its pads.
    for out in ([10, 11, END], [20, 21, END]):
        assert follow.place([1, 5, 6, *out], finished=True).cursor.done
    # It has not moved: the chat goes on with one id.
    assert allowed(follow, [1, 5, 6, 10, 11, END, 40]) == [10, 20]
    follow = Follow(start_of({"a": [10], "b": [20, 21, 22, 23]}), pads=True, dead=True)
    allowed(follow, [1], [1])
    for k in range(1, 4):
        allowed(follow, [1, 20, 21, 22][: k + 1], [1, 7, 7, 7][: k + 1])
    assert follow.place([1, 10, END, 0, 0], finished=True).cursor.name == "a"
    for wrong in ([1, 10, END, 0, 7], [1, 10, END, 0, 0, 0]):
        with pytest.raises(InvalidArgument):
            follow.place(wrong, finished=True)
    with pytest.raises(OffPathError):
        follow.place([1, 10, 9, 0, 0], finished=True)


def test_rows_off_the_path_begin_a_generation_only_together():
    """One row that goes wrong does not set the others back to the start."""
    follow = Follow(start_of())
    assert allowed(follow, [1], [3]) == [[10, 20]] * 2
    rows = [1, 10, 11, 7], [3, 20, 21, END]
    for both in (rows, rows[::-1]):
        with pytest.raises(OffPathError):
            allowed(follow, *both)
    assert allowed(follow, [1, 10], [3, 20]) == [[11], [21]]


def test_dead_rows():
    follow = Follow(start_of(), dead=True)
    assert allowed(follow, [1], [1]) == [[10, 20]] * 2
    assert allowed(follow, [1, 10], [1, 0]) == [[11], "dead"]
    assert allowed(follow, [1, 10, 11], [1, 0, 11]) == [[END], "dead"]
    assert allowed(follow, [1, 0, 11, 1], [1, 0, 11, 2]) == ["dead", "dead"]
    # Another generation, whose prompts repeat what is known: beams do not tell.
    rows = [1, 10, 11, END, 7, 7], [1, 0, 11, 1, 9, 9]
    with pytest.raises(InvalidArgument, match="reset"):
        allowed(follow, *rows)
    follow.reset()
    assert allowed(follow, *rows) == [[10, 20]] * 2
    assert allowed(follow, [1, 10, 11], [1, 0, 11]) == [[10, 20]] * 2


def test_beams_that_skip_a_call():
    """Off the path, or another prompt: refused; with a prompt length it is known."""
    follow = Follow(start_of(), dead=True, pads=True)
    assert allowed(follow, [1, 5]) == [10, 20]
    for rows in ([[1, 5, 10, 7]], [[1, 5, 7, 7], [1, 5, 10, 11]]):
        with pytest.raises(InvalidArgument, match="reset"):
            allowed(follow, *rows)
    assert allowed(follow, [1, 5, 10, 11]) == [END]  # skipped, and on the path
    with pytest.raises(InvalidArgument, match="reset"):
        allowed(follow, [1, 5, 10, 11, END, 40, 41])
    fixed = Follow(start_of(), 1, dead=True)
    assert allowed(fixed, [1, 0, 11], [1, 10, 11]) == ["dead", [END]]
    with pytest.raises(OffPathError):
        fixed.place([1, 0, 11])


def test_beams_that_are_all_lost_at_once_are_another_prompt():
    """One of them goes on while a choice is incomplete, and an end with an end."""
    follow = Follow(start_of(), dead=True, pads=True)
    assert allowed(follow, [1, 5], [1, 5]) == [[10, 20]] * 2
    with pytest.raises(InvalidArgument, match="reset"):
        allowed(follow, [1, 5, 9], [1, 5, 9])
    assert allowed(follow, [1, 5, 10], [1, 5, 20]) == [[11], [21]]
    assert allowed(follow, [1, 5, 10, 11], [1, 5, 20, 21]) == [[END]] * 2
    # The ends may have been put aside, with nothing left that can win.
    assert allowed(follow, [1, 5, 10, 11, 7], [1, 5, 20, 21, 7]) == ["dead"] * 2
    assert allowed(follow, [1, 5, 10, 11], [1, 5, 20, 21]) == [[END]] * 2
    assert allowed(follow, [1, 5, 10, 11, END], [1, 5, 20, 21, END]) == [[END]] * 2
    with pytest.raises(InvalidArgument, match="reset"):
        allowed(follow, [1, 5, 10, 11, END, 40], [1, 5, 20, 21, END, 40])
    rows = [1, 5, 10, 11, END, END], [1, 5, 20, 21, END, 40]
    assert allowed(follow, *rows) == [[END], "dead"]
    assert follow.places(np.zeros((0, 7), np.int64)) == []
    for lost in ([1, 5, 10, 11, END, 40, 41], [1, 5, 9]):  # what came out of it
        with pytest.raises((OffPathError, InvalidArgument)):
            follow.place(lost, finished=True)


def singly(follow, *histories):
    return [allowed(follow, history) for history in histories]


def test_rows_of_a_step_that_come_singly():
    """A dead row after a finished one does not become the prompt."""
    leaves = {"a": [10, 11], "b": [30]}
    follow = Follow(start_of(leaves), dead=True, pads=True, single=True)
    first = [[1, 5], [1, 5, 30], [1, 5, 7], [1, 5, 10]]
    assert singly(follow, *first) == [[10, 30], [END], "dead", [11]]
    second = [[1, 5, 30, END], [1, 5, 7, 30], [1, 5, 10, 11], [1, 5, 10, 9]]
    assert singly(follow, *second) == [[END], "dead", [END], "dead"]
    # Another generation with the same prompt, and one with another.
    assert singly(follow, *first) == [[10, 30], [END], "dead", [11]]
    assert singly(follow, [4], [4], [4, 10], [4, 9]) == [[10, 30]] * 2 + [[11], "dead"]


def test_beams_that_were_not_announced_do_not_begin_a_generation():
    follow = Follow(start_of({"a": [10, 11], "b": [30]}), pads=True, single=True)
    assert singly(follow, [1, 5], [1, 5], [1, 5, 30]) == [[10, 30]] * 2 + [[END]]
    with pytest.raises(OffPathError):
        allowed(follow, [1, 5, 7])
    assert allowed(follow, [1, 5, 10]) == [11]
    # One row for each step: a prompt that goes on is another generation.
    follow.reset()
    assert singly(follow, [1, 5], [1, 5, 30]) == [[10, 30], [END]]
    assert singly(follow, [1, 5, 30, 7, 7], [1, 5, 30, 7, 7, 10]) == [[10, 30], [11]]


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
