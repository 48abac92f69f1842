"""What the exact answer and a ranking of all choices cost, by number of choices.

    python bench/scores.py                     # 30, 200 and 1,000 choices; 10 minutes
    python bench/scores.py --sizes 30

For each size, with the names listed in the prompt and without: batches, positions
(ids computed) and time after the prompt of the exact search, per normalisation, and of
the whole ranking. For 30 choices also what a user of llama-cpp-python would write to
score them: one prompt for each choice, evaluated from nothing, or from the end of the
common prompt. The model's prompt pass is left out. Prints a table, or JSON with --json.

The first 30 names are the actions of the other benchmarks. Two sets add to them:

    grid     every verb with the same few nouns, none of which suits the messages: the
             names differ in one word, and the model hardly prefers one
    mixed    verbs, qualifiers and nouns drawn at random, as names of tools are

Figures of the exact search are means over 30 messages, or 8 where the names are not
listed, as those of normalisations are; of the ranking, which costs the same for each,
over 3, or 1 for 1,000 names.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from typing import Any

import numpy as np

import _common
import _sets

VERBS = (
    "ADD ARCHIVE ASSIGN BLOCK BOOK BUY CALL CANCEL CHECK CLEAR CLOSE COMPARE "
    "CONVERT COPY COUNT CREATE DELETE DISABLE EDIT ENABLE EXPORT FETCH FIND FORWARD "
    "IMPORT INVITE LIST LOCK MERGE MOVE OPEN PAUSE PIN PLAY PRINT READ RENAME "
    "REPEAT RESET SCHEDULE SELL SEND"
).split()
NOUNS = (
    "ACCOUNT ALARM ALBUM BADGE BILL BOARD CARD CHANNEL CHART CONTACT DEVICE "
    "DOCUMENT DRAFT EVENT FILE FOLDER FORM GROUP IMAGE INVOICE LABEL LETTER MEETING "
    "ORDER PLAYLIST"
).split()
QUALIFIERS = (
    "ACTIVE ALL ARCHIVED BATCH DAILY GLOBAL LOCAL MY NEW OLD PENDING PRIVATE PUBLIC "
    "RECENT REMOTE SHARED TEAM URGENT WEEKLY"
).split()
SETS = ("grid", "mixed")


def names_of(n: int, kind: str = "grid") -> list[str]:
    """Return the 30 actions, and as many more as it takes."""
    more = [f"{verb}_{noun}" for noun in NOUNS for verb in VERBS]
    if kind == "mixed":
        draw = random.Random(0)
        more += [
            f"{draw.choice(VERBS)}_{draw.choice(QUALIFIERS)}_{draw.choice(NOUNS)}"
            for _ in more
        ]
        draw.shuffle(more)
    return list(dict.fromkeys([*_sets.SHORT, *more]))[:n]


def prompt(names: list[str], described: bool, message: str) -> str:
    if described:
        return _sets.prompt(names, message)
    return (
        "<|im_start|>system\nYou are an agent. Pick the action.<|im_end|>\n"
        f"<|im_start|>user\n{message}<|im_end|>\n"
        '<|im_start|>assistant\n{"action": "'
    )


def cost(model: Any, text: str, names: list[str], **request: Any) -> dict[str, float]:
    """Choose with the prompt already computed; return what came after it."""
    small = [names[0], names[1]]
    model.choose(text, small, suffix='"', method="greedy")  # the prompt's pass
    start = time.perf_counter()
    answer = model.choose(text, names, suffix='"', **request)
    return {
        "batches": answer.stats.forward_passes,
        "positions": answer.stats.positions,
        "ms": (time.perf_counter() - start) * 1000,
    }


def one_by_one(llama: Any, text: str, names: list[str], *, reuse: bool) -> float:
    """Score each choice by its own prompt, as llama-cpp-python offers it; return ms."""
    whole = [
        llama.tokenize((text + name + '"').encode(), add_bos=False, special=True)
        for name in names
    ]
    shared = min(len(ids) for ids in whole)
    while len({tuple(ids[:shared]) for ids in whole}) > 1:
        shared -= 1
    llama.reset()
    if reuse:
        llama.eval(whole[0][:shared])
    start = time.perf_counter()
    scores = {}
    for name, ids in zip(names, whole, strict=True):
        llama.n_tokens = shared if reuse else 0
        llama.eval(ids[llama.n_tokens :])
        rows = llama.scores[shared - 1 : len(ids) - 2].astype(np.float64)
        rows -= np.logaddexp.reduce(rows, axis=1, keepdims=True)
        scores[name] = rows[np.arange(len(rows)), ids[shared : len(ids) - 1]].sum()
    assert max(scores, key=scores.get) in names
    return (time.perf_counter() - start) * 1000


def mean(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.mean(run[key] for run in runs) for key in runs[0]}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import eliza

    rows = []
    for n in options.sizes:
        for kind in options.sets[: 1 if n <= len(_sets.SHORT) else None]:
            names = names_of(n, kind)
            for described in (True, False):
                with eliza.load(
                    options.model, n_ctx=max(2048, 16 * n), n_threads=options.threads
                ) as model:
                    row = {"choices": n, "set": kind, "described": described}
                    rows.append(row | one_set(model, names, described, options))
    out: dict[str, Any] = {"rows": rows}
    if 30 in options.sizes:
        out["by hand, 30 choices"] = by_hand(options)
    out["machine"] = _common.machine()
    return out


def one_set(
    model: Any, names: list[str], described: bool, options: argparse.Namespace
) -> dict[str, Any]:
    many = len(names) > 200
    texts = [prompt(names, described, message) for message in _sets.MESSAGES]
    few = texts[: min(8, options.messages)]
    texts = texts[: options.messages] if described else few
    row: dict[str, Any] = {"exact": mean([cost(model, text, names) for text in texts])}
    if not many:
        for kind in ("tokens", "bytes"):
            runs = [cost(model, text, names, normalize=kind) for text in few]
            row[f"exact, {kind}"] = mean(runs)
        prior = prompt(names, described, "N/A")
        asked = {"normalize": "prior", "prior_prompt": prior}
        model.choose(few[0], names, suffix='"', **asked)  # the prior's scores are kept
        row["exact, prior"] = mean([cost(model, text, names, **asked) for text in few])
    few = few[: 1 if many else 3]
    row["ranking"] = mean([cost(model, text, names, ranking="whole") for text in few])
    share = row["exact"]["positions"] / row["ranking"]["positions"]
    row["exact, share of the ranking's positions"] = round(share, 4)
    return row


def by_hand(options: argparse.Namespace) -> dict[str, float]:
    """Compare the ranking of 30 choices with what a user writes by hand."""
    from llama_cpp import Llama

    import eliza

    names = names_of(30)
    llama = Llama(
        options.model,
        n_ctx=2048,
        n_threads=options.threads,
        logits_all=True,
        verbose=False,
    )
    model = eliza.load(llama, n_threads=options.threads)
    text = prompt(names, True, _sets.MESSAGES[0])
    cold, warm, ours, with_prompt = [], [], [], []
    for _ in range(options.repeats):
        cold.append(one_by_one(llama, text, names, reuse=False))
        warm.append(one_by_one(llama, text, names, reuse=True))
        ours.append(cost(model, text, names, ranking="whole")["ms"])
        model.choose("another prompt", names, method="greedy")
        start = time.perf_counter()
        model.choose(text, names, suffix='"', ranking="whole")
        with_prompt.append((time.perf_counter() - start) * 1000)
    model.close()
    out = {
        "one prompt per choice, ms": statistics.median(cold),
        "with the common prompt kept, ms": statistics.median(warm),
        "ranking, ms": statistics.median(ours),
        "ranking with its prompt, ms": statistics.median(with_prompt),
    }
    out["times as fast, from nothing"] = (
        out["one prompt per choice, ms"] / out["ranking with its prompt, ms"]
    )
    out["times as fast, prompt kept"] = (
        out["with the common prompt kept, ms"] / out["ranking, ms"]
    )
    return {key: round(value, 2) for key, value in out.items()}


def show(out: dict[str, Any]) -> None:
    print(
        f"{'choices':>7} {'set':5} {'described':>9}  {'':14} {'batches':>8} {'ids':>8} "
        f"{'ms':>9}"
    )
    for row in out["rows"]:
        head = f"{row['choices']:7} {row['set']:5} "
        head += f"{'yes' if row['described'] else 'no':>9}"
        for key, value in row.items():
            if isinstance(value, dict):
                print(
                    f"{head}  {key:14} {value['batches']:8.1f} "
                    f"{value['positions']:8.1f} {value['ms']:9.1f}"
                )
        share = row["exact, share of the ranking's positions"]
        print(f"{'':25} exact computes {share:.1%} of the ranking's ids")
    for key, value in out.get("by hand, 30 choices", {}).items():
        print(f"{key}: {value}")
    print(out["machine"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a GGUF file; by default the packaged SmolLM2")
    parser.add_argument("--sizes", type=int, nargs="+", default=[30, 200, 1000])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--messages", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true", help="a short run, for CI")
    options = parser.parse_args(argv)
    if options.check:
        options.sizes, options.messages, options.repeats = [30], 1, 1
    options.model = _common.model_path(options.model)
    out = measure(options)
    if options.json:
        print(json.dumps(out, indent=2))
    else:
        show(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
