"""One context of llama.cpp: what it computes with, and what its sequences share.

llama.cpp ends the process on a batch that is too large, on an id of a sequence that is
out of range and on a token without one, and it does not forgive use after free. All
calls that compute therefore go through this class, which keeps its limits:

- A batch has at most `n_batch` tokens, which is also what is computed at one time, so
  that no remainder of one token is split off. Single tokens take another path through
  the matrix products: on SmolLM2 Q4_1 their logits differ by up to 0.7 from those of
  the same token beside another, all batches of 2 to 128 agreeing to the last bit. A
  second, idle token beside a single one would buy agreement for half as much time
  again (13.3 to 20.4 ms at one thread, 8.8 to 13.5 at two; with f32 weights 22.6 to
  41.4 and 18.1 to 24.7, where the difference is 2e-5), so single tokens stay single.
- Rows of logits live in one buffer, which the next decode overwrites. A sequence that
  is about to lose its rows to another is told to copy them first.
- Cells of the cache are shared by all sequences. They are counted before each decode,
  so that a batch that does not fit is refused and not tried.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.backends import llama_log
from eliza.backends.base import LOGITS_BYTES
from eliza.backends.llama_batch import LlamaBatch
from eliza.errors import AbiMismatch, BackendError, Closed, ContextOverflow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.base import Row
    from eliza.backends.llama_sequence import LlamaSequence

__all__ = ["NativeContext", "function_address", "sequence_limit"]

#: More sequences than this, and `llama_memory_seq_cp` ends the process.
_MAX_SEQUENCES = 256


_contexts: weakref.WeakSet[NativeContext] = weakref.WeakSet()


def _free_locks() -> None:
    """Give the contexts of a forked child locks that nobody holds.

    They are of no use there, but who uses one is told so, and does not wait for ever
    for a thread that is not in the child.
    """
    for context in list(_contexts):
        context.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


def sequence_limit(n_vocab: int) -> int:
    """Return how many sequences a context should have.

    Many, because each branch of a tree needs one; but llama.cpp allocates a row of
    logits for each when the context is made.
    """
    return max(8, min(_MAX_SEQUENCES, LOGITS_BYTES // (4 * n_vocab)))


def function_address(lib: Any, name: str) -> int:
    """Return where a function of llama.cpp is, for those who call it from C.

    Parameters
    ----------
    lib : module
        `llama_cpp.llama_cpp`.
    """
    function = getattr(getattr(lib, "_lib", None), name, None)
    if function is None:
        raise AbiMismatch(f"this llama.cpp has no {name}: eliza needs 0.3.36 or newer")
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class NativeContext:
    """Owner of a `llama_context`.

    Parameters
    ----------
    lib : module
        `llama_cpp.llama_cpp`.
    pointer : int
        The context. It is freed by `close`, or with this object.
    model : object
        What must live as long as the context does.
    n_vocab : int
        The width of a row.
    n_ctx : int
        The most cells to use, at most what the context has.
    can_cut : bool
        A sequence can be cut anywhere and branch anywhere.

    Attributes
    ----------
    max_rows : int
        The most rows that one decode may ask for.
    free_ids : list of int
        Ids of sequences that nothing uses.
    cells : dict of int to int
        How many cells each sequence that is open holds, by the id of its timeline; the
        sequences write that.
    lock : threading.RLock
        Held while the library computes.
    """

    def __init__(
        self,
        lib: Any,
        pointer: int,
        model: object,
        *,
        n_vocab: int,
        n_ctx: int,
        can_cut: bool,
    ) -> None:
        self.lib = lib
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.can_cut = can_cut
        self.n_batch: int = lib.llama_n_batch(pointer)
        self.max_rows: int = min(self.n_batch, max(1, LOGITS_BYTES // (4 * n_vocab)))
        self.memory: Any = lib.llama_get_memory(pointer)
        self.free_ids = list(range(lib.llama_n_seq_max(pointer)))[::-1]
        self.cells: dict[int, int] = {}
        self.lock = threading.RLock()
        self._pointer: int | None = pointer
        self._model: object | None = model
        self._pid = os.getpid()
        self._abandoned: list[list[int]] = []
        self._owner: weakref.ref[LlamaSequence] | None = None
        self._make_batch()
        self._finalizer = weakref.finalize(self, _free, lib, pointer)
        _contexts.add(self)

    def _make_batch(self) -> None:
        """Allocate a batch, which is filled again and again."""
        kind = self.lib.llama_batch
        self._batch = LlamaBatch(
            self.n_batch,
            function_address(self.lib, "llama_decode"),
            function_address(self.lib, "llama_get_logits_ith"),
        )
        layout = {name: getattr(kind, name).offset for name, _ in kind._fields_}
        layout[""] = ctypes.sizeof(kind)
        if layout != self._batch.layout:
            raise BackendError(
                f"this llama.cpp has another llama_batch: {layout}, not "
                f"{self._batch.layout}; see which versions the extra `llama` names"
            )
        # A view of the whole buffer of rows, made anew when llama.cpp moves it.
        self._rows_type = ctypes.c_float * (self.max_rows * self.n_vocab)
        self._rows_address = 0
        self._all_rows = np.zeros((0, self.n_vocab), np.float32)

    # Sequences

    def check_open(self) -> None:
        """Raise if the context cannot be used, or not from here."""
        if self._pointer is None:
            raise Closed("the llama.cpp backend is closed; load the model again")
        if os.getpid() != self._pid:
            # The threads that compute are not in the child: the first call would hang.
            raise BackendError(
                "the model was loaded in another process; load it after the fork"
            )

    def enter(self) -> int:
        """Take up a sequence and return the id for its timeline."""
        self.reclaim()
        if not self.free_ids:
            raise BackendError(
                f"all {self.lib.llama_n_seq_max(self._pointer)} sequences of the "
                "context are in use; close one"
            )
        id_ = self.free_ids.pop()
        self.cells[id_] = 0
        return id_

    def leave(self, ids: list[int]) -> None:
        """Free the ids of a sequence that is closed, that of its timeline first."""
        self.drop(ids)
        self.cells.pop(ids[0], None)

    def abandon(self, ids: list[int]) -> None:
        """Note the ids of a sequence that was collected without being closed.

        The collector may run in any thread, at any time: nothing is freed here.
        """
        self._abandoned.append(ids)

    def reclaim(self) -> None:
        """Free what abandoned sequences held."""
        while self._abandoned:
            self.leave(self._abandoned.pop())

    def drop(self, ids: list[int]) -> None:
        """Remove these ids from all cells; they are free again."""
        for id_ in ids:
            self.lib.llama_memory_seq_rm(self.memory, id_, -1, -1)
        self.free_ids += ids

    def room(self) -> int:
        """Return how many cells are free."""
        self.reclaim()
        return self.n_ctx - sum(self.cells.values())

    # Decoding

    def run(
        self,
        sequence: LlamaSequence,
        tokens: NDArray[np.int32],
        first: int,
        owner: int,
        all_rows: bool,
    ) -> None:
        """Compute a batch of tokens that follow one another; the context is open.

        Parameters
        ----------
        sequence : LlamaSequence
            The one that the rows will belong to.
        tokens : int32 array
            At most n_batch.
        first : int
            The position of the first of them.
        owner : int
            The id that they belong to.
        all_rows : bool
            Whether each token has a row, or the last one only.

        Raises
        ------
        ContextOverflow, BackendError
            Part of the batch may have been computed: remove it.
        """
        self._batch.chain(tokens, first, owner, all_rows)
        self._run(sequence, len(tokens))

    def run_tree(
        self,
        sequence: LlamaSequence,
        tokens: NDArray[np.int32],
        depths: list[int],
        first: int,
        owners: list[list[int]],
    ) -> None:
        """Compute a batch of the nodes of a tree, each of which has a row; as `run`.

        Parameters
        ----------
        sequence, tokens
            As in `run`.
        depths : list of int
            Of each node, those at the position `first` having 1.
        owners : list of list of int
            The ids that each node belongs to; never none.

        Raises
        ------
        ContextOverflow, BackendError
            As `run`.
        """
        self._batch.tree(tokens, depths, first, owners)
        self._run(sequence, len(depths))

    def _run(self, sequence: LlamaSequence, n: int) -> None:
        self._give_rows_to(sequence)
        before = llama_log.n_errors
        code = self._batch.decode(self._pointer or 0)
        if code == 1:
            raise ContextOverflow(f"no cells for {n} ids: {self._usage()}")
        if code:
            why = llama_log.reason(llama_log.errors_since(before))
            raise BackendError(f"llama_decode of {n} ids returned {code}: {why}")

    def rows(self, first: int, n_rows: int) -> NDArray[np.float32]:
        """Return the rows of the last decode as a view on llama.cpp's buffer.

        Waits for the computation. The rows of a batch lie end to end in its order.

        Parameters
        ----------
        first : int
            Index in the batch of the first token that has a row.
        """
        address = self._batch.row_at(self._pointer or 0, first)
        if not address:
            raise BackendError("llama.cpp computed no logits for this batch")
        if address != self._rows_address:
            buffer: Any = self._rows_type.from_address(address)
            rows: Row = np.frombuffer(buffer, np.float32)
            self._all_rows = rows.reshape(self.max_rows, self.n_vocab)
            self._rows_address = address
        return self._all_rows[:n_rows]

    def _give_rows_to(self, sequence: LlamaSequence) -> None:
        owner = None if self._owner is None else self._owner()
        if owner is sequence:
            return
        if owner is not None:
            owner.keep_rows()
        self._owner = weakref.ref(sequence)

    def require(self, n: int, freed: int = 0) -> None:
        """Raise ContextOverflow unless n cells are free, or will be.

        Parameters
        ----------
        freed : int
            Cells that are freed before the n are needed.
        """
        if n > self.room() + freed:
            raise ContextOverflow(f"{n} ids do not fit: {self._usage()}")

    def _usage(self) -> str:
        n = len(self.cells)
        others = f" in {n} sequences" if n > 1 else ""
        used = sum(self.cells.values())
        return (
            f"{used} of {self.n_ctx} cells of the context are taken{others}; "
            "n_ctx= of load() sets how many there are"
        )

    # The end

    @property
    def pointer(self) -> int | None:
        """The `llama_context`; None once it is freed."""
        return self._pointer

    @property
    def closed(self) -> bool:
        """Whether the context was freed."""
        return self._pointer is None

    def close(self) -> None:
        """Free the context. May be called twice, and from any thread."""
        with self.lock:
            self._pointer = None
            self._finalizer()
            self._model = None


def _free(lib: Any, pointer: int) -> None:
    lib.llama_free(pointer)
    llama_log.release(lib)
