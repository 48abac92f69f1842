"""Trees above the end of a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eliza.conformance.rules import rule
from eliza.conformance.subject import held, require
from eliza.errors import ContextOverflow, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence as Ids

    from eliza.backends.base import Sequence
    from eliza.conformance.subject import Subject


class Grown:
    """A tree as it should be: the path of each node."""

    def __init__(self, s: Subject, sequence: Sequence, ids: list[int]) -> None:
        self.paths: list[list[int]] = []
        self._s = s
        self._sequence = sequence
        self._ids = ids

    def add(self, ids: Ids[int], parents: Ids[int], what: str) -> None:
        """Decode nodes, as many as there is room for in as many batches as they need,
        and require their rows to be those of their paths.
        """
        s, sequence = self._s, self._sequence
        size = sequence.max_rows
        for begin in range(0, len(ids), size):
            new, above = ids[begin : begin + size], parents[begin : begin + size]
            first = len(self.paths)
            tips = len(new) - len({p for p in above if p >= first})
            room = sequence.tree_room()
            if tips > room.branches or len(new) > room.nodes:
                return
            for token, parent in zip(new, above, strict=True):
                path = [] if parent < 0 else self.paths[parent]
                self.paths.append([*path, token])
            sequence.decode_tree(list(new), list(above))
            held(sequence, len(self._ids), f"{what}: a tree above the timeline")
            for i, path in enumerate(self.paths[first:]):
                where = f"{what}: node {first + i}, {len(path)} deep"
                s.same(sequence.logits(i), [*self._ids, *path], where)


def start(s: Subject, seed: int = 0) -> tuple[Sequence, list[int], Grown]:
    """Return a sequence with a few ids, these ids, and the tree above them."""
    ids = s.ids(7, seed)
    sequence = s.grown(ids)
    return sequence, ids, Grown(s, sequence, ids)


@rule("tree.chain", needs="tree")
def chain(s: Subject) -> None:
    """A tree that is a chain gives the rows of one id after another, at any depth."""
    sequence, ids, tree = start(s)
    n = min(12, s.backend.n_ctx // 4)
    tree.add(s.ids(n, 1), range(-1, n - 1), "one batch")
    sequence.clear_tree()
    tree = Grown(s, sequence, ids)
    for i, token in enumerate(s.ids(n, 2)):
        if len(tree.paths) == i:  # there was room so far
            tree.add([token], [i - 1], "a batch for each node")


@rule("tree.branches", needs="tree")
def branches(s: Subject) -> None:
    """Each node of a tree sees the timeline and its own path, and no other branch."""
    rng = np.random.default_rng(3)
    for seed in range(4):
        sequence, _, tree = start(s, seed)
        room = sequence.tree_room()
        n = min(10, room.branches, s.backend.n_ctx // 4)
        parents = [int(rng.integers(-1, i)) if i else -1 for i in range(n)]
        tree.add(s.ids(n, 10 + seed), parents, f"random tree {parents}")
        sequence.close()


@rule("tree.siblings", needs="tree")
def siblings(s: Subject) -> None:
    """Siblings with the same id, and ids in another order, each have their own row."""
    sequence, ids, tree = start(s)
    a, b = ids[0], ids[1]
    n = min(4, sequence.tree_room().branches)
    tree.add([a, b, a, b][:n], [-1] * n, "four siblings")
    sequence.clear_tree()
    tree = Grown(s, sequence, ids)
    tree.add([b, a, a, b][: n + 2], [-1, -1, 0, 1][: n + 2], "two pairs")


@rule("tree.batches", needs="tree")
def batches(s: Subject) -> None:
    """Nodes are numbered across batches: a later one grows on any earlier one."""
    sequence, ids, tree = start(s)
    rng = np.random.default_rng(5)
    for batch in range(4):
        room = sequence.tree_room()
        n = min(3, room.nodes, room.branches)
        if not n:
            break
        first = len(tree.paths)
        parents = [int(rng.integers(-1, first + i)) for i in range(n)]
        tree.add(s.ids(n, 20 + batch), parents, f"batch {batch} on {parents}")
    sequence.clear_tree()
    s.goes_on(sequence, ids, "after a tree of several batches")


@rule("tree.cleared", needs="tree")
def cleared(s: Subject) -> None:
    """`clear_tree` forgets nodes and rows, and gives back their room; numbers begin
    anew.
    """
    sequence, ids, tree = start(s)
    before = sequence.tree_room()
    n = min(3, before.nodes)
    for round_ in range(3):
        tree.add(s.ids(n, round_), range(-1, n - 1), f"round {round_}")
        sequence.clear_tree()
        for read in (sequence.logits, sequence.logits_window):
            with s.refused(InvalidArgument, f"{read.__name__}(0) after clear_tree"):
                read(0)
        require(
            sequence.tree_room() == before,
            f"tree_room is {sequence.tree_room()} after clear_tree, and was {before}",
        )
        with s.refused(InvalidArgument, "a parent that was cleared"):
            sequence.decode_tree([ids[0]], [0])
        tree = Grown(s, sequence, ids)
    sequence.clear_tree()
    s.goes_on(sequence, ids, "after clear_tree")


@rule("tree.ended", needs="tree")
def ended(s: Subject) -> None:
    """`decode`, `decode_many` and `truncate` end the tree: the timeline goes on without
    it.
    """
    for what in ("decode", "decode_many", "truncate"):
        sequence, ids, tree = start(s)
        tree.add(s.ids(2, 1), [-1, 0], "a tree")
        if what == "truncate":
            ids = ids[:5] if s.can_truncate else []
            sequence.truncate(len(ids))
        else:
            more = s.ids(1, 2)
            getattr(sequence, what)(more)
            ids = ids + more
            s.same(sequence.logits(0), ids, f"{what} above a tree")
        held(sequence, len(ids), f"{what} above a tree")
        with s.refused(InvalidArgument, f"a parent from before {what}"):
            sequence.decode_tree(s.ids(1), [0])
        Grown(s, sequence, ids).add(s.ids(2, 3), [-1, 0], f"a tree after {what}")
        sequence.close()


@rule("tree.bad", needs="tree")
def bad(s: Subject) -> None:
    """Bad ids, parents and lengths are refused, and the tree goes on as it was."""
    sequence, _, tree = start(s)
    first, second, third = s.ids(3, 1)
    tree.add([first, second], [-1, 0], "before")
    for what, ids, parents in (
        ("no nodes", [], []),
        ("a parent below -1", [third], [-2]),
        ("a parent that is not there", [third], [5]),
        ("a node that is its own parent", [third], [2]),
        ("a parent that comes later", [third, third], [3, -1]),
        ("fewer parents than ids", [third, third], [-1]),
        ("more parents than ids", [third], [-1, -1]),
        ("an id below 0", [-1], [-1]),
        ("an id past the vocabulary", [s.n_vocab], [-1]),
    ):
        with s.refused(InvalidArgument, what):
            sequence.decode_tree(ids, parents)
        # The rows of the last decode are still there.
        last = min(2, sequence.max_rows) - 1
        s.same(sequence.logits(last), [*s.ids(7), first, second], f"after {what}")
    tree.add([third, first], [1, 0], "after all that was refused")


@rule("tree.room", needs="tree")
def room(s: Subject) -> None:
    """More nodes or branches than `tree_room` says are refused, and as many work."""
    sequence, ids, _ = start(s)
    room = sequence.tree_room()
    require(room.nodes >= 1, f"{room} above {len(ids)} ids of {s.backend.n_ctx}")
    require(room.branches >= 1, f"{room} above {len(ids)} ids of {s.backend.n_ctx}")
    if room.nodes < 2048:
        token = s.ids(1, 1)[0]
        too_many = [token] * (room.nodes + 1), range(-1, room.nodes)
        # A tree that is too large is also one that does not fit.
        what = f"one node more than {room}"
        with s.refused((InvalidArgument, ContextOverflow), what):
            sequence.decode_tree(*too_many)
        held(sequence, len(ids), "after too many nodes")
        sequence.decode_tree([token] * room.nodes, range(-1, room.nodes - 1))
        sequence.clear_tree()
    if room.branches < room.nodes:
        many = (s.pool * (1 + room.branches // len(s.pool)))[: room.branches + 1]
        with s.refused(InvalidArgument, f"{len(many)} branches where {room}"):
            sequence.decode_tree(many, [-1] * len(many))
        sequence.decode_tree(many[:-1], [-1] * (len(many) - 1))
        for i in (0, room.branches - 1):
            s.same(sequence.logits(i), [*ids, many[i]], f"branch {i} of a full tree")
    sequence.clear_tree()
    s.goes_on(sequence, ids, "after a full tree")
