"""What was looked at on the way to an answer: for explanations and for tracing."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eliza.errors import NoCandidateError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from eliza._cursor import Cursor
    from eliza.backends.base import Row
    from eliza.vocab import Vocab

    Path = tuple[int, ...]

__all__ = ["Event", "Link", "Trail"]

#: How many alternatives of a point an explanation keeps.
KEPT_OPTIONS = 5


class Event(NamedTuple):
    """Something that `choose` did; given to `trace=` as it happens.

    Attributes
    ----------
    kind : {"decoded", "weighed"}
        "decoded": the runtime computed a batch. "weighed": logits were looked at where
        choices part.
    seconds : float
        Since the call began.
    positions : int
        Of "decoded": the ids in the batch; 0 otherwise.
    path : tuple of int
        Of "weighed": the ids of the choice up to the point.
    options : tuple of (int, float)
        Of "weighed": the allowed ids and their probabilities among each other.
    """

    kind: str
    seconds: float
    positions: int = 0
    path: Path = ()
    options: tuple[tuple[int, float], ...] = ()


class Link(NamedTuple):
    """A piece of the way to an answer.

    Attributes
    ----------
    text : str
        What was written, nothing where the choice ended and others went on. A
        character cut by the end of the piece shows as U+FFFD.
    ids : tuple of int
        Its ids.
    decided : bool
        Whether other ids were allowed; if not, the ids were forced.
    probability : float or None
        Of the id among those allowed, if it was decided.
    others : tuple of (str, float)
        The most probable other ids there: their texts and probabilities.
    n_others : int
        How many other ids were allowed.
    """

    text: str
    ids: tuple[int, ...]
    decided: bool
    probability: float | None = None
    others: tuple[tuple[str, float], ...] = ()
    n_others: int = 0


class Trail:
    """Notes the points at which logits were looked at during one call.

    Parameters
    ----------
    start : float
        `time.perf_counter()` when the call began.
    trace : callable or None
        Called with each `Event`. What it raises ends the call.

    Attributes
    ----------
    traced : bool
        Whether there is a `trace`.
    weighed : list of (Cursor, doubles)
        The points at which choices part, and the log probabilities of the allowed ids
        among each other.
    """

    def __init__(self, start: float, trace: Callable[[Event], Any] | None) -> None:
        self._start = start
        self._trace = trace
        self.traced = trace is not None
        self.weighed: list[tuple[Cursor, NDArray[np.float64] | bytes]] = []

    def decoded(self, positions: int) -> None:
        """Note a batch."""
        if self._trace is not None:
            seconds = time.perf_counter() - self._start
            self._trace(Event("decoded", seconds, positions))

    def weigh(self, cursor: Cursor, row: Row) -> None:
        """Note a point, if choices part there."""
        try:
            logprobs = cursor.logprobs(row)
        except NoCandidateError:  # nothing can follow here: no way to an answer
            return
        if len(logprobs) < 2:
            return
        # What else is to be known of the point can be asked for later; few do.
        self.weighed.append((cursor.copy(), logprobs))
        if self._trace is not None:
            ids = cursor.allowed().tolist()
            options = tuple(
                (token, math.exp(x))
                for token, x in zip(ids, logprobs.tolist(), strict=True)
            )
            seconds = time.perf_counter() - self._start
            self._trace(Event("weighed", seconds, path=cursor.path, options=options))

    def links(
        self, vocab: Vocab, root: Cursor, path: Sequence[int], leaf: int
    ) -> tuple[Link, ...]:
        """Return the way from the root along the ids of a leaf, to its end."""
        links: list[Link] = []
        forced: list[int] = []
        points = {
            at.path: (at.allowed(), np.frombuffer(logprobs, np.float64))
            for at, logprobs in self.weighed
        }

        def flush() -> None:
            if forced:
                links.append(Link(_text(vocab, forced), tuple(forced), decided=False))
                forced.clear()

        for n, token in enumerate(path):
            point = points.get(tuple(path[:n]))
            if point is None:
                forced.append(token)
                continue
            flush()
            ids, logprobs = point[0].tolist(), point[1].tolist()
            taken = {ids.index(token)}
            links.append(_decided(vocab, ids, logprobs, taken, (token,)))
        flush()
        point = points.get(tuple(path))
        if point is not None:  # others continue the choice: ending it was a decision
            end = root.copy()
            for token in path:
                end.accept(token)
            ids, logprobs = point[0].tolist(), point[1].tolist()
            completes = end.completes().tolist()
            taken = {at for at, done in enumerate(completes) if done == leaf}
            links.append(_decided(vocab, ids, logprobs, taken, ()))
        return tuple(links)


def _decided(
    vocab: Vocab, ids: list[int], logprobs: list[float], taken: set[int], path: Path
) -> Link:
    """Describe a point; `taken` are the places among `ids` of what was chosen."""
    best = sorted(range(len(ids)), key=logprobs.__getitem__, reverse=True)
    others = [at for at in best[: KEPT_OPTIONS + len(taken)] if at not in taken]
    return Link(
        _text(vocab, path),
        path,
        decided=True,
        probability=math.fsum(math.exp(logprobs[at]) for at in taken),
        others=tuple(
            (_text(vocab, (ids[at],)), math.exp(logprobs[at]))
            for at in others[:KEPT_OPTIONS]
        ),
        n_others=len(ids) - len(taken),
    )


def _text(vocab: Vocab, ids: Sequence[int]) -> str:
    """Return the text of ids; a special one shows as its name."""
    return b"".join(map(vocab.piece, ids)).decode("utf-8", "replace")
