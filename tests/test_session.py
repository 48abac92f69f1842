import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import (
    Cancelled,
    Closed,
    ContextOverflow,
    InvalidArgument,
    NoCandidateError,
    OffPathError,
    TokenLimit,
    Trie,
)
from eliza.reference import Reference
from support import END, choice_sets, hashed, model_of, plain_vocab, scripted
from t32 import t32

PROMPT = [4, 5, 6]


def trie_of(*leaves, exits=None, n_vocab=64):
    return Trie.from_tokens(
        {f"c{i}": ids for i, ids in enumerate(leaves)}, n_vocab=n_vocab, exits=exits
    )


def session_over(logits, constraint=None, vocab=None, **options):
    session = model_of(logits, vocab).open(**options)
    session.prefill(PROMPT)
    if constraint is not None:
        session.set_constraint(constraint)
    return session


def run(session):
    steps = list(session)
    assert steps[-1].final
    assert not any(step.final for step in steps[:-1])
    assert tuple(i for step in steps for i in step.ids) == session.ids
    return steps


def run_on(session):
    steps = list(session)
    assert steps[-1].final
    return steps


# -- forced runs ---------------------------------------------------------------------


def test_fc050_a_forced_run_comes_in_order():
    cursor = trie_of([30, 31, 32]).cursor()
    session = session_over(scripted({(30,): {32: 9, 31: 1}}, 3), cursor)
    steps = run(session)
    assert session.ids == (30, 31, 32)
    assert steps[-1].finish_reason == "choice"
    assert session.timeline.passes == 1  # the prompt's


@pytest.mark.parametrize("limit", [5, 6])
def test_fc051_a_limit_that_suffices(limit):
    cursor = trie_of([30, 31, 32, 33, 34]).cursor()
    session = session_over(scripted({}, 3), cursor, max_tokens=limit)
    steps = run(session)
    assert session.ids == (30, 31, 32, 33, 34)
    assert steps[-1].finish_reason == session.finish_reason == "choice"
    assert cursor.name == "c0"
    assert session.next().final  # after the end, the end again
    assert session.next().ids == ()


@pytest.mark.parametrize(("limit", "ids"), [(0, ()), (3, (30, 31, 32))])
def test_fc051_forced_ids_count_towards_the_limit(limit, ids):
    cursor = trie_of([30, 31, 32, 33, 34]).cursor()
    session = session_over(scripted({}, 3), cursor, max_tokens=limit)
    seen = []
    for _ in range(2):  # said again, not let go
        steps = iter(session)
        with pytest.raises(TokenLimit, match=f"max_tokens={limit} .*not complete"):
            seen.extend(i for step in steps for i in step.ids)
        assert session.ids == tuple(seen) == ids
        assert session.finish_reason == "length"
        assert cursor.name is None
    session.max_tokens = 6
    steps = run_on(session)
    assert session.ids == (30, 31, 32, 33, 34)
    assert steps[-1].finish_reason == "choice"


def test_fc051_a_cancel_before_a_forced_run_stops_it():
    cursor = trie_of([30, 31, 32]).cursor()
    session = session_over(scripted({}, 3), cursor)
    session.cancel()
    session.cancel()
    with pytest.raises(Cancelled):
        session.next()
    assert session.ids == ()
    assert cursor.depth == 0
    session.reset()
    session.prefill(PROMPT)
    session.set_constraint(cursor)
    run(session)
    assert session.ids == (30, 31, 32)


def test_fc053_a_run_joins_the_next_batch_once():
    cursor = trie_of([11, 12, 13, 14, 15], [11, 12, 13, 14, 16]).cursor()
    table = {(): {15: 9}, (11, 12, 13, 14): {16: 5, 15: 1}}
    session = session_over(scripted(table, 3), cursor)
    run(session)
    assert session.ids == (11, 12, 13, 14, 16)
    assert session.timeline.passes == 2
    assert session.timeline.positions == 3 + 4
    assert session.history == (*PROMPT, 11, 12, 13, 14, 16)


def one_by_one(logits, reference, prompt, after=3):
    """Decode as a loop without any skipping would: the spec of a session."""
    history, path = list(prompt), ()
    while reference.leaf(path) is None:
        token = reference.argmax(path, logits(tuple(history)))
        path += (token,)
        if token != END:
            history.append(token)
    free = []
    while len(free) < after:
        token = int(np.argmax(logits(tuple(history))))
        if token == END:
            break
        free.append(token)
        history.append(token)
    return reference.leaf(path), history, free


