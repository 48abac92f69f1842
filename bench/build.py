"""What building a trie from arrays costs, by the number of leaves.

    python bench/build.py [--csv FILE] [--png FILE] [--check]

The leaves look like names that a tokenizer cut: 3 to 16 ids, 1 to 4 words from a list,
so that many share their beginnings. They are built shuffled, and as they come out
sorted. Memory is `Trie.nbytes` for each leaf, without names. Minima and medians over
interleaved rounds.
"""

from __future__ import annotations

import argparse

import numpy as np

from _common import machine
from _timing import Case, measure, report, write_csv
from eliza import Trie

SIZES = (30, 1_000, 10_000, 100_000, 1_000_000)
TARGETS_MS = (0.02, 0.2, 2, 25, 350)
N_VOCAB = 50_257


def leaves(n, seed=0):
    """Make n different leaves: tokens, offsets."""
    rng = np.random.default_rng(seed)
    n_words = int(max(20, n**0.5 * 4))
    words = [
        rng.integers(0, N_VOCAB, rng.integers(3, 5)).tolist() for _ in range(n_words)
    ]
    taken = {}
    while len(taken) < n:
        more = (n_words * rng.random((n, 4)) ** 2).astype(int)  # some words are common
        count = rng.integers(1, 5, n)
        for row, k in zip(more.tolist(), count.tolist(), strict=True):
            taken[tuple(row[:k])] = None
            if len(taken) == n:
                break
    names = list(taken)
    rng.shuffle(names)
    sequences = [[t for i in name for t in words[i]] for name in names]
    offsets = np.zeros(n + 1, np.int64)
    offsets[1:] = np.cumsum([len(s) for s in sequences])
    return np.array([t for s in sequences for t in s], np.int32), offsets


def in_order(trie):
    """The leaves of a trie as arrays."""
    sequences = [trie.tokens(i) for i in range(len(trie))]
    offsets = np.zeros(len(trie) + 1, np.int64)
    offsets[1:] = np.cumsum([len(s) for s in sequences])
    return np.array([t for s in sequences for t in s], np.int32), offsets


def build(tokens, offsets):
    return Trie.from_arrays(tokens, offsets, n_vocab=N_VOCAB)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", help="write the figures here")
    parser.add_argument("--png", help="draw a chart here (needs matplotlib)")
    parser.add_argument("--check", action="store_true", help="tiny sizes, in seconds")
    options = parser.parse_args()
    print(machine())
    columns = ["leaves", "ids/leaf", "shuffled ms", "median ms", "sorted ms"]
    columns += ["target ms", "nodes/leaf", "bytes/leaf"]
    rows = []
    for n, target in zip(SIZES, TARGETS_MS, strict=True):
        if options.check and n > 1_000:
            break
        tokens, offsets = leaves(n)
        trie = build(tokens, offsets)
        cases = [
            Case(build, (tokens, offsets), max(1, 20_000 // n)),
            Case(build, in_order(trie), max(1, 20_000 // n)),
        ]
        measure(cases, 2 if options.check else 9)
        rows.append(
            [
                len(trie),
                offsets[-1] / n,
                cases[0].best * 1e3,
                cases[0].median * 1e3,
                cases[1].best * 1e3,
                target,
                trie.n_nodes / len(trie),
                trie.nbytes / len(trie),
            ]
        )
    report("Trie.from_arrays", columns, rows)
    print(f"\n{machine()}")
    if options.csv:
        write_csv(options.csv, columns, rows)
    if options.png:
        from _plot import draw_build

        draw_build(columns, rows, options.png)


if __name__ == "__main__":
    main()
