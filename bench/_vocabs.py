"""The vocabularies and the choices of the benchmark against other engines."""

from __future__ import annotations

import os
import random
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import _common

VERBS = (
    "get set list create delete update send search find open close start stop run "
    "book cancel fetch load save merge split sort filter count check verify notify "
    "schedule assign archive restore export import render plan move copy lock unlock"
).split()
KINDS = (
    "all new old my team shared public private recent pending active archived remote "
    "local daily weekly urgent global"
).split()
NOUNS = (
    "user message file calendar event email invoice order ticket payment channel "
    "wallet token image video report task memory room server contact address product "
    "account session profile document folder webhook branch commit issue alert job "
    "queue cache index table record note photo song playlist device sensor route "
    "flight hotel recipe"
).split()


def names(n: int) -> list[str]:
    """Return n different names of tools, such as send_weekly_report, in no order."""
    rng = random.Random(0)
    taken: dict[str, None] = {}
    while len(taken) < n:
        kind = [rng.choice(KINDS)] if rng.random() < 0.7 else []
        taken["_".join([rng.choice(VERBS), *kind, rng.choice(NOUNS)])] = None
    return list(taken)


@dataclass
class Vocabulary:
    """A vocabulary that llama.cpp has loaded, without the weights of its model."""

    label: str
    vocab: Any  # eliza.Vocab
    pointer: Any

    @property
    def n_vocab(self) -> int:
        return self.vocab.n_vocab

    @cached_property
    def eos(self) -> int:
        import llama_cpp

        return llama_cpp.llama_vocab_eos(self.pointer)

    @cached_property
    def texts(self) -> list[bytes | None]:
        """What each id stands for; None for ids that stand for no text."""
        vocab = self.vocab
        return [
            None if vocab.is_special(i) else vocab.piece(i)
            for i in range(vocab.n_vocab)
        ]


def load(label: str, path: str) -> Vocabulary:
    import llama_cpp

    from eliza.backends.llama_vocab import LlamaVocab

    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        sys.exit(f"llama.cpp cannot read {path}")
    pointer = llama_cpp.llama_model_get_vocab(model)
    return Vocabulary(label, LlamaVocab(pointer), pointer)


def vocabularies(large: bool) -> list[Vocabulary]:
    """Load the packaged model's vocabulary, and a large one if a folder has it."""
    try:
        import llama_cpp
    except ImportError:
        sys.exit("the vocabularies are read by llama-cpp-python: pip install it first")
    global _silent  # llama.cpp calls it for as long as the process lives
    _silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(_silent, None)
    found = [load("SmolLM2", _common.model_path(None))]
    if not large:
        return found
    folder = os.environ.get("ELIZA_VOCABS")
    if not folder:
        print("no large vocabulary: ELIZA_VOCABS names no folder")
        return found
    for name, label in (("gemma-4", "Gemma 4"), ("llama-bpe", "Llama 3")):
        file = Path(folder, f"ggml-vocab-{name}.gguf")
        if file.exists():
            found.append(load(label, str(file)))
            return found
    print(f"no large vocabulary: {folder} has neither gemma-4 nor llama-bpe")
    return found