@settings(max_examples=150, deadline=None)
@given(choice_sets(), st.integers(0, 1000))
def test_fc054_skipping_changes_nothing(leaves, seed):
    logits = hashed(seed, 64)
    name, history, free = one_by_one(logits, Reference(leaves, exits=[END]), PROMPT)
    trie = Trie.from_tokens(leaves, n_vocab=64)
    cursor = trie.cursor(exits=[END])
    session = session_over(logits, cursor)
    text = "".join(step.text for step in run(session))
    assert cursor.name == name
    session.clear_constraint()
    while len(session.history) < len(history) and not session.next().final:
        pass
    assert list(session.history) == history
    assert text == "".join(f"<{i}>" for i in history[3 : len(history) - len(free)])
    assert len(session.ids) == len(history) - 3


# -- ends ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", [2, 3])
def test_fc064_every_end_id_ends_a_choice(end):
    vocab = t32(eog=(2, 3))
    cursor = Trie.from_tokens({"Yes": [9], "YesA": [9, 4]}, n_vocab=32).cursor(
        exits=vocab.eog
    )
    table = {(): {9: 1}, (9,): {end: 9, 4: 1}}
    session = session_over(scripted(table, 3), cursor, vocab)
    steps = run(session)
    assert cursor.name == "Yes"
    # FC-067: the end id is neither among the ids nor in the text.
    assert session.ids == (9,)
    assert "".join(step.text for step in steps) == "Yes"
    assert session.output == b"Yes"


def test_fc069_a_span_ends_without_any_end_id():
    session = session_over(lambda history: {END: -50.0})
    for _ in range(3):
        session.set_constraint(trie_of([10, 11], [12, 13, 14]).cursor())
        assert run_more(session)[-1].finish_reason == "choice"
    assert len(session.ids) <= 9


def run_more(session):
    steps = []
    while not steps or not steps[-1].final:
        steps.append(session.next())
    return steps


def test_fc070_stop_texts_do_not_cut_a_choice():
    vocab = plain_vocab()
    session = session_over(
        scripted({(10,): {20: 1}, (10, 20): {21: 1}}, 3),
        trie_of([10]).cursor(),
        vocab,
        stop=["10", "<21"],
    )
    assert run(session)[0].text == "<10>"
    session.clear_constraint()
    steps = run_more(session)
    assert [step.text for step in steps] == ["<20>", ">"[:0]]
    assert steps[-1].finish_reason == "stop"
    with pytest.raises(InvalidArgument, match="empty"):
        model_of(hashed(0, 64)).open(stop=[""])


def test_fc074_control_ids_in_a_span_and_in_free_text():
    vocab = t32()
    yes_no = Trie.from_tokens({"Yes": [9], "No": [12]}, n_vocab=32)
    logits = lambda history: {0: 100, 1: 100, 3: 50, 12: 1}  # noqa: E731
    session = session_over(logits, yes_no.cursor(), vocab, max_tokens=10)
    assert run_more(session)[-1].ids == (12,)
    session.clear_constraint()
    free = [session.next().ids for _ in range(3)]
    assert free == [(0,), (0,), (0,)]
    session.set_constraint(yes_no.cursor())
    assert run_more(session)[-1].ids == (12,)


# -- text ----------------------------------------------------------------------------


def cats(max_tokens=None):
    """Return a session bound to two characters that share three of four bytes."""
    vocab = t32()
    trie = Trie.from_tokens(
        {"🐈": [16, 17, 18, 19], "🐕": [16, 17, 18, 20]}, n_vocab=32
    )
    table = {(16, 17, 18): {20: 5, 19: 1}}
    return session_over(scripted(table, 3), trie.cursor(), vocab, max_tokens=max_tokens)


def test_fc075_fc076_a_character_of_several_ids():
    session = cats()
    steps = run(session)
    assert "".join(step.text for step in steps) == "🐕"
    assert session.output.decode() == "🐕"


def test_fc076_a_limit_inside_a_character():
    session = cats(max_tokens=2)
    assert session.next().text == ""
    with pytest.raises(TokenLimit):
        session.next()
    assert session.output == b"\xf0\x9f"
    assert session.finish_reason == "length"


# -- staying on the path -------------------------------------------------------------


def test_fc020_an_id_off_the_path_changes_nothing():
    cursor = trie_of([22, 23, 26]).cursor()
    session = session_over(scripted({(): {9: 5}}, 3), cursor)
    cursor.accept(22)
    with pytest.raises(OffPathError):
        cursor.accept(7)
    assert cursor.allowed().tolist() == [23]
    run(session)
    assert session.ids == (23, 26)


def test_fc019_nothing_usable_is_an_error_and_changes_nothing():
    rows = {(): dict.fromkeys(range(64), 1.0) | {10: -np.inf, 20: np.nan}}
    cursor = trie_of([10], [20]).cursor()
    session = session_over(scripted(rows, 3), cursor)
    for _ in range(2):
        with pytest.raises(NoCandidateError):
            session.next()
        assert session.ids == ()
        assert cursor.depth == 0


