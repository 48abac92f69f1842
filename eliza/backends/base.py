"""The least that a runtime must give: ids in, rows of logits out.

Everything else (prefix reuse, forced runs, search, scores, streaming) is written once,
above this, and is therefore the same on every backend.

A runtime author writes two classes with these members; nothing is inherited and nothing
of eliza needs to be imported but `Capabilities` and the errors. `eliza.testing` has the
smallest complete example, `ScriptedBackend`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from eliza.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Ids

    from numpy.typing import NDArray

    from eliza.files.bundle import Bundle
    from eliza.vocab import Vocab

    Row = NDArray[np.float32]

__all__ = ["LOGITS_BYTES", "Backend", "Capabilities", "Factory", "HeadRows", "Sequence"]
__all__ += ["TreeRoom", "check_count", "ids_array", "parents_array"]

#: The most that the logits of one decode may take, in bytes.
LOGITS_BYTES = 64 << 20


class Capabilities(NamedTuple):
    """What a backend can do beyond decoding one chain of ids.

    Attributes
    ----------
    truncate : bool
        `Sequence.truncate` can cut anywhere, not only to zero.
    tree : bool
        `Sequence.decode_tree` works.
    search_delta : float
        How far below the best bound, in nats, a branch may lie and still join the
        next batch of a search: 0.5 where a batch costs by the id, more where 64 ids
        cost the same as one. Without trees each branch is a batch of its own, and
        only the best one is decoded.
    save : bool
        `Sequence.save` and `restore` work.
    head_rows : bool
        Its sequences are `HeadRows`.
    """

    truncate: bool = True
    tree: bool = False
    search_delta: float = 0.5
    save: bool = False
    head_rows: bool = False


class TreeRoom(NamedTuple):
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

    `python -m eliza.conformance` asks a runtime all of what is said here; see
    docs/backends.md.

    A decode either succeeds as a whole, or raises and leaves `position` as it was; a
    runtime that cannot cut back then leaves the sequence empty, at position 0. One that
    raises because of its arguments changes nothing at all: position, tree and rows are
    as before. Ids come as any sequence of integers, and are not kept.

    Rows of logits belong to the last decode of this sequence. What other sequences of
    the same backend do in between does not change them, but ends the windows on them.

    Calls must not overlap, neither on one sequence nor on two of one backend.

    Attributes
    ----------
    on_piece : callable or None
        Called without arguments before each piece of a decode is computed. It may
        raise, to cancel: the decode is then undone, and the exception passes through.
    """

    on_piece: Callable[[], None] | None

    @property
    def position(self) -> int:
        """The number of ids decoded and kept."""

    @property
    def max_rows(self) -> int:
        """The most ids that one `decode_many` or `decode_tree` may take."""

    def decode(self, ids: Ids[int]) -> None:
        """Append ids; row 0 then belongs to the last of them.

        Raises
        ------
        InvalidArgument
            No ids, or one outside [0, n_vocab).
        ContextOverflow
            The ids do not fit; nothing was decoded.
        BackendError
            The runtime failed; `position` is as before.
        """

    def decode_many(self, ids: Ids[int]) -> None:
        """Append ids, at most `max_rows`; row i then belongs to ids[i]."""

    def truncate(self, n: int) -> None:
        """Drop everything after the first n ids, and the tree. Rows become invalid.

        Raises
        ------
        InvalidArgument
            n is negative, or more than `position`.
        NotSupported
            `Capabilities.truncate` is false; 0 and `position` work all the same.
        BackendError
            The runtime refused; the sequence is empty.
        """

    def decode_tree(self, ids: Ids[int], parents: Ids[int]) -> None:
        """Decode nodes of a tree above the end of the timeline; row i is node i's.

        The nodes of a tree are numbered in the order in which they were decoded,
        across batches, until the next `decode`, `decode_many`, `truncate` or
        `clear_tree`. parents[i] is such a number, smaller than the node's own, or -1
        for the end of the timeline. `position` does not change.

        Raises
        ------
        InvalidArgument
            A bad id or parent, or more nodes or branches than `tree_room` says.
        ContextOverflow
            The nodes do not fit into the context.
        NotSupported
            `Capabilities.tree` is false.
        """

    def clear_tree(self) -> None:
        """Forget the tree; its memory is free again."""

    def tree_room(self) -> TreeRoom:
        """Return what the next `decode_tree` may add."""

    def logits_window(self, i: int = 0) -> Row:
        """Return row i of the last decode as a view.

        float32, at least n_vocab long; what lies beyond n_vocab is padding. The view is
        valid until the next decode of any sequence of the backend: what it shows after
        that is undefined. Where there is no such row (none decoded yet, or the timeline
        was truncated or the tree cleared since) InvalidArgument is raised.
        """

    def logits(self, i: int = 0) -> Row:
        """Return a copy of row i."""

    def save(self) -> bytes:
        """Return the state of the timeline, without the tree and the rows.

        Raises
        ------
        NotSupported
            `Capabilities.save` is false.
        """

    def restore(self, state: bytes, n: int) -> None:
        """Put a state that `save` gave in place of the timeline; it has n ids then.

        The state comes from the same model with the same options; that it is whole has
        been checked. Rows become invalid.

        Raises
        ------
        ContextOverflow
            It does not fit; the timeline is as it was.
        BackendError
            The runtime refused it; the timeline is as it was, or empty.
        NotSupported
            `Capabilities.save` is false.
        """

    def close(self) -> None:
        """Free the sequence's memory. May be called twice.

        All other calls then raise `Closed`.
        """


