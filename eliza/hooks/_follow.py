"""Positions from histories: what a library hands over at each step is all it knows.

A processor is called with the ids so far, prompt included, and nobody says where the
prompt ends or when another generation begins. `Follow` remembers the last call only:

    the same prompt in front   the same generation; what follows is walked, from the
                               last position if it goes on from there
    another beginning          a new generation, whose prompt is the whole history
    ids that are not allowed   an error, unless this holds for every row: the choice was
                               complete when last seen, or is, and several ids have come
                               since; then a new generation, whose prompt repeats what
                               is known, as in a chat
    text after the end         where ended rows may hold anything: one id more than what
                               was seen is a pad; other text in every row is a new
                               generation, and in some rows an error

Rows that are beams never begin a generation by what they hold: many are off the path.
With `prompt_length` nothing is guessed. What looks like the last generation, because
the new prompt is its prompt and ids that it allowed, is taken for it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eliza.errors import InvalidArgument, InvalidType, OffPathError
from eliza.hooks._start import Start

__all__ = ["Follow", "Place"]

Ids = NDArray[np.int64]


class _Beyond(OffPathError):
    """An id after the end of a choice that ends no generation."""


class _Unsure(InvalidArgument):
    """Ids that this generation may hold, or the prompt of another one."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}, or the prompt of another generation? Call reset() before a new "
            "one, or give prompt_length="
        )


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


