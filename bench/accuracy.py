"""How often each policy is right, how sure it says it is, and what it costs.

    python bench/accuracy.py
    python bench/accuracy.py --csv out.csv --json out.json --png out.png

200 labelled rows (`data/labelled.jsonl`) of four tasks, each asked after a few worked
examples. Each row is ranked once by whole and once by masked likelihood; how often a
policy is right and how sure it is follow from these. Then each policy answers by
itself, without a ranking, which gives its cost, and shows whether the search finds what
the ranking says.

right    the share of right answers; for `sample` the expected share, without drawing
p(right) the mean probability of the right label
ECE      expected calibration error: the mean distance between the probability of the
         chosen label and how often it is right, over 10 bins of equal width
positions per answer: ids computed beyond the prompt; `prior` includes computing the
         scores without an input, prompt and all, once per task
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import _common
import _tasks
import _timing

#: Name of each policy, and how `Model.choose` is asked for it.
POLICIES: dict[str, dict[str, Any]] = {
    "greedy": {"method": "greedy"},
    "sample": {"method": "sample", "rng": 0},
    "none": {"normalize": "none"},
    "tokens": {"normalize": "tokens"},
    "bytes": {"normalize": "bytes"},
    "prior": {"normalize": "prior"},
}
BINS = 10
#: By how much a choice's likelihood on quantised weights may differ with the shape of
#: a batch, in nats, and so the winner where two are closer than both together.
NOISE = 0.6


@dataclass
class Scored:
    """One row as the model sees it; arrays are by choice."""

    task: str
    right: int
    whole: np.ndarray  # log-likelihoods
    masked: np.ndarray  # probabilities
    greedy: int
    tokens: np.ndarray  # lengths in ids
    size: np.ndarray  # lengths in bytes
    prior: np.ndarray  # whole log-likelihoods without the input
    positions: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)  # by searching

    def scores(self, policy: str) -> np.ndarray:
        """Return what an exact policy goes by."""
        if policy == "tokens":
            return self.whole / self.tokens
        if policy == "bytes":
            return self.whole / self.size
        return self.whole - self.prior if policy == "prior" else self.whole

    def probabilities(self, policy: str) -> np.ndarray:
        """Return how sure a policy is of each choice."""
        if policy in ("greedy", "sample"):
            return self.masked
        scores = self.scores(policy)
        shares = np.exp(scores - scores.max())
        return shares / shares.sum()

    def picks(self, policy: str) -> np.ndarray:
        """Return how often a policy picks each choice: always one, unless it draws."""
        if policy == "sample":
            return self.masked
        best = self.greedy if policy == "greedy" else int(self.scores(policy).argmax())
        return np.eye(len(self.whole))[best]


@dataclass(frozen=True)
class Figures:
    """What is reported of a policy on a task."""

    policy: str
    task: str
    rows: int
    right: float
    p_right: float
    ece: float
    positions: float


@dataclass(frozen=True)
class Bin:
    """The answers whose probability lies within one tenth."""

    low: float
    answers: float
    sure: float  # their mean probability
    right: float  # the share of right ones


def ranked(model: Any, prompt: str, task: _tasks.Task, kind: str, **how: Any) -> Any:
    """Return the answer and, by choice, the ranking's log-likelihoods and shares."""
    choices = task.choices
    answer = model.choose(prompt, choices, suffix=_tasks.SUFFIX, ranking=kind, **how)
    entries = {entry.value: entry for entry in answer.ranking}
    logprobs = np.array([entries[choice].logprob for choice in choices])
    shares = np.array([entries[choice].probability for choice in choices])
    return answer, logprobs, shares


def lengths(model: Any, prompt: str, choices: list[str]) -> np.ndarray:
    """Return how many ids each choice has where it stands."""
    placed = model.vocab.place(prompt, choices, _tasks.SUFFIX)
    count = np.empty(len(choices))
    for leaf, choice in enumerate(placed.order):
        count[choice] = len(placed.trie.tokens(leaf))
    return count


def score(model: Any, rows: list[_tasks.Row]) -> Iterator[Scored]:
    """Rank each row, and let each policy answer it."""
    for task in _tasks.TASKS:
        choices = task.choices
        neutral = task.prompt(task.neutral)
        _, prior, _ = ranked(model, neutral, task, "whole")
        for row in rows:
            if row.task != task.name:
                continue
            prompt = task.prompt(row.text)
            _, whole, _ = ranked(model, prompt, task, "whole")
            walked, _, masked = ranked(model, prompt, task, "masked", method="greedy")
            scored = Scored(
                task.name,
                task.labels.index(row.label),
                whole,
                masked,
                choices.index(walked.value),
                lengths(model, prompt, choices),
                np.array([len(choice.encode()) for choice in choices]),
                prior,
            )
            for policy, how in POLICIES.items():
                given = {"prior_prompt": neutral} if policy == "prior" else {}
                answer = model.choose(
                    prompt, choices, suffix=_tasks.SUFFIX, **how, **given
                )
                stats = answer.stats
                fresh = stats.prompt_tokens - stats.reused_tokens
                scored.positions[policy] = stats.positions - fresh
                scored.found[policy] = choices.index(answer.value)
            yield scored


