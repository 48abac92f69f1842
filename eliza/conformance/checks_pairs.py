"""Several sequences and sessions of one backend: none may notice the others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from eliza._trie import Trie
from eliza.conformance.rules import rule
from eliza.conformance.subject import require

if TYPE_CHECKING:
    from eliza.conformance.subject import Subject
    from eliza.session import Session


@rule("pair.interleaved")
def interleaved(s: Subject) -> None:
    """Sequences that are decoded, cut and branched in turn hold what each alone would
    (R6).
    """
    rng = np.random.default_rng(17)
    caps = s.backend.capabilities
    sequences = [s.open() for _ in range(3)]
    held: list[list[int]] = [[], [], []]
    for step in range(36):
        at = int(rng.integers(3))
        sequence, ids = sequences[at], held[at]
        verb = int(rng.integers(5))
        more = s.ids(int(rng.integers(1, 5)), step)
        if verb == 0 and ids:
            n = int(rng.integers(len(ids) + 1)) if caps.truncate else 0
            sequence.truncate(n)
            del ids[n:]
        elif verb == 1 and ids and caps.tree:
            two = more[:1] * 2
            for parent in (-1, 0):
                sequence.decode_tree(two[:1], [parent])
            s.same(sequence.logits(0), [*ids, *two], f"step {step}: a tree")
            sequence.clear_tree()
        elif verb == 2:
            more = more[: sequence.max_rows]
            sequence.decode_many(more)
            ids += more
            s.same(sequence.logits(len(more) - 1), ids, f"step {step}: decode_many")
        else:
            sequence.decode(more)
            ids += more
            s.same(sequence.logits(0), ids, f"step {step}: decode")
    for at in range(3):
        s.goes_on(sequences[at], held[at], f"sequence {at} in the end")


def told_apart(s: Subject, seed: int, session: Session) -> tuple[Trie, list[list[int]]]:
    """Give a session a prompt and choices of its own."""
    pool = s.pool[5 * seed : 5 * seed + 5]
    leaves = [[pool[0], pool[i], pool[i]] for i in (1, 2, 3, 4)]
    trie = Trie.from_tokens(
        {f"c{i}": ids for i, ids in enumerate(leaves)}, n_vocab=s.n_vocab
    )
    session.prefill(s.ids(6, seed))
    session.set_token_trie(trie)
    return trie, leaves


def right(s: Subject, seed: int, session: Session, leaves: list[list[int]]) -> None:
    """Require the choice that the session would have taken alone."""
    ids, what = list(session.ids), f"session {seed}"
    require(ids in leaves, f"{what}: {ids} is no choice")
    row = s.row_after([*s.ids(6, seed), ids[0]])
    s.best(ids[1], row, [leaf[1] for leaf in leaves], what)


@rule("pair.sessions")
def sessions(s: Subject) -> None:
    """Sessions of one model that are stepped in turn each give their own choice, and
    then their own text (FC-043).
    """
    opened = [s.session() for _ in range(3)]
    leaves = [told_apart(s, seed, each)[1] for seed, each in enumerate(opened)]
    going = set(range(3))
    while going:
        for seed in sorted(going):
            if opened[seed].next().final:
                going.discard(seed)
    for seed, each in enumerate(opened):
        right(s, seed, each, leaves[seed])
        each.clear_token_trie()
    for each in opened * 2:
        s.free(each, 1, "free text in turn")


@rule("pair.threads")
def threads(s: Subject) -> None:
    """Sessions of one model in threads of their own give what they give alone: calls
    queue, none overlaps in the runtime (FC-080, FC-082).
    """
    opened = [s.session() for _ in range(3)]
    for seed in range(3):  # what answers are compared with: nobody else decodes then
        s.row_after([*s.ids(6, seed), s.pool[5 * seed]])

    def work(seed: int) -> list[list[int]]:
        session = opened[seed]
        for _ in range(8):
            session.reset()
            _, leaves = told_apart(s, seed, session)
            list(session)
            right(s, seed, session, leaves)
            session.clear_token_trie()
            session.next()
        return leaves

    workers = [s.thread(partial(work, seed)) for seed in range(3)]
    for worker in workers:
        worker.result("a session in a thread of its own")


@rule("pair.one-session")
def one_session(s: Subject) -> None:
    """Threads that call on one session queue: no id is lost or doubled (FC-080)."""
    session = s.session(logit_bias=dict.fromkeys(s.backend.vocab.eog, -np.inf))
    session.prefill(s.ids(4))

    def work() -> list[int]:
        return [i for _ in range(5) for i in session.next().ids]

    workers = [s.thread(work) for _ in range(3)]
    came = [i for each in workers for i in each.result("next in several threads")]
    require(sorted(came) == sorted(session.ids), "threads were given other ids")
    require(len(session.ids) == 15, f"15 calls of next gave {len(session.ids)} ids")
    s.same(session.row(), session.history, "after calls from three threads")
