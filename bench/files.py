"""What saving a trie, opening it again and verifying it cost, by the number of leaves.

    python bench/files.py [--csv FILE] [--check]

The leaves are those of bench/build.py, and each has a name. Opening maps the file,
whose pages are in memory already. "names" is what a name takes beside its UTF-8, in
memory. Minima over interleaved rounds, thread time.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _common import machine
from _timing import Case, measure, report, write_csv
from build import N_VOCAB, SIZES, leaves
from eliza import Trie

COLUMNS = ["leaves", "save ms", "open ms", "verify ms", "to_bytes ms", "from_bytes ms"]
COLUMNS += ["file bytes/leaf", "names bytes/leaf"]


def measured(n, folder, rounds):
    tokens, offsets = leaves(n)
    bare = Trie.from_arrays(tokens, offsets, n_vocab=N_VOCAB)
    names = [f"choice {i}" for i in range(n)]
    trie = Trie.from_arrays(tokens, offsets, names, n_vocab=N_VOCAB)
    path = Path(folder, f"{n}.trie")
    trie.save(path)
    data, fresh = trie.to_bytes(), [trie]

    def open_again():  # a trie remembers that it was verified
        fresh[0] = Trie.open(path)

    number = max(1, 1_000 // n)
    open_again()
    cases = [
        Case(trie.save, (path,)),
        Case(Trie.open, (path,), 100),
        Case(lambda: fresh[0].verify(), setup=open_again),
        Case(trie.to_bytes, (), number),
        Case(Trie.from_bytes, (data,), number),
    ]
    measure(cases, rounds)
    utf8 = sum(len(name.encode()) for name in names)
    return [
        n,
        *(case.best * 1e3 for case in cases),
        len(data) / n,
        (trie.nbytes - bare.nbytes - utf8) / n,
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--csv", help="write the figures here")
    parser.add_argument("--check", action="store_true", help="tiny sizes, in seconds")
    options = parser.parse_args()
    print(machine())
    sizes, rounds = (SIZES[:2], 2) if options.check else (SIZES, 7)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measured(n, folder, rounds) for n in sizes]
    report("Tries in files", COLUMNS, rows)
    print(f"\n{machine()}")
    if options.csv:
        write_csv(options.csv, COLUMNS, rows)


if __name__ == "__main__":
    main()
