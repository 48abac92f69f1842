"""What a decision costs with all rows of the head, and with those of the allowed ids.

    python bench/head_rows.py [--rounds N] [--check]

A Llama of random weights (2 layers, 576 wide, the width of SmolLM2) with heads for two
sizes of vocabulary, in MLX. A decision is `choose` by the greedy method among 10 texts
that part at one point, after a prompt that differs by its last id from the one before:
one id is decoded, and one id picked.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time

import _common

WIDTH, LAYERS = 576, 2
TARGET = 1.5  # times faster, at the larger vocabulary


def make(n_vocab: int, kind: str):
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
    pieces = [b"<end>", *(bytes([c]) for c in range(1, 256))]
    pieces += [f"w{i}" for i in range(n_vocab - len(pieces))]
    vocab = eliza.Vocab.from_tokens(pieces, control=[0], eog=[0])
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--check", action="store_true", help="a short run, for CI")
    options = parser.parse_args(argv)
    if importlib.util.find_spec("mlx") is None:
        print("mlx is not installed: nothing to measure")
        return 0
    rounds = 3 if options.check else options.rounds
    sizes = (2048,) if options.check else (49_152, 262_144)
    kinds = ("float32",) if options.check else ("float32", "float16", "int8")
    print("  n_vocab  head       all rows   10 rows   times")
    for n_vocab in sizes:
        for kind in kinds:
            few, whole = make(n_vocab, kind)
            spent: tuple[list[float], list[float]] = ([], [])
            for i in range(rounds):  # in turn, so that a busy moment hits both
                values = []
                for times, model in zip(spent, (few, whole), strict=True):
                    seconds, value = decide(model, i)
                    times.append(seconds)
                    values.append(value)
                if values[0] != values[1]:
                    raise SystemExit(f"the answers differ: {values}")
            a, b = (_common.median(times[1:]) * 1e3 for times in spent)
            print(f"{n_vocab:9,}  {kind:8} {b:7.2f} ms  {a:6.2f} ms  {b / a:5.1f}")
            few.close()
            whole.close()
    print(f"to reach at {sizes[-1]:,}: {TARGET}; medians of {rounds} decisions")
    print(_common.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