class HeadRows(Sequence, Protocol):
    """A sequence that can compute single logits; see `Capabilities.head_rows`.

    The last layer of a model, its head, has a row of weights for each id. Such a
    sequence computes no more in a decode than what the head is multiplied with, and of
    the head only what is asked for.

    Attributes
    ----------
    whole_row : bool
        Set before each `decode` by whoever knows: its row will be read as a whole. It
        is a hint, and false at first. A runtime to which such a row costs less with the
        decode than after it may compute it then; the logits are the same.
    """

    whole_row: bool

    def logits_of(self, ids: Ids[int], i: int = 0) -> Row:
        """Return the logits of some ids in row i, in the order of the ids.

        They are those that the whole row has, up to rounding, and the array is the
        caller's own. Ids whose weights are equal have equal logits.

        Raises
        ------
        InvalidArgument
            No ids, one outside [0, n_vocab), or no such row.
        """


class Backend(Protocol):
    """A loaded model in some runtime.

    Attributes
    ----------
    chat_template : str or None
        The model's own template for chat messages, in jinja2's language. It is
        optional: a backend without this attribute takes no messages, only texts and
        ids.
    fingerprint : bytes
        Names the weights and the options that a saved state depends on: states are
        exchanged between backends where it is equal. Needed where `Capabilities.save`
        is true.
    """

    @property
    def name(self) -> str:
        """The runtime's name, for messages: "llama.cpp"."""

    @property
    def model_id(self) -> str:
        """What the model calls itself, or ""."""

    @property
    def fingerprint(self) -> bytes:
        """What saved state is tied to; see above."""

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
        """Free the model. Sequences still open are closed with it.

        May be called twice; `open` then raises `Closed`.
        """


class Factory(Protocol):
    """What a selector knows of a backend before a model is loaded.

    A package offers one as an entry point of the group `eliza.backends`: an object, a
    module, or a class that is called without arguments. Probes are quick: they load no
    model and change nothing, as they are called for each selection, from any thread.
    One that raises, or gives something else than said here, is not selected; who asked
    for it by name is told what it raised.

    Attributes
    ----------
    aliases : tuple of str
        Optional: other names under which it may be asked for.
    install : str
        Optional: what to do where it is not available, such as a `pip` command.
    """

    @property
    def name(self) -> str:
        """By which it is asked for, without regard to case."""

    @property
    def provides(self) -> frozenset[str]:
        """What the backends that it opens can do for a constraint.

        "mask": logits are read before an id is chosen, so that a constraint binds.
        "forced_run": several ids are decoded at once. "rollback": ids are taken back.
        "tree": branches are decoded side by side.
        """

    def available(self) -> bool:
        """Whether the runtime is there, on this host."""

    def can_serve(self, bundle: Bundle) -> bool:
        """Whether a bundle has what this runtime reads."""

    def preference_rank(self) -> int:
        """Give its rank: the highest is selected, and 0 or less only by name."""

    def open(self, bundle: Bundle, **options: Any) -> Backend:
        """Load the model.

        Parameters
        ----------
        bundle : Bundle
            One that it can serve, probed again: nothing is kept from `can_serve`.
        **options
            Those of `eliza.load`: `n_ctx`, `n_threads`, `progress` where they were
            given, and all of `backend_options`. What it does not know it refuses.

        Raises
        ------
        BundleError, NotSupported, OutOfMemory
            What else it raises passes through `eliza.load` as it is.
        """


