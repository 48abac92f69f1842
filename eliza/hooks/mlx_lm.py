"""Constraints inside mlx-lm's generation.

    from eliza.hooks.mlx_lm import logits_processor

    keep = logits_processor(trie, eog=tokenizer)
    generate(model, tokenizer, prompt, logits_processors=[keep])

Each call waits for the token before it and for the logits of its own step: what is
allowed depends on the first, and that something allowed is left on the second.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eliza._cursor import Cursor
from eliza._trie import Trie
from eliza.errors import InvalidArgument
from eliza.hooks._processor import Processor, keep_values

__all__ = ["MlxProcessor", "logits_processor"]


class MlxProcessor(Processor):
    """A logits processor for mlx-lm; made by `logits_processor`."""

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """Return the logits with -inf on what may not follow the tokens."""
        import mlx.core as mx

        n_vocab = self._start.cursor.trie.n_vocab
        if logits.size != logits.shape[-1] or logits.shape[-1] < n_vocab:
            raise InvalidArgument(
                f"logits of shape {logits.shape}; give one row of at least {n_vocab}"
            )
        # As an array of NumPy it is computed; the lazy one may show an older token.
        place = self._follow.place(np.asarray(tokens).reshape(-1))
        ids = place.allowed()
        if ids is None:
            return logits
        at = mx.array(ids)
        kept = np.array(logits[..., at].astype(mx.float32)).reshape(-1)
        kept = keep_values(place, kept).reshape((*logits.shape[:-1], -1))
        out = mx.full(logits.shape, -mx.inf, dtype=logits.dtype)
        out[..., at] = mx.array(kept.astype(np.float32)).astype(logits.dtype)
        return out


def logits_processor(trie: Trie | Cursor, **options: Any) -> MlxProcessor:
    """Return a logits processor for one sequence at a time.

    Parameters
    ----------
    trie : Trie or Cursor
        The choices.
    **options
        `eog` (a tokenizer has it), `exits`, `allow`, `after`, `prompt_length`, as in
        `Processor`.
    """
    return MlxProcessor(trie, **options)
