"""What an engine is for bench/kernels.py.

An engine is made once for a vocabulary. `build` takes the choices as text and leaves
functions that one calls at each step: `pick(row)` returns the allowed id with the
highest logit by what the engine ships, `by_hand(row)` does the same with the least that
one can write with NumPy around the engine's mask. `mask()` makes the mask alone, as
packed bits where the engine has that; `apply(row)` writes -inf over what is not
allowed. They are the engine's own functions where possible: a wrapper around a call of
100 ns would be half of what is measured.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from _vocabs import Vocabulary

MINUS_INF = np.float32(-np.inf)


def unpacked(words: np.ndarray) -> np.ndarray:
    """Return the ids of a packed mask; most words of a mask of few ids are zero."""
    at = np.flatnonzero(words)
    bits = np.unpackbits(words[at].view(np.uint8), bitorder="little")
    hits = np.flatnonzero(bits)
    return at[hits >> 5] * 32 + (hits & 31)


class Engine:
    """What the engines have in common."""

    name: ClassVar[str]
    package: ClassVar[str]
    #: Whether it takes only the ids that the tokenizer itself would write.
    own_spelling: ClassVar[bool] = False

    reset: Callable[[], object]
    accept: Callable[[int], object]
    pick: Callable[[np.ndarray], int] | None = None
    by_hand: Callable[[np.ndarray], int] | None = None
    mask: Callable[[], object] | None = None
    apply: Callable[[np.ndarray], object] | None = None
    logprobs: Callable[[np.ndarray], object] | None = None
    allowed: Callable[[], np.ndarray]

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.n_vocab = vocabulary.n_vocab

    def build(self, names: list[str]) -> None:
        """Make the matcher of these texts, at its beginning."""
        raise NotImplementedError

    def build_from_ids(self, leaves: dict[str, list[int]]) -> None:
        """Do the same for texts that are tokenized already, if the engine does that."""
        raise NotImplementedError

    def drop(self) -> None:
        """Free what `build` made."""

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version(cls.package)


class Bits(Engine):
    """An engine that fills a packed mask; a derived class gives `fill`."""

    fill: Callable[[], object]

    def make_words(self) -> None:
        self.words = np.zeros((self.n_vocab + 31) // 32, np.int32)

    def from_words(self) -> None:
        """Define what needs nothing but `fill` and the words."""
        fill, words = self.fill, self.words

        def allowed():
            fill()
            return unpacked(words)

        def by_hand(row):
            fill()
            ids = unpacked(words)
            return ids[row[ids].argmax()]

        self.mask, self.allowed, self.by_hand = fill, allowed, by_hand
