"""A backend that answers from a script: for tests, and the smallest complete example.

>>> import eliza
>>> from eliza.testing import ScriptedBackend
>>> vocab = eliza.Vocab.from_tokens([b"<end>", b"a", b"b"], control=[0], eog=[0])
>>> backend = ScriptedBackend(vocab, lambda history: {1 + len(history) % 2: 5.0})
>>> sequence = backend.open()
>>> sequence.decode([1, 2, 1])
>>> sequence.logits_window()
array([0., 0., 5.], dtype=float32)
>>> backend.calls[-1:]
[Call(kind='decode', ids=(1, 2, 1), rows=1, position=0, sequence=0)]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Ids
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from eliza.backends.base import (
    LOGITS_BYTES,
    Capabilities,
    TreeRoom,
    ids_array,
    parents_array,
)
from eliza.errors import (
    BackendError,
    Closed,
    ContextOverflow,
    InvalidArgument,
    NotSupported,
)

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import ArrayLike, NDArray

    from eliza.backends.base import Row
    from eliza.vocab import Vocab

    History = tuple[int, ...]

__all__ = ["Call", "ScriptedBackend", "ScriptedSequence"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a sequence received and did.

    Attributes
    ----------
    kind : str
        "open", "decode", "decode_many", "decode_tree", "clear_tree", "truncate",
        "save", "restore" or "close".
    ids : tuple of int
        The ids decoded.
    rows : int
        How many rows of logits were asked for.
    position : int
        Where the timeline ended before the call; for "truncate" and "restore", after.
    sequence : int
        Number of the sequence, in the order of opening.
    parents : tuple of int
        Of the nodes of "decode_tree".
    """

    kind: str
    ids: tuple[int, ...]
    rows: int
    position: int
    sequence: int
    parents: tuple[int, ...] = ()

    def __repr__(self) -> str:
        tree = f", parents={self.parents}" if self.kind == "decode_tree" else ""
        return (
            f"Call(kind={self.kind!r}, ids={self.ids}, rows={self.rows}, "
            f"position={self.position}, sequence={self.sequence}{tree})"
        )


