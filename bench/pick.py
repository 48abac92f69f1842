"""What one constrained step costs: the pick, the mask, the log-sum-exp of a row.

    python bench/pick.py [--csv FILE] [--check]

The pick: `Cursor.argmax` over K allowed ids of one row.

    C        per row in one `argmax_batch` over the same row 256 times: the kernel
    call     called from Python, the same row again and again
    cold     called from Python, on rows whose cells are in no cache
    numpy    ids[row[ids].argmax()] called from Python, as one would write it

A batch: `argmax_batch` over 256 cursors of 256 tries and as many rows, warm (called
again and again; the cells that are read fit into the cache) and cold.

The mask: `Cursor.mask` in place against `ndarray.fill(-inf)`, the least that any mask
of the whole row does. Figures are minima over interleaved rounds, cold ones medians.
"""

from __future__ import annotations

import argparse

import numpy as np

from _common import machine
from _timing import Case, measure, report, write_csv
from eliza import Trie, argmax_batch
from eliza._logits import log_sum_exp

VOCABULARIES = (32_000, 49_152, 131_072, 262_144)
COUNTS = (2, 8, 30, 64, 256, 2000)
BATCH = 256
COLD_BYTES = 200 << 20
EVICT_BYTES = 64 << 20


def pick_rows(n_vocab, counts, rounds, cold_bytes):
    rng = np.random.default_rng(n_vocab)
    row = rng.standard_normal(n_vocab).astype(np.float32)
    same = np.broadcast_to(row, (BATCH, n_vocab))
    cold = list(np.tile(row, (max(4, cold_bytes // row.nbytes), 1)))
    evict = np.zeros(min(EVICT_BYTES, cold_bytes), np.uint8)
    out = []
    for count in counts:
        ids = np.sort(rng.choice(n_vocab, count, replace=False)).astype(np.int32)
        trie = Trie.from_arrays(ids, np.arange(count + 1), n_vocab=n_vocab)
        cursor = trie.cursor()
        cursors = [cursor] * BATCH
        masked, filled = row.copy(), row.copy()
        argmax = cursor.argmax
        assert argmax(row) == ids[row[ids].argmax()]

        def cold_pass(argmax=argmax, cold=cold):
            for one in cold:
                argmax(one)

        def with_numpy(row, ids=ids):
            return ids[row[ids].argmax()]

        number = max(1, 200_000 // (100 + count)) if rounds > 2 else 2
        cases = [
            Case(argmax_batch, (same, cursors), max(1, number // BATCH), BATCH),
            Case(argmax, (row,), number),
            Case(cold_pass, (), 1, len(cold), lambda: np.add(evict, 1, out=evict)),
            Case(with_numpy, (row,), max(1, number // 10)),
            Case(cursor.mask, (masked,), 100),
            Case(filled.fill, (-np.inf,), 100),
        ]
        measure(cases, rounds)
        hot, call, cold_case, numpy, mask, fill = cases
        out.append(
            [
                n_vocab,
                count,
                hot.best * 1e9,
                call.best * 1e9,
                cold_case.median * 1e9,
                numpy.best * 1e9,
                mask.best * 1e6,
                fill.best * 1e6,
                mask.best / fill.best,
            ]
        )
    return out


def batch_rows(n_vocab, counts, rounds, evict_bytes):
    """256 cursors in one call, each with a trie, a place and a row of its own."""
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((BATCH, n_vocab)).astype(np.float32)
    evict = np.zeros(evict_bytes, np.uint8)
    out = []
    for count in counts:
        cursors = []
        for _ in range(BATCH):
            ids = np.sort(rng.choice(n_vocab, count, replace=False))
            trie = Trie.from_arrays(ids, np.arange(count + 1), n_vocab=n_vocab)
            cursors.append(trie.cursor())
        cases = [
            Case(argmax_batch, (rows, cursors), 20),
            Case(
                argmax_batch, (rows, cursors), setup=lambda: np.add(evict, 1, out=evict)
            ),
        ]
        measure(cases, rounds)
        out.append([n_vocab, count, cases[0].best * 1e6, cases[1].median * 1e6])
    return out


def lse_rows(vocabularies, rounds):
    out = []
    for n_vocab in vocabularies:
        row = np.random.default_rng(1).standard_normal(n_vocab).astype(np.float32)
        half = row.astype(np.float16)

        def with_numpy(row):
            top = row.max()
            return float(top + np.log(np.exp(row - top).sum()))

        cases = [
            Case(log_sum_exp, (row,), 20),
            Case(log_sum_exp, (half,), 20),
            Case(with_numpy, (row,), 20),
        ]
        measure(cases, rounds)
        out.append([n_vocab, *(case.best * 1e6 for case in cases)])
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", help="write the figures of the pick and the mask here")
    parser.add_argument("--check", action="store_true", help="tiny sizes, in seconds")
    options = parser.parse_args()
    print(machine())
    rounds = 2 if options.check else 15
    vocabularies = VOCABULARIES[:1] if options.check else VOCABULARIES
    counts = (2, 64) if options.check else COUNTS
    cold_bytes = 1 << 20 if options.check else COLD_BYTES
    columns = ["n_vocab", "ids", "C ns", "call ns", "cold ns", "numpy ns"]
    columns += ["mask us", "fill us", "mask/fill"]
    rows = []
    for n_vocab in vocabularies:
        rows += pick_rows(n_vocab, counts, rounds, cold_bytes)
    report("Pick and mask", columns, rows)
    report(
        f"argmax_batch, {BATCH} cursors, us a call",
        ["n_vocab", "ids", "warm", "cold"],
        batch_rows(vocabularies[0], (8, 30, 64), rounds, cold_bytes // 3),
    )
    report(
        "Log-sum-exp of a row, us",
        ["n_vocab", "float32", "float16", "numpy float32"],
        lse_rows(vocabularies, rounds),
    )
    print(f"\n{machine()}")
    if options.csv:
        write_csv(options.csv, columns, rows)


if __name__ == "__main__":
    main()
