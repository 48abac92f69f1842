"""One decision: a prompt that is decoded, a cursor at its root, an answer's leaf."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eliza.choosing.answer import Ranked, Ranking
from eliza.choosing.search import best_whole, score_all
from eliza.choosing.tree import Tree
from eliza.errors import NoCandidateError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from eliza._cursor import Cursor
    from eliza.session import Session

__all__ = ["Decision", "decide", "path_counts", "rank"]


@dataclass(slots=True)
class Decision:
    """A leaf and what was learnt on the way to it.

    Attributes
    ----------
    leaf : int
        The leaf that was chosen.
    logprob : float
        Its score: whole for the exact method, masked for the greedy one.
    bounds : (float, float) or None
        What the search knows of its whole probability.
    scores : dict of int to float or None
        The log score of each permitted leaf, if a ranking was asked for.
    """

    leaf: int
    logprob: float
    bounds: tuple[float, float] | None = None
    scores: dict[int, float] | None = None


def decide(
    session: Session,
    cursor: Cursor,
    *,
    method: str,
    ranking: str | None,
    delta: float | None,
) -> Decision:
    """Choose a leaf for the prompt that the session holds.

    Parameters
    ----------
    session : Session
        Synchronised with the prompt.
    cursor : Cursor
        At the root; it is not moved.
    method, ranking, delta
        As for `Model.choose`, checked.

    Returns
    -------
    Decision
    """
    made: Decision | None = None
    scores: dict[int, float] | None = None
    if method == "exact" or ranking is not None:
        timeline = session.timeline
        with timeline.branching() as row:
            if ranking is not None:
                whole = ranking == "whole"
                scores = score_all(Tree(timeline), cursor, row, whole=whole)
            if method == "exact" and ranking == "whole" and scores:
                leaf = min(scores, key=lambda i: (-scores[i], i))
                made = _decision(leaf, scores[leaf])
            elif method == "exact":
                step = timeline.capabilities.search_delta if delta is None else delta
                found = best_whole(Tree(timeline), cursor, row, step)
                made = _decision(found.leaf, found.logprob)
                made.bounds = found.probability_bounds
    if made is None:
        made = _greedy(session, cursor.copy())
    made.scores = scores
    return made


def _decision(leaf: int, logprob: float) -> Decision:
    if logprob == -math.inf:
        raise NoCandidateError(
            "the model gives every permitted choice a probability of zero, or NaN"
        )
    return Decision(leaf, logprob)


def _greedy(session: Session, cursor: Cursor) -> Decision:
    session.set_constraint(cursor)
    logprob = sum(step.logprob or 0.0 for step in session)
    leaf = cursor.leaf
    assert leaf is not None  # a session without a limit ends when the choice is whole
    return Decision(leaf, logprob)


def path_counts(cursor: Cursor, tokens: Sequence[int]) -> tuple[int, int]:
    """Count the points on a path that were decided, and the ids that were forced."""
    at = cursor.copy()
    forced = 0
    for token in tokens:
        forced += len(at.allowed()) == 1
        at.accept(token)
    return len(tokens) - forced + (not at.done), forced


def rank(
    kind: str, scores: dict[int, float], values: Sequence[Any], leaf: int
) -> tuple[Ranking, float, float]:
    """Order the scored leaves.

    Returns
    -------
    ranking : Ranking
        Best first, ties by leaf.
    probability : float
        Of `leaf`.
    margin : float
        Score of `leaf` minus the best other.
    """
    leaves = sorted(scores, key=lambda i: (-scores[i], i))
    top = scores[leaves[0]]
    weights = {i: math.exp(scores[i] - top) for i in leaves}
    total = math.fsum(weights.values())
    ranking = Ranking(
        kind,
        tuple(Ranked(values[i], scores[i], weights[i] / total) for i in leaves),
    )
    other = max((scores[i] for i in leaves if i != leaf), default=-math.inf)
    return ranking, weights[leaf] / total, scores[leaf] - other
