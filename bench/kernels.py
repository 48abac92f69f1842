"""Choosing the next token among the same choices: eliza and other engines.

    python bench/kernels.py [--csv FILE] [--png FILE] [--check]

For each vocabulary and each number of choices, the same choices are walked by every
engine that is installed, in turns, token by token:

    build    from the texts to a ready matcher; for engines that work on ids, also
             without the time that goes into tokenizing
    pick     the allowed id with the highest logit, by what the engine ships: make the
             mask, apply it to the row, argmax of the row
    by hand  the same with the least that one can write with NumPy around its mask
    cold     the faster of the two, on rows that are in no cache
    mask     what is allowed, as packed bits (NumPy: a row of 0 and -inf)
    apply    -inf over all the rest of a row
    accept   going on with an id, the loop of the benchmark included
    logprobs log-softmax of the whole row, of the allowed ids

Microseconds for each step, thread time, as best / median of the turns. `accept` is
measured alone and taken off the others. "ids" is how many ids are allowed at a step: an
engine that takes any spelling of the same bytes allows more of them, and its answer may
be spelled as the tokenizer never would. See bench/README.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from _common import machine
from _peers import Eliza, Engine, installed
from _timing import Case, report, show, write_csv
from _vocabs import Vocabulary, names, vocabularies

SIZES = (30, 1_000, 10_000)
ROUNDS = 9
#: How many of the choices are walked.
PATHS = 8
#: What is walked cold has this many bytes of rows: several times any cache.
COLD_BYTES = 200 << 20
#: A round of a case lasts about this long, in seconds, if it can be repeated at will.
ROUND = 0.01
#: A case gets no more rounds when it has used this many seconds.
ENOUGH = 1.5
#: More choices are not tried where building, or one step, took this many seconds.
SLOW_BUILD, SLOW_STEP = 5.0, 0.1

NOTES = """
its own: only the ids that the tokenizer itself writes for a choice; any: every sequence
of ids with the same bytes, so more of them at a step. Tokenizing the choices is part of
"build" where an engine needs it; the other engines read the texts as they are."""

COLUMNS = ["vocabulary", "n_vocab", "choices", "engine", "version", "spellings"]
COLUMNS += ["measure", "unit", "best", "median", "rounds"]


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


TABLE = ("pick", "by hand", "cold", "mask", "apply", "accept", "logprobs")


def print_runs(title, runs):
    columns = ["engine", "spellings", "ids", "build ms", "without tokenizing"]
    columns += [f"{name} us" for name in TABLE] + ["first walk us"]
    out = []
    for run in runs:
        f = run.figures
        out.append(
            [
                run.engine.name,
                "its own" if run.engine.own_spelling else "any",
                "" if math.isnan(run.ids) else run.ids,
                f["build"].show(1e3),
                f["build from ids"].show(1e3) if "build from ids" in f else "",
                *(f[name].show(1e6) if name in f else "" for name in TABLE),
                show(f["first"].best * 1e6),
            ]
        )
    report(f"{title}; best / median", columns, out)


def ratios(f: dict[str, Figure], fastest: str, ours: dict[str, Figure]) -> list[object]:
    def against(name: str, our_name: str) -> object:
        if name not in f or our_name not in ours or ours[our_name].best == 0:
            return ""
        return f[name].best / ours[our_name].best

    return [
        against(fastest, "pick"),
        against("pick", "pick"),
        against("cold", "cold"),
        against("mask", "mask"),
        against("apply", "apply"),
        against("accept", "accept"),
        against("logprobs", "logprobs"),
        against("build", "build"),
        against("build", "build from ids"),
    ]


def print_ratios(runs):
    ours = next(run.figures for run in runs if isinstance(run.engine, Eliza))
    columns = ["engine", "pick, its fastest way", "pick as shipped", "cold", "mask"]
    columns += [
        "apply",
        "accept",
        "logprobs",
        "build",
        "build / ours without tokenizing",
    ]
    report(
        "How many times as long as eliza (best figures)",
        columns,
        [[r.engine.name, *ratios(r.figures, r.fastest, ours)] for r in runs],
    )


def rows_of(vocabulary: Vocabulary, n: int, run: Run) -> list[list[object]]:
    engine = run.engine
    head = [vocabulary.label, vocabulary.n_vocab, n, engine.name, engine.version()]
    head.append("its own" if engine.own_spelling else "any")
    out: list[list[object]] = [[*head, "allowed ids", "ids", run.ids, run.ids, 1]]
    for name, f in run.figures.items():
        scale, unit = (1e3, "ms") if name.startswith("build") else (1e6, "us")
        out.append([*head, name, unit, f.best * scale, f.median * scale, f.rounds])
    return out


def too_slow(run: Run, n: int) -> str | None:
    build = run.figures["build"].best
    step = run.figures[run.fastest].best
    if build > SLOW_BUILD:
        return f"{run.engine.name}: building {n:,} choices took {build:.0f} s"
    if step > SLOW_STEP:
        return f"{run.engine.name}: a step among {n:,} choices took {step:.1g} s"
    return None


def compare(vocabulary: Vocabulary, kinds, small: bool) -> list[list[object]]:
    sizes, rounds, n_paths = (SIZES[:1], 2, 2) if small else (SIZES, ROUNDS, PATHS)
    print(f"\n== {vocabulary.label}, {vocabulary.n_vocab:,} ids")
    vocabulary.texts, vocabulary.eos  # noqa: B018 -- cached: no engine pays for them
    engines, once = [], []
    for kind in kinds:
        start = time.thread_time()
        engines.append(kind(vocabulary))
        once.append([kind.name, time.thread_time() - start])
    report("Once per vocabulary", ["engine", "seconds"], once)
    out: list[list[object]] = []
    skipped: list[str] = []
    for n in sizes:
        choices = names(n)
        encode = vocabulary.vocab.encode
        leaves = {name: encode(name) for name in choices}
        runs, left_out = build_all(engines, choices, leaves, rounds)
        picked = np.random.default_rng(1).choice(n, n_paths, replace=False)
        paths = [tuple(leaves[choices[i]]) for i in picked]
        rows = Rows(
            vocabulary.n_vocab, sum(map(len, paths)), 0 if small else COLD_BYTES
        )
        walk_all(runs, paths, rows, rounds)
        lengths = statistics.mean(map(len, leaves.values()))
        title = f"{n:,} choices of {lengths:.1f} ids, {vocabulary.n_vocab:,} ids in all"
        print_runs(title, runs)
        print_ratios(runs)
        for line in left_out + [f"{line}; more not tried" for line in skipped]:
            print(f"left out: {line}")
        for run in runs:
            out += rows_of(vocabulary, n, run)
            if reason := too_slow(run, n):
                skipped.append(reason)
                engines.remove(run.engine)
    for engine in engines:
        engine.drop()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a GGUF file; by default the packaged SmolLM2")
    parser.add_argument("--csv", metavar="FILE", help="write all figures here")
    parser.add_argument(
        "--png", metavar="FILE", help="draw a chart here (needs matplotlib)"
    )
    parser.add_argument("--check", action="store_true", help="tiny sizes, in seconds")
    options = parser.parse_args()
    print(machine())
    kinds, missing = installed()
    versions = {kind.package: kind.version() for kind in kinds}
    print("engines:", ", ".join(f"{name} {v}" for name, v in versions.items()))
    for line in missing:
        print(line)
    out: list[list[object]] = []
    for vocabulary in vocabularies(options.model, large=not options.check):
        out += compare(vocabulary, kinds, options.check)
    print(NOTES)
    print(machine())
    if options.csv:
        write_csv(options.csv, COLUMNS, out)
    if options.png:
        from _plot import draw_kernels

        draw_kernels([dict(zip(COLUMNS, row, strict=True)) for row in out], options.png)


if __name__ == "__main__":
    main()
