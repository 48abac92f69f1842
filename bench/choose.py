"""One decision, end to end: plain, with a grammar, and with eliza.

    python bench/choose.py --mode strict-trie-ffi --method greedy
    python bench/choose.py --mode strict-trie-ffi --method exact --set long
    python bench/choose.py --mode unguided
    python bench/choose.py --mode strict-guided

`strict-guided` is llama-cpp-python's `create_completion` with a GBNF grammar at
temperature 0; `unguided` the same without one; `strict-trie-ffi` is `Model.choose`. The
mode asked for and the grammar take turns prompt by prompt in one process. They share
the weights, and each keeps the KV cache of what all prompts begin with, so that about
16 tokens of each are fresh. Prints JSON; times are medians in milliseconds.

Skip ratio, as this benchmark's source defines it: of all candidates at a step, the
share that need not be looked at, (full - valid) / full. Own work is what is none of the
runtime's: decoding, tokenizing, and (`kv_and_rows_ms`) cutting and copying sequences in
the KV cache and waiting for a row. Agreement with the grammar counts only prompts at
which the grammar run wrote its answer with the ids that the tokenizer writes: it allows
others. `exact` may differ rightly: it answers another question than a greedy walk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _common
import _sets

MODES = ("unguided", "strict-guided", "strict-trie-ffi")
SETS = {"short": _sets.SHORT, "long": _sets.LONG}


@dataclass
class Clock:
    """Notes the time spent inside a wrapped function."""

    spent: list[float] = field(default_factory=list)

    def wrap(self, function: Callable) -> Callable:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = function(*args)
            self.spent.append(time.perf_counter() - start)
            return result

        return timed

    def take(self) -> list[float]:
        spent, self.spent = self.spent, []
        return spent


@dataclass
class Clocks:
    """The runtime's decoding, tokenizing and the rest, whoever calls it."""

    decode: Clock = field(default_factory=Clock)
    encode: Clock = field(default_factory=Clock)
    other: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        import llama_cpp

        for name, clock in (
            ("llama_decode", self.decode),
            ("llama_tokenize", self.encode),
            ("llama_get_logits_ith", self.other),
            ("llama_memory_seq_cp", self.other),
            ("llama_memory_seq_rm", self.other),
        ):
            timed = clock.wrap(getattr(llama_cpp, name))
            for module in (llama_cpp, llama_cpp.llama_cpp):
                setattr(module, name, timed)

    def reset(self) -> None:
        self.decode.take()
        self.encode.take()
        self.other.take()

    def watch(self, model: Any) -> None:
        """Time what an eliza model calls of the library in C, too."""
        context = model.backend._context
        context._batch = TimedBatch(context._batch, self)


class TimedBatch:
    """A batch of eliza's whose calls into llama.cpp are timed."""

    def __init__(self, batch: Any, clocks: Clocks) -> None:
        self.chain, self.tree = batch.chain, batch.tree
        self.decode = clocks.decode.wrap(batch.decode)
        self.row_at = clocks.other.wrap(batch.row_at)


@dataclass
class Run:
    """One decision."""

    value: str
    ids: tuple[int, ...]
    seconds: float
    decoding: list[float]
    tokenizing: float
    other: float
    passes: int
    positions: int

    @property
    def prompt(self) -> float:
        return self.decoding[0]

    @property
    def after_prompt(self) -> float:
        return self.seconds - self.decoding[0] - self.tokenizing

    @property
    def own(self) -> float:
        return self.seconds - sum(self.decoding) - self.tokenizing - self.other


