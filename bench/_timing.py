"""What the benchmarks of the core share: interleaved timing, tables, CSV."""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Case:
    """A call to time, and what comes out.

    Times are of the thread, so that other programs on the machine only count by what
    they take from the caches. `setup` runs before each round and is not timed; `per`
    says how many things one call does.
    """

    call: Callable[..., object]
    args: tuple[object, ...] = ()
    number: int = 1
    per: float = 1
    setup: Callable[[], object] | None = None
    seconds: list[float] = field(default_factory=list)

    def round(self) -> None:
        if self.setup is not None:
            self.setup()
        call, args = self.call, self.args
        start = time.thread_time()
        if len(args) == 1:  # `call(*args)` would cost 20 ns more
            arg = args[0]
            for _ in range(self.number):
                call(arg)
        else:
            for _ in range(self.number):
                call(*args)
        spent = time.thread_time() - start
        self.seconds.append(spent / self.number / self.per)

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def measure(cases: list[Case], rounds: int) -> None:
    """Time all cases in turn, again and again, so that a busy moment hits them all."""
    for case in cases:
        case.call(*case.args)
    for _ in range(rounds):
        for case in cases:
            case.round()


def report(title: str, columns: list[str], rows: list[list[object]]) -> None:
    """Print a table."""
    cells = [columns] + [[show(x) for x in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for row in cells:
        print("  ".join(x.rjust(w) for x, w in zip(row, widths, strict=True)))
    sys.stdout.flush()


def show(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def write_csv(path: str, columns: list[str], rows: list[list[object]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
