"""What a constraint costs inside of other libraries' loops, for each token.

    python bench/hooks.py [--csv FILE] [--check]

One choice among 30 actions is walked token by token, in each loop that is installed:

    in C         an array of candidates is written, as `llama_sampler_sample` does, and
                 a link is applied to it; the writing alone is the unit
    from Python  what the hook, or the other engine, does at a step: find the position,
                 mask the row. Chain.sample also draws; it looks at the allowed ids only

Microseconds for each token, thread time, minima and medians over interleaved rounds.
Grammars work on bytes and allow more ids at a step: every spelling of the same choices.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
from pathlib import Path

import numpy as np

import _common
from _common import machine
from _peers import LLGuidance, XGrammar, installed
from _sets import SHORT
from _timing import Case, measure, report, write_csv
from _vocabs import load, vocabularies
from eliza._probe import candidate_rounds
from eliza.hooks.bitmask import Matcher, allocate
from eliza.hooks.llama import Link, chain

COLUMNS = ["vocabulary", "what", "best us", "median us", "ratio", "target"]
PROMPT = list(range(40, 72))
#: Rounds in C within one call.
INNER = 20
SLOW_INNER = 2


def address(sampler):
    return ctypes.cast(sampler, ctypes.c_void_p).value


class Walk:
    """The steps of one choice: histories, and a row of logits for each."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary
        self.trie = vocabulary.vocab.trie(SHORT)
        self.eog = vocabulary.vocab.eog
        self.n_vocab = vocabulary.n_vocab
        leaf = max(range(len(self.trie)), key=lambda i: len(self.trie.tokens(i)))
        self.path = list(self.trie.tokens(leaf))
        rng = np.random.default_rng(0)
        self.row = rng.standard_normal(self.n_vocab).astype(np.float32)
        for token in self.path:
            self.row[token] = 20.0
        self.histories = [
            np.array([*PROMPT, *self.path[:k]], np.int32) for k in range(len(self.path))
        ]

    def rows(self):
        return [self.row.copy() for _ in self.path]


def in_c(walk):
    """Cases for the array alone, our link, and llama.cpp's grammar link."""
    from llama_cpp import llama_cpp as lib

    link = Link(walk.trie, eog=walk.eog)
    ours = link.pointer
    rules = "root ::= " + " | ".join(map(json.dumps, SHORT))
    pointer = lib.llama_sampler_init_grammar(
        walk.vocabulary.pointer, rules.encode(), b"root"
    )
    grammar = address(pointer)

    def steps(sampler, reset, accept, inner):
        def run():
            reset()
            for token in walk.path:
                candidate_rounds(walk.row, inner, sampler)
                accept(token)

        return Case(run, (), 1, per=inner * len(walk.path))

    cases = {
        "in C: writing the candidates": steps(0, lambda: None, lambda _: None, INNER),
        "in C: writing, and eliza's link": steps(ours, link.reset, link.accept, INNER),
        "in C: writing, and the grammar link": steps(
            grammar,
            lambda: lib.llama_sampler_reset(pointer),
            lambda token: lib.llama_sampler_accept(pointer, token),
            SLOW_INNER,
        ),
    }
    return cases, (link, lambda: lib.llama_sampler_free(pointer))


def case_of(walk, step, rows, histories=None, reset=None):
    histories = walk.histories if histories is None else histories

    def run():
        if reset is not None:
            reset()
        for history, row in zip(histories, rows, strict=True):
            step(history, row)

    return Case(run, (), 5, per=len(walk.path))


def from_python(walk):
    cases = {}
    sampler = chain(Link(walk.trie, eog=walk.eog))
    cases["Chain.sample_row"] = case_of(
        walk, lambda _, row: sampler.sample_row(row), walk.rows(), reset=sampler.reset
    )
    drawing = chain(Link(walk.trie, eog=walk.eog, mode="sample"), top_p=0.9, seed=1)
    for_draw = walk.rows()
    for row, token in zip(for_draw, walk.path, strict=True):
        row[token] = 1e4
    cases["Chain.sample_row, drawing"] = case_of(
        walk, lambda _, row: drawing.sample_row(row), for_draw, reset=drawing.reset
    )
    matcher, words = Matcher(walk.trie, eog=walk.eog), allocate(1, walk.n_vocab)

    def fill(history, _):
        matcher.fill(words)
        matcher.accept(walk.path[len(history) - len(PROMPT)])

    cases["bitmask, fill and accept"] = case_of(
        walk, fill, walk.rows(), reset=matcher.reset
    )
    from eliza.hooks.llama_cpp_python import logits_processor

    keep = logits_processor(walk.trie, eog=walk.eog)
    cells = [
        np.zeros(walk.n_vocab, [("id", "i4"), ("logit", "f4"), ("p", "f4")])
        for _ in walk.path
    ]
    for cell in cells:
        cell["logit"] = walk.row
    cases["llama-cpp-python, logits_processor"] = case_of(
        walk, keep, [cell["logit"] for cell in cells]
    )
    cases.update(torch_cases(walk))
    cases.update(mlx_cases(walk))
    cases.update(engine_cases(walk))
    return cases, keep, sampler, drawing


