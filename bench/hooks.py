"""What a constraint costs inside of other libraries' loops, for each token.

    python bench/hooks.py [--csv FILE] [--check]

One choice among 30 actions is walked token by token, in each loop that is installed:

    in C         an array of candidates is written, as `llama_sampler_sample` does, and
                 a link is applied to it; the writing alone is the unit
    from Python  what the hook, or the other engine, does at a step: find the position,
                 mask the row. Chain.sample also draws; it looks at the allowed ids only
    whole calls  create_completion of llama-cpp-python on SmolLM2, evaluation included,
                 with each way to constrain it, and free

Microseconds for each token, thread time, minima and medians over interleaved rounds.
Grammars work on bytes and allow more ids at a step: every spelling of the same choices.
A mask of bits is applied by llguidance's kernel, where that is installed. vLLM's hook
is driven through a stand-in for its interface, where vLLM is not.

The vocabularies are SmolLM2's and, if ELIZA_VOCABS names a folder that holds
`ggml-vocab-llama-bpe.gguf`, Llama 3's of 128,256 ids: the nearest to 131,072 (2**17)
that is at hand.
"""

from __future__ import annotations

import argparse
import ctypes
import enum
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np

import _common
import eliza
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
    cases.update(applied_case(walk))
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
    cases.update(vllm_case(walk))
    cases.update(mlx_cases(walk))
    cases.update(engine_cases(walk))
    return cases, keep, sampler, drawing


def applied_case(walk):
    """A mask of bits from ours, put on the row by another engine's kernel."""
    try:
        from llguidance.numpy import apply_token_bitmask_inplace
    except ImportError:
        return {}
    matcher, words = Matcher(walk.trie, eog=walk.eog), allocate(1, walk.n_vocab)

    def step(history, row):
        matcher.fill(words)
        apply_token_bitmask_inplace(row, words)
        matcher.accept(walk.path[len(history) - len(PROMPT)])

    name = "bitmask, fill, apply (llguidance's) and accept"
    return {name: case_of(walk, step, walk.rows(), reset=matcher.reset)}


def torch_cases(walk):
    try:
        import torch
    except ImportError:
        return {}
    from eliza.hooks.transformers import logits_processor, prefix_allowed_tokens_fn

    torch.set_num_threads(1)
    out = {}
    for n in (1, 16):
        keep = logits_processor(walk.trie, eog=walk.eog)
        rows = [torch.tensor(walk.row).repeat(n, 1) for _ in walk.path]
        ids = [torch.tensor(h, dtype=torch.long).repeat(n, 1) for h in walk.histories]
        out[f"transformers, logits_processor, {n} row" + "s" * (n > 1)] = case_of(
            walk, keep, rows, ids
        )
    try:
        from transformers import PrefixConstrainedLogitsProcessor
    except ImportError:
        return out
    fn = prefix_allowed_tokens_fn(walk.trie, eog=walk.eog)
    rows = [torch.tensor(walk.row).repeat(1, 1) for _ in walk.path]
    ids = [torch.tensor(h, dtype=torch.long).repeat(1, 1) for h in walk.histories]
    out["transformers, prefix_allowed_tokens_fn, 1 row"] = case_of(
        walk, PrefixConstrainedLogitsProcessor(fn, 1), rows, ids
    )
    return out


