"""What cursors cost: masks of many at once, subsets, copies, going back.

    python bench/cursor.py [--csv FILE] [--check]

    256 cursors   `bitmask_batch` and `mask_batch` of 256 rows, each cursor with its own
                  trie (`argmax_batch` is in bench/pick.py)
    allow=        `Trie.cursor(allow=...)` over 10,000 leaves, by the form of the
                  subset, and what a subset adds to a pick, for each child
    positions     single steps in C, by many in one call, and the calls of a cursor from
                  Python, of which 30 to 40 ns are the call itself

Minima and medians over interleaved rounds, thread time.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np

from _common import machine
from _timing import Case, measure, report, write_csv
from _vocabs import names
from eliza import Trie, bitmask_batch, mask_batch
from eliza._probe import copy_rounds, walk_rounds

N_VOCAB = 49_152
BATCH = 256
COLUMNS = ["what", "unit", "best", "median", "target"]


def flat_trie(rng, count):
    ids = np.sort(rng.choice(N_VOCAB, count, replace=False)).astype(np.int32)
    return Trie.from_arrays(ids, np.arange(count + 1), n_vocab=N_VOCAB)


def batches(rounds, small):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((BATCH, N_VOCAB)).astype(np.float32)
    words = np.zeros((BATCH, N_VOCAB // 32), np.int32)
    out = []
    for count in (8, 30):
        cursors = [flat_trie(rng, count).cursor() for _ in range(BATCH)]
        cases = [
            Case(bitmask_batch, (words, cursors), 1 if small else 50),
            Case(words.fill, (0,), 1 if small else 50),
            Case(mask_batch, (rows, cursors)),
            Case(rows.fill, (-np.inf,)),
        ]
        measure(cases, rounds)
        what = (
            f"bitmask of 256 rows, {count} ids",
            "ndarray.fill of the same",
            f"mask of 256 rows, {count} ids",
            "ndarray.fill of the same",
        )
        out += table(what, cases, "us", ("",) * 4)
    return out


def table(what, cases, unit, targets):
    scale = {"ns": 1e9, "us": 1e6}[unit]
    return [
        [name, unit, case.best * scale, case.median * scale, target]
        for name, case, target in zip(what, cases, targets, strict=True)
    ]


def wide_trie(n):
    """A root with n children, and each of them a leaf with a name."""
    ids = np.arange(n, dtype=np.int32)
    return Trie.from_arrays(ids, np.arange(n + 1), names(n), n_vocab=N_VOCAB)


def subsets(rounds, small):
    n = 1_000 if small else 10_000
    rng = np.random.default_rng(0)
    trie = wide_trie(n)
    half = np.sort(rng.choice(n, n // 2, replace=False)).astype(np.int32)
    flags = np.zeros(n, bool)
    flags[half] = True
    texts = [trie.names[i] for i in half]
    kept = trie.subset(flags)
    number = 1 if small else 50
    cases = [
        Case(partial(trie.cursor, allow=flags), (), number),
        Case(partial(trie.cursor, allow=half), (), number),
        Case(partial(trie.cursor, allow=texts), (), max(1, number // 10)),
        Case(partial(trie.cursor, allow=kept), (), number),
    ]
    measure(cases, rounds)
    what = (
        f"allow= of {n:,} leaves, array of bool",
        f"allow= of {n:,} leaves, half of them as int32",
        f"allow= of {n:,} leaves, half of them as names",
        f"allow= of {n:,} leaves, a subset that was kept",
    )
    out = table(what, cases, "us", ("15 us", "15 us", "1000 us", ""))
    return out + per_child(rng, rounds, number)


def per_child(rng, rounds, number):
    """What a subset adds to a pick, over a trie of the permitted leaves alone: once
    with all permitted, once with a half, which no branch could foresee."""
    row = rng.standard_normal(N_VOCAB).astype(np.float32)
    out = []
    for count in (64, 2_000):
        trie = flat_trie(rng, count)
        for share in (1, 2):
            flags = np.zeros(count, bool)
            flags[rng.choice(count, count // share, replace=False)] = True
            kept = trie.cursor(allow=flags)
            ids = kept.allowed()
            alone = Trie.from_arrays(ids, np.arange(len(ids) + 1), n_vocab=N_VOCAB)
            cases = [
                Case(alone.cursor().argmax, (row,), number * 20),
                Case(kept.argmax, (row,), number * 20),
            ]
            measure(cases, rounds)
            free, bound = cases
            what = f"what allow= adds to a pick, {len(ids):,} of {count:,} children"
            out.append(
                [
                    f"{what}, for each",
                    "ns",
                    (bound.best - free.best) * 1e9 / count,
                    (bound.median - free.median) * 1e9 / count,
                    "1 ns",
                ]
            )
    return out


def steps_in_c(rounds, small):
    """A path of eight ids through four nodes: there and back in each way."""
    leaves = {"a": [1, 2, 3, 4, 5, 6, 7, 8], "b": [1, 2, 9], "c": [1, 2, 3, 4, 9]}
    trie = Trie.from_tokens({**leaves, "d": [1, 2, 3, 4, 5, 6, 9]}, n_vocab=N_VOCAB)
    path, cursor = leaves["a"], trie.cursor()
    number = 100 if small else 50_000
    walk = number * len(path)
    cases = [
        Case(copy_rounds, (cursor, number), per=2 * number),
        Case(walk_rounds, (cursor, path, number, "one"), per=walk),
        Case(walk_rounds, (cursor, path, number, "all"), per=number),
        Case(walk_rounds, (cursor, path, number, "copy"), per=number),
    ]
    measure(cases, rounds)
    what = (
        "in C: copy of a position",
        "in C: accept an id, and take one back",
        "in C: accept 8 ids, take back all at once",
        "in C: accept 8 ids, go back by a copy",
    )
    return table(what, cases, "ns", ("10 ns", "10 ns each", "", ""))


def positions(rounds, small):
    trie = Trie.from_tokens({"a": [1, 2, 3, 4], "b": [1, 2, 3, 5]}, n_vocab=N_VOCAB)
    cursor = trie.cursor()
    accept, rollback = cursor.accept, cursor.rollback
    middle = trie.cursor()
    for token in (1, 2):
        middle.accept(token)

    def there_and_back():
        accept(1)
        rollback()

    number = 100 if small else 20_000
    cases = [
        Case(middle.copy, (), number),
        Case(there_and_back, (), number),
        Case(cursor.reset, (), number),
        Case(middle.remaining, (), number),
        Case(trie.cursor, (), number),
    ]
    measure(cases, rounds)
    what = (
        "Cursor.copy",
        "Cursor.accept and rollback, in a function",
        "Cursor.reset",
        "Cursor.remaining",
        "Trie.cursor",
    )
    return table(what, cases, "ns", ("",) * 5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", help="write the figures here")
    parser.add_argument("--check", action="store_true", help="tiny sizes, in seconds")
    options = parser.parse_args()
    print(machine())
    rounds = 2 if options.check else 15
    rows = []
    for part in (batches, subsets, steps_in_c, positions):
        rows += part(rounds, options.check)
    report("Cursors", COLUMNS, rows)
    print(f"\n{machine()}")
    if options.csv:
        write_csv(options.csv, COLUMNS, rows)


if __name__ == "__main__":
    main()
