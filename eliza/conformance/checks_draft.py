"""Speculation: what comes is what comes without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eliza._trie import Trie
from eliza.conformance.rules import rule
from eliza.conformance.subject import require

if TYPE_CHECKING:
    from collections.abc import Sequence as Ids

    from eliza.conformance.subject import Subject
    from eliza.step import Counters

N = 16


class Scripted:
    """Proposes ids that were given to it, for what stands above a prompt.

    Parameters
    ----------
    prompt : int
        How long it is.
    ids : list of int
        What is proposed above it.
    """

    def __init__(self, prompt: int, ids: list[int]) -> None:
        self._prompt = prompt
        self._ids = ids

    def propose(self, history: Ids[int], n: int) -> list[int]:
        """Return the ids that belong here, too many of them."""
        at = len(history) - self._prompt
        return self._ids[at : at + n + 3]

    def close(self) -> None:
        """Do nothing."""


def run(
    s: Subject, prompt: list[int], draft: Any, what: str, **options: Any
) -> tuple[list[int], Counters]:
    """Write free text above a prompt, and check each id of it."""
    session = s.session(draft=draft, draft_max=5, max_tokens=N, **options)
    session.prefill(prompt)
    allowed = sorted(set(prompt)) if "logit_bias" in options else []
    ids = s.free(session, N, what, allowed)
    whole = [*prompt, *ids]
    require(list(session.history) == whole, f"{what}: ids were lost or doubled")
    s.same(session.row(), whole, what)
    session.close()
    return ids, session.counters


@rule("draft.lookup", needs="draft")
def lookup(s: Subject) -> None:
    """Text with prompt lookup is the text without it, for a prompt that repeats itself
    and for one that does not.
    """
    repeated, bias = s.two_only()
    for prompt, options in (
        (repeated, {"logit_bias": bias}),
        (s.ids(5) * 3, {}),
        (s.ids(12, 1), {}),
    ):
        plain, _ = run(s, prompt, None, "without drafts", **options)
        drafted, counters = run(s, prompt, "lookup", "with prompt lookup", **options)
        if s.exact:
            require(drafted == plain, f"with lookup {drafted}, and without {plain}")
        if options and s.room_for_guesses():
            require(counters.drafted, "lookup found nothing in repeated text")
        require(
            counters.accepted <= counters.drafted, "more guesses held than were made"
        )


@rule("draft.any", needs="draft")
def any_guesses(s: Subject) -> None:
    """Guesses that are right, wrong, right at first, and off by one change the cost
    alone.
    """
    prompt = s.ids(8)
    plain, _ = run(s, prompt, None, "without drafts")
    wrong = [next(t for t in s.pool if t != i) for i in plain]
    tried = 0
    for what, guesses in (
        ("right guesses", plain),
        ("wrong guesses", wrong),
        ("guesses right at first", [*plain[:3], *wrong[3:6], *plain[6:]]),
        (
            "every other guess wrong",
            [(plain, wrong)[i % 2][i] for i in range(len(plain))],
        ),
        ("guesses off by one", plain[1:]),
    ):
        ids, counters = run(s, prompt, Scripted(len(prompt), guesses), what)
        if s.exact:
            require(ids == plain, f"{what}: {ids}, and without {plain}")
        tried += counters.drafted
    if len(plain) >= 3 and s.room_for_guesses():
        require(tried, "no guess was ever tried")


@rule("draft.choices", needs="draft")
def choices(s: Subject) -> None:
    """A constraint binds guesses as well: within choices the same one comes, and the
    text after it is the same.
    """
    a, b, c, d, e = s.pool[:5]
    leaves = {
        "one": [a, b, c, a, d],
        "two": [a, b, d, c, e],
        "three": [a, c, b, d, a],
        "four": [e, b, c, d, d],
    }
    trie = Trie.from_tokens(leaves, n_vocab=s.n_vocab)
    prompt = s.ids(6)
    for what, draft in (
        ("no guesses", None),
        ("lookup", "lookup"),
        ("the first choice", Scripted(len(prompt), leaves["one"])),
        ("the second choice", Scripted(len(prompt), leaves["two"])),
        ("another vocabulary's ids", Scripted(len(prompt), s.ids(12, 1))),
    ):
        session = s.session(draft=draft, draft_max=4)
        session.prefill(prompt)
        session.set_token_trie(trie)
        list(session)
        ids = list(session.ids)
        require(ids in leaves.values(), f"{what}: {ids} is no choice")
        for n, token in enumerate(ids):
            allowed = {leaf[n] for leaf in leaves.values() if leaf[:n] == ids[:n]}
            row = s.row_after([*prompt, *ids[:n]])
            s.best(token, row, allowed, f"{what}, id {n}")
        session.clear_token_trie()
        s.free(session, 3, f"{what}: text after the choice")
        session.close()


@rule("draft.sampled", needs="draft")
def sampled(s: Subject) -> None:
    """Draws with guesses are the draws without them: each takes the same number of the
    generator at the same place.
    """
    prompt = s.ids(8)

    def drawn(draft: Any) -> list[int]:
        session = s.session(draft=draft, temperature=1.0, seed=3, max_tokens=N)
        session.prefill(prompt)
        list(session)
        ids = list(session.ids)
        s.same(session.row(), [*prompt, *ids], "after draws")
        session.close()
        return ids

    plain = drawn(None)
    guessed = drawn(Scripted(len(prompt), plain))
    require(len(guessed) <= N, f"{len(guessed)} ids came, where {N} is the limit")
    if s.exact:
        require(guessed == plain, f"with guesses {guessed}, and without {plain}")
