"""A timeline in LiteRT."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.backends.base import LOGITS_BYTES, TreeRoom, ids_array
from eliza.backends.litert_inputs import inputs_of
from eliza.backends.litert_plan import divide
from eliza.errors import (
    BackendError,
    Closed,
    ContextOverflow,
    InvalidArgument,
    NotSupported,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.base import Row
    from eliza.backends.litert_base import Runtime
    from eliza.backends.litert_head import SingleLogits
    from eliza.backends.litert_layout import Step
    from eliza.locking import ModelLock

__all__ = ["LitertSequence", "Shared"]

#: Of more than this part of the vocabulary the whole row is cheaper.
_SINGLE = 32


class Shared:
    """What all sequences of a backend have in common.

    Parameters
    ----------
    runtime : Runtime
    lock : ModelLock
    n_ctx : int
        The most ids of a timeline, at most what the cache holds.
    n_vocab : int
    single : SingleLogits, optional
        What computes single logits.
    """

    def __init__(
        self,
        runtime: Runtime,
        lock: ModelLock,
        n_ctx: int,
        n_vocab: int,
        single: SingleLogits | None = None,
    ) -> None:
        self.single = single
        self.runtime = runtime
        self.lock = lock
        self.n_ctx = n_ctx
        self.n_vocab = n_vocab
        layout = runtime.layout
        self.sizes = tuple((step.n, step.out is not None) for step in layout.steps)
        self.head_sizes = tuple((head.n, True) for head in layout.heads)
        self.max_rows = max(1, LOGITS_BYTES // (4 * runtime.layout.width))
        self.closed = False

    def check_open(self) -> None:
        """Raise if the backend was closed."""
        if self.closed:
            raise Closed("the LiteRT backend is closed; load the model again")


class LitertSequence:
    """One timeline in LiteRT, with keys and values of its own.

    Made by `LitertBackend.open`; `eliza.backends.base.Sequence` has the contract.

    The signatures of a file take fixed numbers of ids. What is left over fills up the
    last call: those keys and values lie behind the end, and are overwritten.
    """

    def __init__(self, shared: Shared) -> None:
        self.on_piece: Callable[[], None] | None = None
        self.whole_row = False
        self._shared = shared
        self._position = 0
        # What was computed for each id of the last decode, and logits once asked for.
        self._hidden: NDArray[np.float32] | None = None
        self._rows: NDArray[np.float32] | None = None
        self._closed = False
        with shared.lock:
            shared.check_open()
            self._cache = shared.runtime.new_cache()

    @property
    def position(self) -> int:
        """The number of ids decoded and kept."""
        return self._position

    @property
    def max_rows(self) -> int:
        """The most ids that one `decode_many` may take."""
        return self._shared.max_rows

    # The timeline

    def decode(self, ids: Ids[int]) -> None:
        """Append ids; row 0 then belongs to the last of them.

        Between two calls of the runtime `on_piece` is called and Ctrl-C works.

        Raises
        ------
        InvalidArgument
            No ids, or one outside [0, n_vocab).
        ContextOverflow
            The ids do not fit; nothing was decoded.
        BackendError
            The runtime failed; `position` is as before.
        """
        self._append(ids, all_rows=False)

    def decode_many(self, ids: Ids[int]) -> None:
        """Append ids, at most `max_rows`; row i then belongs to ids[i]."""
        self._append(ids, all_rows=True)

    def _append(self, ids: Ids[int], all_rows: bool) -> None:
        shared = self._shared
        tokens = ids_array(ids, shared.n_vocab)
        n = len(tokens)
        if all_rows and n > shared.max_rows:
            raise InvalidArgument(
                f"{n} rows of logits at once; at most {shared.max_rows} can be had"
            )
        with shared.lock:
            self._check_open()
            self._check_room(self._position + n)
            self._forget_rows()
            layout = shared.runtime.layout
            room = layout.n_ctx - self._position
            if n == 1 and self.whole_row and layout.whole and not all_rows:
                calls = [(layout.whole, 1)]  # 0.3 ms less than a call for the head too
            else:
                divided = divide(n, room, shared.sizes, all_rows)
                calls = [(layout.steps[number], taken) for number, taken in divided]
            parts: list[NDArray[np.float32]] = []
            done = 0
            for step, taken in calls:
                self._pause()
                part = tokens[done : done + taken]
                rows = self._run(step, part, self._position + done)
                done += taken
                if rows is not None and (all_rows or done == n):
                    parts.append(rows[0 if all_rows else taken - 1 : taken])
            # The last call gives rows.
            found = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if step.hidden:
                self._hidden = found
            else:
                self._rows = found
            self._position += n

    def _run(
        self, step: Step, ids: NDArray[np.int32], begin: int
    ) -> NDArray[np.float32] | None:
        inputs = inputs_of(step, ids, begin)
        return self._shared.runtime.run(step, inputs, self._cache)

    def truncate(self, n: int) -> None:
        """Drop everything after the first n ids. Rows become invalid.

        What follows them stays in memory, where it is not seen, until it is
        overwritten.
        """
        with self._shared.lock:
            self._check_open()
            if not 0 <= n <= self._position:
                raise InvalidArgument(f"n is {n}; it lies in [0, {self._position}]")
            self._forget_rows()
            self._position = n

    # The tree

    def decode_tree(self, ids: Ids[int], parents: Ids[int]) -> None:
        """Refuse: ids that do not follow one another need more than one timeline."""
        self._check_open()
        raise NotSupported("the LiteRT backend decodes no trees")

    def clear_tree(self) -> None:
        """Do nothing: there is no tree."""
        self._check_open()

    def tree_room(self) -> TreeRoom:
        """Say that nothing fits."""
        self._check_open()
        return TreeRoom(nodes=0, branches=0)

    # Rows

    def logits_window(self, i: int = 0) -> Row:
        """Return row i of the last decode as a view, float32.

        Where the head of the model has signatures of its own, all rows of the decode
        are computed when the first one is asked for.
        """
        shared = self._shared
        with shared.lock:
            self._check_open()
            if self._rows is None and self._hidden is not None:
                self._check_row(i, self._hidden)
                self._rows = self._multiplied(self._hidden)
            row: Row = self._check_row(i, self._rows)[i]
            return row

    def logits(self, i: int = 0) -> Row:
        """Return a copy of row i."""
        with self._shared.lock:
            return self.logits_window(i).copy()

    def logits_of(self, ids: Ids[int], i: int = 0) -> Row:
        """Return the logits of some ids in row i, in the order of the ids.

        Raises
        ------
        InvalidArgument
            No ids, one outside [0, n_vocab), or no such row.
        """
        shared = self._shared
        wanted = ids_array(ids, shared.n_vocab)
        with shared.lock:
            self._check_open()
            many = len(wanted) * _SINGLE > shared.n_vocab
            at_hand = self._hidden is None or self._rows is not None
            if shared.single is None or at_hand or many:
                row: Row = self.logits_window(i)[wanted]
                return row
            hidden = self._check_row(i, self._hidden)[i]
            return shared.single.logits(hidden, wanted)

    def _multiplied(self, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of hidden states."""
        shared = self._shared
        heads, n = shared.runtime.layout.heads, len(hidden)
        parts, done = [], 0
        for number, taken in divide(n, n + heads[-1].n, shared.head_sizes, True):
            head = heads[number]
            filled = np.zeros((head.n, head.dim), np.float32)
            filled[:taken] = hidden[done : done + taken]
            parts.append(shared.runtime.apply(head, filled)[:taken])
            done += taken
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @staticmethod
    def _check_row(i: int, rows: NDArray[np.float32] | None) -> NDArray[np.float32]:
        if rows is None:
            raise InvalidArgument(
                "no logits: nothing was decoded since the last change"
            )
        if not 0 <= i < len(rows):
            raise InvalidArgument(f"no logits for row {i}: rows are [0, {len(rows)})")
        return rows

    def _forget_rows(self) -> None:
        self._hidden = self._rows = None

    # Saved state

    def save(self) -> bytes:
        """Return the keys and values of the timeline."""
        shared, n = self._shared, self._position
        with shared.lock:
            self._check_open()
            parts = []
            for name, info in shared.runtime.layout.caches.items():
                values = shared.runtime.read(self._cache, name)
                parts.append(np.take(values, np.arange(n), info.axis).tobytes())
            return b"".join(parts)

    def restore(self, state: bytes, n: int) -> None:
        """Put a state that `save` gave in place of the timeline; it has n ids then.

        Raises
        ------
        ContextOverflow
            It does not fit; the timeline is as it was.
        BackendError
            It has another size than n ids have; the timeline is as it was.
        """
        shared = self._shared
        runtime = shared.runtime
        with shared.lock:
            self._check_open()
            self._check_room(n)
            wanted: dict[str, NDArray[Any]] = {}
            at = 0
            for name, info in runtime.layout.caches.items():
                values = np.zeros_like(runtime.read(self._cache, name))
                part = np.moveaxis(values, info.axis, 0)[:n]
                shape = list(info.shape)
                shape[info.axis] = n
                data = state[at : at + part.nbytes]
                if len(data) != part.nbytes:
                    raise BackendError(f"{len(state)} bytes are no state of {n} ids")
                saved = np.frombuffer(data, values.dtype).reshape(shape)
                part[...] = np.moveaxis(saved, info.axis, 0)
                wanted[name] = values
                at += part.nbytes
            if at != len(state):
                raise BackendError(f"{len(state)} bytes are no state of {n} ids")
            self._forget_rows()
            for name, values in wanted.items():
                runtime.write(self._cache, name, values)
            self._position = n

    # The end

    def close(self) -> None:
        """Free the sequence's memory. May be called twice.

        In a forked child nothing is done: the memory is the parent's.
        """
        shared = self._shared
        if shared.lock.foreign:
            return
        with shared.lock:
            if self._closed:
                return
            self._closed = True
            self._forget_rows()
            if not shared.closed:
                shared.runtime.free(self._cache)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the sequence is closed; open another")
        self._shared.check_open()

    def _check_room(self, n: int) -> None:
        if n > self._shared.n_ctx:
            raise ContextOverflow(
                f"{n} ids do not fit into a context of {self._shared.n_ctx}"
            )

    def _pause(self) -> None:
        """Let the owner cancel before a piece is computed."""
        if self.on_piece is not None:
            self.on_piece()
            self._check_open()
