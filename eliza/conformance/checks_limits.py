"""The end of the context, and arguments that are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from eliza._trie import Trie
from eliza.conformance.rules import rule
from eliza.conformance.subject import held, require
from eliza.conformance.threads import Gate
from eliza.errors import ContextOverflow, InvalidArgument

if TYPE_CHECKING:
    from eliza.conformance.subject import Subject

#: Contexts up to this length are filled.
FILLED = 2048


@rule("limits.bad-ids")
def bad_ids(s: Subject) -> None:
    """Ids that are none are refused before anything is decoded, and change nothing
    (R5, R7).
    """
    ids = s.ids(5)
    sequence = s.grown(ids)
    good = ids[0]
    wrong: list[tuple[str, Any]] = [
        ("no ids", []),
        ("an id below 0", [good, -1]),
        ("an id past the vocabulary", [good, s.n_vocab]),
        ("an id of 32 bits", [2**31]),
        ("an id of 64 bits", [2**63]),
        ("an id far below 0", [-(2**31)]),
        ("a fraction", [1.5]),
        ("a text", ["7"]),
        ("nothing", [None]),
        ("a list in the list", [[good, good]]),
        ("an array of fractions", np.array([1.0, 2.0])),
    ]
    for what, given in wrong:
        for decode in (sequence.decode, sequence.decode_many):
            with s.refused(InvalidArgument, f"{decode.__name__} of {what}"):
                decode(given)
            held(sequence, len(ids), f"after {what}")
            s.same(sequence.logits(0), ids, f"after {what}")
    s.goes_on(sequence, ids, "after ids that were refused")


@rule("limits.rows")
def rows(s: Subject) -> None:
    """`decode_many` takes `max_rows` ids; one more is refused and changes nothing."""
    sequence = s.grown(s.ids(3))
    n = sequence.max_rows
    if n + 4 > s.backend.n_ctx or n > FILLED:
        return  # the end of the context comes first
    ids = s.ids(n + 1, 1)
    with s.refused(InvalidArgument, f"decode_many of {n + 1} ids, where {n} is most"):
        sequence.decode_many(ids)
    held(sequence, 3, "after too many rows")
    s.same(sequence.logits(0), s.ids(3), "after too many rows")
    sequence.decode_many(ids[:n])
    row = sequence.logits(n - 1)
    sequence.close()
    s.same(row, [*s.ids(3), *ids[:n]], f"the last of {n} rows")


@rule("limits.overflow")
def overflow(s: Subject) -> None:
    """Ids that do not fit raise ContextOverflow before any of them is decoded."""
    ids, n_ctx = s.ids(3), s.backend.n_ctx
    sequence = s.grown(ids)
    gate = Gate(None, 0, s.patience)
    sequence.on_piece = gate
    for n in (n_ctx - len(ids) + 1, n_ctx, n_ctx + 1):
        what = f"decode of {n} ids above {len(ids)}, where {n_ctx} fit"
        with s.refused(ContextOverflow, what):
            sequence.decode(s.ids(n, 1))
        require(gate.seen == 0, f"{what}: pieces of it were computed")
        held(sequence, len(ids), f"after {what}")
    empty = s.open()
    with s.refused(ContextOverflow, f"decode of {n_ctx + 1} ids, where {n_ctx} fit"):
        empty.decode(s.ids(n_ctx + 1, 1))
    held(empty, 0, "after an overflow")
    s.goes_on(sequence, ids, "after an overflow")


@rule("limits.full")
def full(s: Subject) -> None:
    """A timeline holds n_ctx ids and not one more, and can be used when it is full."""
    n_ctx = s.backend.n_ctx
    if n_ctx > FILLED:
        return  # it would take too long
    ids, more = s.ids(n_ctx), s.ids(1, 1)
    sequence = s.open()
    sequence.decode(ids[:-1])
    sequence.decode(ids[-1:])
    held(sequence, n_ctx, "a full context")
    row = sequence.logits(0)
    require(not np.isnan(row[: s.n_vocab]).any(), "the last row of the context is NaN")
    for decode in (sequence.decode, sequence.decode_many):
        with s.refused(ContextOverflow, f"{decode.__name__} in a full context"):
            decode(more)
        held(sequence, n_ctx, "after an overflow")
    if s.backend.capabilities.tree:
        # That there is no room may be said in either of two ways.
        with s.refused((ContextOverflow, InvalidArgument), "a tree in a full context"):
            sequence.decode_tree(more, [-1])
        held(sequence, n_ctx, "after an overflow")
    keep = 5 if s.can_truncate else 0
    sequence.truncate(keep)
    sequence.decode(more)
    row = sequence.logits(0)
    sequence.close()
    s.same(row, [*ids[:keep], *more], "after a full context was cut")


@rule("limits.session-overflow")
def session_overflow(s: Subject) -> None:
    """A prompt that does not fit leaves the session as it was, and usable."""
    n_ctx = s.backend.n_ctx
    session = s.session()
    for start in ([], s.ids(4)):
        if start:
            session.prefill(start)
        with s.refused(ContextOverflow, f"a prompt of {n_ctx + 1} ids"):
            session.prefill(s.ids(n_ctx + 1))
        require(list(session.history) == start, "a refused prompt changed the session")
    s.free(session, 4, "after a prompt that did not fit")


@rule("limits.session-end")
def session_end(s: Subject) -> None:
    """A generation that reaches the end of the context raises ContextOverflow, keeps
    its ids, and goes on after `reset_keep`; guesses do not make the end come sooner.
    """
    n_ctx = s.backend.n_ctx
    if n_ctx > FILLED:
        return
    drafts = [None, "lookup"] if s.can_truncate else [None]
    for draft in drafts:
        # Text that only the context ends, and in which lookup always finds something.
        period, bias = s.two_only()
        prompt = (period * (n_ctx // len(period) + 1))[: n_ctx - 3]
        session = s.session(draft=draft, logit_bias=bias)
        session.prefill(prompt)
        with s.refused(ContextOverflow, "a generation past the end of the context"):
            for _ in range(8):
                session.next()
        history = list(session.history)
        # The last row of a full context still gives an id, which waits.
        require(
            len(history) == n_ctx + 1,
            f"draft={draft!r}: {len(history)} ids came until the context of {n_ctx} "
            f"was full; {n_ctx + 1} is right",
        )
        require(history[: len(prompt)] == prompt, "the prompt was lost")
        kept = session.reset_keep(5)
        require(kept == (5 if s.can_truncate else 0), f"reset_keep(5) kept {kept}")
        if not kept:
            session.prefill(prompt[:5])
        history = [*session.history]
        require(history == prompt[:5], "what was kept is not the beginning")
        row = session.row().copy()
        session.close()
        s.same(row, history, "after the end of the context")


@rule("limits.errors")
def errors(s: Subject) -> None:
    """After calls that are refused a session is as it was, inside a choice too."""
    a, b, c, d = s.pool[:4]
    trie = Trie.from_tokens({"one": [a, b, c], "two": [a, c, d]}, n_vocab=s.n_vocab)
    session = s.session()
    session.prefill(s.ids(5))
    session.set_token_trie(trie)
    session.next()  # the forced beginning
    before, text = session.history, cast("int", "5")
    calls: list[tuple[str, Any]] = [
        ("prefill of a bad id", lambda: session.prefill([s.n_vocab])),
        ("prefill of a negative id", lambda: session.prefill([-1])),
        ("sync to nothing", lambda: session.sync([])),
        ("a payload that is none", lambda: session.set_token_trie(b"{}")),
        ("a mode that is none", lambda: session.set_token_trie(trie, mode="beam")),
        ("reset_keep of a text", lambda: session.reset_keep(text)),
        (
            "a trie of another vocabulary",
            lambda: session.set_token_trie(
                Trie.from_tokens({"x": [1]}, n_vocab=s.n_vocab + 1)
            ),
        ),
    ]
    for what, call in calls:
        with s.refused(InvalidArgument, what):
            call()
        require(session.history == before, f"{what} changed the ids")
    steps = list(session)
    ids = list(session.ids)
    require(ids in ([a, b, c], [a, c, d]), f"after errors {ids} came: no choice")
    require(steps[-1].finish_reason == "choice", "the choice did not end")
    row = s.row_after([*s.ids(5), a])
    s.best(ids[1], row, [b, c], "after errors, the choice")
