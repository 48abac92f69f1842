"""Small things that several tests share."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from eliza import Model, Trie, Vocab
from eliza.testing import ScriptedBackend

END = 2
V = 64


def plain_vocab(n: int = 64, eog: tuple[int, ...] = (END,)) -> Vocab:
    """Return a vocabulary whose id i is written `<i>`; 0 to 3 are control ids."""
    pieces = [f"<{i}>".encode() for i in range(n)]
    return Vocab.from_tokens(pieces, control=(0, 1, 2, 3), eog=eog)


def hashed(seed: int, width: int, spread: float = 3.0) -> Callable:
    """Return logits that depend on every id of the history and its order."""

    def logits(history: tuple[int, ...]) -> np.ndarray:
        digest = hashlib.sha256(repr((seed, history)).encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        return (rng.standard_normal(width) * spread).astype(np.float32)

    return logits


def scripted(
    table: Mapping[tuple[int, ...], Mapping[int, float]], base: int
) -> Callable:
    """Return logits from a table of what follows the prompt; others are 0."""

    def logits(history: tuple[int, ...]) -> Mapping[int, float]:
        return table.get(tuple(history[base:]), {})

    return logits


def model_of(logits: Callable, vocab: Vocab | None = None, **options: object) -> Model:
    """Return a model over scripted logits."""
    return Model(ScriptedBackend(vocab or plain_vocab(), logits, **options))


@st.composite
def choice_sets(
    draw: st.DrawFn, n_vocab: int = 64, low: int = 4, alphabet: int = 6
) -> dict[str, tuple[int, ...]]:
    """Draw sets of id sequences that often share beginnings or continue each other."""
    token = st.integers(low, min(n_vocab, low + alphabet) - 1)
    leaves = draw(
        st.lists(
            st.lists(token, min_size=1, max_size=6).map(tuple),
            min_size=1,
            max_size=12,
            unique=True,
        )
    )
    return {f"c{i}": ids for i, ids in enumerate(leaves)}


def content(trie: Trie) -> tuple:
    """Return everything that a trie says about itself."""
    rows = [(trie.tokens(i), trie.name(i), trie.exits(i)) for i in range(len(trie))]
    return trie.n_vocab, trie.fingerprint, rows


def resident() -> int:
    """Return the memory that the process has, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
