"""Choosing the next token among the same choices: eliza and other engines.

    python bench/kernels.py [--csv FILE] [--png FILE] [--check]

For each vocabulary and each number of choices, the same choices are walked by every
engine that is installed, in turns, token by token:

    build    from the texts to a ready matcher; "from ids": without the tokenizing that
             is part of it where an engine works on ids
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

import numpy as np

from _common import machine
from _peers import Eliza, installed
from _timing import report, show, write_csv
from _vocabs import Vocabulary, names, vocabularies
from _walks import COLD_BYTES, Figure, Rows, Run, build_all, walk_all

SIZES = (30, 1_000, 10_000)
ROUNDS = 9
#: How many of the choices are walked.
PATHS = 8
#: More choices are not tried where building, or one step, took this many seconds.
SLOW_BUILD, SLOW_STEP = 5.0, 0.1

NOTES = """
its own: only the ids that the tokenizer itself writes for a choice; any: every sequence
of ids with the same bytes, so more of them at a step. Tokenizing the choices is part of
"build" where an engine needs it; the other engines read the texts as they are."""

COLUMNS = ["vocabulary", "n_vocab", "choices", "engine", "version", "spellings"]
COLUMNS += ["measure", "unit", "best", "median", "rounds"]

TABLE = ("pick", "by hand", "cold", "mask", "apply", "accept", "logprobs")


def print_runs(title, runs):
    columns = ["engine", "spellings", "ids", "build ms", "from ids ms"]
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
    columns += ["apply", "accept", "logprobs", "build", "build / ours from ids"]
    report(
        "How many times as long as eliza (best figures)",
        columns,
        [[r.engine.name, *ratios(r.figures, r.fastest, ours)] for r in runs],
    )


def rows_of(vocabulary: Vocabulary, n: int, run: Run) -> list[list[object]]:
    engine = run.engine
    head = [vocabulary.label, vocabulary.n_vocab, n, engine.name, engine.version()]
    head.append("its own" if engine.own_spelling else "any")
    out: list[list[object]] = []
    if not math.isnan(run.ids):
        out.append([*head, "allowed ids", "ids", run.ids, run.ids, 1])
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
    for vocabulary in vocabularies(large=not options.check):
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
