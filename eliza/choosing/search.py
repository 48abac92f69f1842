"""Finding the best whole choice, and scoring all of them, over tree batches.

The bound of a branch is the log-likelihood of its ids so far: more ids can only lower
it. The best choice is found by branch and bound: while some branch is better than the
best complete choice, the best branches are decoded. Each batch takes every branch
within `delta` of the best bound, the best one with its whole forced run, the others
with one id: on a CPU a batch costs by the id, and ids of branches that lose are wasted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.choosing.tree import Node, Tree
from eliza.errors import NoCandidateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eliza._cursor import Cursor
    from eliza.backends.base import Row

__all__ = ["Found", "best_whole", "score_all"]


@dataclass(slots=True)
class Found:
    """What a search for the best whole choice came back with.

    Attributes
    ----------
    leaf : int
        The best choice; ties go to the lowest leaf.
    logprob : float
        Its whole log-likelihood.
    known : dict of int to float
        The log-likelihoods of all choices that were completed on the way.
    open_mass : float
        Log of the likelihood that the branches left undecoded have together.
    """

    leaf: int
    logprob: float
    known: dict[int, float]
    open_mass: float

    @property
    def probability_bounds(self) -> tuple[float, float]:
        """Between what and what the best choice's share of all choices lies."""
        known = _log_sum(list(self.known.values()))
        low = math.exp(self.logprob - np.logaddexp(known, self.open_mass))
        return low, math.exp(self.logprob - known)


@dataclass(slots=True)
class _Branch:
    """Ids that have a score but no logits after them yet."""

    bound: float
    token: int
    parent: Node | None
    before: Cursor  # the constraint before `token`

    def nodes(self, whole: bool) -> list[Node]:
        """Return the nodes to decode: the id, or its whole forced run."""
        cursor = self.before.copy()
        cursor.accept(self.token)
        nodes = [Node(self.token, self.parent, cursor.copy(), self.bound)]
        if whole:
            for token in cursor.forced().tolist():
                cursor.accept(token)
                if cursor.done:  # nothing is to be decided after the last id
                    break
                nodes.append(Node(token, nodes[-1], cursor.copy()))
        return nodes


@dataclass(slots=True)
class _Search:
    known: dict[int, float] = field(default_factory=dict)
    branches: list[_Branch] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)  # bounds that were given up
    leaf: int = -1
    best: float = -math.inf

    def reveal(self, cursor: Cursor, row: Row, node: Node | None, score: float) -> None:
        """Take in the logits at one point: complete choices and new branches."""
        scores = _logprobs(cursor, row, whole=True) + score
        ids, leaves = cursor.allowed(), cursor.completes()
        for leaf, logprob in complete_leaves(leaves, scores):
            self.known[leaf] = logprob
            if logprob > self.best or (logprob == self.best and leaf < self.leaf):
                self.best, self.leaf = logprob, leaf
        goes_on = leaves < 0
        for token, bound in zip(
            ids[goes_on].tolist(), scores[goes_on].tolist(), strict=True
        ):
            self.branches.append(_Branch(bound, token, node, cursor))

    def prune(self) -> None:
        """Give up the branches that cannot win any more."""
        left = []
        for branch in self.branches:
            if branch.bound > self.best or (
                branch.bound == self.best and self._may_tie(branch)
            ):
                left.append(branch)
            else:
                self.closed.append(branch.bound)
        left.sort(key=lambda branch: -branch.bound)
        self.branches = left

    def _may_tie(self, branch: _Branch) -> bool:
        """Whether a branch as good as the best choice holds a lower leaf."""
        if self.leaf < 0:
            return True
        cursor = branch.before.copy()
        cursor.accept(branch.token)
        return cursor.leaf_range[0] < self.leaf

    def take(self, delta: float) -> list[_Branch]:
        """Remove and return the branches of the next batch, the best one first."""
        least = self.branches[0].bound - delta
        n = sum(branch.bound >= least for branch in self.branches)
        taken, self.branches = self.branches[:n], self.branches[n:]
        return taken


def best_whole(tree: Tree, cursor: Cursor, row: Row, delta: float) -> Found:
    """Find the choice with the best whole likelihood.

    Parameters
    ----------
    tree : Tree
        Above the prompt.
    cursor : Cursor
        At its root.
    row : ndarray of float32, shape (n_vocab,)
        Logits after the prompt.
    delta : float
        How far below the best bound, in nats, a branch joins a batch.

    Returns
    -------
    Found
    """
    search = _Search()
    search.reveal(cursor, row, None, 0.0)
    search.prune()
    while search.branches:
        batch: list[Node] = []
        ends: set[Node] = set()
        for i, branch in enumerate(search.take(delta)):
            nodes = branch.nodes(whole=i == 0)
            batch += nodes
            ends.add(nodes[-1])
        following = {node.parent: node for node in batch if node.parent is not None}
        for node, logits in tree.expand(batch):
            if node in ends:
                search.reveal(node.cursor, logits, node, node.score)
            else:
                step = float(_logprobs(node.cursor, logits, whole=True)[0])
                following[node].score = node.score + step
        search.prune()
    return Found(search.leaf, search.best, search.known, _log_sum(search.closed))


def score_all(tree: Tree, cursor: Cursor, row: Row, *, whole: bool) -> dict[int, float]:
    """Score every permitted choice.

    Parameters
    ----------
    tree, cursor, row
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
