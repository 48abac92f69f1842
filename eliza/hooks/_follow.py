"""Positions from histories: what a library hands over at each step is all it knows.

A processor is called with the ids so far, prompt included, and nobody says where the
prompt ends or when another generation begins. `Follow` remembers the last call only:

    the same prompt in front   the same generation; what follows is walked, from the
                               last position if it goes on from there
    another beginning          a new generation, whose prompt is the whole history
    ids that are not allowed   an error, unless the choice was complete when last seen,
                               or is, and several ids have come since: then a new
                               generation, whose prompt repeats what is known, as in a
                               chat

With `prompt_length` nothing is guessed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eliza.errors import InvalidArgument, InvalidType, OffPathError
from eliza.hooks._start import Start

__all__ = ["Follow", "Place"]

Ids = NDArray[np.int64]


class _Beyond(OffPathError):
    """An id after the end of a choice that ends no generation."""


class Place:
    """Where a sequence is: at a cursor, and after it."""

    __slots__ = ("cursor", "ended", "rest", "start")

    def __init__(self, start: Start) -> None:
        self.start = start
        self.cursor = start.cursor.copy()
        #: An end-of-generation id was taken after the choice, or as its last id.
        self.ended = False
        #: How many ids came after the choice.
        self.rest = 0

    def copy(self) -> Place:
        """Return a place that goes its own way from here."""
        other = Place.__new__(Place)
        other.start, other.cursor = self.start, self.cursor.copy()
        other.ended, other.rest = self.ended, self.rest
        return other

    def allowed(self) -> NDArray[np.int32] | None:
        """Return the ids that may follow, sorted; None for every id."""
        if not self.cursor.done:
            return self.cursor.allowed()
        return None if self.start.free else self.start.ends

    def step(self, token: int, pads: bool) -> None:
        """Go on by an id."""
        if not self.cursor.done:
            self.cursor.accept(token)
            self.ended = self.cursor.done and token in self.start.ends
            return
        if not self.start.free and not (self.ended and pads):
            if token not in self.start.ends:
                raise _Beyond(
                    f"id {token} is not allowed: the choice is complete, and only "
                    f"end-of-generation ids may follow: {self.start.ends.tolist()}"
                )
            self.ended = True
        self.rest += 1

    def back(self, n: int) -> None:
        """Take back the last ids; at most `length` of them."""
        from_rest = min(n, self.rest)
        self.rest -= from_rest
        self.cursor.rollback(n - from_rest)
        if self.rest == 0:
            path = self.cursor.path
            self.ended = self.cursor.done and path[-1] in self.start.ends

    @property
    def length(self) -> int:
        """How many ids were taken since the start of the path."""
        return self.cursor.depth + self.rest


class Follow:
    """The places of one sequence, or of the rows of a batch.

    Parameters
    ----------
    start : Start
        Where each generation starts.
    prompt_length : int, optional
        How many ids stand before the choice. Without it, the first history of a
        generation is its prompt.
    dead : bool
        Rows that leave the path are None from then on: beams that can never win.
    pads : bool
        After an end-of-generation id a row may hold anything, as finished rows do.
    """

    def __init__(
        self,
        start: Start,
        prompt_length: int | None = None,
        *,
        dead: bool = False,
        pads: bool = False,
    ) -> None:
        if prompt_length is not None:
            if isinstance(prompt_length, bool) or not isinstance(prompt_length, int):
                raise InvalidType(f"prompt_length is {prompt_length!r}; give an int")
            if prompt_length < 0:
                raise InvalidArgument(f"prompt_length is {prompt_length}")
        self.start = start
        self._fixed = prompt_length
        self._dead = dead
        self._pads = pads
        self.reset()

    def reset(self) -> None:
        """Forget: the next history is the prompt of a new generation."""
        self._prompts: Ids | None = None
        self._length = 0
        self._last: dict[bytes, Place | None] = {}

    def place(self, ids: Any) -> Place:
        """Return the place of one sequence.

        Parameters
        ----------
        ids : array or sequence of int
            Its whole history.

        Raises
        ------
        OffPathError
            It is not on the way to a choice. Nothing has changed.
        """
        (place,) = self.places(np.asarray(ids)[np.newaxis])
        if place is None:
            raise OffPathError("the sequence left the choices")
        return place

    def places(self, rows: Any) -> list[Place | None]:
        """Return the places of the rows of a batch.

        Parameters
        ----------
        rows : array of int, shape (n_rows, length)
            Their histories; rows may have been reordered since the last call.
        """
        rows = np.asarray(rows)
        if rows.ndim != 2:
            raise InvalidArgument(f"ids of shape {rows.shape}; give (rows, length)")
        if rows.dtype.kind not in "iu" and rows.size:
            raise InvalidType(f"ids of dtype {rows.dtype}; give whole numbers")
        rows = np.ascontiguousarray(rows, np.int64)
        length = rows.shape[1]
        start, fresh = self._prompt_end(rows)
        try:
            found = self._walk(rows[:, start:], fresh)
        except OffPathError as error:
            if not self._is_new(error, length):
                raise
            start, fresh = length, True
            found = self._walk(rows[:, start:], fresh)
        if fresh:
            self._prompts = rows.copy()
        self._length = length
        self._last = dict(found)
        return [place for _, place in found]

    def _prompt_end(self, rows: Ids) -> tuple[int, bool]:
        length = rows.shape[1]
        if self._fixed is not None:
            if length < self._fixed:
                raise InvalidArgument(
                    f"the history has {length} ids, fewer than prompt_length="
                    f"{self._fixed}"
                )
            return self._fixed, False
        prompts = self._prompts
        if prompts is None or length < prompts.shape[1]:
            return length, True
        heads = rows[:, : prompts.shape[1]]
        if not np.array_equal(heads, prompts):
            known = {row.tobytes() for row in prompts}
            if not all(row.tobytes() in known for row in heads):
                return length, True
        return prompts.shape[1], False

    def _is_new(self, error: OffPathError, length: int) -> bool:
        """Tell whether ids that are not allowed begin another generation."""
        if self._fixed is not None:
            return False
        if self._dead:
            return True  # beams die one id after the last call
        last = [place for place in self._last.values() if place is not None]
        if isinstance(error, _Beyond):
            ended = any(place.ended for place in last)
            return length - self._length >= 2 or (ended and not self._pads)
        # Had the last generation been taken back, it would have been seen on the way.
        return bool(last) and all(place.cursor.done for place in last)

    def _walk(self, paths: Ids, fresh: bool) -> list[tuple[bytes, Place | None]]:
        last: dict[bytes, Place | None] = {} if fresh else self._last
        found: dict[bytes, Place | None] = {}
        out = []
        for path in paths:
            key = path.tobytes()
            if key not in found:
                found[key] = self._place(path, key, last)
            out.append((key, found[key]))
        return out

    def _place(
        self, path: Ids, key: bytes, last: dict[bytes, Place | None]
    ) -> Place | None:
        if key in last:
            return last[key]
        parent = key[: -path.itemsize]
        if len(path) and parent in last:
            before = last[parent]
            if before is None:
                return None
            place = before.copy()
            try:
                place.step(int(path[-1]), self._pads)
            except OffPathError:
                if self._dead:
                    return None
                raise
            return place
        place = Place(self.start)
        for token in path.tolist():
            place.step(token, self._pads)
        self._be_sure(place, len(path))
        return place

    def _be_sure(self, place: Place, length: int) -> None:
        """Raise where free text may be another prompt."""
        if (
            place.start.free
            and place.rest
            and self._fixed is None
            and self._prompts is not None
            and length + self._prompts.shape[1] - self._length >= 2
        ):
            raise InvalidArgument(
                "several ids came since the last call, after a complete choice: free "
                "text, or the prompt of another generation? Call reset() before a new "
                "one, or give prompt_length="
            )
