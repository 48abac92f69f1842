"""Timing engines that walk the same choices, for bench/kernels.py."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from _engine import Engine
from _peers import Eliza
from _timing import Case, show

#: What is walked cold has this many bytes of rows: several times any cache.
COLD_BYTES = 200 << 20
#: A round of a case lasts about this long, in seconds, if it can be repeated at will.
ROUND = 0.01
#: A case gets no more rounds when it has used this many seconds.
ENOUGH = 1.5


@dataclass
class Figure:
    """The best and the median of one measure, in seconds."""

    best: float
    median: float
    rounds: int

    def show(self, scale: float) -> str:
        return f"{show(self.best * scale)} / {show(self.median * scale)}"


@dataclass
class Run:
    """An engine with one set of choices: what it takes, and what came out."""

    engine: Engine
    ids: float = math.nan  # how many are allowed at a step
    figures: dict[str, Figure] = field(default_factory=dict)
    cases: dict[str, Case] = field(default_factory=dict)

    @property
    def fastest(self) -> str:
        ways = [w for w in ("pick", "by hand") if w in self.figures]
        return min(ways, key=lambda way: self.figures[way].best)


def take_turns(cases: list[Case], rounds: int) -> None:
    """Time all cases in turn; what is slow gets fewer rounds, but one."""
    for turn in range(rounds):
        for case in cases:
            if turn == 0 or sum(case.seconds) * case.number * case.per < ENOUGH:
                case.round()


def figure(case: Case, less: Case | None = None) -> Figure:
    best, median = case.best, case.median
    if less is not None:
        best, median = max(0.0, best - less.best), max(0.0, median - less.median)
    return Figure(best, median, len(case.seconds))


# A walk: every path from the beginning, an id and a row for each step.


def start_only(reset, plan):
    for _ in plan:
        reset()


def accept_only(reset, accept, plan):
    for path in plan:
        reset()
        for token, _ in path:
            accept(token)


def with_row(reset, accept, call, plan):
    for path in plan:
        reset()
        for token, row in path:
            call(row)
            accept(token)


def without_row(reset, accept, call, plan):
    for path in plan:
        reset()
        for token, _ in path:
            call()
            accept(token)


class Rows:
    """One row that stays in the cache, and as many as no cache holds."""

    def __init__(self, n_vocab: int, steps: int, n_bytes: int) -> None:
        rng = np.random.default_rng(n_vocab)
        self.clean = rng.standard_normal(n_vocab).astype(np.float32)
        self.hot = self.clean.copy()
        repeats = max(1, n_bytes // self.clean.nbytes // steps)
        self.cold = np.tile(self.clean, (repeats * steps, 1))

    # Some engines write into the row they are given.

    def restore(self) -> None:
        self.hot[:] = self.clean

    def cool(self) -> None:
        self.cold[:] = self.clean


def build_all(engines, choices, leaves, rounds):
    """Build with each engine; return the runs, and why the others have none."""
    runs, left_out = [], []
    for engine in engines:
        try:
            start = time.thread_time()
            engine.build(choices)
            spent = time.thread_time() - start
        except RuntimeError as error:
            left_out.append(f"{engine.name}: {str(error).splitlines()[0][:90]}")
            continue
        run = Run(engine)
        number = max(1, int(ROUND / spent))
        run.cases["build"] = Case(engine.build, (choices,), number, setup=engine.drop)
        if spent > ENOUGH:
            run.cases["build"].seconds.append(spent)
        elif engine.own_spelling:
            run.cases["build from ids"] = Case(engine.build_from_ids, (leaves,), number)
        runs.append(run)
    cases = [c for run in runs for c in run.cases.values() if not c.seconds]
    take_turns(cases, rounds)
    for run in runs:
        run.figures = {name: figure(case) for name, case in run.cases.items()}
    return runs, left_out


def check(runs, paths, rows):
    """See that each engine allows at least what eliza does and picks the best of it."""
    ours = next(run.engine for run in runs if isinstance(run.engine, Eliza))
    for run in runs:
        engine, counts = run.engine, []
        for path in paths[:1] if "slow" in run.cases else paths:
            ours.reset()
            engine.reset()
            for token in path:
                ids = engine.allowed()
                counts.append(len(ids))
                assert np.isin(ours.allowed(), ids).all(), (engine.name, path)
                best = ids[rows.clean[ids].argmax()]
                for pick in (engine.pick, engine.by_hand):
                    if pick is not None:
                        rows.restore()
                        assert pick(rows.hot) == best, (engine.name, path)
                if engine is not ours:
                    engine.accept(token)
                ours.accept(token)
        if "slow" not in run.cases:
            run.ids = statistics.mean(counts)


def walk_all(runs, paths, rows, rounds):
    """Time the walks of each engine."""
    for run in runs:
        first_walk(run, paths, rows)
    check(runs, paths, rows)
    take_turns([c for run in runs for n, c in run.cases.items() if n != "slow"], rounds)
    for run in runs:
        cases, figures = run.cases, run.figures
        if "slow" in cases:
            figures["pick"] = figures["first"]
            continue
        figures["accept"] = figure(cases["accept"], less=cases["start"])
        for name, case in cases.items():
            if not name.startswith(("start", "accept")):
                cold = name.endswith(", cold")
                figures[name] = figure(
                    case, cases["accept, cold" if cold else "accept"]
                )
        ways = [figures[n] for n in ("pick, cold", "by hand, cold") if n in figures]
        figures["cold"] = min(ways, key=lambda f: f.best)


def first_walk(run, paths, rows):
    """Walk once, and decide by what it took how the engine's cases are made."""
    e = run.engine
    steps = sum(map(len, paths))
    hot = [[(token, rows.hot) for token in path] for path in paths]
    on = (e.reset, e.accept)
    first = Case(with_row, (*on, e.pick or e.by_hand, hot), 1, steps, rows.restore)
    first.round()
    run.figures["first"] = figure(first)
    walk_seconds = first.best * steps
    if walk_seconds > 2 * ENOUGH:
        run.cases = {"slow": first}
        return
    number = max(1, int(ROUND / walk_seconds))
    repeats = min(number, len(rows.cold) // steps)
    cells = iter(rows.cold)
    cold = [[(t, next(cells)) for t in path] for path in paths * repeats]
    warm = partial(Case, number=number, per=steps, setup=rows.restore)
    chilled = partial(Case, per=steps * repeats, setup=rows.cool)
    run.cases = {
        "start": warm(start_only, (e.reset, hot)),
        "accept": warm(accept_only, (*on, hot)),
        "accept, cold": chilled(accept_only, (*on, cold)),
    }
    if e.mask is not None:
        run.cases["mask"] = warm(without_row, (*on, e.mask, hot))
    for name, call in (("apply", e.apply), ("logprobs", e.logprobs)):
        if call is not None:
            run.cases[name] = warm(with_row, (*on, call, hot))
    for name, call in (("pick", e.pick), ("by hand", e.by_hand)):
        if call is not None:
            run.cases[name] = warm(with_row, (*on, call, hot))
            run.cases[f"{name}, cold"] = chilled(with_row, (*on, call, cold))