def bins(scored: list[Scored], policy: str) -> list[Bin]:
    """Sort the answers of a policy by how sure it is of them."""
    sure = np.concatenate([row.probabilities(policy) for row in scored])
    weight = np.concatenate([row.picks(policy) for row in scored])
    right = np.concatenate([np.eye(len(row.whole))[row.right] for row in scored])
    at = np.minimum((sure * BINS).astype(int), BINS - 1)
    out = []
    for i in range(BINS):
        mine = weight * (at == i)
        if n := float(mine.sum()):
            mean = float(mine @ sure) / n
            out.append(Bin(i / BINS, n, mean, float(mine @ right) / n))
    return out


def figures(scored: list[Scored], policy: str, task: str) -> Figures:
    """Return what is reported of a policy."""
    n = len(scored)
    return Figures(
        policy,
        task,
        n,
        sum(float(row.picks(policy)[row.right]) for row in scored) / n,
        sum(float(row.probabilities(policy)[row.right]) for row in scored) / n,
        sum(b.answers * abs(b.sure - b.right) for b in bins(scored, policy)) / n,
        sum(row.positions[policy] for row in scored) / n,
    )


def agreement(scored: list[Scored]) -> tuple[int, int, int]:
    """Compare searches with rankings: in all, the same winner, excused by noise."""
    n = same = excused = 0
    for row in scored:
        for policy in ("none", "tokens", "bytes", "prior"):
            scores = row.scores(policy)
            best, found = int(scores.argmax()), row.found[policy]
            noise = np.full(len(scores), NOISE)
            if policy in ("tokens", "bytes"):
                noise /= row.tokens if policy == "tokens" else row.size
            n += 1
            if best == found:
                same += 1
            elif scores[best] - scores[found] <= (noise[best] + noise[found]) / 2:
                excused += 1
    return n, same, excused


def table(results: list[Figures]) -> None:
    """Print the figures: a line per policy."""
    tasks = list(dict.fromkeys(figure.task for figure in results))
    lines: list[list[object]] = []
    for policy in POLICIES:
        by_task = {f.task: f for f in results if f.policy == policy}
        every = by_task["all"]
        lines.append(
            [
                policy,
                *(f"{by_task[task].right:.1%}" for task in tasks),
                f"{every.p_right:.3f}",
                f"{every.ece:.3f}",
                f"{by_task['action'].positions:.1f}",
                f"{every.positions:.1f}",
            ]
        )
    head = ["policy", *tasks, "p(right)", "ECE", "positions: action", "all"]
    _timing.report(f"right answers, {results[-1].rows} rows", head, lines)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark; return what is printed and written."""
    import eliza

    rows = _tasks.load()
    if options.check:
        rows = [
            row
            for task in _tasks.TASKS
            for row in [row for row in rows if row.task == task.name][:2]
        ]
    with eliza.load(options.model, n_ctx=2048, n_threads=options.threads) as model:
        scored = []
        for done in score(model, rows):
            scored.append(done)
            if sys.stderr.isatty():
                print(f"\r{len(scored)}/{len(rows)}", end="\r", file=sys.stderr)
    results = [
        figures([row for row in scored if task in (row.task, "all")], policy, task)
        for policy in POLICIES
        for task in [*(task.name for task in _tasks.TASKS), "all"]
    ]
    table(results)
    n, same, excused = agreement(scored)
    half = 1.96 * math.sqrt(0.25 / len(scored))
    print(
        f"\nSearched without a ranking, the winner is the ranking's in {same} of {n} "
        f"answers; {excused} others lie within the noise of quantised weights.\n"
        f"A share of {len(scored)} rows is known to about ±{half:.0%} at most; of one "
        f"task's, to ±{half * math.sqrt(len(_tasks.TASKS)):.0%}."
    )
    return {
        "model": Path(options.model).name,
        "figures": [vars(figure) for figure in results],
        "bins": {
            policy: [vars(b) for b in bins(scored, policy)] for policy in POLICIES
        },
        "agreement": {"answers": n, "same": same, "within_noise": excused},
        "machine": _common.machine(),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a GGUF file; by default the packaged SmolLM2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--csv", metavar="FILE", help="write the figures there")
    parser.add_argument("--json", metavar="FILE", help="write figures and bins there")
    parser.add_argument("--png", metavar="FILE", help="draw the reliability picture")
    parser.add_argument("--check", action="store_true", help="8 rows only, for CI")
    options = parser.parse_args(argv)
    options.model = _common.model_path(options.model)
    out = measure(options)
    if options.csv:
        columns = list(out["figures"][0])
        lines = [[figure[name] for name in columns] for figure in out["figures"]]
        _timing.write_csv(options.csv, columns, lines)
    if options.json:
        text = json.dumps(out, indent=2) + "\n"
        Path(options.json).write_text(text, encoding="utf-8")
    if options.png:
        import _reliability

        _reliability.draw(out, options.png)
    agreed = out["agreement"]
    return int(agreed["same"] + agreed["within_noise"] < agreed["answers"])


if __name__ == "__main__":
    sys.exit(main())
