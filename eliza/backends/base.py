"""The least that a runtime must give: ids in, rows of logits out.

Everything else (prefix reuse, forced runs, search, scores, streaming) is written once,
above this, and is therefore the same on every backend.

A runtime author writes two classes with these members; nothing is inherited and nothing
of eliza needs to be imported but `Capabilities` and the errors. `eliza.testing` has the
smallest complete example, `ScriptedBackend`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence as Ids

    import numpy as np
    from numpy.typing import NDArray

    from eliza.vocab import Vocab

    Row = NDArray[np.float32]

__all__ = ["Backend", "Capabilities", "Sequence", "TreeRoom"]

#: The most that the logits of one tree batch may take, in bytes.
TREE_LOGITS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do beyond decoding one chain of ids.

    Attributes
    ----------
    truncate : bool
        `Sequence.truncate` can cut anywhere, not only to zero.
    tree : bool
        `Sequence.decode_tree` works.
    search_delta : float
        How far below the best bound, in nats, a branch may lie and still join the
        next batch of a search: 1 where a batch costs by the id, more where 64 ids
        cost the same as one.
    """

    truncate: bool = True
    tree: bool = False
    search_delta: float = 1.0


@dataclass(frozen=True, slots=True)
class TreeRoom:
    """What still fits into a sequence's tree.

    Attributes
    ----------
    nodes : int
        The most nodes that the next `decode_tree` may add.
    branches : int
        The most tips (nodes without a child in that batch) that it may add.
    """

    nodes: int
    branches: int


class Sequence(Protocol):
    """One timeline of ids in a runtime's memory.

    A decode either succeeds as a whole, or raises and leaves `position` as it was.
    Rows of logits belong to the last decode only.
    """

    @property
    def position(self) -> int:
        """The number of ids decoded and kept."""

    def decode(self, ids: Ids[int]) -> None:
        """Append ids; row 0 then belongs to the last of them.

        Raises
        ------
        ContextOverflow
            The ids do not fit; nothing was decoded.
        BackendError
            The runtime failed; `position` is as before.
        """

    def decode_many(self, ids: Ids[int]) -> None:
        """Append ids; row i then belongs to ids[i]."""

    def truncate(self, n: int) -> None:
        """Drop everything after the first n ids, and the tree. Rows become invalid."""

    def decode_tree(self, ids: Ids[int], parents: Ids[int]) -> None:
        """Decode nodes of a tree above the end of the timeline; row i is node i's.

        The nodes of a tree are numbered in the order in which they were decoded,
        across batches, until the next `decode`, `decode_many`, `truncate` or
        `clear_tree`. parents[i] is such a number, smaller than the node's own, or -1
        for the end of the timeline. `position` does not change.
        """

    def clear_tree(self) -> None:
        """Forget the tree; its memory is free again."""

    def tree_room(self) -> TreeRoom:
        """Return what the next `decode_tree` may add."""

    def logits_window(self, i: int = 0) -> Row:
        """Return row i of the last decode as a view, valid until the next decode.

        float32, at least n_vocab long; what lies beyond n_vocab is padding.
        """

    def logits(self, i: int = 0) -> Row:
        """Return a copy of row i."""

    def close(self) -> None:
        """Free the sequence's memory. May be called twice."""


class Backend(Protocol):
    """A loaded model in some runtime."""

    @property
    def name(self) -> str:
        """The runtime's name, for messages: "llama.cpp"."""

    @property
    def model_id(self) -> str:
        """What the model calls itself, or ""."""

    @property
    def n_ctx(self) -> int:
        """The most ids that a timeline can hold."""

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""

    @property
    def capabilities(self) -> Capabilities:
        """What its sequences can do."""

    def open(self) -> Sequence:
        """Start an empty timeline.

        Raises
        ------
        BackendError
            No further sequence can be had.
        """

    def close(self) -> None:
        """Free the model. Sequences still open are closed with it."""
