"""What a prompt does to a session: where it begins anew, and what a refusal leaves."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from eliza import (
    BackendError,
    ContextOverflow,
    InvalidArgument,
    Model,
    Trie,
)
from eliza.speculation import Gate
from support import hashed, model_of

V = 64
LEAVES = {"a": (10, 11, 12), "b": (10, 13, 14)}
TRIE = Trie.from_tokens(LEAVES, n_vocab=V)
FORKED = {**LEAVES, "c": (15,)}  # where the first id is a decision too


def opened(**options):
    session = model_of(hashed(3, V), **options).open()
    session.prefill([4, 5, 6, 7])
    return session


def told(session, *ids):
    """Bind a session to FORKED and let it pick these ids."""
    picks = iter(ids)
    cursor = Trie.from_tokens(FORKED, n_vocab=V).cursor()
    session.set_constraint(cursor, lambda row: next(picks))


# -- choices bind again --------------------------------------------------------------


@pytest.mark.parametrize("verb", ["sync", "prefill", "prefill with a report"])
def test_a_prompt_in_the_middle_of_a_span_begins_it_again(verb):
    """R1: what is finished after it is exactly one of the choices."""
    session = opened()
    session.set_token_trie(TRIE)
    assert session.next().ids == (10,)
    prompt = [7, 8, 9]
    if verb == "sync":
        session.sync(prompt)
    else:
        report = (lambda frontier: None) if "report" in verb else None
        session.prefill(prompt, report)
    assert session.name is None
    list(session)
    assert session.ids == LEAVES[session.name]


def test_a_second_prompt_is_answered_anew():
    session = opened()
    session.set_token_trie(TRIE)
    answers = set()
    for last in range(20, 40):
        session.sync([4, 5, last])
        list(session)
        assert session.finish_reason == "choice"
        assert session.ids == LEAVES[session.name]
        answers.add(session.name)
    assert answers == {"a", "b"}


@pytest.mark.parametrize("report", [None, lambda frontier: None])
def test_a_prompt_that_is_refused_leaves_the_span_where_it_was(report):
    session = opened(n_ctx=20)
    session.set_token_trie(TRIE)
    session.next()
    for call in (session.sync, session.prefill):
        for bad in ([9] * 21, [4, V], [4, -1]):
            with pytest.raises((ContextOverflow, InvalidArgument)):
                call(bad, report)
            assert session.history == (4, 5, 6, 7, 10)
            assert session.ids == (10,)
    list(session)
    assert session.ids == LEAVES[session.name]


def test_a_failed_prefill_leaves_the_span_where_it_was():
    def stop(frontier):
        if frontier.current > 5:
            raise ZeroDivisionError

    session = opened()
    session.set_token_trie(TRIE)
    session.next()
    with pytest.raises(ZeroDivisionError):
        session.prefill([8] * 700, stop)
    assert session.ids == (10,)
    list(session)
    assert session.ids == LEAVES[session.name]


def test_a_constraint_that_was_moved_from_outside_is_said_to_be():
    """A cursor that its owner has reset cannot be taken back; nothing is appended."""
    session = opened()
    cursor = TRIE.cursor()
    session.set_constraint(cursor)
    list(session)
    cursor.reset()
    history = session.history
    for call in (session.prefill, session.sync, session.prefill):
        with pytest.raises(InvalidArgument, match="moved by someone else"):
            call([6])
        assert session.history == history
    session.set_constraint(cursor)
    session.prefill([6])
    assert session.history == (*history, 6)
    list(session)
    assert session.ids == LEAVES[cursor.name]


# -- what does not fit is known before anything is done ------------------------------


def test_frontiers_are_not_reported_for_what_does_not_fit():
    session = opened(n_ctx=1200)
    seen = []
    for call in (session.prefill, session.sync):
        with pytest.raises(ContextOverflow, match=r"200[04] ids.*context of 1200"):
            call([9] * 2000, seen.append)
        with pytest.raises(InvalidArgument):
            call([9] * 600 + [10**6], seen.append)
    assert seen == []
    assert session.history == (4, 5, 6, 7)


@pytest.mark.parametrize("truncate", [True, False])
def test_a_refusal_costs_nothing_computed(truncate):
    model = model_of(hashed(3, V), n_ctx=60, truncate=truncate)
    session = model.open()
    session.prefill(range(4, 44))
    before = session.counters
    for call in (session.prefill, session.sync):
        with pytest.raises(ContextOverflow):
            call([9] * 61)
    with pytest.raises(InvalidArgument):
        session.prefill([V])
    assert session.counters == before
    session.next()
    assert session.counters.passes == before.passes  # the row was still there


def test_any_iterable_is_a_prompt():
    """A tuple, such as `history`, keeps as much as a list does."""
    session = opened()
    assert session.sync((4, 5, 6, 8)) == 3
    assert session.sync(np.array([4, 5, 6, 8, 9])) == 4
    assert session.sync(range(4, 9)) == 3
    assert session.sync(session.history[:3]) == 2
    for bad in ([True, 5], [4.0, 5], ["4"]):
        with pytest.raises(InvalidArgument):
            session.sync(bad)
    with pytest.raises(InvalidArgument, match="empty prompt"):
        session.sync(())


# -- failures ------------------------------------------------------------------------


@pytest.mark.parametrize("truncate", [True, False])
def test_ids_are_not_lost_where_a_row_has_to_be_computed_again(truncate):
    """R7: the row that a step needs is gone, and computing it fails."""
    fail = []

    def logits(history):
        if fail:
            raise fail.pop()
        return hashed(3, V)(history)

    session = model_of(logits, truncate=truncate).open()
    session.prefill([4, 5, 6, 7])
    session.set_token_trie(Trie.from_tokens(FORKED, n_vocab=V))
    kept = session.reset_keep(3)
    history = session.history
    assert len(history) == kept
    if not kept:
        session.prefill([4, 5, 6])
        history = (4, 5, 6)
        fail.append(BackendError("once"))
        with pytest.raises(BackendError):
            session.prefill([8, 9])
    fail.append(BackendError("once"))
    with pytest.raises(BackendError):
        session.next()
    assert session.history == history
    list(session)
    assert session.history == history + session.ids
    assert session.ids == FORKED[session.name]


def test_what_was_picked_stands_where_a_draft_cannot_be_taken_back(monkeypatch):
    monkeypatch.setattr(Gate, "length", lambda gate, room: min(3, room))

    class Wrong:
        def propose(self, history, n):
            return [11, 12][:n]

    session = model_of(hashed(3, V)).open(draft=Wrong())
    session.prefill([4, 5, 6])
    told(session, 10, 13)
    session.next()  # with the row of the prompt; only then is there something to draft
    sequence = session.timeline.sequence
    real = sequence.truncate

    def refuse(n):
        sequence.truncate = real
        real(0)
        raise BackendError("it is empty now")

    sequence.truncate = refuse
    list(session)
    assert sequence.truncate is real  # it was asked
    assert session.ids == LEAVES["b"]
    assert session.history == (4, 5, 6, 10, 13, 14)
    assert session.row().tolist() == hashed(3, V)(session.history).tolist()


def test_two_models_may_draft_for_each_other(monkeypatch):
    a, b = (model_of(hashed(seed, V)) for seed in (1, 2))
    both = threading.Barrier(2)
    sessions = []
    check = Model._check

    def slow(model):  # between its own lock and the other's
        time.sleep(0.01)
        check(model)

    monkeypatch.setattr(Model, "_check", slow)

    def open_(target, draft):
        for _ in range(5):
            both.wait(10)
            sessions.append(target.open(draft=draft))

    threads = [
        threading.Thread(target=open_, args=pair, daemon=True)
        for pair in ((a, b), (b, a))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(sessions) == 10
    for session in sessions:
        session.close()


def test_a_frontier_that_has_passed_saves_nothing(tmp_path):
    session = opened()
    seen = []
    session.prefill([8, 9], seen.append)
    for frontier in seen:
        with pytest.raises(InvalidArgument, match="frontier has passed"):
            frontier.save_slot(tmp_path / "slot")
    assert not (tmp_path / "slot").exists()