class ScriptedBackend:
    """A backend whose logits are a function of the history.

    It is strict where real runtimes are silent: windows on rows turn to NaN as soon as
    anything else is decoded, rows that were not asked for cannot be read, and calls
    that overlap in two threads raise.

    Parameters
    ----------
    vocab : Vocab
        Its n_vocab bounds the ids.
    logits : callable
        Given the ids of the timeline (and of the path in a tree) as a tuple, returns
        the row that follows them: an array of at most `width` values, or a mapping
        from id to value. All other values are 0. What it raises fails the decode.
    n_ctx : int
        The most ids that a sequence holds, nodes of its tree included.
    tree, truncate : bool
        Whether sequences can branch, and be cut.
    width : int, optional
        The width of a row, n_vocab by default; wider rows have padding.
    search_delta : float
        As in `Capabilities`.
    max_rows : int, optional
        The most rows of one decode; by default as many as 64 MB hold.
    max_branches : int, optional
        The most tips of a tree, over all its batches; by default no limit.
    n_batch : int
        The most ids of one piece of a decode: `on_piece` is called before each.
    chat_template : str, optional
        The template for chat messages.
    save : bool
        Whether sequences can be saved.
    head_rows : bool
        Whether single logits can be asked for.
    fingerprint : bytes
        Names the model for saved states.

    Attributes
    ----------
    calls : list of Call
        What was done, in order. Refused and failed calls are not in it.
    """

    name = "scripted"

    def __init__(
        self,
        vocab: Vocab,
        logits: Callable[[History], ArrayLike | Mapping[int, float]],
        *,
        n_ctx: int = 4096,
        tree: bool = True,
        truncate: bool = True,
        width: int | None = None,
        search_delta: float = 0.5,
        max_rows: int | None = None,
        max_branches: int | None = None,
        n_batch: int = 128,
        chat_template: str | None = None,
        save: bool = True,
        head_rows: bool = False,
        fingerprint: bytes = b"scripted",
    ) -> None:
        self.fingerprint = fingerprint
        self.chat_template = chat_template
        self.vocab = vocab
        self.model_id = "scripted"
        self.n_ctx = n_ctx
        self.capabilities = Capabilities(truncate, tree, search_delta, save, head_rows)
        self.calls: list[Call] = []
        self._logits = logits
        self._width = vocab.n_vocab if width is None else width
        if self._width < vocab.n_vocab:
            raise InvalidArgument(
                f"width is {width}; a row has at least n_vocab={vocab.n_vocab} values"
            )
        rows_that_fit = max(1, LOGITS_BYTES // (4 * self._width))
        self._max_rows = rows_that_fit if max_rows is None else max_rows
        self._max_branches = n_ctx if max_branches is None else max_branches
        self._n_batch = n_batch
        self._busy = threading.Lock()
        self._closed = False
        self._n_opened = 0
        self._windows: list[Row] = []

    def open(self) -> ScriptedSequence:
        """Start an empty timeline."""
        with self._alone():
            sequence = ScriptedSequence(self, self._n_opened)
            self._n_opened += 1
            self.calls.append(Call("open", (), 0, 0, sequence.number))
            return sequence

    def close(self) -> None:
        """Close it, and with it all sequences. May be called twice."""
        self._closed = True

    def __enter__(self) -> Self:
        """Return the backend itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()

    # What the sequences use

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise if another thread is in a call."""
        if not self._busy.acquire(blocking=False):
            raise BackendError("two calls to the backend overlap; they must queue")
        try:
            if self._closed:
                raise Closed("the scripted backend is closed")
            yield
        finally:
            self._busy.release()

    def _row(self, history: History) -> Row:
        values = self._logits(history)
        row = np.zeros(self._width, np.float32)
        if isinstance(values, Mapping):
            for token, value in values.items():
                row[token] = value
        else:
            array = np.asarray(values, np.float32)
            row[: len(array)] = array
        return row

    def _spoil_windows(self) -> None:
        """Make a window that somebody kept show up as a fault."""
        for window in self._windows:
            window.fill(np.nan)
        self._windows.clear()


class ScriptedSequence:
    """One timeline of a `ScriptedBackend`; see `eliza.backends.base.Sequence`."""

    def __init__(self, backend: ScriptedBackend, number: int) -> None:
        self.on_piece: Callable[[], None] | None = None
        self.whole_row = False
        self.number = number
        self._backend = backend
        self._history: History = ()
        self._paths: list[History] = []
        self._branches = 0
        self._rows: NDArray[np.float32] | None = None
        self._closed = False

    @property
    def position(self) -> int:
        """The number of ids decoded and kept."""
        return len(self._history)

    @property
    def history(self) -> tuple[int, ...]:
        """The ids decoded and kept."""
        return self._history

    @property
    def max_rows(self) -> int:
        """The most ids that one `decode_many` or `decode_tree` may take."""
        return self._backend._max_rows

    def decode(self, ids: Ids[int]) -> None:
        """Append ids; row 0 then belongs to the last of them."""
        self._append("decode", ids)

    def decode_many(self, ids: Ids[int]) -> None:
        """Append ids, at most `max_rows`; row i then belongs to ids[i]."""
        self._append("decode_many", ids)

    def _append(self, kind: str, ids: Ids[int]) -> None:
        backend = self._backend
        with self._alone():
            new = tuple(ids_array(ids, backend.vocab.n_vocab).tolist())
            n_rows = 1 if kind == "decode" else len(new)
            self._check_rows(n_rows)
            self._check_room(self.position + len(new))
            self._begin()
            self._forget_tree()
            for _ in range(0, len(new), backend._n_batch):
                self._pause()
            all_ids = self._history + new
            first = len(all_ids) - n_rows + 1
            rows = [backend._row(all_ids[:n]) for n in range(first, len(all_ids) + 1)]
            self._note(kind, new, n_rows)
            self._history = all_ids
            self._rows = np.stack(rows)

    def truncate(self, n: int) -> None:
        """Drop everything after the first n ids, and the tree."""
        with self._alone():
            if not 0 <= n <= self.position:
                raise InvalidArgument(f"n is {n}; it lies in [0, {self.position}]")
            if 0 < n < self.position and not self._backend.capabilities.truncate:
                raise NotSupported("this backend truncates to 0 only")
            self._forget_tree()
            self._rows = None
            self._history = self._history[:n]
            self._note("truncate", (), 0)

    def decode_tree(self, ids: Ids[int], parents: Ids[int]) -> None:
        """Decode nodes of a tree above the end of the timeline; row i is node i's."""
        backend, known = self._backend, len(self._paths)
        with self._alone():
            new = tuple(ids_array(ids, backend.vocab.n_vocab).tolist())
            above = tuple(parents_array(parents, len(new), known).tolist())
            if not backend.capabilities.tree:
                raise NotSupported("this backend decodes no trees")
            self._check_rows(len(new))
            self._check_room(self.position + known + len(new))
            tips = len(new) - len({p for p in above if p >= known})
            if tips > backend._max_branches - self._branches:
                raise InvalidArgument(
                    f"{tips} more branches than the tree has room for"
                )
            self._begin()
            self._pause()
            paths = list(self._paths)
            for token, parent in zip(new, above, strict=True):
                paths.append((*(() if parent < 0 else paths[parent]), token))
            rows = [backend._row(self._history + path) for path in paths[known:]]
            self._note("decode_tree", new, len(new), above)
            self._paths = paths
            self._branches += tips
            self._rows = np.stack(rows)

    def clear_tree(self) -> None:
        """Forget the tree and its rows."""
        with self._alone():
            if self._paths:
                self._forget_tree()
                self._rows = None
            self._note("clear_tree", (), 0)

    def tree_room(self) -> TreeRoom:
        """Return what the next `decode_tree` may add."""
        with self._alone():
            room = self._backend.n_ctx - self.position - len(self._paths)
            left = self._backend._max_branches - self._branches
            return TreeRoom(nodes=min(room, self.max_rows), branches=min(room, left))

    def logits_window(self, i: int = 0) -> Row:
        """Return row i of the last decode; it turns to NaN with the next decode."""
        window = self.logits(i)
        self._backend._windows.append(window)
        return window

    def logits(self, i: int = 0) -> Row:
        """Return a copy of row i."""
        with self._alone():
            if self._rows is None:
                raise InvalidArgument("no logits: nothing was decoded")
            if not 0 <= i < len(self._rows):
                raise InvalidArgument(
                    f"no logits for row {i}: rows are [0, {len(self._rows)})"
                )
            row: Row = self._rows[i]
            return row.copy()

    def logits_of(self, ids: Ids[int], i: int = 0) -> Row:
        """Return the logits of some ids in row i."""
        wanted = ids_array(ids, self._backend.vocab.n_vocab)
        if not self._backend.capabilities.head_rows:
            raise NotSupported("this backend computes whole rows only")
        row: Row = self.logits(i)[wanted]
        return row

    def save(self) -> bytes:
        """Return the ids."""
        with self._alone():
            self._check_saves()
            self._note("save", (), 0)
            return np.array(self._history, np.int32).tobytes()

    def restore(self, state: bytes, n: int) -> None:
        """Take the ids of a state in place of those that are there."""
        with self._alone():
            self._check_saves()
            if len(state) != 4 * n:
                raise BackendError(f"{len(state)} bytes are no state of {n} ids")
            self._check_room(n)
            self._begin()
            self._forget_tree()
            self._history = tuple(np.frombuffer(state, np.int32).tolist())
            self._note("restore", (), 0)

    def _check_saves(self) -> None:
        if not self._backend.capabilities.save:
            raise NotSupported("this backend saves no states")

    def close(self) -> None:
        """Close it. May be called twice."""
        if not self._closed:
            self._closed = True
            self._note("close", (), 0)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._backend._alone():
            if self._closed:
                raise Closed("the scripted sequence is closed")
            yield

    def _note(
        self, kind: str, ids: History, rows: int, parents: tuple[int, ...] = ()
    ) -> None:
        call = Call(kind, ids, rows, self.position, self.number, parents)
        self._backend.calls.append(call)

    def _forget_tree(self) -> None:
        self._paths = []
        self._branches = 0

    def _begin(self) -> None:
        """Lose what a real runtime has lost once it computes, even if it then fails."""
        self._rows = None
        self._backend._spoil_windows()

    def _pause(self) -> None:
        if self.on_piece is not None:
            self.on_piece()

    def _check_rows(self, n: int) -> None:
        if n > self.max_rows:
            raise InvalidArgument(
                f"{n} rows of logits at once; at most {self.max_rows} can be had"
            )

    def _check_room(self, n: int) -> None:
        if n > self._backend.n_ctx:
            raise ContextOverflow(
                f"{n} ids do not fit into a context of {self._backend.n_ctx}"
            )
