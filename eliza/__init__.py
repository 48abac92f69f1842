"""Make a local language model answer with exactly one of the things you allow."""

from __future__ import annotations

from eliza._trie import Trie

__all__ = ["Trie"]
