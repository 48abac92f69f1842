"""Decisions that compute only the logits they read: the same answers as whole rows."""

from __future__ import annotations

import numpy as np
import pytest

import eliza
from eliza.testing import ScriptedBackend, ScriptedSequence

N = 400
VOCAB = eliza.Vocab.from_tokens(
    [
        b"<end>",
        *(bytes([c]) for c in range(1, 256)),
        *(f"w{i}" for i in range(N - 256)),
    ],
    control=[0],
    eog=[0],
)
CHOICES = ["w1", "w12", "w2a", "w2b", "x", "xyz"]


def logits(history):
    return np.random.default_rng([7, *history]).standard_normal(N).astype(np.float32)


class Counting(ScriptedSequence):
    def decode(self, ids):
        self._backend.hints.append(self.whole_row)
        super().decode(ids)

    def logits_window(self, i=0):
        self._backend.whole += 1
        return super().logits_window(i)

    def logits_of(self, ids, i=0):
        self._backend.single += len(ids)
        return super().logits_of(ids, i)


class HeadBackend(ScriptedBackend):
    """A scripted backend that computes single logits, and counts what it did."""

    whole = single = 0

    def __init__(self, **options):
        self.hints = []
        super().__init__(VOCAB, logits, head_rows=True, **options)

    def open(self):
        sequence = super().open()
        sequence.__class__ = Counting
        return sequence


def both(**options):
    return (
        eliza.Model(HeadBackend(**options)),
        eliza.Model(ScriptedBackend(VOCAB, logits, **options)),
    )


REQUESTS = [
    {"method": "greedy"},
    {"method": "greedy", "ranking": "masked"},
    {"method": "greedy", "ranking": "whole"},
    {"method": "sample", "rng": 3, "temperature": 1.3, "top_k": 3},
    {"method": "exact"},
    {"method": "exact", "ranking": "masked"},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"tree": False}, {"tree": False, "truncate": False}], ids=str
)
def test_the_same_answer(request_, options):
    with_head, plain = both(**options)
    for prompt in ("a", "b", "cd", "a b c"):
        found = with_head.choose(prompt, CHOICES, **request_)
        expected = plain.choose(prompt, CHOICES, **request_)
        assert found.value == expected.value
        assert found.logprob == expected.logprob
        assert list(found.ranking or []) == list(expected.ranking or [])
        assert found.stats.forward_passes == expected.stats.forward_passes


def test_a_greedy_decision_computes_what_it_reads():
    with_head, _ = both()
    answer = with_head.choose("a", CHOICES, method="greedy")
    assert with_head.backend.whole == 0
    assert 0 < with_head.backend.single <= 3 * (answer.stats.decided + 1)


def test_a_session_with_a_trie_does_too():
    with_head, plain = both()
    trie = VOCAB.trie(CHOICES)
    generated = []
    for model in (with_head, plain):
        with model.open() as session:
            session.prefill("a")
            session.set_token_trie(trie)
            generated.append([i for step in session for i in step.ids])
    assert generated[0] == generated[1]
    assert with_head.backend.whole == 0


@pytest.mark.parametrize(
    "options",
    [{"logit_bias": {300: 5.0}}, {"repeat_penalty": 1.5}],
    ids=["bias", "penalty"],
)
def test_what_changes_the_row_gets_the_whole(options):
    with_head, plain = both()
    generated = []
    for model in (with_head, plain):
        with model.open(**options) as session:
            session.prefill("a")
            session.set_constraint(VOCAB.trie(CHOICES).cursor())
            generated.append([i for step in session for i in step.ids])
    assert generated[0] == generated[1]
    assert with_head.backend.single == 0


def test_a_callers_own_pick_gets_the_whole_row_unless_it_says_otherwise():
    for narrow in (False, True):
        with_head, _ = both()
        seen = []
        with with_head.open() as session:
            session.prefill("a")
            cursor = VOCAB.trie(CHOICES).cursor()

            def pick(row, cursor=cursor, seen=seen):
                seen.append(row.copy())
                return cursor.argmax(row)

            session.set_constraint(cursor, pick, narrow=narrow)
            next(iter(session))
        assert np.isnan(seen[0]).any() == narrow
        assert not np.isnan(seen[0][VOCAB.trie(CHOICES).cursor().allowed()]).any()


def test_many_allowed_ids_are_read_from_the_whole_row():
    with_head, plain = both()
    many = [f"w{i}" for i in range(60)]
    values = [m.choose("a", many, method="greedy").value for m in (with_head, plain)]
    assert values[0] == values[1]
    assert with_head.backend.single == 0


def test_free_text_comes_from_whole_rows():
    with_head, plain = both()
    generated = []
    for model in (with_head, plain):
        with model.open(max_tokens=5) as session:
            session.prefill("a")
            generated.append([i for step in session for i in step.ids])
    assert generated[0] == generated[1]


@pytest.mark.parametrize(
    ("options", "bound", "whole"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"logit_bias": {300: 5.0}}, True, True),
    ],
    ids=["free", "bound", "bias"],
)
def test_a_sequence_is_told_what_will_be_read(options, bound, whole):
    with_head, _ = both()
    with with_head.open(max_tokens=5, **options) as session:
        session.prefill("a")
        if bound:
            session.set_constraint(VOCAB.trie(["xyz", "xyy", "xww"]).cursor())
        list(session)
    prompt, *steps = with_head.backend.hints
    assert not prompt
    assert len(steps) >= 1
    assert set(steps) == {whole}


def test_a_choice_after_free_text_tells_it_again():
    with_head, _ = both()
    with with_head.open(max_tokens=12) as session:
        session.prefill("a")
        next(iter(session))
        next(iter(session))
        session.set_constraint(VOCAB.trie(CHOICES).cursor())
        list(session)
    assert with_head.backend.hints[:2] == [False, True]
    assert not any(with_head.backend.hints[2:])
    with_head.backend.hints.clear()
    with_head.choose("a", CHOICES, method="greedy")
    assert not any(with_head.backend.hints)


def test_a_slot_saved_after_a_decision_has_the_whole_row(tmp_path):
    with_head, plain = both()
    ids = []
    for i, model in enumerate((with_head, plain)):
        with model.open(max_tokens=8) as session:
            session.prefill("a")
            session.set_constraint(VOCAB.trie(CHOICES).cursor())
            list(session)
            session.clear_constraint()
            session.save_slot(tmp_path / f"{i}")
        with model.open(max_tokens=4) as session:
            session.restore_slot(tmp_path / f"{i}")
            ids.append([i for step in session for i in step.ids])
    assert ids[0] == ids[1]


def test_no_nan_is_ever_left_behind():
    with_head, plain = both()
    for prompt in ("a", "b", "c"):
        for request in REQUESTS:
            a = with_head.choose(prompt, CHOICES, **request)
            b = plain.choose(prompt, CHOICES, **request)
            assert a.value == b.value
