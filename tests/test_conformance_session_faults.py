"""Faults of a backend and of the session above it, each found by the check named."""

import itertools
import time

import pytest

from eliza import conformance
from eliza.conformance.scripted import any_logits, scripted_backend
from eliza.errors import BackendError
from eliza.generation import Generation
from eliza.locking import ModelLock
from eliza.session import Session
from eliza.state import snapshot
from eliza.timeline import Timeline
from faulty import found

# -- backends --------------------------------------------------------------------------


def test_rows_that_tell_nothing_apart():
    def make():
        backend = scripted_backend()
        backend._logits = lambda history: {5: 1.0}
        return backend

    assert "0 apart" in found(make, "decode.tells-apart")


def test_a_tolerance_that_hides_everything():
    assert "tolerance is 100" in found(
        scripted_backend, "decode.tells-apart", exact=False, tolerance=100
    )


def test_rows_that_change_a_little():
    count = itertools.count(1)

    def make():
        backend = scripted_backend()
        backend._logits = lambda history: any_logits(history) + next(count) * 0.01
        return backend

    assert "off by 0.0" in found(make, "decode.divided", exact=False, tolerance=1e-3)


def test_a_fingerprint_of_each_backend():
    count = itertools.count()
    says = found(
        lambda: scripted_backend(fingerprint=b"%d" % next(count)), "backend.fingerprint"
    )
    assert "another one" in says


def test_sequences_that_are_not_given_back():
    def make():
        backend = scripted_backend()
        plain, count = backend.open, itertools.count()

        def open_():
            if next(count) == 200:
                raise BackendError("all sequences are in use")
            return plain()

        backend.open = open_
        return backend

    assert "all sequences are in use" in found(make, "close.again-and-again")


def test_a_backend_that_works_after_close():
    def make():
        backend = scripted_backend()
        backend.close = lambda: None
        return backend

    assert "it was accepted" in found(make, "close.backend")


# -- the session above -----------------------------------------------------------------


def test_fc118_a_constraint_that_drafts_get_around(monkeypatch):
    def draft(self, room):
        if self.drafter is None or not self.pending:
            return []
        return list(self.drafter.propose(self.history, 3))

    def next_id(self, row, new, plain=Generation._next_id):
        if self.drafter is not None and not new.ids and self.pending:
            return int(row.argmax())
        return plain(self, row, new)

    monkeypatch.setattr(Generation, "_draft", draft)
    monkeypatch.setattr(Generation, "_next_id", next_id)
    found(scripted_backend, "choices.unlikely")


def test_fc118_a_constraint_that_a_reset_drops(monkeypatch):
    monkeypatch.setattr(Generation, "rewind", Generation.unbind)
    says = found(scripted_backend, "choices.unlikely")
    assert "reset" in says


def test_fc118_a_constraint_that_a_slot_drops(monkeypatch):
    plain = snapshot.put

    def put(generation, slot, seed):
        plain(generation, slot, seed)
        generation.unbind()

    monkeypatch.setattr(snapshot, "put", put)
    assert "slot" in found(scripted_backend, "choices.unlikely")


def test_guesses_that_are_kept_too_long(monkeypatch):
    plain = Timeline.commit

    def commit(self, keep):
        plain(self, min(keep + 1, len(self._trial)))

    monkeypatch.setattr(Timeline, "commit", commit)
    found(scripted_backend, "draft.any")


def test_a_random_state_that_is_not_saved(monkeypatch):
    monkeypatch.setattr(snapshot, "unpack_rng", lambda text, rng: rng)
    assert "drawn after restore" in found(scripted_backend, "state.slot-draws")


@pytest.mark.parametrize("off", [-1, 1])
def test_a_reset_that_keeps_another_number(off, monkeypatch):
    plain = Generation.cut
    monkeypatch.setattr(Generation, "cut", lambda self, n: plain(self, n + off))
    found(scripted_backend, "session.reset-keep")


def test_forced_ids_that_are_not_decoded(monkeypatch):
    plain = Generation._emit

    def emit(self, new):
        step = plain(self, new)
        del self.pending[1:2]
        return step

    monkeypatch.setattr(Generation, "_emit", emit)
    found(scripted_backend, "session.forced-run")


def test_a_cancel_that_is_forgotten(monkeypatch):
    plain = Session._check

    def check(self):
        try:
            plain(self)
        finally:
            self._cancelled.clear()

    monkeypatch.setattr(Session, "_check", check)
    assert "without a reset" in found(scripted_backend, "cancel.prefill")


def test_a_cancel_that_does_nothing(monkeypatch):
    monkeypatch.setattr(Session, "cancel", lambda self: None)
    assert "Cancelled is right" in found(scripted_backend, "cancel.next")


def test_fc080_sessions_that_do_not_queue(monkeypatch):
    monkeypatch.setattr(ModelLock, "__enter__", lambda self: None)
    monkeypatch.setattr(ModelLock, "__exit__", lambda self, *exc: None)

    def make():
        backend = scripted_backend()

        def slow(history):
            time.sleep(0.001)
            return any_logits(history)

        backend._logits = slow
        return backend

    assert "overlap" in found(make, "pair.threads")


def test_a_call_that_hangs_is_not_waited_for_for_ever(monkeypatch):
    def next_(self):
        time.sleep(1.5)

    monkeypatch.setattr(Session, "next", next_)
    with conformance.Subject(scripted_backend, patience=0.2) as subject:
        (check,) = conformance.select("pair.one-session")
        result = check.run(subject)
    assert "no end after 0.2 seconds" in result.detail
