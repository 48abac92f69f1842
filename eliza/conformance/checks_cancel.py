"""Cancelling at any time, from any thread, and errors out of callbacks."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.conformance.rules import rule
from eliza.conformance.subject import held, require
from eliza.conformance.threads import Gate
from eliza.errors import Cancelled, Closed
from eliza.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from eliza.backends.base import Sequence
    from eliza.conformance.subject import Subject
    from eliza.session import Session


def pieces(s: Subject, ids: list[int]) -> int:
    """Return in how many pieces a decode of these ids is computed."""
    gate = Gate(None, 0, s.patience)
    sequence = s.open()
    sequence.on_piece = gate
    sequence.decode(ids)
    sequence.close()
    require(gate.seen, f"on_piece was not called in a decode of {len(ids)} ids")
    return gate.seen


def stop_at(n: int, error: BaseException) -> Callable[[], None]:
    """Return an `on_piece` that raises at its n-th call."""
    seen = 0

    def stop() -> None:
        nonlocal seen
        seen += 1
        if seen == n:
            raise error

    return stop


@rule("cancel.on-piece")
def on_piece(s: Subject) -> None:
    """What `on_piece` raises passes through unchanged and undoes the decode, whatever
    it is and at whichever piece (FC-116, R7).
    """
    ids, long = s.ids(5), s.ids(s.long(), 1)
    last = pieces(s, long)
    errors: list[BaseException] = [
        ValueError("x"),
        KeyboardInterrupt(),
        SystemExit(3),
        MemoryError(),
        Cancelled("x"),
    ]
    for error in errors:
        for piece in sorted({1, (last + 1) // 2, last}):
            sequence = s.grown(ids)
            interrupted(s, sequence, piece, error, lambda q: q.decode(long))
            went_back(s, sequence, ids, f"{type(error).__name__} at piece {piece}")
            sequence.close()
    few = s.ids(min(4, s.open().max_rows), 2)
    sequence = s.grown(ids)
    interrupted(s, sequence, 1, ValueError("x"), lambda q: q.decode_many(few))
    went_back(s, sequence, ids, "an error in decode_many")


def interrupted(
    s: Subject,
    sequence: Sequence,
    piece: int,
    error: BaseException,
    decode: Callable[[Sequence], Any],
) -> None:
    """Require an error that is raised at a piece to come out of a decode."""
    name = f"{type(error).__name__} raised by on_piece at piece {piece}"
    sequence.on_piece = stop_at(piece, error)
    try:
        decode(sequence)
    except BaseException as raised:
        if raised is not error:
            raise
    else:
        require(False, f"{name} disappeared")
    sequence.on_piece = None


def went_back(s: Subject, sequence: Sequence, ids: list[int], what: str) -> None:
    """Require a sequence to hold these ids, or none where the runtime cannot cut."""
    position = sequence.position
    if position == 0 and not s.can_truncate:
        ids = []
    require(position == len(ids), f"{what}: position is {position}, not {len(ids)}")
    s.goes_on(sequence, ids, what)


@rule("cancel.on-piece-tree", needs="tree")
def on_piece_tree(s: Subject) -> None:
    """What `on_piece` raises in `decode_tree` leaves the nodes of earlier batches."""
    ids, (a, b, c) = s.ids(5), s.ids(3, 1)
    sequence = s.grown(ids)
    sequence.decode_tree([a], [-1])
    sequence.decode_tree([b], [0])
    before = sequence.tree_room()
    for parent in (0, 1):

        def grow(sequence: Sequence, parent: int = parent) -> None:
            sequence.decode_tree([c], [parent])

        interrupted(s, sequence, 1, ValueError("x"), grow)
        held(sequence, len(ids), "an error in decode_tree")
        require(sequence.tree_room() == before, "an error in decode_tree cost room")
    sequence.decode_tree([c], [1])
    s.same(sequence.logits(0), [*ids, a, b, c], "a node after an error")
    sequence.decode_tree([a], [0])
    s.same(sequence.logits(0), [*ids, a, a], "a branch after an error")
    sequence.clear_tree()
    s.goes_on(sequence, ids, "after a tree with an error")


def endless(s: Subject) -> tuple[Session, list[int]]:
    """Return a session whose text does not end, and the ids that it may have."""
    eog = s.backend.vocab.eog
    session = s.session(logit_bias=dict.fromkeys(eog, -np.inf))
    session.prefill(s.ids(6))
    return session, [token for token in range(s.n_vocab) if token not in eog]


def cancelled_at(s: Subject, session: Session, n: int, work: Callable[[], Any]) -> bool:
    """Cancel a call from this thread while another one is in its n-th piece.

    Returns whether it got that far; then it was cancelled.
    """
    sequence = session.timeline.sequence
    inner = sequence.on_piece
    gate = Gate(inner, n, s.patience)
    sequence.on_piece = gate
    worker = s.thread(work)
    try:
        if not gate.reached(worker):
            worker.result("a call in another thread")
            return False
        session.cancel()
        session.cancel()
    finally:
        gate.open.set()
        sequence.on_piece = inner
    with s.refused(Cancelled, f"a call that was cancelled in its piece {n}"):
        worker.result("a call that was cancelled")
    with s.refused(Cancelled, "the call after it, without a reset"):
        session.next()
    return True


@rule("cancel.prefill")
def in_prefill(s: Subject) -> None:
    """`cancel` from another thread ends a prefill within a piece; the session is as it
    was, and goes on after `reset_keep` (FC-083, R10).
    """
    ids, long = s.ids(5), s.ids(s.long(), 1)
    for piece in sorted({1, pieces(s, long)}):
        session = s.session()
        session.prefill(ids)
        # An id that waits to be decoded has to stay as well, or go with the others.
        before = [*ids, *s.free(session, 1, "before a prefill")]
        if not cancelled_at(s, session, piece, partial(session.prefill, long)):
            require(piece > 1, "on_piece was not called in a prefill")
            continue
        history = list(session.history)
        empty = not history and not session.ids and not s.can_truncate
        require(
            history == before or empty,
            f"a cancelled prefill left {len(history)} of {len(before)} ids",
        )
        kept = session.reset_keep(len(history))
        require(kept == len(history), f"reset_keep kept {kept} of {len(history)}")
        session.prefill(long)
        whole = [*history, *long]
        s.same(session.row(), whole, "the same prompt after it was cancelled")
        session.close()


@rule("cancel.next")
def in_next(s: Subject) -> None:
    """`cancel` from another thread ends `next`; what was chosen before stays, and the
    session goes on after `reset_keep` (R10).
    """
    session, others = endless(s)
    for round_ in range(3):
        s.free(session, 2, f"round {round_}", others)
        history = list(session.history)
        if not cancelled_at(s, session, 1, session.next):
            require(False, "on_piece was not called in next")
        held_now = list(session.history)
        if held_now != history:
            require(
                not s.can_truncate,
                f"a cancelled next left {len(held_now)} ids of {len(history)}",
            )
        kept = session.reset_keep(len(held_now))
        require(
            kept == len(held_now) or not s.can_truncate,
            f"reset_keep kept {kept} of {len(held_now)}",
        )
        if kept < len(history):
            session.reset()
            session.prefill(history)
        s.same(session.row(), history, "after next was cancelled")


@rule("cancel.other-times")
def other_times(s: Subject) -> None:
    """`cancel` before a call makes it raise `Cancelled`, and each further one until a
    reset; between calls, after the end and twice it does no more than that.
    """
    prompt = s.ids(5)
    session = s.session(max_tokens=2)
    session.cancel()
    with s.refused(Cancelled, "prefill after cancel"):
        session.prefill(prompt)
    with s.refused(Cancelled, "prefill after cancel, again"):
        session.prefill(prompt)
    session.reset()
    session.prefill(prompt)
    list(session)
    session.cancel()
    session.cancel()
    with s.refused(Cancelled, "next after the end and cancel"):
        session.next()
    session.reset()
    require(not session.history, "reset left ids")
    session.prefill(prompt)
    s.free(session, 2, "after all that")


@rule("cancel.close")
def closing(s: Subject) -> None:
    """A session, and a model with its backend, can be closed while another thread
    generates: that thread gets Cancelled or Closed, and nobody hangs (FC-085).
    """
    for what in ("session", "model"):
        model = Model(s.fresh())
        session = model.open()
        session.prefill(s.ids(5))
        session.next()
        if session.finish_reason is not None:
            session.reset()
            session.prefill(s.ids(5))
        sequence = session.timeline.sequence
        gate = Gate(sequence.on_piece, 1, s.patience)
        sequence.on_piece = gate

        def work(session: Session = session) -> None:
            for _ in range(3):
                session.prefill(s.ids(2))

        worker = s.thread(work)
        try:
            require(gate.reached(worker), "on_piece was not called in a prefill")
            closer = s.thread({"session": session.close, "model": model.close}[what])
            time.sleep(0.05)  # it waits for the piece now
        finally:
            gate.open.set()
        with s.refused((Cancelled, Closed), f"a prefill while the {what} was closed"):
            worker.result("a call while its session was closed")
        closer.result(f"closing a {what} while another thread generates")
        with s.refused(Closed, f"next after the {what} was closed"):
            session.next()
        session.close()
        model.close()


@rule("cancel.stream")
def stream(s: Subject) -> None:
    """A stream that is dropped after a step leaves the session where that step was
    (FC-086).
    """

    async def one_step(session: Session) -> None:
        stream = session.stream()
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]

    session, others = endless(s)
    for round_ in range(3):
        before = len(session.history)
        # In a thread of its own: this one may have an event loop already.
        work = s.thread(lambda: asyncio.run(one_step(session)))
        work.result("one step of a stream")
        require(len(session.history) <= before + 1, "a dropped stream went on")
        require(len(session.history) > before, "a stream gave nothing")
        s.same(session.row(), session.history, f"after a dropped stream, {round_}")
    s.free(session, 3, "after a dropped stream", others)
