"""The computation of a Llama in TFLite operators, in the form that LiteRT-LM runs.

Keys lie as [1, heads, context, dim], values as [1, heads, dim, context]: so the context
is the inner axis of each product that attention takes. `mask` is added to the scores;
it has 0 where an id may look, and a large negative number elsewhere.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from eliza.convert.tflite_graph import Graph, ModelTables, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza.convert.source import GgufSource
    from eliza.convert.tflite_buffers import Buffers

__all__ = ["add_head", "add_weights", "ending_at"]

_INT = np.dtype(np.int32)


def add_weights(buffers: Buffers, source: GgufSource, kind: str, n_ctx: int) -> None:
    """Register all weights of a model, and the tables of the rotation."""
    scale = np.float32(source.config.head_dim**-0.5)
    for name, shape in source.shapes.items():
        produce = partial(source.tensor, name)
        if name.endswith("q_proj.weight"):
            produce = partial(_scaled, source, name, scale)
        add = (
            buffers.quantised if kind == "int8" and len(shape) == 2 else buffers.weight
        )
        add(name, shape, produce)
    table = n_ctx, source.config.head_dim
    for name in ("cos", "sin"):
        produce = partial(_rotation, source.config.rope_theta, table[1], name)
        buffers.weight(name, table, produce)


def _scaled(
    source: GgufSource, name: str, scale: np.float32, start: int, stop: int
) -> NDArray[np.float32]:
    """Return queries that are already divided by the root of their length."""
    return source.tensor(name, start, stop) * scale


def _rotation(
    theta: float, dim: int, which: str, start: int, stop: int
) -> NDArray[np.float32]:
    """Return cosines of all angles, or sines that carry the sign of the other half."""
    speeds = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    angles = np.arange(start, stop)[:, None] * speeds
    first, second = np.cos(angles), np.cos(angles)
    if which == "sin":
        first, second = -np.sin(angles), np.sin(angles)
    return np.concatenate([first, second], axis=1).astype(np.float32)


def ending_at(
    end: str, name: str, n: int, model: ModelTables, source: GgufSource, n_ctx: int
) -> None:
    """Add a signature that takes n ids.

    Parameters
    ----------
    end : {"cache", "hidden", "logits"}
        What it gives beside the keys and values: nothing; the hidden state of each id
        after the last norm, which the head is to be applied to; or logits for each.
    """
    _Decoder(model.graph(name), source, n, n_ctx).build(end)


def add_head(name: str, n: int, model: ModelTables, source: GgufSource) -> None:
    """Add a signature that takes n hidden states and gives logits for each."""
    graph, config = model.graph(name), source.config
    hidden = graph.input("hidden", (1, n, config.n_embd))
    flat = graph.reshape(hidden, n, config.n_embd)
    logits = graph.linear(flat, graph.weight(head_of(source)))
    graph.outputs["logits"] = graph.reshape(logits, 1, n, config.n_vocab)


def head_of(source: GgufSource) -> str:
    """Return the name of the weights that logits are computed with."""
    tied = source.config.tied
    return "model.embed_tokens.weight" if tied else "lm_head.weight"


class _Decoder:
    """One signature while it is built."""

    def __init__(self, graph: Graph, source: GgufSource, n: int, n_ctx: int) -> None:
        self.graph = graph
        self.config = source.config
        self.head = head_of(source)
        self.n = n
        self.n_ctx = n_ctx

    def build(self, end: str) -> None:
        graph, config = self.graph, self.config
        n, dim = self.n, config.head_dim
        ids = graph.input("tokens", (1, n), _INT)
        at = graph.input("input_pos", (n,), _INT)
        x = graph.embed(
            graph.reshape(ids, n), graph.weight("model.embed_tokens.weight")
        )
        if end != "cache" or config.n_layers > 1:
            self.mask = graph.input("mask", (1, 1, n, self.n_ctx))
        self.cos, self.sin = (
            graph.reshape(graph.gather(graph.weight(which), at), n, 1, dim)
            for which in ("cos", "sin")
        )
        begin = graph.first(at)
        none = graph.ints(0)
        self.keys_at = graph.concatenate([graph.ints(0, 0), begin, none], 0)
        self.values_at = graph.concatenate([graph.ints(0, 0, 0), begin], 0)
        for layer in range(config.n_layers):
            last = layer == config.n_layers - 1
            x = self.layer(layer, x, only_cache=last and end == "cache")
        if end == "cache":
            return
        x = self.norm(x, "model.norm.weight")
        if end == "hidden":
            graph.outputs["hidden"] = graph.reshape(x, 1, n, config.n_embd)
            return
        logits = graph.linear(x, graph.weight(self.head))
        graph.outputs["logits"] = graph.reshape(logits, 1, n, config.n_vocab)

    def layer(self, i: int, x: Tensor, only_cache: bool) -> Tensor:
        """Add a layer; of the last one sometimes only its keys and values matter."""
        graph, config, n = self.graph, self.config, self.n
        heads, dim = config.n_kv_heads, config.head_dim
        prefix = f"model.layers.{i}"
        h = self.norm(x, f"{prefix}.input_layernorm.weight")
        attention = f"{prefix}.self_attn"
        k = self.rotate(self.heads(h, f"{attention}.k_proj.weight", heads))
        v = self.heads(h, f"{attention}.v_proj.weight", heads)
        k_name, v_name = f"kv_cache_k_{i}", f"kv_cache_v_{i}"
        keys = graph.update(
            graph.input(k_name, (1, heads, self.n_ctx, dim)),
            graph.reshape(graph.transpose(k, 1, 0, 2), 1, heads, n, dim),
            self.keys_at,
            k_name,
        )
        values = graph.update(
            graph.input(v_name, (1, heads, dim, self.n_ctx)),
            graph.reshape(graph.transpose(v, 1, 2, 0), 1, heads, dim, n),
            self.values_at,
            v_name,
        )
        if only_cache:
            return x
        q = self.rotate(self.heads(h, f"{attention}.q_proj.weight", config.n_heads))
        seen = self.attend(q, keys, values)
        x = graph.add(x, graph.linear(seen, graph.weight(f"{attention}.o_proj.weight")))
        return graph.add(x, self.feed_forward(x, prefix))

    def heads(self, h: Tensor, weight: str, heads: int) -> Tensor:
        graph = self.graph
        flat = graph.linear(h, graph.weight(weight))
        return graph.reshape(flat, self.n, heads, self.config.head_dim)

    def rotate(self, x: Tensor) -> Tensor:
        graph = self.graph
        a, b = graph.halves(x)
        turned = graph.mul(graph.concatenate([b, a], 2), self.sin)
        return graph.add(graph.mul(x, self.cos), turned)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return what each id sees; the queries that share keys are one product."""
        graph, n, dim = self.graph, self.n, self.config.head_dim
        heads = self.config.n_kv_heads
        group = self.config.n_heads // heads
        q = graph.transpose(graph.reshape(q, n, heads, group, dim), 1, 2, 0, 3)
        scores = graph.matmul(graph.reshape(q, 1, heads, group * n, dim), keys)
        scores = graph.reshape(scores, heads, group, n, self.n_ctx)
        weights = graph.softmax(graph.add(scores, self.mask))
        flat = graph.reshape(weights, 1, heads, group * n, self.n_ctx)
        seen = graph.reshape(graph.matmul(flat, values), heads, group, n, dim)
        return graph.reshape(graph.transpose(seen, 2, 0, 1, 3), n, heads * group * dim)

    def feed_forward(self, x: Tensor, prefix: str) -> Tensor:
        graph, mlp = self.graph, f"{prefix}.mlp"
        h = self.norm(x, f"{prefix}.post_attention_layernorm.weight")
        gate = graph.linear(h, graph.weight(f"{mlp}.gate_proj.weight"))
        gate = graph.mul(gate, graph.logistic(gate))
        up = graph.linear(h, graph.weight(f"{mlp}.up_proj.weight"))
        return graph.linear(
            graph.mul(gate, up), graph.weight(f"{mlp}.down_proj.weight")
        )

    def norm(self, x: Tensor, weight: str) -> Tensor:
        graph = self.graph
        mean = graph.add_number(graph.mean(graph.mul(x, x)), self.config.norm_eps)
        return graph.mul(graph.mul(x, graph.rsqrt(mean)), graph.weight(weight))
