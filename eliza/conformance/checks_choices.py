"""A constraint over the runtime's own rows: always a choice, and the right one."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from eliza._trie import Trie
from eliza.conformance.rules import rule
from eliza.conformance.subject import require
from eliza.model import Model
from eliza.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Sequence as Ids
    from pathlib import Path

    from eliza.conformance.subject import Subject
    from eliza.session import Session


def random_leaves(s: Subject, seed: int) -> dict[str, tuple[int, ...]]:
    """Return choices that share beginnings and continue each other."""
    rng = np.random.default_rng([23, seed])
    leaves = {
        tuple(s.pool[i] for i in rng.integers(0, 4, rng.integers(1, 5)))
        for _ in range(rng.integers(1, 8))
    }
    return {f"c{i}": ids for i, ids in enumerate(sorted(leaves))}


@rule("choices.reference")
def reference(s: Subject) -> None:
    """Greedy within choices is what `eliza.reference` says over this runtime's rows."""
    exit_ = s.pool[6]
    session = s.session()
    for seed in range(8):
        leaves, prompt = random_leaves(s, seed), s.ids(5, seed)
        reference = Reference(leaves, exits=[exit_])
        trie = Trie.from_tokens(leaves, n_vocab=s.n_vocab)
        session.sync(prompt)
        session.set_constraint(trie.cursor(exits=[exit_]))
        list(session)
        path = session.ids
        require(
            reference.leaf(path) is not None, f"{path} came, which is none of {leaves}"
        )
        s.know([*prompt, *path], len(prompt))
        for n, token in enumerate(path):
            row = s.row_after([*prompt, *path[:n]])
            s.best(token, row, reference.allowed(path[:n]), f"set {seed}, id {n}")
        require(
            session.history == (*prompt, *path), "the history is not prompt and choice"
        )


#: Places in the pool: sets in which choices share beginnings and differ in length.
SET = ((0, 1, 2), (0, 1, 3), (0, 4), (5, 1), (5, 6, 7, 8))


@rule("choices.exact")
def exact(s: Subject) -> None:
    """`Model.choose` takes the choice with the best whole likelihood, by its tree or
    without one, and scores are those of the reference.
    """
    model = Model(s.fresh())
    for seed in range(3):
        prompt = s.ids(5, seed)
        leaves = {f"c{i}": tuple(s.pool[j] for j in ids) for i, ids in enumerate(SET)}

        def row(path: Ids[int], prompt: list[int] = prompt) -> list[float]:
            return cast("list[float]", s.row_after([*prompt, *path]).tolist())

        scores = Reference(leaves).scores(row, whole=True)
        answer = model.choose(
            prompt, Trie.from_tokens(leaves, n_vocab=s.n_vocab), ranking="whole"
        )
        slack = 1e-4 + 2 * s.tolerance * 4  # of four ids, and their normalisers
        best = max(scores.values())
        require(
            scores[answer.value] >= best - slack,
            f"choose gave {answer.value}: {scores[answer.value]:.6g}, best {best:.6g}",
        )
        require(answer.ranking is not None, "no ranking came")
        for ranked in answer.ranking or ():
            apart = abs(ranked.logprob - scores[ranked.value])
            what = f"the score of {ranked.value} is off by {apart:.3g}"
            require(apart <= slack, what)


# -- one unlikely choice, however it is asked for (FC-118) -----------------------------

PICKS = ("greedy", "sample")
READS = ("next", "stream")
DRAFTS = ("none", "lookup", "free")
ORIGINS = ("new", "cached prompt", "reset", "reset_keep", "slot")


class Unruly:
    """Proposes what the model would write without a constraint."""

    def __init__(self, s: Subject, ids: list[int]) -> None:
        self._ids = ids

    def propose(self, history: Ids[int], n: int) -> list[int]:
        """Return ids that no choice has."""
        return (self._ids * n)[:n]

    def close(self) -> None:
        """Do nothing."""


