"""Closing: twice, in any order, and what is refused afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from eliza._trie import Trie
from eliza.conformance.rules import rule
from eliza.conformance.subject import require
from eliza.errors import Closed
from eliza.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from eliza.backends.base import Backend, Sequence
    from eliza.conformance.subject import Subject


def calls(
    s: Subject, backend: Backend, sequence: Sequence
) -> dict[str, Callable[[], Any]]:
    """Return the calls that a closed sequence refuses."""
    id_ = s.ids(1)
    found: dict[str, Callable[[], Any]] = {
        "decode": lambda: sequence.decode(id_),
        "decode_many": lambda: sequence.decode_many(id_),
        "truncate": lambda: sequence.truncate(0),
        "clear_tree": sequence.clear_tree,
        "logits": lambda: sequence.logits(0),
        "logits_window": lambda: sequence.logits_window(0),
    }
    if backend.capabilities.tree:
        found["decode_tree"] = lambda: sequence.decode_tree(id_, [-1])
        found["tree_room"] = sequence.tree_room
    if backend.capabilities.save:
        found["save"] = sequence.save
        found["restore"] = lambda: sequence.restore(b"", 0)
    return found


@rule("close.sequence")
def sequence(s: Subject) -> None:
    """A closed sequence refuses every call with `Closed`; to close it again does
    nothing (R8).
    """
    sequence, other = s.grown(s.ids(5)), s.grown(s.ids(3, 1))
    sequence.close()
    sequence.close()
    for name, call in calls(s, s.backend, sequence).items():
        with s.refused(Closed, f"{name} after close"):
            call()
    sequence.close()
    s.goes_on(other, s.ids(3, 1), "another sequence, after one was closed")
    s.goes_on(s.open(), [], "a sequence opened after one was closed")


@rule("close.backend")
def backend(s: Subject) -> None:
    """A closed backend opens nothing, and its sequences are closed with it; backend and
    sequences can be closed again, in any order.
    """
    for first in ("backend", "sequence"):
        backend = s.fresh()
        one, two = backend.open(), backend.open()
        ids = s.ids(5)
        one.decode(ids)
        found = calls(s, backend, one) | {"open": backend.open}
        if first == "sequence":
            two.close()
        backend.close()
        backend.close()
        for name, call in found.items():
            with s.refused(Closed, f"{name} after the backend was closed"):
                call()
        one.close()
        two.close()
        backend.close()


@rule("close.again-and-again")
def again(s: Subject) -> None:
    """Sequences that were closed give back what they held: any number of them can be
    opened one after another, each as full as the first.
    """
    n_ctx, ids = s.backend.n_ctx, s.ids(2)
    long = s.ids(n_ctx // 2) if n_ctx <= 2048 else ids
    for round_ in range(300):
        sequence = s.backend.open()
        try:
            if round_ < 4 or round_ % 50 == 0:
                sequence.decode(long if round_ < 4 else ids)
                if s.backend.capabilities.tree:
                    sequence.decode_tree(ids[:1], [-1])
        finally:
            sequence.close()
    s.goes_on(s.grown(ids), ids, "after 300 sequences")


@rule("close.session")
def session(s: Subject) -> None:
    """A closed session refuses each call with `Closed`; another one goes on."""
    session, other = s.session(), s.session()
    session.prefill(s.ids(5))
    other.prefill(s.ids(4, 1))
    trie = Trie.from_tokens({"one": s.ids(2)}, n_vocab=s.backend.vocab.n_vocab)
    session.close()
    session.close()
    found: dict[str, Callable[[], Any]] = {
        "next": session.next,
        "prefill": lambda: session.prefill(s.ids(1)),
        "sync": lambda: session.sync(s.ids(1)),
        "row": session.row,
        "reset": session.reset,
        "reset_keep": lambda: session.reset_keep(1),
        "set_token_trie": lambda: session.set_token_trie(trie),
        "clear_token_trie": session.clear_token_trie,
        "set_constraint": lambda: session.set_constraint(trie.cursor()),
        "clear_constraint": session.clear_constraint,
        "save_slot": lambda: session.save_slot(s.folder() / "slot"),
        "restore_slot": lambda: session.restore_slot(s.folder() / "slot"),
        "a step of stream": lambda: asyncio.run(anext(session.stream())),  # type: ignore[arg-type]
    }
    for name, call in found.items():
        with s.refused(Closed, f"{name} of a closed session"):
            call()
    session.cancel()
    session.close()
    s.free(other, 3, "another session")


@rule("close.model")
def model(s: Subject) -> None:
    """Closing a model ends its sessions; they can still be closed, in any order."""
    for order in (("session", "model"), ("model", "session")):
        model = Model(s.fresh())
        session, other = model.open(), model.open()
        session.prefill(s.ids(5))
        other.prefill(s.ids(2))
        closing = {"session": session.close, "model": model.close}
        for which in order:
            closing[which]()
        for opened in (session, other):
            with s.refused(Closed, "next after the model was closed"):
                opened.next()
        with s.refused(Closed, "open after the model was closed"):
            model.open()
        for again in (other.close, session.close, model.close):
            again()
        require(session.closed, "a session that was closed says that it is open")
