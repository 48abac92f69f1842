"""What a Llama computes, in NumPy: nothing is shared with what is tested."""

from __future__ import annotations

import numpy as np

__all__ = ["forward"]


def forward(source, ids):
    """Return the logits after each of the ids, in float64."""
    c = source.config
    weight = {name: source.tensor(name).astype(np.float64) for name in source.shapes}
    x = weight["model.embed_tokens.weight"][list(ids)]
    n, dim, group = len(ids), c.head_dim, c.n_heads // c.n_kv_heads
    angles = np.outer(np.arange(n), c.rope_theta ** (-np.arange(0, dim, 2) / dim))
    cos, sin = (f(np.concatenate([angles, angles], 1)) for f in (np.cos, np.sin))

    def norm(h, name):
        scale = np.sqrt((h * h).mean(-1, keepdims=True) + c.norm_eps)
        return h / scale * weight[name]

    def heads(h, name):
        return (h @ weight[name].T).reshape(n, -1, dim).swapaxes(0, 1)

    def rotate(h):
        a, b = np.split(h, 2, -1)
        return h * cos + np.concatenate([-b, a], -1) * sin

    for i in range(c.n_layers):
        layer = f"model.layers.{i}"
        h = norm(x, f"{layer}.input_layernorm.weight")
        q, k, v = (heads(h, f"{layer}.self_attn.{p}_proj.weight") for p in "qkv")
        k, v = (np.repeat(a, group, 0) for a in (rotate(k), v))
        scores = rotate(q) @ k.swapaxes(1, 2) / np.sqrt(dim)
        scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        seen = (shares @ v).swapaxes(0, 1).reshape(n, -1)
        x = x + seen @ weight[f"{layer}.self_attn.o_proj.weight"].T
        h = norm(x, f"{layer}.post_attention_layernorm.weight")
        gate, up = (
            h @ weight[f"{layer}.mlp.{p}_proj.weight"].T for p in ("gate", "up")
        )
        inner = gate / (1 + np.exp(-gate)) * up
        x = x + inner @ weight[f"{layer}.mlp.down_proj.weight"].T
    head = "model.embed_tokens.weight" if c.tied else "lm_head.weight"
    return norm(x, "model.norm.weight") @ weight[head].T
