"""Random sequences of a session's verbs, against a session in plain Python.

The logits are a hash of the whole history, so that an id lost, doubled or taken from
another session changes all that follows. Whatever fails must leave no trace.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import eliza.session
from eliza import (
    Cancelled,
    Closed,
    ContextOverflow,
    InvalidArgument,
    Model,
    NoCandidateError,
    NotSupported,
    TokenLimit,
    Trie,
    Vocab,
)
from eliza.reference import Reference
from eliza.speculation import Gate
from eliza.testing import ScriptedBackend
from plain import Limit, PlainSession, Stuck
from support import END, hashed

# Control ids have no text of their own.
PIECES = [b"", b"", b"", b"", b"a", b"b", b"ab", b"ba", b"\xf0\x9f", b"\x90"]
PIECES += [b"\x88", b"\xc3", b"\xa9", b"c"]
N = len(PIECES)
STOPS = ("aba", "bb", "c\N{LATIN SMALL LETTER E WITH ACUTE}")
N_CTX = 60

SETS = [
    {"one": (4, 5, 6, 7)},
    {"a": (4,), "ab": (4, 5), "abc": (4, 5, 6), "long": (4, 9, 9, 9, 9, 9, 9, 8)},
    {"cat": (8, 9, 10), "half": (8, 9, 9, 9), "e": (11, 12)},
    {"x": (13, 13), "y": (13, 12), "z": (12,)},
]
TRIES = [Trie.from_tokens(leaves, n_vocab=N) for leaves in SETS]

ids = st.lists(st.integers(4, N - 1), max_size=9)
which = st.integers(0, 1)
when = st.one_of(st.none(), st.integers(1, 4))


class Broke(Exception):
    """What the runtime raises when it is told to."""


class Runtime:
    """Logits that are a hash of the history, with many ties, and fail when told to."""

    def __init__(self, seed: int) -> None:
        self.hashed = hashed(seed, N, spread=2.0)
        self.fail_in: int | None = None

    def row(self, history):
        row = np.round(self.hashed(history))
        row[END] -= 2
        if row[0] < -3:  # now and then only the special ids are usable
            row[4:] = -np.inf
        return row

    def __call__(self, history):
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0:
                raise Broke
        return self.row(history)


class Pair:
    """A session and what it should be."""

    def __init__(self, machine):
        self.session = machine.model.open(**machine.options, **machine.drafting)
        self.plain = PlainSession(
            machine.runtime.row, PIECES, (END,), **machine.options
        )
        self.set: int | None = None
        self.cancelled = False
        self.cancel_in: int | None = None
        self.prefill([4])
        self.checked = self.session.timeline.sequence.on_piece
        self.session.timeline.sequence.on_piece = self.on_piece

    def prefill(self, prompt):
        self.session.prefill(prompt)
        self.plain.prefill(prompt)

    def on_piece(self):
        if self.cancel_in is not None:
            self.cancel_in -= 1
            if self.cancel_in < 0:
                self.session.cancel()
                self.cancelled = True
        self.checked()


class Verbs(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 10**6),
        truncate=st.sampled_from([True, True, False]),
        save=st.sampled_from([True, True, False]),
        temperature=st.sampled_from([0.0, 0.0, 1.0, 0.7]),
        top_k=st.sampled_from([0, 3]),
        penalty=st.sampled_from([1.0, 1.0, 1.5, 0.8]),
        last_n=st.sampled_from([3, 64]),
        bias=st.sampled_from([{}, {4: 2.5, 13: -np.inf}]),
        stop=st.sampled_from([(), STOPS]),
        limit=st.sampled_from([None, None, 3, 7]),
        draft=st.booleans(),
        draft_max=st.sampled_from([1, 3, 7]),
        max_rows=st.sampled_from([None, 2, 5]),
        n_batch=st.sampled_from([2, 128]),
    )
    def start(
        self, seed, truncate, save, temperature, top_k, penalty, last_n, bias, stop,
        limit, draft, draft_max, max_rows, n_batch,
    ):  # fmt: skip
        self.runtime = Runtime(seed)
        texts = [b"<0>", b"<1>", b"<2>", b"<3>", *PIECES[4:]]
        vocab = Vocab.from_tokens(texts, control=(0, 1, 2, 3), eog=(END,))
        backend = ScriptedBackend(
            vocab,
            self.runtime,
            n_ctx=N_CTX,
            truncate=truncate,
            save=save,
            tree=False,
            max_rows=max_rows,
            n_batch=n_batch,
        )
        self.model = Model(backend)
        self.truncate, self.save = truncate, save
        self.options = {
            "temperature": temperature,
            "top_k": top_k,
            "repeat_penalty": penalty,
            "penalty_last_n": last_n,
            "logit_bias": bias,
            "stop": stop,
            "max_tokens": limit,
            "seed": seed,
        }
        self.drafting = {}
        if draft and truncate:
            self.drafting = {"draft": Guesses(self.runtime), "draft_max": draft_max}
        self.pairs = [Pair(self), Pair(self)]
        self.folder = Path(tempfile.mkdtemp(prefix="eliza-verbs-"))
        self.files: dict[str, tuple[int | None, dict]] = {}

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def call(self, i, verb, fail=None, cancel=None):
        """Do something that may fail; return whether it did, after looking for traces.

        What the runtime fails with must be what comes out.
        """
        pair = self.pairs[i]
        if pair.cancelled:
            with pytest.raises(Cancelled):
                verb(pair.session)
            return True
        self.runtime.fail_in, pair.cancel_in = fail, cancel
        try:
            verb(pair.session)
        except Broke:
            assert fail is not None
            return True
        except Cancelled:
            assert pair.cancelled
            return True
        finally:
            self.runtime.fail_in = pair.cancel_in = None
        return False

    # -- feeding -----------------------------------------------------------------

    @rule(i=which, prompt=ids, fail=when, cancel=when, report=st.booleans())
    def prefill(self, i, prompt, fail, cancel, report):
        plain, seen = self.pairs[i].plain, []
        begun = len(plain.history)

        def on_frontier(frontier):
            seen.append((frontier.current, frontier.total))

        def verb(session):
            session.prefill(prompt, on_frontier if report else None)

        if begun + len(prompt) > N_CTX and not self.pairs[i].cancelled:
            with pytest.raises(ContextOverflow):
                verb(self.pairs[i].session)
        elif not self.call(i, verb, fail, cancel):
            plain.prefill(prompt)
            if report:
                end = begun + len(prompt)
                points = [n for n in range(begun + 1, end) if n % 4 == 0]
                ends = [end] if prompt else []
                assert seen == [(n, end) for n in (begun, *points, *ends)]

    @rule(i=which, text=st.sampled_from(["", "aab", "<2>b", "\U0001f408"]))
    def prefill_text(self, i, text):
        pair = self.pairs[i]
        ids = {"": [], "aab": [4, 6], "<2>b": [2, 5], "\U0001f408": [8, 9, 10]}[text]
        if len(pair.plain.history) + len(ids) > N_CTX:
            return
        if not self.call(i, lambda session: session.prefill(text)):
            pair.plain.prefill(ids)

    @rule(i=which, keep=st.integers(0, 70), tail=ids, fail=when, cancel=when)
    def sync(self, i, keep, tail, fail, cancel):
        pair = self.pairs[i]
        plain = pair.plain
        prompt = [*plain.history[:keep], *tail]
        if not prompt or pair.cancelled:
            return
        if len(prompt) > N_CTX:
            return
        if not self.call(i, lambda session: session.sync(prompt), fail, cancel):
            plain.sync(prompt)
        elif list(pair.session.history) != plain.history:
            # It keeps what it holds of the prompt, and begins above it.
            held = list(pair.session.history)
            assert held == prompt[: len(held)]
            plain.sync(held)

    @rule(i=which, keep=st.integers(0, 20), bad=st.sampled_from([[4] * 90, [N], ["a"]]))
    def give_what_is_refused(self, i, keep, bad):
        pair = self.pairs[i]
        for verb in (
            lambda session: session.prefill(bad),
            lambda session: session.sync([*pair.plain.history[:keep], *bad]),
        ):
            with pytest.raises((InvalidArgument, ContextOverflow, Cancelled)):
                verb(pair.session)
            self.all_is_as_it_should_be()

    # -- generating --------------------------------------------------------------

    @rule(i=which, fail=when, cancel=when)
    def next(self, i, fail, cancel):
        self.step(i, fail, cancel)

    @rule(i=which, n=st.integers(2, 12))
    def several(self, i, n):
        for _ in range(n):
            self.step(i, None, None)

    @rule(i=which, prompt=ids, n=st.integers(2, 12))
    def turn(self, i, prompt, n):
        """Do what a user does all the time."""
        if len(self.pairs[i].plain.history) + len(prompt) > N_CTX // 2:
            self.reset(i, prompt)
        self.prefill(i, prompt, None, None, False)
        self.several(i, n)

    @rule(i=which, at=st.integers(0, len(SETS) - 1), n=st.integers(1, 12))
    def span(self, i, at, n):
        self.set_token_trie(i, at, False)
        self.several(i, n)
        self.clear_token_trie(i)
        self.several(i, 2)

    def step(self, i, fail, cancel):
        pair = self.pairs[i]
        plain, steps = pair.plain, []
        if pair.cancelled:
            self.call(i, lambda session: session.next())
            return
        before = plain.saved()
        try:
            text = plain.begin()
        except Limit:
            with pytest.raises(TokenLimit):
                pair.session.next()
            return
        if text is not None:
            step = pair.session.next()
            assert (step.ids, step.text, step.final) == ((), text, True)
            assert step.finish_reason == plain.finish
            return
        forced = plain.reference is not None and plain.reference.forced(plain.path)
        if not forced:
            if not plain.history:
                with pytest.raises(InvalidArgument, match="nothing was prefilled"):
                    pair.session.next()
                plain.load(before)
                return
            if len(plain.history) > N_CTX:
                with pytest.raises(ContextOverflow):
                    pair.session.next()
                plain.load(before)
                return
            try:
                plain.one()
            except Stuck:
                plain.load(before)
                if not self.call(i, self.stuck, fail, cancel):
                    return
                return
            plain.load(before)
            plain.begin()
        if self.call(i, lambda s: steps.append(s.next()), fail, cancel):
            plain.load(before)
            return
        (step,) = steps
        text, score, n_forced = "", None, 0
        for token in step.ids:
            one_forced = plain.reference and plain.reference.forced(plain.path)
            n_forced += bool(one_forced)
            taken, shown, logprob = plain.one()
            assert taken == token
            text += shown
            if logprob is not None:
                score = (score or 0.0) + logprob
        if step.final and plain.finish is None:
            taken, shown, logprob = plain.one()
            assert taken is None
            if logprob is not None:
                score = (score or 0.0) + logprob
        assert step.ids or step.final
        assert step.final == (plain.finish is not None)
        assert step.finish_reason == plain.finish
        if step.final:
            text += plain.text.flush()
        assert step.text == text
        assert step.forced == n_forced
        assert step.accepted <= step.drafted
        assert not step.drafted or self.drafting
        if score is None:
            assert step.logprob is None
        else:
            assert step.logprob == pytest.approx(score, abs=1e-4)

    @staticmethod
    def stuck(session):
        with pytest.raises(NoCandidateError):
            session.next()

    @rule(i=which)
    def row(self, i):
        pair = self.pairs[i]
        if not pair.cancelled and 0 < len(pair.plain.history) <= N_CTX:
            expected = self.runtime.row(tuple(pair.plain.history))
            assert pair.session.row().tolist() == expected.tolist()

    # -- what binds --------------------------------------------------------------

    @rule(i=which, at=st.integers(0, len(SETS) - 1), sample=st.booleans())
    def set_token_trie(self, i, at, sample):
        pair, mode = self.pairs[i], "sample" if sample else "greedy"
        if sample and not self.options["temperature"]:
            with pytest.raises(InvalidArgument, match="temperature"):
                pair.session.set_token_trie(TRIES[at], mode=mode)
            return
        if not self.call(i, lambda s: s.set_token_trie(TRIES[at], mode=mode)):
            pair.plain.bind(Reference(SETS[at], exits=[END]), not sample)
            pair.set = at

    @rule(
        i=which, bad=st.sampled_from([b"{}", "RTKT", b"RTKT", 5, b'{"modelId": "x"}'])
    )
    def set_a_bad_token_trie(self, i, bad):
        with pytest.raises((InvalidArgument, Cancelled)):
            self.pairs[i].session.set_token_trie(bad)

    @rule(i=which)
    def clear_token_trie(self, i):
        if not self.call(i, lambda session: session.clear_token_trie()):
            self.pairs[i].plain.bind(None)
            self.pairs[i].set = None

    @rule(i=which, limit=st.one_of(st.none(), st.integers(0, 12)))
    def change_the_limit(self, i, limit):
        self.pairs[i].session.max_tokens = limit
        self.pairs[i].plain.max_tokens = limit

    # -- ending ------------------------------------------------------------------

    @rule(i=which, times=st.integers(1, 2), go_on=st.integers(0, 3))
    def cancel(self, i, times, go_on):
        pair = self.pairs[i]
        for _ in range(times):
            pair.session.cancel()
        pair.cancelled = True
        self.step(i, None, None)
        if go_on:
            self.reset_keep(i, 0, True)

    @rule(i=which, prompt=ids)
    def reset(self, i, prompt):
        pair = self.pairs[i]
        pair.session.reset()
        pair.cancelled = False
        pair.plain.keep(0)
        pair.prefill(prompt)

    @rule(i=which, n=st.integers(1, 9), fail=st.integers(0, 1))
    def cut_and_fail(self, i, n, fail):
        self.reset_keep(i, n, True)
        self.step(i, fail, None)

    @rule(i=which, n=st.integers(-2, 20), back=st.booleans())
    def reset_keep(self, i, n, back):
        pair = self.pairs[i]
        held = len(pair.plain.history)
        n = held - n if back else n
        kept = pair.session.reset_keep(n)
        wanted = max(0, min(n, held))
        assert kept == wanted or (kept == 0 and not self.truncate and wanted < held)
        pair.cancelled = False
        pair.plain.keep(kept)

    @rule(i=which)
    def reopen(self, i):
        self.pairs[i].session.close()
        for verb in (
            lambda s: s.next(),
            lambda s: s.prefill([4]),
            lambda s: s.reset(),
            lambda s: s.save_slot(self.folder / "closed"),
            lambda s: s.set_token_trie(TRIES[0]),
        ):
            with pytest.raises(Closed):
                verb(self.pairs[i].session)
        self.pairs[i] = Pair(self)

    # -- saved state -------------------------------------------------------------

    @rule(i=which, name=st.sampled_from("pqr"))
    def save_slot(self, i, name):
        pair, path = self.pairs[i], self.folder / name
        if not self.save:
            with pytest.raises((NotSupported, Cancelled)):
                pair.session.save_slot(path)
            assert not path.exists()
        elif not self.call(i, lambda session: session.save_slot(path)):
            self.files[name] = (pair.set, pair.plain.saved())

    @rule(i=which, name=st.sampled_from("pqr"), n=st.integers(0, 5))
    def there_and_back(self, i, name, n):
        self.turn(i, [4], n)
        self.save_slot(i, name)
        if self.save and not self.pairs[i].cancelled:
            self.several(i, n)
            self.restore_slot(i, name, None)
            self.several(i, n)

    @rule(i=which, name=st.sampled_from("pqr"), seed=st.sampled_from([None, None, 3]))
    def restore_slot(self, i, name, seed):
        pair, path = self.pairs[i], self.folder / name
        if pair.cancelled:
            self.call(i, lambda session: session.restore_slot(path))
        elif not self.save:
            with pytest.raises((NotSupported, OSError)):
                pair.session.restore_slot(path)
        elif name not in self.files:
            with pytest.raises(FileNotFoundError):
                pair.session.restore_slot(path)
        elif self.files[name][0] != pair.set:
            with pytest.raises(InvalidArgument, match="choices"):
                pair.session.restore_slot(path)
        else:
            pair.session.restore_slot(path, seed)
            pair.plain.load(self.files[name][1])
            if seed is not None:
                pair.plain.rng = np.random.Generator(np.random.PCG64(seed))

    # -- what holds at any time --------------------------------------------------

    @invariant()
    def all_is_as_it_should_be(self):
        for pair in getattr(self, "pairs", ()):
            session, plain = pair.session, pair.plain
            assert session.history == tuple(plain.history)
            assert session.ids == tuple(plain.ids)
            assert session.finish_reason == plain.finish
            assert session.output == b"".join(PIECES[i] for i in plain.ids)
            if pair.set is not None:
                leaf = plain.reference.leaf(plain.path)
                assert session.name == leaf
            held = session.timeline.sequence.history
            assert held == tuple(plain.history[: len(held)])
            state = session._generation.sampler.rng.bit_generator.state
            assert state == plain.rng.bit_generator.state


class Guesses:
    """Drafts that are right as often as not, and now and then nonsense."""

    def __init__(self, runtime):
        self.runtime = runtime

    def propose(self, history, n):
        out = []
        for _ in range(n):
            row = self.runtime.row((*history, *out))
            row[:4] = -np.inf
            token = int(row.argmax())
            if len(history) % 3 == 0 and len(out) == len(history) % 2:
                token = 4 + (token + 1) % (N - 4)
            out.append(token)
        return out

    def close(self):
        pass


@pytest.fixture(autouse=True)
def more_of_everything(monkeypatch):
    """Put frontiers at each fourth id, and draft whether or not it pays."""
    monkeypatch.setattr(eliza.session, "FRONTIER", 4)
    monkeypatch.setattr(Gate, "length", lambda gate, room: min(gate.most, room))


quick = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}


def test_verbs():
    machine = settings(max_examples=150, stateful_step_count=40, **quick)
    run_machine(machine)


@pytest.mark.long
def test_verbs_at_length():
    run_machine(settings(max_examples=1000, stateful_step_count=50, **quick))


def run_machine(how):
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(Verbs, settings=how)
