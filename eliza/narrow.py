"""Rows of logits for someone who reads only a few of them.

A model's last layer, its head, costs by the row of weights: of 262,144 for each row of
logits, a decision among ten ids needs ten. Where a runtime can compute single logits
(`Capabilities.head_rows`), they are put into a row that is NaN everywhere else, so that
whatever reads the allowed ids of a row reads this one as any other, and whatever reads
more than it said shows up as a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.backends.base import Capabilities, HeadRows, Row, Sequence

__all__ = ["NarrowRows"]

#: The largest part of a row that is computed singly; picking the weights costs too.
LARGEST_PART = 1 / 8


class NarrowRows:
    """Makes such rows for one sequence.

    Parameters
    ----------
    sequence : Sequence
        Where the logits come from.
    capabilities : Capabilities
        Of its backend.
    """

    def __init__(self, sequence: Sequence, capabilities: Capabilities) -> None:
        self._sequence = sequence
        self._can = capabilities.head_rows
        self._row: Row = np.empty(0, np.float32)
        self._filled: NDArray[np.int32] | None = None

    def of(self, ids: NDArray[np.int32], n_vocab: int, i: int) -> Row:
        """Return row i of the last decode, of which only some ids are read.

        The row is valid until the next decode, and until the next call.
        """
        if not self._can or not 0 < len(ids) <= n_vocab * LARGEST_PART:
            return self._sequence.logits_window(i)
        values = cast("HeadRows", self._sequence).logits_of(ids.tolist(), i)
        if len(self._row) != n_vocab:
            self._row = np.full(n_vocab, np.nan, np.float32)
        elif self._filled is not None:
            self._row[self._filled] = np.nan
        self._row[ids] = values
        self._filled = ids
        return self._row
