"""A session above the runtime: history, resets, forced runs, cached prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eliza._trie import Trie
from eliza.conformance.rules import rule
from eliza.conformance.subject import require

if TYPE_CHECKING:
    from eliza.conformance.subject import Subject
    from eliza.session import Session


def written(s: Subject, prompt: list[int]) -> Session:
    """Return a session that wrote a choice of five ids above a prompt, in one step."""
    session = s.session()
    session.prefill(prompt)
    trie = Trie.from_tokens({"run": s.pool[:5]}, n_vocab=s.n_vocab)
    session.set_token_trie(trie)
    list(session)
    session.clear_token_trie()
    return session


@rule("session.greedy")
def greedy(s: Subject) -> None:
    """Free text takes the highest logit at each id, and the end-of-generation id ends
    it.
    """
    for seed in range(3):
        session = s.session()
        session.prefill(s.ids(6, seed))
        s.free(session, 8, "free text")
        session.close()


@rule("session.prefill")
def prefill(s: Subject) -> None:
    """A prompt given in parts is the prompt given at once, also above generated ids."""
    ids = s.ids(20)
    session = s.session()
    for first, last in ((0, 1), (1, 12), (12, 20)):
        session.prefill(ids[first:last])
    session.prefill([])
    require(list(session.history) == ids, "a prompt in parts has other ids")
    s.same(session.row(), ids, "a prompt in parts")
    more = s.free(session, 3, "above it")
    session.prefill(ids[:3])
    whole = [*ids, *more, *ids[:3]]
    require(list(session.history) == whole, "a prompt above generated ids is not there")
    s.same(session.row(), whole, "a prompt above generated ids")


@rule("session.sync")
def sync(s: Subject) -> None:
    """A prompt that shares its beginning with what is held gives the rows of one that
    was decoded from nothing.
    """
    ids, other = s.ids(12), s.ids(5, 1)
    session = s.session()
    for prompt, shared in (
        (ids, 0),
        (ids, 12),
        ([*ids, *other], 12),
        ([*ids[:7], *other], 7),
        (ids[:4], 3),
        (other, 0),
        (other[:1], 0),
        (ids, 0),
    ):
        kept = session.sync(prompt)
        require(
            0 <= kept <= len(prompt) and (not s.can_truncate or kept == shared),
            f"sync kept {kept} ids, where {shared} are shared",
        )
        require(list(session.history) == prompt, "sync made another history")
        s.same(session.row(), prompt, f"sync that kept {kept} of {len(prompt)}")
    for _ in range(2):
        s.free(session, 3, "after sync")
        session.sync(ids)
        s.same(session.row(), ids, "sync where text was generated")


@rule("session.forced-run")
def forced_run(s: Subject) -> None:
    """A run of forced ids gives the history and the rows of each taken singly (R12)."""
    prompt, run = s.ids(6), s.pool[:5]
    session = written(s, prompt)
    require(list(session.ids) == run, f"a forced run of {run} came as {session.ids}")
    whole = [*prompt, *run]
    require(list(session.history) == whole, "a forced run is not in the history")
    s.same(session.row(), whole, "after a forced run")
    single = s.grown(prompt)
    for token in run:
        single.decode([token])
    s.same(single.logits(0), whole, "the same ids singly")
    session = written(s, prompt)
    s.free(session, 4, "free text after a forced run")


@rule("session.reset-keep")
def reset_keep(s: Subject) -> None:
    """`reset_keep` works for every number, below 0 and past the end as well: what is
    kept is exact, and 0 ids are kept where the runtime cannot cut.
    """
    prompt = s.ids(6)
    size = len(written(s, prompt).history)
    for n in (-(10**9), -1, *range(size + 3), 10**9):
        session = written(s, prompt)
        decoded, history = session.timeline.position, list(session.history)
        wanted = max(0, min(n, size))
        if wanted < decoded and not s.can_truncate:
            wanted = 0
        kept = session.reset_keep(n)
        require(kept == wanted, f"reset_keep({n}) of {size} ids kept {kept}")
        require(
            list(session.history) == history[:wanted] and not session.ids,
            f"after reset_keep({n}) the history is not the first {wanted} ids",
        )
        if kept:
            s.same(session.row(), history[:kept], f"after reset_keep({n})")
        session.prefill(s.ids(2, 1))
        whole = [*history[:kept], *s.ids(2, 1)]
        s.same(session.row(), whole, f"a prompt after reset_keep({n})")
        s.free(session, 1, f"after reset_keep({n})")
        session.close()


@rule("session.reset")
def reset(s: Subject) -> None:
    """After `reset` a session is as new, and choices that were set bind from their
    beginning.
    """
    one, two = s.pool[:3], [s.pool[0], *s.pool[3:5]]
    trie = Trie.from_tokens({"one": one, "two": two}, n_vocab=s.n_vocab)
    session = s.session()
    session.prefill(s.ids(6))
    session.set_token_trie(trie)
    for seed in range(3):
        steps = 0
        while not session.next().final and steps < seed:
            steps += 1
        session.reset()
        require(not session.history, "reset left ids")
        prompt = s.ids(4, seed)
        session.prefill(prompt)
        list(session)
        ids = list(session.ids)
        require(ids in (one, two), f"after reset {ids} came, which is no choice")
        row = s.row_after([*prompt, one[0]])
        s.best(ids[1], row, [one[1], two[1]], "after reset")
        session.reset_keep(len(prompt))