def vllm_hook():
    """Return eliza.hooks.vllm, over a stand-in where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is not None:
        return importlib.import_module("eliza.hooks.vllm"), ""
    names = ["vllm", "vllm.v1", "vllm.v1.sample", "vllm.v1.sample.logits_processor"]
    modules = {name: ModuleType(name) for name in names}
    interface = modules[names[-1]]
    interface.LogitsProcessor = object
    interface.MoveDirectionality = enum.Enum("Move", "UNIDIRECTIONAL SWAP")
    sys.modules.update(modules)
    try:
        return importlib.import_module("eliza.hooks.vllm"), " (stand-in)"
    finally:
        for name in names:  # transformers looks for it
            del sys.modules[name]


def vllm_case(walk):
    try:
        import torch
    except ImportError:
        return {}
    hook, how = vllm_hook()
    params = SimpleNamespace(extra_args=hook.extra_args(walk.trie, eog=walk.eog))
    keep = hook.TrieLogitsProcessor(None, torch.device("cpu"), False)
    output: list[int] = []
    added = [(0, params, PROMPT, output)]
    keep.update_state(SimpleNamespace(removed=[], added=added, moved=[]))
    rows = [torch.tensor(walk.row).repeat(1, 1) for _ in walk.path]

    def step(history, row):
        keep.apply(row)
        output.append(walk.path[len(history) - len(PROMPT)])

    name = f"vLLM, apply, 1 row{how}"
    return {name: case_of(walk, step, rows, reset=output.clear)}


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


def evaluations(completion):
    """Return how often the model was evaluated: an id that ends it is not counted."""
    ended = completion["choices"][0]["finish_reason"] == "stop"
    return completion["usage"]["completion_tokens"] + ended


def completions(path, rounds):
    """Return rows for whole calls of llama-cpp-python."""
    import llama_cpp

    from eliza.hooks.llama_cpp_python import create_completion, logits_processor

    llama = llama_cpp.Llama(path, n_ctx=512, n_threads=1, verbose=False)
    with eliza.load(llama, n_ctx=512) as model:
        place = model.vocab.place("The next action is ", SHORT)
    ids = list(place.prompt_ids)
    keep = logits_processor(place.trie, eog=llama)
    rules = "root ::= " + " | ".join(json.dumps(name) for name in SHORT)
    grammar = llama_cpp.LlamaGrammar.from_string(rules, verbose=False)
    options = {"max_tokens": 32, "temperature": 0}

    def processed():
        processors = llama_cpp.LogitsProcessorList([keep])
        out = llama.create_completion(ids, logits_processor=processors, **options)
        keep.check()
        return out

    calls = {
        "create_completion, eliza's": lambda: create_completion(llama, ids, place.trie),
        "llama-cpp-python's, logits_processor": processed,
        "llama-cpp-python's, its grammar": lambda: llama.create_completion(
            ids, grammar=grammar, **options
        ),
    }
    first = {name: call() for name, call in calls.items()}
    n = evaluations(first["create_completion, eliza's"])
    calls["llama-cpp-python's, free"] = lambda: llama.create_completion(
        ids, max_tokens=n, temperature=0
    )
    first["llama-cpp-python's, free"] = calls["llama-cpp-python's, free"]()
    cases = {
        name: Case(call, (), 1, per=evaluations(first[name]))
        for name, call in calls.items()
    }
    measure(list(cases.values()), rounds)
    llama.close()
    best = cases["llama-cpp-python's, free"].best
    return [
        [name, case.best * 1e6, case.median * 1e6, case.best / best]
        for name, case in cases.items()
    ]


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
            target = f"apply <= 1.5 x writing: {'met' if ratio <= 1.5 else 'NOT MET'}"
        elif name == slow:
            ours = c["in C: writing, and eliza's link"].best - write
            ratio = (case.best - write) / ours
            target = f"apply >= 20 x ours: {'met' if ratio >= 20 else 'NOT MET'}"
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
        print(
            "no large vocabulary: ELIZA_VOCABS names no folder with "
            "ggml-vocab-llama-bpe.gguf (128,256 ids)"
        )
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--csv")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = _common.model_path(None)
    print(machine())
    rows = []
    for vocabulary in two_vocabularies(not args.check):
        rows += measure_one(vocabulary, 1 if args.check else 9)
    report("30 actions, for each token", COLUMNS, rows)
    print("ratio: the link alone, to the writing; the grammar link alone, to ours")
    whole = completions(path, 1 if args.check else 5)
    columns = ["call", "best us", "median us", "to free"]
    report("SmolLM2, whole calls, for each token, with the evaluation", columns, whole)
    if args.csv:
        write_csv(args.csv, COLUMNS, rows)


if __name__ == "__main__":
    main()
