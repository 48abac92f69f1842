"""Finding the best whole choice, and scoring all of them, over tree batches.

The bound of a branch is the log-likelihood of its ids so far: more ids can only lower
it. The best choice is found by branch and bound: while some branch is better than the
best complete choice, the best branches are decoded. Each batch takes every branch
within `delta` of the best bound, the best one with its whole forced run, the others
with one id: on a CPU a batch costs by the id, and ids of branches that lose are wasted.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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


class _Branch:
    """Ids that have a likelihood but no logits after them yet."""

    __slots__ = ("before", "bound", "logprob", "mass", "parent", "token")

    def __init__(
        self, logprob: float, token: int, parent: Node | None, before: Cursor
    ) -> None:
        self.logprob = logprob
        self.token = token
        self.parent = parent
        self.before = before  # the constraint before `token`
        self.bound = logprob  # what no choice below can score more than
        self.mass = logprob  # log of what the choices below can have together

    def after(self) -> Cursor:
        """Return the constraint after the id."""
        cursor = self.before.copy()
        cursor.accept(self.token)
        return cursor

    def nodes(self, whole: bool) -> list[Node]:
        """Return the nodes to decode: the id, or its whole forced run."""
        cursor = self.after()
        nodes = [Node(self.token, self.parent, cursor.copy(), self.logprob)]
        if whole:
            for token in cursor.forced().tolist():
                cursor.accept(token)
                if cursor.done:  # nothing is to be decided after the last id
                    break
                nodes.append(Node(token, nodes[-1], cursor.copy()))
        return nodes


class _Search:
    """Complete choices with their scores, and branches with their bounds."""

    def __init__(self, policy: Policy, trail: Trail) -> None:
        self.policy = policy
        self.trail = trail
        self.scores: dict[int, float] = {}
        self.open: list[_Branch] = []
        self.idle: list[_Branch] = []  # cannot win any more
        self.leaf = -1
        self.logprob = self.best = -math.inf

    def reveal(self, cursor: Cursor, row: Row, node: Node | None, base: float) -> None:
        """Take in the logits at one point: complete choices and new branches."""
        self.trail.weigh(cursor, row)
        values = _logprobs(cursor, row, whole=True) + base
        ids, leaves = cursor.allowed(), cursor.completes()
        for leaf, logprob in complete_leaves(leaves, values):
            score = self.scores[leaf] = self.policy.score(leaf, logprob)
            if score > self.best or (score == self.best and leaf < self.leaf):
                self.best, self.leaf, self.logprob = score, leaf, logprob
        goes_on = (leaves < 0) & (values > -math.inf)
        for token, logprob in zip(
            ids[goes_on].tolist(), values[goes_on].tolist(), strict=True
        ):
            branch = _Branch(logprob, token, node, cursor)
            if not self.policy.plain:
                after = branch.after()
                branch.bound = self.policy.bound(logprob, *after.leaf_range)
                branch.mass = self.policy.mass(logprob, branch.bound, after.remaining())
            self.open.append(branch)

    def prune(self) -> None:
        """Set the branches aside that cannot win any more; sort the others."""
        can_win = []
        for branch in self.open:
            if branch.bound > self.best or (
                branch.bound == self.best
                and branch.after().leaf_range[0] < self.leaf  # it may tie
            ):
                can_win.append(branch)
            else:
                self.idle.append(branch)
        can_win.sort(key=lambda branch: -branch.bound)
        self.open = can_win

    def promising(self, delta: float) -> list[_Branch]:
        """Remove and return the branches near the best bound, the best one first."""
        least = self.open[0].bound - delta
        n = sum(branch.bound >= least for branch in self.open)
        taken, self.open = self.open[:n], self.open[n:]
        return taken

    def weighty(self, delta: float) -> list[_Branch]:
        """Remove and return the branches that could hold the most, the best first."""
        self.idle.sort(key=lambda branch: -branch.mass)
        least = self.idle[0].mass - delta
        n = sum(branch.mass >= least for branch in self.idle)
        taken, self.idle = self.idle[:n], self.idle[n:]
        return taken

    @property
    def bounds(self) -> tuple[float, float]:
        """Between what and what the best choice's share of all choices lies."""
        known = _log_sum(list(self.scores.values()))
        rest = _log_sum([branch.mass for branch in self.open + self.idle])
        low = math.exp(self.best - float(np.logaddexp(known, rest)))
        return low, math.exp(self.best - known)


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
    search = _Search(policy, trail)
    search.reveal(cursor, row, None, 0.0)
    search.prune()
    delta /= policy.scale
    while search.open:
        _expand(search, tree, search.promising(delta))
    if search.leaf < 0:
        raise NoCandidateError(
            "the model gives every permitted choice a probability of zero, or NaN"
        )
    bounds = search.bounds
    while threshold is not None and search.idle and bounds[0] < threshold <= bounds[1]:
        _expand(search, tree, search.weighty(delta))
        bounds = search.bounds
    return Found(search.leaf, search.logprob, bounds)


def _expand(search: _Search, tree: Tree, branches: list[_Branch]) -> None:
    """Decode branches: the first with its whole forced run, the others one id far."""
    batch: list[Node] = []
    ends: set[Node] = set()
    for i, branch in enumerate(branches):
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