def check_count(name: str, value: int | None) -> None:
    """Refuse what is neither None nor a whole number in [1, 2**30].

    Raises
    ------
    InvalidArgument, InvalidType
        The option `name` has such a value.
    """
    if value is None:
        return
    if type(value) is not int:
        raise InvalidType(f"{name} is {value!r}; give a whole number or None")
    if not 1 <= value <= 1 << 30:
        raise InvalidArgument(f"{name} is {value}; it lies in [1, 2**30]")


def ids_array(ids: Ids[int], n_vocab: int) -> NDArray[np.int32]:
    """Return ids as an array, after checking each of them.

    Parameters
    ----------
    ids : sequence of int or integer array
        One or more ids in [0, n_vocab).

    Raises
    ------
    InvalidArgument
        No ids, or one that is out of range; the message names its place.
    InvalidType
        Something other than integers.
    """
    # The usual case without NumPy: 10 us in place of 60 just after a decode, when
    # nothing is left of its code in the processor's caches.
    if type(ids) is list and {*map(type, ids)} == {int}:
        least, most = min(ids), max(ids)
        if least >= 0 and most < n_vocab:
            return np.array(ids, np.int32)
    array = _integers(ids, "ids")
    if array.size == 0:
        raise InvalidArgument("ids is empty; a decode needs at least one id")
    bad = (array < 0) | (array >= n_vocab)
    if bad.any():
        i = int(bad.argmax())
        raise InvalidArgument(f"ids[{i}] is {array[i]}; an id lies in [0, {n_vocab})")
    return array.astype(np.int32, copy=False)


def parents_array(parents: Ids[int], n_ids: int, n_nodes: int) -> NDArray[np.int64]:
    """Return the parents of new nodes of a tree as an array, after checking them.

    Parameters
    ----------
    parents : sequence of int or integer array
        As `Sequence.decode_tree` takes it.
    n_ids : int
        The number of new nodes.
    n_nodes : int
        The number of nodes that the tree has already.
    """
    if type(parents) is list and {*map(type, parents)} == {int}:
        within = all(-1 <= at < n_nodes + i for i, at in enumerate(parents))
        if within and len(parents) == n_ids:
            return np.array(parents, np.int64)
    array = _integers(parents, "parents")
    if array.size != n_ids:
        raise InvalidArgument(f"{n_ids} ids, but {array.size} parents; give one each")
    bad = (array < -1) | (array >= n_nodes + np.arange(n_ids))
    if bad.any():
        i = int(bad.argmax())
        raise InvalidArgument(
            f"parents[{i}] is {array[i]}; the parent of node {n_nodes + i} "
            f"lies in [-1, {n_nodes + i})"
        )
    return array


def _integers(values: Any, name: str) -> NDArray[np.int64]:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidArgument(f"{name} is ragged; give a flat list") from None
    if array.ndim != 1:
        raise InvalidArgument(f"{name} has shape {array.shape}; give a flat list")
    if array.size == 0:
        return np.zeros(0, np.int64)
    kind, top = array.dtype.kind, np.iinfo(np.int64).max
    if kind not in "iu" or (kind == "u" and int(array.max()) > top):
        raise InvalidType(f"{name} holds something other than integers of 64 bits")
    return array.astype(np.int64, copy=False)
