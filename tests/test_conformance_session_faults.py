"""Faults of a backend and of the session above it, each found by the check named."""

import contextlib
import itertools
import threading
import time
from pathlib import Path

import pytest

from eliza import Model, conformance
from eliza.conformance.scripted import any_logits, scripted_backend
from eliza.errors import BackendError, ContextOverflow
from eliza.generation import Generation
from eliza.ledger import SyncPlan
from eliza.locking import ModelLock
from eliza.sampling import Sampler
from eliza.session import Session
from eliza.speculation import Gate
from eliza.state import slots, snapshot
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


@pytest.mark.parametrize("check", ["draft.any", "draft.lookup", "draft.choices"])
def test_guesses_that_are_kept_too_long(check, monkeypatch):
    plain = Timeline.commit

    def commit(self, keep):
        plain(self, min(keep + 1, len(self._trial)))

    monkeypatch.setattr(Timeline, "commit", commit)
    found(scripted_backend, check)


def test_guesses_that_take_draws(monkeypatch):
    plain = Generation._draft

    def draft(self, room):
        ids = plain(self, room)
        if ids:
            self.sampler.rng.random()
        return ids

    monkeypatch.setattr(Generation, "_draft", draft)
    assert "with guesses" in found(scripted_backend, "draft.sampled")


def test_guesses_that_do_not_fit(monkeypatch):
    def decode(self, draft, plain=Generation._decode):
        if not draft:
            return plain(self, draft)
        self.timeline.attempt([*self.pending, *draft])
        return draft

    # How many is else by chance.
    monkeypatch.setattr(Gate, "length", lambda self, room: min(3, room))
    monkeypatch.setattr(Generation, "_decode", decode)
    assert "was full" in found(scripted_backend, "limits.session-end")


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


def test_a_backend_without_a_name():
    def make():
        backend = scripted_backend()
        backend.name = ""
        return backend

    assert "name" in found(make, "backend.says")


def test_a_slot_without_what_waits(monkeypatch):
    plain = snapshot.put

    def put(generation, slot, seed):
        plain(generation, slot, seed)
        generation.pending = []

    monkeypatch.setattr(snapshot, "put", put)
    assert "other ids" in found(scripted_backend, "state.slot")


def test_a_slot_that_begins_its_choice_anew(monkeypatch):
    plain = snapshot.put

    def put(generation, slot, seed):
        plain(generation, slot, seed)
        generation.rewind()

    monkeypatch.setattr(snapshot, "put", put)
    found(scripted_backend, "state.slot-choices")


def test_fc088_a_slot_without_a_checksum(monkeypatch):
    monkeypatch.setattr(slots, "_digest", lambda data: bytes(32))
    assert "flipped" in found(scripted_backend, "state.slot-damaged")


def test_a_prompt_that_is_cut_in_silence(monkeypatch):
    def prefill(self, *args, plain=Generation.prefill):
        with contextlib.suppress(ContextOverflow):
            plain(self, *args)

    monkeypatch.setattr(Generation, "prefill", prefill)
    assert "accepted" in found(scripted_backend, "limits.session-overflow")


def test_choices_that_go_before_new_ones_are_read(monkeypatch):
    def set_token_trie(self, *args, plain=Session.set_token_trie, **options):
        self.clear_token_trie()
        plain(self, *args, **options)

    monkeypatch.setattr(Session, "set_token_trie", set_token_trie)
    assert "no choice" in found(scripted_backend, "limits.errors")


def test_a_session_that_forgets_that_it_is_closed(monkeypatch):
    monkeypatch.setattr(Session, "_check", lambda self: None)
    assert "of a closed session" in found(scripted_backend, "close.session")


def test_a_model_that_is_not_closed(monkeypatch):
    monkeypatch.setattr(Model, "close", lambda self: None)
    assert "it was accepted" in found(scripted_backend, "close.model")


def test_fc085_a_close_that_hangs(monkeypatch):
    plain = Session.close

    def close(self):
        if threading.current_thread() is threading.main_thread():
            plain(self)
        else:
            time.sleep(1.5)

    monkeypatch.setattr(Session, "close", close)
    monkeypatch.setattr(Session, "prefill", lambda self, ids: self.next())
    assert found(scripted_backend, "cancel.close", patience=0.2)


def test_the_least_likely_id(monkeypatch):
    monkeypatch.setattr(Sampler, "pick_free", lambda self, row: int(row.argmin()))
    assert "free text" in found(scripted_backend, "session.greedy")


def test_the_last_of_the_choices(monkeypatch):
    def pick(self, constraint, row, greedy=False):
        return int(constraint.allowed()[-1])

    monkeypatch.setattr(Sampler, "pick", pick)
    found(scripted_backend, "choices.reference")


def test_a_prompt_in_place_of_what_waits(monkeypatch):
    def prefill(self, *args, plain=Generation.prefill):
        self.pending = []
        plain(self, *args)

    monkeypatch.setattr(Generation, "prefill", prefill)
    found(scripted_backend, "session.prefill")


def test_a_cached_prompt_that_is_another_one(monkeypatch):
    def plan(live, prompt, **options):
        keep = min(len(live), len(prompt))
        return SyncPlan(keep, keep < len(live))

    monkeypatch.setattr("eliza.timeline.plan_sync", plan)
    found(scripted_backend, "session.sync")


def test_a_reset_inside_a_choice(monkeypatch):
    monkeypatch.setattr(Generation, "rewind", lambda self: None)
    found(scripted_backend, "session.reset")


def test_a_cancel_that_a_reset_keeps(monkeypatch):
    def reset_keep(self, n, plain=Session.reset_keep):
        cancelled = self._cancelled.is_set()
        kept = plain(self, n)
        if cancelled:
            self._cancelled.set()
        return kept

    monkeypatch.setattr(Session, "reset_keep", reset_keep)
    assert "Cancelled" in found(scripted_backend, "cancel.other-times")


def test_fc086_a_stream_that_computes_ahead(monkeypatch):
    async def stream(self):
        while True:
            step = self.next()
            self.next()
            yield step

    monkeypatch.setattr(Session, "stream", stream)
    assert "went on" in found(scripted_backend, "cancel.stream")


def test_fc043_sessions_that_share_their_choices(monkeypatch):
    first = []

    def bind(self, constraint, *args, plain=Generation.bind, **options):
        first.append(constraint)
        plain(self, first[0], *args, **options)

    monkeypatch.setattr(Generation, "bind", bind)
    found(scripted_backend, "pair.sessions")


def test_every_check_has_a_fault_that_it_finds():
    folder = Path(__file__).parent
    text = "".join(path.read_text() for path in folder.glob("test_conformance_*.py"))
    missing = [c.name for c in conformance.CHECKS if f'"{c.name}"' not in text]
    assert not missing
