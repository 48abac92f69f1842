"""Make a local language model answer with exactly one of the things you allow."""

from __future__ import annotations

from eliza._batch import argmax_batch, bitmask_batch, mask_batch
from eliza._cursor import Cursor, State
from eliza._subset import Subset
from eliza._trie import Trie

__all__ = [
    "Cursor",
    "State",
    "Subset",
    "Trie",
    "argmax_batch",
    "bitmask_batch",
    "mask_batch",
]