Places = dict[bytes, Place | None]


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
    single : bool
        The rows of a step come one after the other, each in a call of its own.
    """

    def __init__(
        self,
        start: Start,
        prompt_length: int | None = None,
        *,
        dead: bool = False,
        pads: bool = False,
        single: bool = False,
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
        self._single = single
        self.reset()

    def reset(self) -> None:
        """Forget: the next history is the prompt of a new generation."""
        self._prompts: Ids | None = None
        self._length = 0
        self._last: Places = {}
        #: Of the step before the last; kept only where rows come singly.
        self._before: Places = {}
        #: Rows have come singly, and there are several.
        self._several = False

    def place(self, ids: Any, *, finished: bool = False) -> Place:
        """Return the place of one sequence.

        Parameters
        ----------
        ids : array or sequence of int
            Its whole history.
        finished : bool
            As in `places`.

        Raises
        ------
        OffPathError
            It is not on the way to a choice. Nothing has changed.
        """
        (place,) = self.places(np.asarray(ids)[np.newaxis], finished=finished)
        if place is None:
            raise OffPathError("the sequence left the choices")
        return place

    def places(self, rows: Any, *, finished: bool = False) -> list[Place | None]:
        """Return the places of the rows of a batch.

        Parameters
        ----------
        rows : array of int, shape (n_rows, length)
            Their histories; rows may have been reordered since the last call.
        finished : bool
            They are what came out of the last generation. Nothing changes, and none of
            them begins another one.
        """
        rows = np.asarray(rows)
        if rows.ndim != 2:
            raise InvalidArgument(f"ids of shape {rows.shape}; give (rows, length)")
        if rows.dtype.kind not in "iu" and rows.size:
            raise InvalidType(f"ids of dtype {rows.dtype}; give whole numbers")
        rows = np.ascontiguousarray(rows, np.int64)
        start, fresh = self._prompt_end(rows)
        if finished and fresh:
            raise InvalidArgument(
                "the sequence does not begin with the prompt of the last generation; "
                "with prompt_length= any is read"
            )
        found, errors = self._walk(rows[:, start:], fresh, finished)
        if errors:
            if finished or len(errors) < len(rows) or not self._is_new(errors, rows):
                raise errors[0]
            fresh = True
            found, _ = self._walk(rows[:, :0], fresh, finished)
        elif not finished and self._all_lost_at_once(found):
            raise _Unsure("no row goes on with an id that was allowed: beams that lost")
        if not finished:
            self._remember(rows, found, fresh)
        return [place for _, place in found]

    def _all_lost_at_once(self, found: list[tuple[bytes, Place | None]]) -> bool:
        """Tell whether all rows left the choices where a beam must have gone on.

        Of beams inside of a choice one does, and of those that ended too: an end goes
        on with an end. Only after a complete choice, the end may be all that remained.
        """
        if not self._dead or self._single or self._fixed is not None:
            return False
        for key, place in found:
            before = self._last.get(key[: -np.dtype(np.int64).itemsize])
            if place is not None or before is None or key in self._last:
                return False
            if before.cursor.done and not before.ended:
                return False
        return bool(found)

    def _remember(
        self, rows: Ids, found: list[tuple[bytes, Place | None]], fresh: bool
    ) -> None:
        length = rows.shape[1]
        if fresh:
            self._prompts = rows.copy()
            self._last, self._before, self._several = {}, {}, False
        elif self._single and length == self._length:
            self._several = True
            self._last.update(found)
            return
        if self._single:
            self._before = self._last
        self._last = dict(found)
        self._length = length

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

    def _is_new(self, errors: list[Exception], rows: Ids) -> bool:
        """Tell whether rows that all cannot be placed begin another generation."""
        if self._fixed is not None or self._dead or self._several:
            return False
        last = [place for place in self._last.values() if place is not None]
        ended = any(place.ended for place in last)
        several = rows.shape[1] - self._length >= 2
        # Had the last generation been taken back, it would have been seen on the way.
        done = bool(last) and all(place.cursor.done for place in last)
        for error in errors:
            if isinstance(error, _Unsure):
                fits = not self.start.free
            elif isinstance(error, _Beyond):
                fits = several or (ended and not self._pads)
            else:
                fits = done
            if not fits:
                return False
        return True

    def _walk(
        self, paths: Ids, fresh: bool, finished: bool
    ) -> tuple[list[tuple[bytes, Place | None]], list[Exception]]:
        """Return where the rows are, and the errors of those that are nowhere."""
        known: Mapping[bytes, Place | None] = (
            {} if fresh else ChainMap(self._last, self._before)
        )
        found: dict[bytes, Place | None] = {}
        out: list[tuple[bytes, Place | None]] = []
        errors: list[Exception] = []
        for path in paths:
            key = path.tobytes()
            if key not in found:
                try:
                    found[key] = self._place(path, key, known, finished)
                except (OffPathError, _Unsure) as error:
                    errors.append(error)
                    continue
            out.append((key, found[key]))
        return out, errors

    def _place(
        self,
        path: Ids,
        key: bytes,
        known: Mapping[bytes, Place | None],
        finished: bool,
    ) -> Place | None:
        if key in known:
            return known[key]
        # Beams go on with an end or are lost; what comes out of them holds pads.
        pads = self._pads and (finished or not self._dead)
        parent = key[: -path.itemsize]
        if len(path) and parent in known:
            before = known[parent]
            if before is None:
                return None
            place = before.copy()
            try:
                place.step(int(path[-1]), pads)
            except OffPathError:
                if self._dead:
                    return None
                raise
            return place
        place = Place(self.start)
        try:
            for token in path.tolist():
                place.step(token, pads)
        except OffPathError:
            if not self._dead:
                raise
            if self._fixed is None and not finished:
                raise _Unsure(
                    "several ids came since the last call, and they leave the choices: "
                    "beams that lost"
                ) from None
            return None
        if self._fixed is None and place.rest:
            text = path[len(path) - place.rest :]
            if not self._is_known(place, text, parent, known, finished):
                raise _Unsure(
                    "several ids came since the last call, after a complete choice: "
                    + ("free text" if self.start.free else "pads")
                )
        return place

    def _is_known(
        self,
        place: Place,
        text: Ids,
        parent: bytes,
        known: Mapping[bytes, Place | None],
        finished: bool,
    ) -> bool:
        """Tell whether what stands after a choice belongs to this generation."""
        if not self.start.free:
            text = text[~np.isin(text, self.start.ends)]
            if not len(text):
                return True
        if any(key.startswith(parent) for key in known):
            return True  # it was taken back to where it has been
        if not finished or self._prompts is None:
            return False
        # What came out is one id longer, and a row that ended before has one pad.
        total = self._prompts.shape[1] + place.length - self.start.cursor.depth
        one = self.start.free or len(np.unique(text)) == 1
        return one and total - self._length <= 1
