"""Finding the best whole choice, and scoring all of them, over tree batches.

The bound of a branch is the log-likelihood of its ids so far: more ids can only lower
it. The best choice is found by branch and bound: while some branch is better than the
best complete choice, the best branches are decoded. Each batch takes every branch
within `delta` of the best bound with one id, and the best one with its whole forced
run, if it leads by `LEAD`: on a CPU a batch costs by the id, and ids of branches that
lose are wasted. One of an odd number of ids takes the next branch along, if that lies
within `SPREAD` deltas.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eliza._frontier import Frontier, forced_run
from eliza.choosing.tree import Node, Tree
from eliza.errors import NoCandidateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eliza._cursor import Cursor
    from eliza.backends.base import Row
    from eliza.choosing.policy import Policy
    from eliza.choosing.trail import Trail

__all__ = ["Found", "best_whole", "score_all"]

#: By how many nats the best branch must lead for its forced run to join the batch. The
#: first id of a run often costs more than that, and the rest is then wasted; behind it
#: the run joins in any case. With it, SmolLM2's searches decode as much or up to 8 %
#: less, in up to a tenth more batches; from 0.3 on, they take longer.
LEAD = 0.2

#: How many deltas below the best bound the branch may lie that makes a batch even.
#: llama.cpp multiplies rows of logits in pairs: SmolLM2's batches of 1 to 8 ids, each
#: with a row, take 9.5, 16.3, 21.4, 21.8, 27.2, 28.1, 33.5 and 33.3 ms. With a delta of
#: 0.5, searches of 30 short and 30 long names then take 6 % less time than with a delta
#: of 1 and no such rule, and 4 % less where each id costs the same.
SPREAD = 2.0


class Found(NamedTuple):
    """What a search for the best whole choice came back with.

    Attributes
    ----------
    leaf : int
        The choice with the best score; ties go to the lowest leaf.
    logprob : float
        Its whole log-likelihood.
    probability_bounds : (float, float)
        Between what and what its share of all choices lies.
    """

    leaf: int
    logprob: float
    probability_bounds: tuple[float, float]


def best_whole(
    tree: Tree,
    cursor: Cursor,
    row: Row,
    delta: float,
    policy: Policy,
    threshold: float | None,
    trail: Trail,
) -> Found:
    """Find the choice with the best score.

    Parameters
    ----------
    tree : Tree
        Above the prompt.
    cursor : Cursor
        At its root.
    row : ndarray of float32, shape (n_vocab,)
        Logits after the prompt.
    delta : float
        How far below the best bound, in nats of likelihood, a branch joins a batch.
    policy : Policy
        What the score is.
    threshold : float or None
        Go on after the best choice is known until its probability certainly lies above
        this or below it.
    trail : Trail
        Where the points are noted.

    Returns
    -------
    Found

    Raises
    ------
    NoCandidateError
        No choice has a likelihood above zero.
    """
    search = Frontier(policy.length, policy.prior, policy.weight)
    if trail.traced:
        trail.weigh(cursor, row)
    search.reveal(cursor, row, None, 0.0)
    search.prune()
    delta /= policy.scale
    lead = LEAD / policy.scale
    while search.n_open:
        batch = [Node(*branch) for branch in search.promising(delta)]
        run = batch[:1]
        if search.lead >= lead or _was_forced(batch[0]):
            run = _forced_run(batch[0])
        n = len(run) + len(batch) - 1
        if tree.batches and n > 1 and n % 2:
            batch += [Node(*branch) for branch in search.one_more(SPREAD * delta)]
        _expand(search, tree, run, batch[1:], trail)
    if search.leaf < 0:
        raise NoCandidateError(
            "the model gives every permitted choice a probability of zero, or NaN"
        )
    bounds = search.share()
    while (
        threshold is not None and search.n_idle and bounds[0] < threshold <= bounds[1]
    ):
        batch = [Node(*branch) for branch in search.weighty(delta)]
        _expand(search, tree, _forced_run(batch[0]), batch[1:], trail)
        bounds = search.share()
    trail.weighed += search.weighed
    return Found(search.leaf, search.logprob, bounds)


def _expand(
    search: Frontier, tree: Tree, run: list[Node], others: list[Node], trail: Trail
) -> None:
    """Decode a branch with the ids forced after it, and others one id far."""
    following = dict(pairwise(run))
    for node, logits in tree.expand(run + others):
        after = following.get(node)
        if after is None:
            if trail.traced:
                trail.weigh(node.cursor, logits)
            search.reveal(node.cursor, logits, node, node.score)
        else:
            after.score = node.score + search.step(node.cursor, logits)
    search.prune()


def _was_forced(node: Node) -> bool:
    """Whether a node's id was the only one that could follow."""
    return node.parent is not None and len(node.parent.cursor.forced()) > 0