class Plain:
    """llama-cpp-python's `create_completion`, with or without a grammar."""

    def __init__(self, llama: Any, clocks: Clocks, grammar: str | None) -> None:
        from llama_cpp import LlamaGrammar

        self.llama, self.clocks = llama, clocks
        self.ids: list[int] = []
        generate = llama.generate

        def noted(*args: Any, **kwargs: Any) -> Any:
            for token in generate(*args, **kwargs):
                self.ids.append(token)
                yield token

        llama.generate = noted
        self.grammar = (
            None if grammar is None else LlamaGrammar.from_string(grammar, False)
        )

    def __call__(self, prompt: str, limit: int) -> Run:
        self.ids.clear()
        self.clocks.reset()
        start = time.perf_counter()
        # The stop text spares it a pass for an end token after the closing quote.
        completion = self.llama.create_completion(
            prompt,
            max_tokens=limit,
            temperature=0.0,
            grammar=self.grammar,
            stop=['"'],
        )
        seconds = time.perf_counter() - start
        decoding = self.clocks.decode.take()
        return Run(
            completion["choices"][0]["text"],
            tuple(self.ids),
            seconds,
            decoding,
            sum(self.clocks.encode.take()),
            sum(self.clocks.other.take()),
            len(decoding),
            len(self.ids) - 1,
        )


class Ours:
    """`Model.choose`."""

    def __init__(
        self, model: Any, clocks: Clocks, names: list[str], method: str
    ) -> None:
        self.model, self.clocks = model, clocks
        self.names, self.method = names, method

    def __call__(self, prompt: str, limit: int) -> Run:
        self.clocks.reset()
        start = time.perf_counter()
        answer = self.model.choose(prompt, self.names, suffix='"', method=self.method)
        seconds = time.perf_counter() - start
        decoding, encoding = self.clocks.decode.take(), self.clocks.encode.take()
        other = sum(self.clocks.other.take())
        placed = self.model.vocab.place(prompt, self.names, '"')
        stats = answer.stats
        return Run(
            answer.value,
            placed.trie.tokens(placed.trie.names.index(answer.value)),
            seconds,
            decoding,
            sum(encoding),
            other,
            len(decoding),
            stats.positions - (stats.prompt_tokens - stats.reused_tokens),
        )


def skip_ratios(vocab: Any, prompt: str, names: list[str], value: str) -> list[float]:
    """Return the ratio at each step of a constrained walk to a value."""
    trie = vocab.place(prompt, names, '"').trie
    cursor = trie.cursor()
    ratios = []
    for token in trie.tokens(trie.names.index(value)):
        ratios.append(1 - len(cursor.allowed()) / vocab.n_vocab)
        cursor.accept(token)
    return ratios


def comparable(vocab: Any, prompt: str, names: list[str], run: Run) -> bool:
    """Whether a grammar run wrote its answer as the tokenizer writes it."""
    trie = vocab.place(prompt, names, '"').trie
    ids = trie.tokens(trie.names.index(run.value))
    return run.ids[: len(ids)] == tuple(ids)


def milliseconds(runs: list[Run], what: str) -> float:
    return round(_common.median([getattr(run, what) for run in runs]) * 1000, 2)


