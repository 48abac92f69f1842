"""What `import eliza` takes beyond `import numpy`, which it needs.

    python bench/imports.py [--rounds N] [--check]

New processes, with and without eliza, take turns; the median of the differences counts.
Measure an installed package: an editable one looks for changed sources first, and where
PYTHONDONTWRITEBYTECODE is set, it is compiled again each time.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

import _common

TARGET = 20.0  # milliseconds


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="a short run, for CI")
    options = parser.parse_args(argv)
    rounds = 2 if options.check else options.rounds
    seconds("import numpy, eliza")  # the files are in memory from here on
    pairs = [
        (seconds("import numpy"), seconds("import numpy, eliza")) for _ in range(rounds)
    ]
    numpy = _common.median([a for a, _ in pairs]) * 1e3
    beyond = _common.median([b - a for a, b in pairs]) * 1e3
    print(f"import numpy  {numpy:6.1f} ms")
    print(f"import eliza  {beyond:6.1f} ms more; to reach: {TARGET:.0f}")
    print(f"{rounds} rounds; {_common.machine()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