def _forced_run(node: Node) -> list[Node]:
    """Return a node and those of the ids that are forced after it.

    Nothing is to be decoded after the last id of a choice.
    """
    run = [node]
    for token, cursor in forced_run(node.cursor):
        run.append(Node(token, run[-1], cursor))
    return run


def score_all(
    tree: Tree, cursor: Cursor, row: Row, trail: Trail, *, whole: bool
) -> dict[int, float]:
    """Score every permitted choice.

    Parameters
    ----------
    tree, cursor, row, trail
        As in `best_whole`.
    whole : bool
        Whole likelihoods; else masked ones, for which nothing is decoded below the
        last branching point.

    Returns
    -------
    dict of int to float
        Leaf number to log score.
    """
    scores: dict[int, float] = {}
    children: dict[Node | None, dict[int, Node]] = {}

    def take_in(at: Cursor, logits: Row, node: Node | None, score: float) -> None:
        trail.weigh(at, logits)
        values = _logprobs(at, logits, whole=whole) + score
        scores.update(complete_leaves(at.completes(), values))
        below = children.pop(node, {})
        for token, value in zip(at.allowed().tolist(), values.tolist(), strict=True):
            if (child := below.get(token)) is not None:
                child.score = value
            elif not whole:
                _only_leaf(at, token, value, scores)

    nodes = list(_inner_nodes(cursor, whole))
    for node in nodes:
        children.setdefault(node.parent, {})[node.token] = node
    take_in(cursor, row, None, 0.0)
    for node, logits in tree.expand(nodes):
        take_in(node.cursor, logits, node, node.score)
    return scores


def complete_leaves(leaves: Any, scores: Any) -> Iterator[tuple[int, float]]:
    """Yield (leaf, log score) of the ids that complete a choice.

    Several exit ids of one choice count together.
    """
    ends = leaves >= 0
    if not ends.any():
        return
    by_leaf: dict[int, list[float]] = {}
    for leaf, score in zip(leaves[ends].tolist(), scores[ends].tolist(), strict=True):
        by_leaf.setdefault(leaf, []).append(score)
    for leaf, values in by_leaf.items():
        yield leaf, values[0] if len(values) == 1 else _log_sum(values)


def _inner_nodes(cursor: Cursor, whole: bool) -> Iterator[Node]:
    """Yield the nodes whose logits the scores need, parents first, depth first."""
    stack: list[tuple[Cursor, int, Node | None]] = []

    def push(at: Cursor, node: Node | None) -> None:
        goes_on = at.allowed()[at.completes() < 0]
        stack.extend((at, token, node) for token in reversed(goes_on.tolist()))

    push(cursor, None)
    while stack:
        before, token, parent = stack.pop()
        at = before.copy()
        at.accept(token)
        if not whole and at.remaining() == 1:
            continue  # one choice is left: nothing is decided any more
        node = Node(token, parent, at)
        yield node
        push(at, node)


def _only_leaf(at: Cursor, token: int, value: float, scores: dict[int, float]) -> None:
    """Give the one choice that is left after an id the score of that id."""
    after = at.copy()
    after.accept(token)
    if not after.done:
        for step in after.forced().tolist():
            after.accept(step)
        leaf = after.leaf
        if leaf is not None:
            scores[leaf] = value


def _logprobs(cursor: Cursor, row: Row, *, whole: bool) -> NDArray[np.float64]:
    """Return the scores of the allowed ids; a point with no way on is no error here."""
    try:
        return cursor.logprobs(row, whole_row=whole)
    except NoCandidateError:
        return np.full(len(cursor.allowed()), -math.inf)


def _log_sum(values: list[float]) -> float:
    return float(np.logaddexp.reduce(values)) if values else -math.inf
