"""Make a local language model answer with exactly one of the things you allow."""

from __future__ import annotations

from eliza._cursor import Cursor, State
from eliza._trie import Subset, Trie

__all__ = ["Cursor", "State", "Subset", "Trie"]