def test_fc016_a_constraint_that_allows_nothing():
    class Two:
        done = False
        taken = 0

        def allowed(self):
            return np.array([7] if self.taken == 0 else [], np.int32)

        def forced(self):
            return self.allowed()

        def accept(self, token):
            self.taken += 1

    session = session_over(scripted({}, 3), Two())
    assert session.next().ids == (7,)
    with pytest.raises(NoCandidateError, match="at step 2"):
        session.next()


def test_fc042_one_set_three_prompts():
    trie = trie_of([10, 11], [20, 21])
    model = model_of(lambda history: {20: 1})
    for prompt in ([4] * 3, [5] * 50, [6]):
        session = model.open()
        session.prefill(prompt)
        session.set_constraint(trie.cursor())
        run(session)
        assert session.ids == (20, 21)


def test_fc043_sequences_side_by_side():
    trie = trie_of([10, 11], [20, 21])
    model = model_of(lambda history: {10: 1} if history[0] == 4 else {20: 1})
    sessions = [model.open(), model.open()]
    for prompt, session in zip(([4], [5]), sessions, strict=True):
        session.prefill(prompt)
        session.set_constraint(trie.cursor())
    while not all(session.next().final for session in sessions):
        pass
    assert [session.ids for session in sessions] == [(10, 11), (20, 21)]


# -- feeding and failing -------------------------------------------------------------


def test_sync_reuses_what_is_shared():
    session = model_of(hashed(1, 64)).open()
    assert session.sync([4, 5, 6, 7]) == 0
    assert session.sync([4, 5, 9]) == 2
    assert session.sync([4, 5, 9]) == 3  # nothing to do, its logits are at hand
    assert session.timeline.positions == 4 + 1
    assert session.history == (4, 5, 9)
    with pytest.raises(InvalidArgument, match="empty prompt"):
        session.sync([])


def test_logits_are_those_of_the_whole_history():
    logits = hashed(7, 64)
    session = model_of(logits).open()
    session.sync([4, 5, 6, 7])
    session.sync([4, 5])
    assert session.row().tolist() == logits((4, 5)).tolist()
    session.prefill([8])
    assert session.row().tolist() == logits((4, 5, 8)).tolist()


def test_overflow_leaves_the_session_usable():
    session = model_of(hashed(1, 64), n_ctx=8).open()
    session.prefill([4] * 6)
    with pytest.raises(ContextOverflow):
        session.prefill([5] * 3)
    assert session.history == (4,) * 6
    assert session.sync([4] * 6) in (5, 6)
    assert session.next().ids


def test_row_before_any_prompt():
    with pytest.raises(InvalidArgument, match="nothing was prefilled"):
        model_of(hashed(1, 64)).open().row()


def test_max_tokens_is_checked():
    with pytest.raises(InvalidArgument, match="max_tokens is -1"):
        model_of(hashed(1, 64)).open(max_tokens=-1)


def test_use_after_close():
    session = model_of(hashed(1, 64)).open()
    session.close()
    session.close()
    with pytest.raises(Closed):
        session.next()


def test_an_interrupt_between_sequence_and_ledger_is_mended():
    logits = hashed(3, 64)
    session = model_of(logits).open()
    session.prefill([4, 5])
    session.timeline.sequence.decode([9, 9])  # a signal came in between
    assert session.sync([4, 5, 6]) == 2
    assert session.row().tolist() == logits((4, 5, 6)).tolist()


def test_a_failed_decode_changes_nothing():
    logits = hashed(3, 64)
    fail = threading.Event()

    def flaky(history):
        if fail.is_set():
            raise RuntimeError("the runtime broke")
        return logits(history)

    cursor = trie_of([10, 11], [10, 12]).cursor()
    session = session_over(flaky, cursor)
    first = session.next()
    assert first.ids == (10,)
    fail.set()
    with pytest.raises(RuntimeError):
        session.next()
    assert session.ids == (10,)
    fail.clear()
    run_more(session)
    assert (
        cursor.name
        == one_by_one(logits, Reference({"c0": [10, 11], "c1": [10, 12]}), PROMPT)[0]
    )


# -- free text -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "filters", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str
)
def test_each_filter_binds_free_text(filters):
    """At its narrowest, a filter leaves the likeliest id alone."""
    greedy = session_over(hashed(5, 64), max_tokens=30)
    run_on(greedy)
    hot = {"temperature": 5.0, "seed": 1, "max_tokens": 30}
    drawn = session_over(hashed(5, 64), **hot)
    run_on(drawn)
    assert drawn.ids != greedy.ids
    filtered = session_over(hashed(5, 64), **hot, **filters)
    run_on(filtered)
    assert filtered.ids == greedy.ids
