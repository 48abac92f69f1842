"""Models for the tests of MLX: converted from GGUF, or random ones of mlx-lm.

Importing it needs mlx and mlx-lm.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np

import eliza
from eliza.backends.mlx_load import model_module
from eliza.convert.mlx_folder import write_mlx
from eliza.convert.source import GgufSource
from tiny import tiny_gguf

N_VOCAB = 372
RNG = np.random.default_rng(7)


def some_ids(n):
    return RNG.integers(3, N_VOCAB, n).tolist()


def near(a, b):
    np.testing.assert_allclose(a, b, atol=1e-4)


def converted(folder: Path, kind="bpe", type="f32") -> Path:
    path = tiny_gguf(folder / f"{kind}.gguf", kind=kind)
    out = folder / f"{kind}-{type}"
    with GgufSource(path) as source:
        write_mlx(source, out, type)
    return out


def choose(folder, out):
    """Put a choice into a queue: work for another process."""
    with eliza.load(folder, n_ctx=64) as model:
        out.put(model.choose("an action", ["SEND", "MUTE"]).value)


def make_model(**change):
    """Return a random Llama of mlx-lm."""
    llama = model_module("llama")
    args = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": N_VOCAB,
        "tie_word_embeddings": False,
        **change,
    }
    mx.random.seed(3)
    return llama.Model(llama.ModelArgs(**args))


def make_mamba():
    """Return a random Mamba of mlx-lm, whose state cannot be cut back."""
    mamba = model_module("mamba")
    args = mamba.ModelArgs(
        model_type="mamba",
        vocab_size=N_VOCAB,
        hidden_size=32,
        intermediate_size=64,
        state_size=8,
        num_hidden_layers=2,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=4,
    )
    mx.random.seed(3)
    model = mamba.Model(args)
    model.backbone.embeddings.weight *= 30
    for layer in model.layers:  # else it forgets within a few ids
        layer.mixer.A_log -= 2
        layer.mixer.x_proj.weight *= 10
        layer.mixer.out_proj.weight *= 10
    return model


def make_windowed(size):
    """Return a random Llama that remembers the last ids only."""
    model = make_model()
    cache = model_module("cache").RotatingKVCache
    model.__class__ = type(
        "Windowed",
        (type(model),),
        {"make_cache": lambda _: [cache(size, keep=0) for _ in range(2)]},
    )
    return model


def make_chunked(size):
    """Return a random Llama 4, most layers of which see one chunk of ids only."""
    llama4 = model_module("llama4")
    text = {
        "attention_bias": False,
        "attention_chunk_size": size,
        "head_dim": 16,
        "hidden_size": 32,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 32,
        "intermediate_size_mlp": 64,
        "max_position_embeddings": 512,
        "model_type": "llama4_text",
        "num_attention_heads": 2,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "num_local_experts": 2,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 1e4,
        "use_qk_norm": False,
        "vocab_size": N_VOCAB,
    }
    mx.random.seed(3)
    return llama4.Model(llama4.ModelArgs(text_config=text, model_type="llama4"))
