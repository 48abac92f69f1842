"""What a decision costs with all rows of the head, and with those of the allowed ids.

    python bench/head_rows.py [--rounds N] [--check]

A Llama of random weights (2 layers, 576 wide, the width of SmolLM2) with heads for two
sizes of vocabulary, in MLX and in LiteRT, whichever is installed. A decision is `choose`
by the greedy method among 10 texts that part at one point, after a prompt that differs
by its last id from the one before: one id is decoded, and one id picked.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time

import _common

WIDTH, LAYERS = 576, 2
TARGET = 1.5  # times faster, at the larger vocabulary


def make_vocab(n_vocab: int):
    import eliza

    pieces = [b"<end>", *(bytes([c]) for c in range(1, 256))]
    pieces += [f"w{i}" for i in range(n_vocab - len(pieces))]
    return eliza.Vocab.from_tokens(pieces, control=[0], eog=[0])


class RandomSource:
    """Weights of the same shape as a `GgufSource` has them."""

    raw_tokenizer: dict[str, object] = {}  # noqa: RUF012

    def __init__(self, n_vocab: int) -> None:
        from eliza.convert.source import LlamaConfig, _expected

        self.config = LlamaConfig(
            n_layers=LAYERS,
            n_embd=WIDTH,
            n_heads=9,
            n_kv_heads=3,
            head_dim=WIDTH // 9,
            n_ff=1536,
            n_vocab=n_vocab,
            n_ctx_train=64,
            rope_theta=1e4,
            norm_eps=1e-5,
            tied=True,
            name="random",
        )
        self.shapes = {name: shape for name, _, shape in _expected(self.config)}

    def tensor(self, name: str, start: int = 0, stop: int | None = None):
        import numpy as np

        rows, *width = self.shapes[name]
        seed = [sum(map(ord, name)), start]
        size = (len(range(rows)[start:stop]), *width)
        values = np.random.default_rng(seed).standard_normal(size, np.float32)
        return values / np.float32(WIDTH**0.5)


def make_litert(n_vocab: int, kind: str):
    """Return two models on the same file: with single logits, and without."""
    import tempfile
    from pathlib import Path

    import eliza
    from eliza.backends.litert import LitertBackend
    from eliza.convert.tflite import write_tflite_to

    vocab = make_vocab(n_vocab)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tflite"
        name = {"float32": "f32"}.get(kind, kind)
        with path.open("w+b") as file:
            write_tflite_to(file, RandomSource(n_vocab), name, 64, (), (8,), None, None)
        few, whole = (LitertBackend(path, tokenizer=vocab) for _ in range(2))
    if not few.capabilities.head_rows:
        raise SystemExit("LiteRT computes other logits than those of the rows")
    whole._shared.single = None
    return eliza.Model(few), eliza.Model(whole)


def make_mlx(n_vocab: int, kind: str):
    """Return two models on the same weights: with single logits, and without."""
    import mlx.core as mx

    import eliza
    from eliza.backends.mlx import MlxBackend
    from eliza.backends.mlx_load import model_module

    llama = model_module("llama")
    mx.random.seed(0)
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            intermediate_size=1536,
            num_attention_heads=9,
            num_key_value_heads=3,
            rms_norm_eps=1e-5,
            vocab_size=n_vocab,
            tie_word_embeddings=True,
        )
    )
    if kind == "int8":
        importlib.import_module("mlx.nn").quantize(model, group_size=64, bits=8)
    else:
        model.set_dtype(getattr(mx, kind))
    mx.eval(model.parameters())
    vocab = make_vocab(n_vocab)
    few = MlxBackend.from_model(model, vocab, n_ctx=64)
    whole = MlxBackend.from_model(model, vocab, n_ctx=64)
    whole._capabilities = whole.capabilities._replace(head_rows=False)
    return eliza.Model(few), eliza.Model(whole)


def decide(model, i: int):
    prompt = [100, 101, 102, 110 + i % 50]
    choices = [f"w{n}" for n in range(10)]
    start = time.perf_counter()
    answer = model.choose(prompt, choices, method="greedy")
    return time.perf_counter() - start, answer.value


def measure(pair, kind: str, rounds: int) -> str:
    spent: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):  # in turn, so that a busy moment hits both
        values = []
        for times, model in zip(spent, pair, strict=True):
            seconds, value = decide(model, i)
            times.append(seconds)
            values.append(value)
        if values[0] != values[1]:
            raise SystemExit(f"the answers differ: {values}")
    for model in pair:
        model.close()
    few, whole = (_common.median(times[1:]) * 1e3 for times in spent)
    return f"{kind:8} {whole:7.2f} ms  {few:6.2f} ms  {whole / few:5.1f}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--check", action="store_true", help="a short run, for CI")
    options = parser.parse_args(argv)
    runtimes = {"mlx": make_mlx, "ai_edge_litert": make_litert}
    found = [name for name in runtimes if importlib.util.find_spec(name) is not None]
    if not found:
        print("neither mlx nor ai-edge-litert is installed: nothing to measure")
        return 0
    rounds = 3 if options.check else options.rounds
    sizes = (2048,) if options.check else (49_152, 262_144)
    kinds = ("float32",) if options.check else ("float32", "float16", "int8")
    print("  runtime         n_vocab  head       all rows   10 rows   times")
    for runtime in found:
        for n_vocab in sizes:
            for kind in kinds:
                if (runtime, kind) != ("ai_edge_litert", "float16"):
                    pair = runtimes[runtime](n_vocab, kind)
                    print(f"  {runtime:14} {n_vocab:8,}  {measure(pair, kind, rounds)}")
    print(f"to reach at {sizes[-1]:,}: {TARGET}; medians of {rounds} decisions")
    print(_common.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
