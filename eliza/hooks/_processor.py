"""What the logits processors for several libraries share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eliza._cursor import Cursor
from eliza._trie import Trie
from eliza.errors import InvalidArgument, NoCandidateError, TokenLimit
from eliza.hooks._follow import Follow, Place
from eliza.hooks._start import Start

__all__ = ["Processor", "chosen", "keep_values", "mask_row"]

Values = NDArray[np.floating[Any]]


class Processor:
    """A logits processor that keeps generations to the choices of a trie.

    It belongs to one generation, or one batch, at a time, and may be used for many one
    after the other.

    Parameters
    ----------
    trie : Trie or Cursor
        The choices.
    eog, exits, allow, after
        As in `eliza.hooks._start.Start`.
    prompt_length : int, optional
        How many ids stand before the choice; by default, all that the first call of a
        generation is given.
    """

    #: What `Follow` is told beside.
    _options: dict[str, Any] = {}  # noqa: RUF012

    def __init__(
        self,
        trie: Trie | Cursor,
        *,
        eog: Any = None,
        exits: Iterable[int] | None = None,
        allow: Any = None,
        after: str = "end",
        prompt_length: int | None = None,
    ) -> None:
        self._start = Start(trie, eog=eog, exits=exits, allow=allow, after=after)
        self._follow = Follow(self._start, prompt_length, **self._options)
        self._error: BaseException | None = None

    def reset(self) -> None:
        """Forget: the next call begins a new generation."""
        self._follow.reset()
        self._error = None

    def check(self) -> None:
        """Raise the error that a callback met and could not raise, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self, ids: Any) -> str | int:
        """Say which choice a finished sequence is.

        Parameters
        ----------
        ids : array or sequence of int
            Prompt and answer, as the processor would be given them next.

        Returns
        -------
        str or int
            Its name, or its number in a trie without names.

        Raises
        ------
        TokenLimit
            The sequence ended before the choice was complete.
        OffPathError
            It is none of the choices.
        InvalidArgument
            It is not of the last generation, as far as that can be told.
        """
        self.check()
        return chosen(self._follow.place(ids, finished=True))


def chosen(place: Place) -> str | int:
    """Return the name of the choice that is complete at a place."""
    cursor = place.cursor
    if not cursor.done:
        raise TokenLimit(
            f"the generation ended inside a choice, after {cursor.path}; "
            f"{cursor.remaining()} choices are still possible"
        )
    name, leaf = cursor.name, cursor.leaf
    assert leaf is not None
    return leaf if name is None else name


def keep_values(place: Place, values: Values, row: int | None = None) -> Values:
    """Return what the logits of the allowed ids become.

    NaN counts as -inf. Where some are +inf they share the whole probability: they
    become 0 and the others -inf, because a softmax would compute inf - inf.

    Raises
    ------
    NoCandidateError
        All are NaN or -inf.
    """
    top = np.fmax.reduce(values)
    if not top > -np.inf:
        raise no_candidate(place, row)
    if top == np.inf:
        return np.where(values == np.inf, values.dtype.type(0), -np.inf)
    return np.where(np.isnan(values), values.dtype.type(-np.inf), values)


def mask_row(place: Place, row: Values) -> None:
    """Put -inf, in place, on the logits of all ids that are not allowed."""
    n_vocab = place.cursor.trie.n_vocab
    if row.ndim != 1 or len(row) < n_vocab:
        raise InvalidArgument(
            f"logits of shape {row.shape}; the trie is for {n_vocab} ids"
        )
    ids = place.allowed()
    if ids is None:
        return
    kept = keep_values(place, row[ids])
    row.fill(-np.inf)
    row[ids] = kept


def no_candidate(place: Place, row: int | None = None) -> NoCandidateError:
    """Return the error for logits that leave nothing."""
    ids = place.allowed()
    some = "every id" if ids is None else f"every allowed id {_few(ids)}"
    at = "" if row is None else f"row {row}: "
    return NoCandidateError(f"{at}{some} has a logit of NaN or -inf")


def _few(ids: np.ndarray) -> str:
    shown = ", ".join(str(id) for id in ids[:8].tolist())
    return f"({shown}{', ...' if len(ids) > 8 else ''})"
