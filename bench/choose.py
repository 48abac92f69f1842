"""One decision, end to end: plain, with a grammar, and with eliza.

    python bench/choose.py --mode strict-trie-ffi --method greedy
    python bench/choose.py --mode unguided
    python bench/choose.py --mode strict-guided

`strict-guided` is llama-cpp-python's `create_completion` with a GBNF grammar at
temperature 0; `unguided` the same without one; `strict-trie-ffi` is `Model.choose`. All
share the weights, keep the KV cache of the prompt's common beginning, and take turns
prompt by prompt in one process. Prints JSON.

Skip ratio, as the source of this benchmark defines it: of all candidates at a step, the
share that need not be looked at, (full - valid) / full, averaged over decided steps.
Own work: the time that is neither the runtime's decoding nor its tokenizing.
Agreement counts only prompts where the grammar run spelled its answer with the ids that
the tokenizer writes (it allows others) and, for `exact`, compares different questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import _sets

NAME_SETS = {"short": _sets.SHORT, "long": _sets.LONG}


@dataclass
class Clock:
    """Adds up the time spent inside wrapped functions."""

    spent: list[float] = field(default_factory=list)

    def wrap(self, function: Callable) -> Callable:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent.append(time.perf_counter() - start)

        return timed

    def take(self) -> list[float]:
        spent, self.spent = self.spent, []
        return spent


@dataclass
class Run:
    """One decision of one mode."""

    value: str
    ids: tuple[int, ...]
    seconds: float
    decoding: list[float]  # the prompt's batch first
    tokenizing: float
    passes: int
    positions: int
    skip_ratios: list[float]

    @property
    def after_prompt(self) -> float:
        """Seconds without the prompt's batch and without tokenizing."""
        return self.seconds - self.decoding[0] - self.tokenizing

    @property
    def own(self) -> float:
        return self.seconds - sum(self.decoding) - self.tokenizing


class Plain:
    """llama-cpp-python's own loop, with or without a grammar."""

    def __init__(self, llama: Any, names: list[str] | None) -> None:
        from llama_cpp import LlamaGrammar

        self.llama = llama
        self.grammar = (
            LlamaGrammar.from_string(_sets.grammar(names), verbose=False)
            if names
            else None
        )
        self.clock = Clock()
        llama.eval = self.clock.wrap(type(llama).eval.__get__(llama))

    def __call__(self, prompt: str, limit: int) -> Run:
        ids: list[int] = []
        start = time.perf_counter()
        tokens = self.llama.tokenize(prompt.encode(), add_bos=False, special=True)
        tokenizing = time.perf_counter() - start
        self.clock.take()
        for token in self.llama.generate(tokens, temp=0.0, grammar=self.grammar):
            if token == self.llama.token_eos() or len(ids) >= limit:
                break
            ids.append(token)
            if self.llama.detokenize([token]).endswith(b'"'):
                break
        seconds = time.perf_counter() - start
        decoding = self.clock.take()
        text = self.llama.detokenize(ids).decode("utf-8", "replace")
        return Run(
            text.removesuffix('"'),
            tuple(ids),
            seconds,
            decoding,
            tokenizing,
            len(decoding),
            len(ids) + len(tokens),
            [],
        )


class Ours:
    """`Model.choose`."""

    def __init__(self, model: Any, names: list[str], method: str) -> None:
        self.model, self.names, self.method = model, names, method
        self.decode, self.encode = Clock(), Clock()
        import eliza.backends.llama_cpp as backend
        import eliza.backends.llama_vocab as vocab

        _time_call(backend, "llama_decode", self.decode)
        _time_call(vocab, "llama_tokenize", self.encode)

    def __call__(self, prompt: str, limit: int) -> Run:
        self.decode.take()
        self.encode.take()
        start = time.perf_counter()
        answer = self.model.choose(prompt, self.names, suffix='"', method=self.method)
        seconds = time.perf_counter() - start
        stats = answer.stats
        placed = self.model.vocab.place(prompt, self.names, '"')
        leaf = placed.trie.names.index(answer.value)
        ids = placed.trie.tokens(leaf)
        return Run(
            answer.value,
            ids,
            seconds,
            self.decode.take() or [0.0],
            sum(self.encode.take()),
            stats.forward_passes,
            stats.positions,
            _skip_ratios(placed.trie, ids, self.model.vocab.n_vocab),
        )


def _time_call(module: Any, name: str, clock: Clock) -> None:
    library = module.library()
    setattr(library, name, clock.wrap(getattr(library, name)))


def _skip_ratios(trie: Any, ids: tuple[int, ...], n_vocab: int) -> list[float]:
    ratios = []
    cursor = trie.cursor()
    for token in ids:
        ratios.append((n_vocab - len(cursor.allowed())) / n_vocab)
        cursor.accept(token)
    return ratios
