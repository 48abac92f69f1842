"""Packed bit masks, for engines that take one: bit i % 32 of word i // 32 is id i.

from eliza.hooks.bitmask import Matcher, allocate

words = allocate(len(requests), n_vocab)
matcher = Matcher(trie, eog=eos)      # one for each request
matcher.fill(words, row)              # then the engine applies the mask and samples
matcher.accept(token)
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eliza._cursor import Cursor
from eliza._trie import Trie
from eliza.errors import InvalidArgument, InvalidType, OffPathError
from eliza.hooks._follow import Place
from eliza.hooks._processor import chosen
from eliza.hooks._start import Start

__all__ = ["Matcher", "allocate", "fill_free"]


def allocate(n_rows: int, n_vocab: int) -> NDArray[np.int32]:
    """Return masks that allow every id, one for each row."""
    if n_rows < 0 or n_vocab <= 0:
        raise InvalidArgument(f"masks for {n_rows} rows of {n_vocab} ids")
    return np.full((n_rows, (n_vocab + 31) // 32), -1, np.int32)


def fill_free(words: NDArray[np.int32], row: int) -> None:
    """Allow every id in a row: what a request without a constraint has."""
    words[row] = -1


class Matcher:
    """The place of one request, which fills its row of a mask.

    Parameters
    ----------
    trie, eog, exits, allow, after
        As in `eliza.hooks._start.Start`.
    """

    def __init__(
        self,
        trie: Trie | Cursor,
        *,
        eog: Any = None,
        exits: Iterable[int] | None = None,
        allow: Any = None,
        after: str = "end",
    ) -> None:
        start = Start(trie, eog=eog, exits=exits, allow=allow, after=after)
        self._start = start
        self._place = Place(start)
        self._least = self._place.length

    @property
    def done(self) -> bool:
        """Whether the choice is complete."""
        return self._place.cursor.done

    @property
    def ended(self) -> bool:
        """Whether an id was taken that ends the generation."""
        return self._place.ended

    @property
    def name(self) -> str | int:
        """The name of the complete choice, or its number in a trie without names."""
        return chosen(self._place)

    @property
    def path(self) -> tuple[int, ...]:
        """The ids of the choice that were accepted."""
        return self._place.cursor.path

    def fill(self, words: NDArray[np.int32], row: int = 0) -> None:
        """Write the ids that may come next to a row of a mask.

        Parameters
        ----------
        words : ndarray of int32, shape (n_rows, n_words) or (n_words,)
            At least n_vocab bits for each row; those beyond become 0.
        row : int
            Which row.
        """
        if words.dtype != np.int32 or words.ndim not in (1, 2):
            raise InvalidArgument(
                f"words of {words.dtype}, shape {words.shape}; give int32 (rows, words)"
            )
        out = words if words.ndim == 1 else words[row]
        place = self._place
        if not place.cursor.done:
            place.cursor.bitmask(out)
            return
        n_vocab = place.cursor.trie.n_vocab
        if len(out) * 32 < n_vocab:
            raise InvalidArgument(
                f"{len(out)} words; {n_vocab} ids need {(n_vocab + 31) // 32}"
            )
        ids = place.allowed()
        out[:] = 0
        if ids is None:
            whole, rest = divmod(n_vocab, 32)
            out[:whole] = -1
            if rest:
                out[whole] = (1 << rest) - 1
            return
        bits = np.left_shift(np.uint32(1), (ids & 31).astype(np.uint32))
        np.bitwise_or.at(out.view(np.uint32), ids >> 5, bits)

    def accept(self, token: int) -> None:
        """Go on by an id.

        Raises
        ------
        OffPathError
            It is not allowed. Nothing has changed.
        InvalidArgument
            It is no id of the vocabulary.
        """
        self._place.step(self._id(token), False)

    def rollback(self, n: int = 1) -> None:
        """Take back the ids accepted last."""
        most = self._place.length - self._least
        if not 0 <= n <= most:
            raise InvalidArgument(f"rollback: {n} is outside [0, {most}]")
        self._place.back(n)

    def reset(self) -> None:
        """Go back to the start."""
        self._place = Place(self._start)

    def follows(self, ids: Iterable[int]) -> bool:
        """Tell whether these ids could be accepted one after the other."""
        place = self._place.copy()
        try:
            for token in ids:
                place.step(self._id(token), False)
        except OffPathError:
            return False
        return True

    def _id(self, token: int) -> int:
        """Check an id as a cursor does, because after the choice none does."""
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise InvalidType(
                f"accept: an id must be an int, got {type(token).__name__} {token!r}"
            )
        id = operator.index(token)
        n_vocab = self._start.cursor.trie.n_vocab
        if not 0 <= id < n_vocab:
            raise InvalidArgument(f"accept: id {id} is outside [0, {n_vocab})")
        return id
