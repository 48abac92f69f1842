"""A model of mlx-lm, taken apart: the layers that end in a hidden state, and the head.

The head multiplies a hidden state with a row of weights for each id of the vocabulary.
Where only some ids count, so do only their rows. Whether a model can be taken apart is
found out by trying: for two ids both ways must give the same logits, bit for bit. Some
models scale or bend their logits after the head; those are computed whole.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from eliza.backends.mlx_state import load_state, save_state
from eliza.errors import BackendError, NotSupported

__all__ = ["MlxModel"]

logger = logging.getLogger("eliza.mlx")


class MlxModel:
    """What a sequence computes with.

    Parameters
    ----------
    mx : module
        `mlx.core`.
    model : mlx.nn.Module
        Called with ids of shape [1, n] and a cache, it gives logits.
    caches : module
        `mlx_lm.models.cache`, or one with the same functions.

    Attributes
    ----------
    n_rows : int
        The width of a row of logits.
    has_head : bool
        The head can be computed by itself.
    can_save : bool
        The state of a cache can be saved and read again.
    """

    def __init__(self, mx: Any, model: Any, caches: Any) -> None:
        self.mx = mx
        self._model = model
        self._caches = caches
        self._head: Any = _head_of(model)
        self._tied = self._head is not None and hasattr(self._head, "as_linear")
        probe = mx.array([_probe_ids(model, self._head)])
        cache = self.new_cache()
        logits = model(probe, cache=cache)
        mx.eval(logits)
        self.can_save = self._is_saved(cache)
        self.n_rows: int = logits.shape[-1]
        self.has_head = self._head is not None
        self.has_head = self.has_head and self._comes_apart(probe, logits)

    def _is_saved(self, cache: list[Any]) -> bool:
        try:
            load_state(self.mx, self.new_cache(), save_state(self.mx, cache))
        except (NotSupported, BackendError):
            return False
        return True

    def _comes_apart(self, probe: Any, logits: Any) -> bool:
        """Whether the layers and the head by themselves give the same logits.

        Rows that are all 0 are the same before and after much that changes others.
        """
        mx = self.mx
        try:
            hidden = self._model.model(probe, cache=self.new_cache())
            apart = self._all_rows(hidden)
            if apart.shape != logits.shape or not mx.array_equal(apart, logits).item():
                return False
            rows = logits[0].astype(mx.float32)
            largest = mx.abs(rows).max().item()
            ids = list(range(0, self.n_rows, -(-self.n_rows // 16)))
            few = [self.logits_of(hidden[0, i : i + 1], ids) for i in range(len(rows))]
            off = mx.abs(mx.stack(few) - rows[:, mx.array(ids)]).max().item()
        except Exception as error:
            logger.debug("the head cannot be computed by itself: %r", error)
            return False
        # They are sums in another order: as far apart as the number type allows.
        return bool(largest > 0 and off <= largest / 64)

    def new_cache(self) -> list[Any]:
        """Return an empty cache."""
        cache: list[Any] = self._caches.make_prompt_cache(self._model)
        return cache

    def can_trim(self, cache: list[Any], n_ctx: int) -> bool:
        """Whether a cache can be cut anywhere, as long as it holds at most n_ctx ids.

        One with a window cannot any more as soon as it has lost something.
        """
        return bool(self._caches.can_trim_prompt_cache(cache)) and not any(
            _window(layer) < n_ctx for layer in _layers(cache)
        )

    def cut(self, cache: list[Any], n: int) -> bool:
        """Keep the first n ids of a cache; return whether that could be done.

        After a failure some of its layers may hold more than others.
        """
        layers = _layers(cache)
        if not all(layer.is_trimmable() for layer in layers):
            return False
        try:
            for layer in layers:
                more = layer.offset - n
                if more < 0 or _lost(layer) > max(0, n - _window(layer)):
                    return False
                if more and layer.trim(more) != more:
                    return False
            # What failed late is part of what is left, and would fail again.
            self.mx.eval([layer.state for layer in layers])
        except (AttributeError, RuntimeError):
            return False
        return True

    # What is computed

    def forward(self, ids: list[int], cache: list[Any]) -> Any:
        """Append ids to a cache; return a state for each, [n, …], for `logits`."""
        tokens = self.mx.array([ids])
        if self.has_head:
            return self._model.model(tokens, cache=cache)[0]
        return self._model(tokens, cache=cache)[0]

    def logits(self, states: Any) -> Any:
        """Return the rows of logits of states, float32 [n, n_rows]."""
        if self.has_head:
            states = self._all_rows(states[None])[0]
        return states.astype(self.mx.float32)

    def logits_of(self, state: Any, ids: Any) -> Any:
        """Return the logits of some ids after one state, float32 [len(ids)].

        Parameters
        ----------
        state : array [1, …]
        ids : int32 array
        """
        mx, head = self.mx, self._head
        rows = mx.array(ids)
        if not self.has_head:
            return state[0][rows].astype(mx.float32)
        if hasattr(head, "scales"):
            biases = head.get("biases")
            values = mx.quantized_matmul(
                state,
                head.weight[rows],
                scales=head.scales[rows],
                biases=None if biases is None else biases[rows],
                transpose=True,
                group_size=head.group_size,
                bits=head.bits,
                mode=head.mode,
            )
        else:
            values = state @ head.weight[rows].T
        if "bias" in head and not self._tied:
            values = values + head.bias[rows]
        return values[0].astype(mx.float32)

    def _all_rows(self, hidden: Any) -> Any:
        return self._head.as_linear(hidden) if self._tied else self._head(hidden)


def _layers(cache: list[Any]) -> list[Any]:
    """Return the layers of a cache, and in place of a group of them its parts."""
    return [part for layer in cache for part in getattr(layer, "caches", [layer])]


def _window(layer: Any) -> float:
    """Return how many ids a layer holds, all of which can be cut off again."""
    if hasattr(layer, "max_size"):  # a full one counts as one that has lost something
        return int(layer.max_size) - 1
    if hasattr(layer, "chunk_size"):
        return int(layer.chunk_size)
    return math.inf


def _lost(layer: Any) -> int:
    """Return how many of the first ids a layer in chunks does not hold any more."""
    return int(getattr(layer, "start_position", 0))


def _probe_ids(model: Any, head: Any) -> list[int]:
    """Return a few ids that a model has: more than one if it can be taken apart."""
    if head is None:
        return [0]
    embedding = getattr(model.model, "embed_tokens", None)
    n = min(head.weight.shape[0], getattr(embedding, "weight", head.weight).shape[0])
    return [n // 2, n - 1]


def _head_of(model: Any) -> Any:
    """Return the layer that makes logits of a hidden state, if it looks like one."""
    inner = getattr(model, "model", None)
    if inner is None or not callable(inner):
        return None
    head = model.get("lm_head") if hasattr(model, "get") else None
    if head is None:
        head = getattr(inner, "embed_tokens", None)
        if not hasattr(head, "as_linear"):
            return None
    known = {"Linear", "QuantizedLinear", "Embedding", "QuantizedEmbedding"}
    return head if type(head).__name__ in known else None
