"""A timeline in a cache of MLX, and the tree above its end."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.backends.base import LOGITS_BYTES, TreeRoom, ids_array, parents_array
from eliza.backends.mlx_load import converted
from eliza.backends.mlx_state import load_state, save_state
from eliza.backends.mlx_tree import Branches
from eliza.errors import (
    BackendError,
    Closed,
    ContextOverflow,
    ElizaError,
    InvalidArgument,
    NotSupported,
)
from eliza.locking import ModelLock

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.base import Row
    from eliza.backends.mlx_model import MlxModel

__all__ = ["MlxSequence", "Shared"]

#: The most branches of a tree, and the most memory that they may take.
_MAX_BRANCHES, _BRANCH_BYTES = 64, 1 << 30


class Shared:
    """What all sequences of a backend share.

    Attributes
    ----------
    model : MlxModel
    n_vocab, n_ctx, n_batch, max_rows : int
    can_trim, can_save : bool
    lock : ModelLock
        Held while MLX computes.
    sequences : WeakSet
        Those that may be open.
    raised_by_owner : BaseException or None
        What `on_piece` raised, which passes through as it is.
    """

    def __init__(
        self, model: MlxModel, *, n_vocab: int, n_ctx: int, n_batch: int
    ) -> None:
        self._model: MlxModel | None = model
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.max_rows = min(n_batch, max(1, LOGITS_BYTES // (4 * model.n_rows)))
        self.can_trim = model.can_trim(model.new_cache(), n_ctx)
        self.can_save = model.can_save
        self.lock = ModelLock()
        self.sequences: weakref.WeakSet[MlxSequence] = weakref.WeakSet()
        self.raised_by_owner: BaseException | None = None

    @property
    def model(self) -> MlxModel:
        """The model, while the backend is open."""
        if self._model is None:
            raise Closed("the MLX backend is closed; load the model again")
        return self._model

    def close(self) -> None:
        """Let go of the model, and of what sequences hold of it."""
        if self.lock.foreign:
            return  # what there is to free is the parent's
        with self.lock:
            for sequence in list(self.sequences):
                sequence.close()
            self._model = None

    @contextmanager
    def computing(self) -> Iterator[MlxModel]:
        """Hold the lock, and convert what MLX raises."""
        with self.lock:
            model = self.model
            try:
                yield model
            except ElizaError:
                raise
            except (RuntimeError, ValueError, MemoryError) as error:
                if error is self.raised_by_owner:
                    raise
                raise converted(error) from error
            finally:
                self.raised_by_owner = None


class MlxSequence:
    """One timeline of ids with a cache of its own; made by `MlxBackend.open`.

    `eliza.backends.base.Sequence` has the contract. Threads may call on sequences of
    their own: they wait for one another. A decode computes up to the last hidden state;
    the head is computed when a row is asked for, or only those of its rows that are
    (`logits_of`).

    Parameters
    ----------
    shared : Shared
        What it computes with.
    """

    def __init__(self, shared: Shared) -> None:
        self.on_piece: Callable[[], None] | None = None
        self.whole_row = False  # a whole one costs the same whenever it is asked for
        self._shared = shared
        self._closed = False
        self._position = 0
        with shared.computing() as model:
            self._cache = model.new_cache()
            shared.sequences.add(self)
        self._tree = Branches(0)
        self._states: Any = None
        self._rows: NDArray[np.float32] | None = None

    @property
    def position(self) -> int:
        """The number of ids decoded and kept."""
        return self._position

    @property
    def max_rows(self) -> int:
        """The most ids that one `decode_many` or `decode_tree` may take."""
        return self._shared.max_rows

    # The timeline

    def decode(self, ids: Ids[int]) -> None:
        """Append ids; row 0 then belongs to the last of them.

        They are computed in pieces of about equal size, at most `n_batch` of the
        backend. Before each of them `on_piece` is called, and Ctrl-C works.

        Raises
        ------
        InvalidArgument
            No ids, or one outside [0, n_vocab).
        ContextOverflow
            The ids do not fit; nothing was decoded.
        BackendError
            MLX failed; `position` is as before, or 0 where the cache cannot be cut.
        """
        self._append(ids, all_rows=False)

    def decode_many(self, ids: Ids[int]) -> None:
        """Append ids, at most `max_rows`; row i then belongs to ids[i]."""
        self._append(ids, all_rows=True)

    def _append(self, ids: Ids[int], all_rows: bool) -> None:
        tokens = ids_array(ids, self._shared.n_vocab).tolist()
        if all_rows:
            self._check_rows(len(tokens))
        with self._computing() as model:
            self._require(len(tokens))
            self._forget_tree()
            self._drop_rows()
            touched = False
            try:
                for piece in _pieces(tokens, self._shared.n_batch):
                    self._pause()
                    touched = True
                    states = model.forward(piece, self._cache)
                    if not all_rows:
                        states = states[-1:]
                    model.mx.eval(states, [layer.state for layer in self._cache])
            except BaseException as error:
                if touched and not self._closed and not self._cut(self._position):
                    error.add_note("The sequence is empty now: it cannot be cut back.")
                raise
            self._position += len(tokens)
            self._tree = Branches(self._position)
            self._states = states

    def truncate(self, n: int) -> None:
        """Drop everything after the first n ids, and the tree. Rows become invalid.

        Raises
        ------
        InvalidArgument
            n is negative, or more than `position`.
        NotSupported
            The cache cannot be cut: n can only be 0 or `position`.
        BackendError
            The cache could not be cut after all; the sequence is empty.
        """
        with self._computing():
            if not 0 <= n <= self._position:
                raise InvalidArgument(f"n is {n}; it lies in [0, {self._position}]")
            if 0 < n < self._position and not self._shared.can_trim:
                raise NotSupported(
                    "this model's cache cannot be cut: truncate to 0 and decode again"
                )
            self._forget_tree()
            self._drop_rows()
            if n != self._position and not self._cut(n):
                raise BackendError(
                    f"the cache could not be cut back to {n}: it is empty now"
                )

    def _cut(self, n: int) -> bool:
        """Keep the first n ids of the cache, or none where that cannot be done."""
        model = self._shared.model
        done = n == 0 or model.cut(self._cache, n)
        if n == 0 or not done:
            self._cache = model.new_cache()
        self._position = n if done else 0
        self._tree = Branches(self._position)
        return done

    # The tree

    def decode_tree(self, ids: Ids[int], parents: Ids[int]) -> None:
        """Decode nodes of a tree above the end of the timeline; row i is node i's.

        The nodes of earlier calls stay as they are if this one fails.

        Raises
        ------
        InvalidArgument
            A bad id or parent, or more nodes or branches than `tree_room` says.
        ContextOverflow
            The nodes do not fit into the context.
        NotSupported
            The model's cache cannot be cut, and so not branch.
        """
        known = len(self._tree)
        tokens = ids_array(ids, self._shared.n_vocab).tolist()
        above = parents_array(parents, len(tokens), known).tolist()
        self._check_rows(len(tokens))
        with self._computing() as model:
            if not self._shared.can_trim:
                raise NotSupported("this model's cache cannot branch")
            self._require(len(tokens) + known)
            tips = len(tokens) - len({p for p in above if p >= known})
            room = self._branches_left()
            if tips > room:
                raise InvalidArgument(
                    f"{tips} more branches, but the tree has room for {room}"
                )
            self._drop_rows()
            self._states = self._tree.grow(
                model, self._cache, tokens, above, self._pause
            )

    def clear_tree(self) -> None:
        """Forget the tree and its rows; its memory is free again."""
        with self._computing():
            if len(self._tree):
                self._forget_tree()
                self._drop_rows()

    def tree_room(self) -> TreeRoom:
        """Return what the next `decode_tree` may add."""
        with self._computing():
            left = self._shared.n_ctx - self._position - len(self._tree)
            nodes = max(0, min(self.max_rows, left))
            return TreeRoom(nodes, max(0, self._branches_left()))

    def _branches_left(self) -> int:
        size = sum(getattr(layer, "nbytes", 0) for layer in self._cache)
        most = min(_MAX_BRANCHES, max(1, _BRANCH_BYTES // max(1, size)))
        return most - self._tree.count

    def _forget_tree(self) -> None:
        if len(self._tree):
            self._tree = Branches(self._position)

    # Rows

    def logits_window(self, i: int = 0) -> Row:
        """Return row i of the last decode as a view, float32 [n_vocab or more].

        The view is valid until the next decode of any sequence of the backend. The head
        is computed for all rows of the decode when one is first asked for.

        Raises
        ------
        InvalidArgument
            There is no such row.
        """
        with self._computing() as model:
            self._check_row(i)
            if self._rows is None:
                logits = model.logits(self._states)
                model.mx.eval(logits)
                self._rows = np.asarray(logits)  # no copy
            row: Row = self._rows[i]
            return row

    def logits(self, i: int = 0) -> Row:
        """Return a copy of row i."""
        return self.logits_window(i).copy()

    def logits_of(self, ids: Ids[int], i: int = 0) -> Row:
        """Return the logits of some ids in row i: float32 [len(ids)], the caller's own.

        Only their rows of the head are computed, unless the whole row is at hand.
        """
        wanted = ids_array(ids, self._shared.n_vocab)
        with self._computing() as model:
            self._check_row(i)
            if self._rows is not None:
                found: Row = self._rows[i][wanted]
                return found
            values = model.logits_of(self._states[i : i + 1], wanted)
            model.mx.eval(values)
            return np.array(values)

    def _check_row(self, i: int) -> None:
        if self._states is None:
            raise InvalidArgument(
                "no logits: nothing was decoded since the last change"
            )
        n = self._states.shape[0]
        if not 0 <= i < n:
            raise InvalidArgument(f"no logits for row {i}: rows are [0, {n})")

    def _drop_rows(self) -> None:
        self._states = self._rows = None

    # Saved state

    def save(self) -> bytes:
        """Return the state of the timeline, without the tree and the rows."""
        with self._computing() as model:
            if not self._shared.can_save:
                raise NotSupported("the state of this model's cache cannot be saved")
            return save_state(model.mx, self._cache)

    def restore(self, state: bytes, n: int) -> None:
        """Put a state that `save` gave in place of the timeline; it has n ids then.

        Raises
        ------
        ContextOverflow
            It does not fit; the timeline is as it was.
        BackendError
            It is not such a state; the timeline is as it was.
        """
        with self._computing() as model:
            if not self._shared.can_save:
                raise NotSupported("the state of this model's cache cannot be saved")
            if n > self._shared.n_ctx:
                raise ContextOverflow(
                    f"{n} ids do not fit into a context of {self._shared.n_ctx}"
                )
            cache = model.new_cache()
            load_state(model.mx, cache, state)
            held = {layer.offset for layer in cache if hasattr(layer, "offset")}
            if held - {n}:
                raise BackendError(f"the state holds {held} ids, not {n}")
            self._drop_rows()
            self._cache, self._position = cache, n
            self._tree = Branches(n)

    # The end

    def close(self) -> None:
        """Free the sequence's memory. May be called twice."""
        lock = self._shared.lock
        if lock.foreign:
            return  # what there is to free is the parent's
        with lock:
            self._closed = True
            self._drop_rows()
            self._cache = []
            self._tree = Branches(0)

    @contextmanager
    def _computing(self) -> Iterator[MlxModel]:
        with self._shared.computing() as model:
            self._check_open()
            yield model

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the sequence is closed; open another")

    def _check_rows(self, n: int) -> None:
        if n > self.max_rows:
            raise InvalidArgument(
                f"{n} rows of logits at once; at most {self.max_rows} can be had"
            )

    def _require(self, n: int) -> None:
        """Raise unless there is room for n ids above the timeline."""
        if self._position + n > self._shared.n_ctx:
            raise ContextOverflow(
                f"{n} ids do not fit above {self._position} into a context of "
                f"{self._shared.n_ctx}"
            )

    def _pause(self) -> None:
        """Let the owner cancel before a piece is computed."""
        if self.on_piece is not None:
            try:
                self.on_piece()
            except BaseException as error:
                self._shared.raised_by_owner = error
                raise
            self._shared.model  # noqa: B018
            self._check_open()


def _pieces(tokens: list[int], size: int) -> Iterator[list[int]]:
    """Yield the tokens in as few parts as possible, none much shorter than another."""
    n = len(tokens)
    parts = -(-n // size)
    for i in range(parts):
        yield tokens[n * i // parts : n * (i + 1) // parts]
