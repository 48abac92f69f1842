"""A timeline in a llama.cpp context, and the tree above its end."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import TYPE_CHECKING

import numpy as np

from eliza.backends.base import TreeRoom, ids_array, parents_array
from eliza.backends.llama_batch import read_ids
from eliza.backends.llama_state import load_state, save_state
from eliza.backends.llama_tree import Growth, Tree, read_parents
from eliza.errors import BackendError, Closed, InvalidArgument, NotSupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.base import Row
    from eliza.backends.llama_context import NativeContext

__all__ = ["LlamaSequence"]


class LlamaSequence:
    """One timeline of ids in a llama.cpp context; made by `LlamaBackend.open`.

    All sequences of a backend share the cells of its context: what one holds, the
    others cannot use. `eliza.backends.base.Sequence` has the contract. Threads may call
    on sequences of their own: they wait for one another, and `logits` gives a row of
    one's own last decode. `logits_window` does not: anyone's decode ends it.

    Parameters
    ----------
    context : NativeContext
        Where the cells are.
    """

    def __init__(self, context: NativeContext) -> None:
        self.on_piece: Callable[[], None] | None = None
        self._context = context
        self._closed = True  # until there is an id to give back
        self._position = 0
        self._tree = Tree()
        self._rows: NDArray[np.float32] | None = None
        with context.lock:
            context.check_open()
            self._id = context.enter()
            self._closed = False

    def __del__(self) -> None:
        if not self._closed:
            self._context.abandon([self._id, *self._tree.ids])

    @property
    def position(self) -> int:
        """The number of ids decoded and kept."""
        return self._position

    @property
    def max_rows(self) -> int:
        """The most ids that one `decode_many` or `decode_tree` may take."""
        return self._context.max_rows

    @property
    def cells(self) -> int:
        """The number of cells of the context that this sequence holds."""
        return self._position + len(self._tree)

    # The timeline

    def decode(self, ids: Ids[int]) -> None:
        """Append ids; row 0 then belongs to the last of them.

        They are computed in pieces of about equal size, at most `n_batch` of the
        backend. Between two of them `on_piece` is called and Ctrl-C works.

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
        context = self._context
        tokens = _ids(ids, context.n_vocab)
        if all_rows:
            self._check_rows(len(tokens))
        with context.lock:
            self._check_open()
            context.require(len(tokens), freed=len(self._tree))
            if len(self._tree):
                self.clear_tree()
            self._rows = None
            end = self._position
            try:
                for piece in _pieces(tokens, context.n_batch):
                    self._pause()
                    context.run(self, piece, end, self._id, all_rows)
                    end += len(piece)
                n = len(piece)
                rows = context.rows(0, n) if all_rows else context.rows(n - 1, 1)
            except BaseException as error:
                if not self._cut(self._position):
                    error.add_note("The sequence is empty now: it cannot be cut back.")
                raise
            self._position = end
            self._rows = rows
            context.cells[self._id] = self._position

    def truncate(self, n: int) -> None:
        """Drop everything after the first n ids, and the tree. Rows become invalid.

        Raises
        ------
        InvalidArgument
            n is negative, or more than `position`.
        NotSupported
            The model keeps no past states: n can only be 0 or `position`.
        BackendError
            The runtime refused; the sequence is empty.
        """
        context = self._context
        with context.lock:
            self._check_open()
            if not 0 <= n <= self._position:
                raise InvalidArgument(f"n is {n}; it lies in [0, {self._position}]")
            if 0 < n < self._position and not context.can_cut:
                raise NotSupported(
                    "this model keeps no past states: truncate to 0 and decode again"
                )
            if len(self._tree):
                self.clear_tree()
            self._rows = None
            if not self._cut(n):
                raise BackendError(
                    f"llama.cpp could not cut the sequence back to {n}: it is empty now"
                )

    def _cut(self, n: int) -> bool:
        """Drop the ids from n on, or all of them where that cannot be done."""
        if self._closed or self._context.closed:
            return False
        lib, memory = self._context.lib, self._context.memory
        done = bool(lib.llama_memory_seq_rm(memory, self._id, n, -1))
        if not done:
            lib.llama_memory_seq_rm(memory, self._id, -1, -1)
        self._position = n if done else 0
        self._context.cells[self._id] = self.cells
        return done

    # The tree

    def decode_tree(self, ids: Ids[int], parents: Ids[int]) -> None:
        """Decode nodes of a tree above the end of the timeline; row i is node i's.

        The nodes of earlier calls stay as they are if this one fails.

        Parameters
        ----------
        ids : sequence of int
            At most `tree_room().nodes`.
        parents : sequence of int
            As long as ids: the number of an earlier node, in the order of decoding
            since the tree was last cleared, or -1 for the end of the timeline.

        Raises
        ------
        InvalidArgument
            A bad id or parent, or more nodes or branches than `tree_room` says.
        ContextOverflow
            The nodes do not fit into the context.
        NotSupported
            The model keeps no past states to branch from.
        """
        context, tree = self._context, self._tree
        tokens = _ids(ids, context.n_vocab)
        above = read_parents(parents, len(tokens), len(tree))
        if above is None:
            above = parents_array(parents, len(tokens), len(tree)).tolist()
        self._check_rows(len(tokens))
        with context.lock:
            self._check_open()
            if not context.can_cut:
                raise NotSupported("this model keeps no past states to branch from")
            context.require(len(tokens))
            growth = tree.plan(above, context.free_ids)
            self._rows = None
            try:
                self._pause()
                self._begin(growth)
                context.run_tree(
                    self, tokens, growth.depths, self._position, growth.owners
                )
                rows = context.rows(0, len(tokens))
            except BaseException:
                self._undo(growth)
                raise
            del context.free_ids[len(context.free_ids) - len(growth.begun) :]
            tree.add(growth)
            self._rows = rows
            context.cells[self._id] = self.cells

    def _begin(self, growth: Growth) -> None:
        """Add the new ids to the cells of the paths that they continue."""
        lib, memory = self._context.lib, self._context.memory
        for source, id_, depth in growth.begun:
            source = self._id if source is None else source
            lib.llama_memory_seq_cp(memory, source, id_, 0, self._position + depth)

    def _undo(self, growth: Growth) -> None:
        if self._closed or self._context.closed:
            return
        lib, memory = self._context.lib, self._context.memory
        for _, id_, _ in growth.begun:
            lib.llama_memory_seq_rm(memory, id_, -1, -1)
        for node, id_ in growth.extended:
            end = self._position + self._tree.depths[node]
            lib.llama_memory_seq_rm(memory, id_, end, -1)

    def clear_tree(self) -> None:
        """Forget the tree and its rows; its cells and ids are free again."""
        with self._context.lock:
            self._check_open()
            if len(self._tree):
                tree, self._tree = self._tree, Tree()
                self._rows = None
                self._context.drop(tree.ids)
                self._context.cells[self._id] = self._position

    def tree_room(self) -> TreeRoom:
        """Return what the next `decode_tree` may add."""
        context = self._context
        with context.lock:
            self._check_open()
            nodes = min(context.max_rows, context.room())
            return TreeRoom(nodes=max(0, nodes), branches=len(context.free_ids))

    # Rows

    def logits_window(self, i: int = 0) -> Row:
        """Return row i of the last decode as a view, float32 [n_vocab].

        The view is valid until the next decode of any sequence of the backend, and
        until the backend is closed. It lies in llama.cpp's own buffer: to read it later
        reads other logits, or memory that is gone.

        Raises
        ------
        InvalidArgument
            There is no such row.
        """
        rows = self._rows
        if self._closed or rows is None or self._context.closed:
            self._check_open()
            raise InvalidArgument(
                "no logits: nothing was decoded since the last change"
            )
        if not 0 <= i < len(rows):
            raise InvalidArgument(f"no logits for row {i}: rows are [0, {len(rows)})")
        row: Row = rows[i]
        return row

    def logits(self, i: int = 0) -> Row:
        """Return a copy of row i."""
        with self._context.lock:
            return self.logits_window(i).copy()

    def keep_rows(self) -> None:
        """Copy the rows out of the buffer; another sequence is about to decode."""
        if self._rows is not None:
            self._rows = self._rows.copy()

    # Saved state

    def save(self) -> bytes:
        """Return the state of the timeline, without the tree and the rows."""
        context = self._context
        with context.lock:
            self._check_open()
            return save_state(context.lib, context.pointer, self._id)

    def restore(self, state: bytes, n: int) -> None:
        """Put a state that `save` gave in place of the timeline; it has n ids then.

        Where there is room for both, the timeline stays until the state is in.

        Raises
        ------
        ContextOverflow
            It does not fit; the timeline is as it was.
        BackendError
            llama.cpp refused it; the timeline is as it was, or empty.
        """
        context = self._context
        with context.lock:
            self._check_open()
            context.require(n, freed=self.cells)
            self.clear_tree()
            self._rows = None
            lib, memory = context.lib, context.memory
            beside = n <= context.room() and bool(context.free_ids)
            if beside:
                target = context.free_ids.pop()
            else:
                target = self._id
                self._cut(0)
            loaded = load_state(lib, context.pointer, target, state)
            end = lib.llama_memory_seq_pos_max(memory, target) + 1
            if not loaded or end != n:
                lib.llama_memory_seq_rm(memory, target, -1, -1)
                if beside:
                    context.free_ids.append(target)
                raise BackendError(
                    f"llama.cpp refused a state of {len(state)} bytes for {n} ids"
                )
            if beside:
                context.leave([self._id])
                self._id = target
            self._position = context.cells[target] = n

    # The end

    def close(self) -> None:
        """Free the sequence's cells and ids. May be called twice."""
        context = self._context
        with context.lock:
            if self._closed:
                return
            self._closed = True
            self._rows = None
            if not context.closed:
                context.leave([self._id, *self._tree.ids])

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the sequence is closed; open another")
        self._context.check_open()

    def _check_rows(self, n: int) -> None:
        if n > self.max_rows:
            raise InvalidArgument(
                f"{n} rows of logits at once; at most {self.max_rows} can be had"
            )

    def _pause(self) -> None:
        """Let the owner cancel before a piece is computed."""
        if self.on_piece is not None:
            self.on_piece()
            self._check_open()


def _ids(ids: Ids[int], n_vocab: int) -> NDArray[np.int32]:
    array = read_ids(ids, n_vocab)
    return ids_array(ids, n_vocab) if array is None else array


def _pieces(tokens: NDArray[np.int32], size: int) -> list[NDArray[np.int32]]:
    """Return the tokens in as few parts as possible, none much shorter than another."""
    n = len(tokens)
    parts = -(-n // size)
    if parts == 1:
        return [tokens]
    return [tokens[n * i // parts : n * (i + 1) // parts] for i in range(parts)]
