"""The branches of a tree as copies of a cache.

A copy shares its memory with the original until either is written to, so that a branch
costs the memory of the whole timeline and of its own ids. A run of nodes, each the
parent of the next, is computed at once; the first child of a branch's last node goes on
in it, any other begins a copy that is cut back to its parent.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eliza.backends.mlx_model import MlxModel

__all__ = ["Branches", "runs_of"]


@dataclass(slots=True)
class _Branch:
    """A cache above the timeline, and how many ids of a path it holds."""

    cache: list[Any]
    length: int


@dataclass(frozen=True, slots=True)
class _Node:
    """Where a node is: in which branch, after how many ids of it."""

    branch: _Branch
    depth: int


def runs_of(parents: list[int], known: int) -> list[list[int]]:
    """Divide the new nodes into runs, in an order in which they can be computed.

    Parameters
    ----------
    parents : list of int
        Of each new node; new nodes are numbered from `known` on.
    known : int
        The number of nodes that are there already.

    Returns
    -------
    list of list of int
        Indices of new nodes; in a run each is the parent of the next.
    """
    first_child: dict[int, int] = {}
    for i, parent in enumerate(parents):
        first_child.setdefault(parent, i)
    runs = []
    taken = [False] * len(parents)
    for start in range(len(parents)):
        if taken[start]:
            continue
        run = []
        node: int | None = start
        while node is not None:
            taken[node] = True
            run.append(node)
            node = first_child.get(known + node)
        runs.append(run)
    return runs


class Branches:
    """The nodes of a tree above a timeline.

    Parameters
    ----------
    base : int
        The number of ids of the timeline.
    """

    def __init__(self, base: int) -> None:
        self._base = base
        self._nodes: list[_Node] = []
        self.count = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def grow(
        self,
        model: MlxModel,
        timeline: list[Any],
        ids: list[int],
        parents: list[int],
        pause: Callable[[], None],
    ) -> Any:
        """Compute new nodes; return the states after each, in the order of `ids`.

        Parameters
        ----------
        model : MlxModel
            What computes them.
        timeline : list
            The cache below the tree; it is not changed.
        pause : callable
            Called before each run. If it raises, as if a computation does, the tree is
            as it was.
        """
        mx = model.mx
        known, count = len(self._nodes), self.count
        lengths: dict[int, tuple[_Branch, int]] = {}
        new: list[_Node | None] = [None] * len(ids)
        states: list[Any] = []
        order: list[int] = []
        try:
            for run in runs_of(parents, known):
                pause()
                parent = parents[run[0]]
                at = None
                if parent >= 0:
                    at = self._nodes[parent] if parent < known else new[parent - known]
                branch = self._branch(model, timeline, at)
                lengths.setdefault(id(branch), (branch, branch.length))
                found = model.forward([ids[i] for i in run], branch.cache)
                mx.eval(found, [layer.state for layer in branch.cache])
                for i in run:
                    branch.length += 1
                    new[i] = _Node(branch, branch.length)
                states.append(found)
                order.extend(run)
        except BaseException:
            self.count = count
            for branch, length in lengths.values():
                model.cut(branch.cache, self._base + length)
                branch.length = length
            raise
        self._nodes.extend(node for node in new if node is not None)
        if len(states) == 1:
            return states[0]
        places = sorted(range(len(order)), key=order.__getitem__)
        return mx.concatenate(states)[mx.array(places)]

    def _branch(
        self, model: MlxModel, timeline: list[Any], at: _Node | None
    ) -> _Branch:
        """Return a branch that ends at a node, or at the timeline."""
        if at is not None and at.depth == at.branch.length:
            return at.branch
        self.count += 1
        source = timeline if at is None else at.branch.cache
        cache = copy.deepcopy(source)
        if at is None:
            return _Branch(cache, 0)
        model.cut(cache, self._base + at.depth)
        return _Branch(cache, at.depth)
