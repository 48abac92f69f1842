"""What tests run in other processes; these import it by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eliza import TrieCache
from t32 import t32


def choose(trie, queue):
    cursor = trie.cursor()
    row = np.arange(trie.n_vocab, dtype=np.float32)
    while not cursor.done:
        cursor.accept(cursor.argmax(row))
    queue.put(cursor.name)


def use_cache(cache: TrieCache) -> None:
    """Do what a new process does with a cache: build, walk, tokenize, find again."""
    for i in range(6):
        cursor = cache.get({"a": [5, i], "b": [6]}, n_vocab=64).cursor()
        row = np.zeros(64, np.float32)
        cursor.mask(row)
        assert np.flatnonzero(row == 0).tolist() == [5, 6]
        cursor.accept(6)
        assert cursor.name == "b"
    vocab = t32()
    for _ in range(2):
        assert vocab.place("A", ["Yes"], cache=cache).trie.names == ("Yes",)


def use_new_cache() -> None:
    """Do it with one of the process's own."""
    use_cache(TrieCache())


def run_all(folder, queue):
    """Load each file of a folder with LiteRT and decode; count what was refused."""
    from eliza.backends.litert import LitertBackend
    from eliza.errors import ElizaError

    loaded = refused = 0
    for path in sorted(Path(folder).iterdir()):
        try:
            with LitertBackend(path) as backend:
                sequence = backend.open()
                sequence.decode_many([5, 6, 7])
                sequence.logits()
            loaded += 1
        except ElizaError:
            refused += 1
    queue.put((loaded, refused))