def unlikely(s: Subject, prompt: list[int]) -> tuple[list[int], list[int]]:
    """Return two choices of the least likely ids, which part at their second id."""
    pool = np.array(s.pool)
    first = int(pool[s.row_after(prompt)[pool].argmin()])
    row = s.row_after([*prompt, first])
    second, third = pool[np.argsort(row[pool])[:2]].tolist()
    return [first, second, first, third], [first, third, third]


def session_for(s: Subject, pick: str, draft: str, likely: list[int]) -> Session:
    """Return a session with these options."""
    drafts: dict[str, Any] = {"none": None, "lookup": "lookup"}
    drafter = drafts[draft] if draft in drafts else Unruly(s, likely)
    sampling: dict[str, Any] = (
        {"temperature": 1.0, "seed": 5} if pick == "sample" else {}
    )
    return s.session(draft=drafter, **sampling)


def begin(
    s: Subject, session: Session, origin: str, prompt: list[int], trie: Trie, pick: str
) -> None:
    """Bring a session to the point at which the choice is to come."""
    if origin == "cached prompt":
        session.sync([*prompt, *s.ids(3, 4)])
        session.sync(prompt)
    elif origin in ("reset", "reset_keep"):
        session.prefill(prompt)
    else:
        session.prefill(prompt)
    session.set_token_trie(trie, mode=pick)
    if origin in ("reset", "reset_keep"):
        session.next()
        kept = session.reset_keep(len(prompt) if origin == "reset_keep" else 0)
        if not kept:
            session.prefill(prompt)


def from_slot(
    s: Subject, session: Session, path: Path, prompt: list[int], trie: Trie, pick: str
) -> None:
    """Bring a session to the same point by a slot of another one."""
    saved = session_for(s, pick, "none", prompt)
    saved.prefill(prompt)
    saved.set_token_trie(trie, mode=pick)
    saved.save_slot(path)
    saved.close()
    session.set_token_trie(trie, mode=pick)
    session.restore_slot(path)


def read_all(s: Subject, session: Session, read: str) -> None:
    """Let the session come to its end."""
    if read == "next":
        list(session)
        return

    async def streamed() -> None:
        async for _ in session.stream():
            pass

    s.thread(lambda: asyncio.run(streamed())).result("a stream")


@rule("choices.unlikely")
def unlikely_choices(s: Subject) -> None:
    """The only choices are unlikely ones, and nothing else comes: greedy or sampled, by
    next or as a stream, with drafts, after a cached prompt, a reset or a slot, in every
    combination (FC-118).
    """
    prompt = s.ids(3) * 2
    one, two = unlikely(s, prompt)
    likely = [int(s.row_after(prompt).argmax())]
    path = s.folder() / "slot"
    after_first = s.row_after([*prompt, one[0]])
    drafts = DRAFTS if s.can_truncate else ("none",)
    origins = ORIGINS if s.can_save else ORIGINS[:-1]
    for leaves in ({"one": one}, {"one": one, "two": two}):
        trie = Trie.from_tokens(leaves, n_vocab=s.n_vocab)
        for pick, read, draft, origin in itertools.product(
            PICKS, READS, drafts, origins
        ):
            what = f"{pick}, {read}, draft {draft}, {origin}, {len(leaves)} choices"
            session = session_for(s, pick, draft, likely)
            if origin == "slot":
                from_slot(s, session, path, prompt, trie, pick)
            else:
                begin(s, session, origin, prompt, trie, pick)
            read_all(s, session, read)
            ids = list(session.ids)
            require(ids in leaves.values(), f"{what}: {ids} came; only {leaves} may")
            require(session.finish_reason == "choice", f"{what}: it did not end")
            name = session.name
            require(name is not None and leaves[name] == ids, f"{what}: named {name}")
            if pick == "greedy":
                allowed = [leaf[1] for leaf in leaves.values()]
                s.best(ids[1], after_first, allowed, what)
            require(
                list(session.history) == [*prompt, *ids],
                f"{what}: the history is {session.history}",
            )
            session.close()