def torch_cases(walk):
    try:
        import torch
    except ImportError:
        return {}
    from eliza.hooks.transformers import logits_processor

    torch.set_num_threads(1)
    out = {}
    for n in (1, 16):
        keep = logits_processor(walk.trie, eog=walk.eog)
        rows = [torch.tensor(walk.row).repeat(n, 1) for _ in walk.path]
        ids = [torch.tensor(h, dtype=torch.long).repeat(n, 1) for h in walk.histories]
        out[f"transformers, logits_processor, {n} row" + "s" * (n > 1)] = case_of(
            walk, keep, rows, ids
        )
    return out


def mlx_cases(walk):
    try:
        import mlx.core as mx
    except ImportError:
        return {}
    from eliza.hooks.mlx_lm import logits_processor

    keep = logits_processor(walk.trie, eog=walk.eog)
    rows = [mx.array(walk.row).reshape(1, -1) for _ in walk.path]
    ids = [mx.array(h) for h in walk.histories]
    mx.eval(rows, ids)
    return {
        "mlx-lm, logits_processor": case_of(
            walk, lambda history, row: mx.eval(keep(history, row)), rows, ids
        )
    }


def engine_cases(walk):
    out = {}
    kinds, _ = installed()
    for kind in (LLGuidance, XGrammar):
        if kind not in kinds:
            continue
        engine = kind(walk.vocabulary)
        engine.build(SHORT)

        def step(history, row, engine=engine):
            engine.mask()
            engine.apply(row)
            engine.accept(walk.path[len(history) - len(PROMPT)])

        out[f"{kind.name}, fill, apply and accept"] = case_of(
            walk, step, walk.rows(), reset=engine.reset
        )
    return out


def measure_one(vocabulary, rounds):
    walk = Walk(vocabulary)
    c, kept = in_c(walk)
    python, *also_kept = from_python(walk)
    slow = "in C: writing, and the grammar link"
    fast = {name: case for name, case in c.items() if name != slow}
    measure([*fast.values(), *python.values()], rounds)
    measure([c[slow]], min(rounds, 3))
    del also_kept
    kept[1]()
    write = c["in C: writing the candidates"].best
    rows = []
    for name, case in (c | python).items():
        ratio, target = "", ""
        if name == "in C: writing, and eliza's link":
            ratio = (case.best - write) / write
            target = "apply <= 1.5 x writing"
        elif name == slow:
            ours = c["in C: writing, and eliza's link"].best - write
            ratio = (case.best - write) / ours
            target = "apply >= 20 x ours"
        rows.append(
            [
                f"{vocabulary.label}, {vocabulary.n_vocab:,}",
                name,
                case.best * 1e6,
                case.median * 1e6,
                ratio,
                target,
            ]
        )
    return rows


def two_vocabularies(large):
    found = vocabularies(False)
    file = Path(os.environ.get("ELIZA_VOCABS", ""), "ggml-vocab-llama-bpe.gguf")
    if large and file.is_file():
        found.append(load("Llama 3", str(file)))
    elif large:
        print("no large vocabulary: ELIZA_VOCABS names no folder with llama-bpe")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if _common.model_path(None) is None:
        return
    print(machine())
    rows = []
    for vocabulary in two_vocabularies(not args.check):
        rows += measure_one(vocabulary, 1 if args.check else 9)
    report("30 actions, for each token", COLUMNS, rows)
    print("ratio: the link alone, to the writing; the grammar link alone, to ours")
    if args.csv:
        write_csv(args.csv, COLUMNS, rows)


if __name__ == "__main__":
    main()
