"""A timeline in LiteRT."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.backends.base import LOGITS_BYTES, TreeRoom, ids_array
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
    from eliza.backends.litert_layout import Step
    from eliza.backends.litert_runtime import Runtime
    from eliza.locking import ModelLock

__all__ = ["LitertSequence", "Shared"]

#: What is added to the scores of ids that must not be seen, where a mask is of floats.
_HIDDEN = {"float32": -1e9, "float16": -6e4}


class Shared:
    """What all sequences of a backend have in common.

    Parameters
    ----------
    runtime : Runtime
    lock : ModelLock
    n_ctx : int
        The most ids of a timeline, at most what the cache holds.
    n_vocab : int
    """

    def __init__(
        self, runtime: Runtime, lock: ModelLock, n_ctx: int, n_vocab: int
    ) -> None:
        self.runtime = runtime
        self.lock = lock
        self.n_ctx = n_ctx
        self.n_vocab = n_vocab
        self.sizes = tuple((s.n, s.logits is not None) for s in runtime.layout.steps)
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
        self._shared = shared
        self._position = 0
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
            self._rows = None
            layout = shared.runtime.layout
            room = layout.n_ctx - self._position
            chunks = divide(n, room, shared.sizes, all_rows)
            kept = None
            if all_rows and len(chunks) > 1:
                kept = np.empty((n, layout.width), np.float32)
            rows, done, taken = None, 0, 0
            for number, taken in chunks:
                self._pause()
                step = layout.steps[number]
                part = tokens[done : done + taken]
                rows = self._run(step, part, self._position + done)
                if kept is not None and rows is not None:
                    kept[done : done + taken] = rows[:taken]
                done += taken
            assert rows is not None  # the last call of a division gives them
            if kept is not None:
                self._rows = kept
            else:
                self._rows = rows[:n] if all_rows else rows[taken - 1 : taken]
            self._position += n

    def _run(
        self, step: Step, ids: NDArray[np.int32], begin: int
    ) -> NDArray[np.float32] | None:
        at = np.arange(begin, begin + step.n, dtype=np.int32)
        filled = np.zeros((1, step.n), np.int32)
        filled[0, : len(ids)] = ids
        inputs: dict[str, NDArray[Any]] = {
            step.ids: filled,
            step.positions: at.reshape(step.positions_shape),
        }
        if step.mask is not None:
            seen = np.arange(step.mask_shape[-1], dtype=np.int32) <= at[:, None]
            inputs[step.mask] = _mask(seen, step)
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
            self._rows = None
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

        The view is valid until the next decode of any sequence of the backend.
        """
        rows = self._rows
        if rows is None:
            self._check_open()
            raise InvalidArgument(
                "no logits: nothing was decoded since the last change"
            )
        self._check_open()
        if not 0 <= i < len(rows):
            raise InvalidArgument(f"no logits for row {i}: rows are [0, {len(rows)})")
        row: Row = rows[i]
        return row

    def logits(self, i: int = 0) -> Row:
        """Return a copy of row i."""
        with self._shared.lock:
            return self.logits_window(i).copy()

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
            self._rows = None
            for name, values in wanted.items():
                runtime.write(self._cache, name, values)
            self._position = n

    # The end

    def close(self) -> None:
        """Free the sequence's memory. May be called twice."""
        shared = self._shared
        with shared.lock:
            if self._closed:
                return
            self._closed = True
            self._rows = None
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


def _mask(seen: NDArray[np.bool_], step: Step) -> NDArray[Any]:
    """Return what a signature adds to its scores, or what it may see."""
    shaped = seen.reshape(step.mask_shape)
    if step.mask_dtype == "bool":
        return shaped
    hidden = _HIDDEN[step.mask_dtype]
    return np.where(shaped, 0.0, hidden).astype(step.mask_dtype)