def summary(runs: list[Run]) -> dict[str, Any]:
    """Return what one mode cost."""
    n_ids = sum(len(run.ids) for run in runs)
    after = sum(run.passes - 1 for run in runs)
    seconds = [run.seconds for run in runs]
    return {
        "tokens_per_second": round(n_ids / sum(seconds), 2),
        "forward_passes_total": n_ids,
        "forward_passes_saved": n_ids - after,
        "passes_after_prompt_mean": round(after / len(runs), 3),
        # As for passes: what a loop takes that computes each id of an answer by itself.
        "positions_total": n_ids,
        "positions_saved": n_ids - sum(run.positions for run in runs),
        "positions_after_prompt_mean": round(
            statistics.mean(run.positions for run in runs), 2
        ),
        "latency_ms": {
            "p50": round(_common.percentile(seconds, 50) * 1000, 2),
            "p95": round(_common.percentile(seconds, 95) * 1000, 2),
        },
        "prompt_ms": milliseconds(runs, "prompt"),
        "after_prompt_ms": milliseconds(runs, "after_prompt"),
        "tokenizing_ms": milliseconds(runs, "tokenizing"),
        "kv_and_rows_ms": milliseconds(runs, "other"),
        "own_work_ms": milliseconds(runs, "own"),
        "own_work_share": round(
            _common.median([run.own / run.seconds for run in runs]), 4
        ),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark; return what is printed."""
    from llama_cpp import Llama

    import eliza

    names = SETS[options.set]
    clocks = Clocks()
    llama = Llama(options.model, n_ctx=2048, n_threads=options.threads, verbose=False)
    model = eliza.load(llama, n_threads=options.threads)
    clocks.watch(model)
    by_grammar = Plain(llama, clocks, _sets.grammar(names))
    asked: Callable[[str, int], Run]
    if options.mode == "strict-trie-ffi":
        asked = Ours(model, clocks, names, options.method)
    else:
        plain = Llama(
            options.model, n_ctx=2048, n_threads=options.threads, verbose=False
        )
        grammar = _sets.grammar(names) if options.mode == "strict-guided" else None
        asked = Plain(plain, clocks, grammar)

    messages = _sets.MESSAGES[: options.prompts]
    limit = 24
    for loop in (by_grammar, asked):  # the prompts' common beginning is decoded here
        loop(_sets.prompt(names, "warm up"), limit)
    ours: list[Run] = []
    theirs: list[Run] = []
    for i in range(options.rounds * len(messages)):
        prompt = _sets.prompt(names, messages[i % len(messages)])
        turns = [(asked, ours), (by_grammar, theirs)]
        for loop, runs in turns if i % 2 else turns[::-1]:
            runs.append(loop(prompt, limit))

    out: dict[str, Any] = {
        "mode": options.mode,
        "method": options.method if options.mode == "strict-trie-ffi" else None,
        "model": Path(options.model).name,
        "set": f"{options.set}: {len(names)} choices",
        "prompts": len(ours),
        "threads": options.threads,
        **summary(ours),
        "grammar": summary(theirs),
        "tokens_per_second_vs_grammar": None,
    }
    pairs = list(zip(ours, theirs, strict=True))
    out["speedup_vs_grammar"] = round(
        _common.median([b.seconds / a.seconds for a, b in pairs]), 2
    )
    out["speedup_after_prompt"] = round(
        _common.median([b.after_prompt / a.after_prompt for a, b in pairs]), 2
    )
    out["tokens_per_second_vs_grammar"] = round(
        out["tokens_per_second"] / out["grammar"]["tokens_per_second"], 3
    )
    if options.mode != "unguided":
        ratios, agreed, counted = [], 0, 0
        for i, (a, b) in enumerate(pairs):
            prompt = _sets.prompt(names, messages[i % len(messages)])
            ratios += skip_ratios(model.vocab, prompt, names, a.value)
            if comparable(model.vocab, prompt, names, b):
                counted += 1
                agreed += a.value == b.value
        out["skip_ratio_mean"] = round(statistics.mean(ratios), 6)
        out["skip_ratio_std"] = round(statistics.pstdev(ratios), 6)
        out["token_accuracy"] = round(agreed / counted, 3) if counted else None
        out["token_accuracy_prompts"] = counted
    out["valid"] = round(statistics.mean(run.value in names for run in ours), 3)
    out["machine"] = _common.machine()
    model.close()
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mode", choices=MODES, default="strict-trie-ffi")
    parser.add_argument("--method", choices=("exact", "greedy"), default="exact")
    parser.add_argument("--model", help="a GGUF file; by default the packaged SmolLM2")
    parser.add_argument("--set", choices=tuple(SETS), default="short")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=len(_sets.MESSAGES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", metavar="FILE", help="write the JSON there as well")
    parser.add_argument("--check", action="store_true", help="a short run, for CI")
    options = parser.parse_args(argv)
    if options.check:
        options.prompts, options.rounds = 2, 1
    options.model = _common.model_path(options.model)
    text = json.dumps(measure(options), indent=2)
    print(text)
    if options.output:
        Path(options.output).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
