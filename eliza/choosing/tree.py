"""Decoding the nodes of a token tree in batches that fit the runtime.

The search asks for the logits after some nodes. Here they are packed into batches
within the room that the sequence has; when it is used up, the tree is cleared and the
ancestors that are still needed are decoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eliza.errors import ContextOverflow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from eliza._cursor import Cursor
    from eliza.backends.base import Row, Sequence
    from eliza.timeline import Timeline

__all__ = ["Node", "Tree"]


class Node:
    """An id above the timeline, at which logits are wanted.

    Attributes
    ----------
    token : int
        The id.
    parent : Node or None
        The node before it; None at the end of the timeline.
    cursor : Cursor
        The constraint after the id.
    score : float
        Log score of the path up to and including the id.
    """

    __slots__ = ("cursor", "number", "parent", "score", "token", "wave")

    def __init__(
        self, token: int, parent: Node | None, cursor: Cursor, score: float = 0.0
    ) -> None:
        self.token = token
        self.parent = parent
        self.cursor = cursor
        self.score = score
        self.number = -1
        self.wave = -1


class Tree:
    """The tree above the end of a timeline; a context manager, which drops it again.

    Parameters
    ----------
    timeline : Timeline
        It has logits after its last id; they are kept when something is decoded. Where
        the runtime has no trees, one path after the other is decoded and cut off again;
        where it cannot cut either, each path begins at the prompt.
    narrow : bool
        Of the rows, only the logits of a node's allowed ids are read.

    Attributes
    ----------
    batches : bool
        Several branches are decoded at once.
    """

    def __init__(self, timeline: Timeline, *, narrow: bool = False) -> None:
        self._narrow = narrow
        self._timeline = timeline
        self._sequence = timeline.sequence
        self._base = timeline.position
        self._grown = False
        self._wave = 0  # moves with each clear_tree: nodes of older waves are gone
        self._live = 0
        self._chain: list[Node] = []
        self.batches = timeline.capabilities.tree
        self.expand = self._expand_tree if self.batches else self._expand_chains

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._grown:
            self._sequence.clear_tree()
            self._timeline.unwind(self._base)

    def _grow(self) -> None:
        """Get ready for a decode."""
        self._timeline.keep_row()
        self._grown = True

    def _expand_tree(self, nodes: Iterable[Node]) -> Iterator[tuple[Node, Row]]:
        """Decode nodes, parents first, and yield each with its logits.

        A row is valid until the next one is asked for.
        """
        nodes = list(nodes)
        if self._fit(nodes):
            first = self._decode(nodes)
            for node in nodes:
                yield node, self._row(node, node.number - first)
            return
        batch = _Batch(self._sequence)
        for node in nodes:
            path = self._missing(node, batch)
            if not batch.fits(path):
                yield from self._flush(batch)
                batch = _Batch(self._sequence)
                path = self._missing(node, batch)
                if not batch.fits(path):
                    self._clear()
                    batch = _Batch(self._sequence)
                    path = self._missing(node, batch)
                    if not batch.fits(path):
                        raise ContextOverflow(
                            f"a path of {len(path)} ids above a timeline of "
                            f"{self._base} does not fit the context"
                        )
            batch.add(path)
            batch.wanted.append(node)
        yield from self._flush(batch)

    def _fit(self, nodes: list[Node]) -> bool:
        """Whether the nodes can be decoded at once, as they are: the usual case."""
        room = self._sequence.tree_room()
        if not 0 < len(nodes) <= min(room.nodes, room.branches):
            return False
        known = {None, *nodes}
        wave = self._wave
        return all(
            node.wave != wave and (node.parent in known or node.parent.wave == wave)  # type: ignore[union-attr]
            for node in nodes
        )

    def _missing(self, node: Node, batch: _Batch) -> list[Node]:
        """Return the path to the node, without what is live or in the batch."""
        path = []
        at: Node | None = node
        while at is not None and at.wave != self._wave and at not in batch:
            path.append(at)
            at = at.parent
        path.reverse()
        return path

    def _flush(self, batch: _Batch) -> Iterator[tuple[Node, Row]]:
        if batch.nodes:
            first = self._decode(batch.nodes)
            for node in batch.wanted:
                yield node, self._row(node, node.number - first)

    def _decode(self, nodes: list[Node]) -> int:
        """Decode nodes; return the number of the first, which has row 0."""
        self._grow()
        first = self._live
        ids, parents = [], []
        for number, node in enumerate(nodes, first):
            node.number = number
            node.wave = self._wave
            ids.append(node.token)
            parents.append(-1 if node.parent is None else node.parent.number)
        self._sequence.decode_tree(ids, parents)
        self._timeline.count(len(ids))
        self._live += len(ids)
        return first

    def _row(self, node: Node, i: int) -> Row:
        if not self._narrow:
            return self._sequence.logits_window(i)
        at = node.cursor
        return self._timeline.narrow_row_of(i, at.allowed(), at.trie.n_vocab)

    def _clear(self) -> None:
        self._sequence.clear_tree()
        self._wave += 1
        self._live = 0

    def _expand_chains(self, nodes: Iterable[Node]) -> Iterator[tuple[Node, Row]]:
        """Do the same where the runtime has no trees: paths one after the other."""
        wanted = list(nodes)
        parents = {node.parent for node in wanted}
        asked = set(wanted)
        for tip in wanted:
            if tip in parents:
                continue
            path = []
            at: Node | None = tip
            while at is not None:
                path.append(at)
                at = at.parent
            path.reverse()
            self._grow()
            keep = self._cut_to(path, asked)
            self._sequence.decode_many([node.token for node in path[keep:]])
            self._timeline.count(len(path) - keep)
            self._chain = path
            for i, node in enumerate(path[keep:]):
                if node in asked:
                    asked.discard(node)
                    yield node, self._row(node, i)

    def _cut_to(self, path: list[Node], asked: set[Node]) -> int:
        """Cut the timeline to what it shares with the path; return how much that is."""
        keep = 0
        for old, new in zip(self._chain, path, strict=False):
            if old is not new or new in asked:
                break
            keep += 1
        if not self._timeline.capabilities.truncate and keep < len(self._chain):
            keep = 0
        self._timeline.unwind(self._base + keep)
        return keep


class _Batch:
    """The nodes of one batch, and what of the sequence's room they take."""

    def __init__(self, sequence: Sequence) -> None:
        self._room = sequence.tree_room()
        self.nodes: list[Node] = []
        self.wanted: list[Node] = []
        self._inner: set[Node | None] = set()
        self._members: set[Node] = set()
        self._tips = 0

    def __contains__(self, node: Node) -> bool:
        return node in self._members

    def fits(self, path: list[Node]) -> bool:
        if not path:
            return True
        return (
            len(self.nodes) + len(path) <= self._room.nodes
            and self._tips + self._new_tips(path) <= self._room.branches
        )

    def _new_tips(self, path: list[Node]) -> int:
        parent = path[0].parent
        return 0 if parent in self._members and parent not in self._inner else 1

    def add(self, path: list[Node]) -> None:
        if not path:
            return
        self._tips += self._new_tips(path)
        for node in path:
            self.nodes.append(node)
            self._members.add(node)
            self._inner.add(node.parent)
