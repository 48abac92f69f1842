"""A scripted backend to run the checks on: what passing looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.testing import ScriptedBackend
from eliza.vocab import Vocab

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["any_logits", "scripted_backend"]

N_VOCAB = 64


def any_logits(history: tuple[int, ...]) -> NDArray[np.float32]:
    """Return logits that depend on every id and its place, the same in each process."""
    rng = np.random.default_rng(abs(hash(history)))
    return rng.standard_normal(N_VOCAB, np.float32) * np.float32(3)


def scripted_backend(**options: Any) -> ScriptedBackend:
    """Return a backend whose logits mean nothing; the options are ScriptedBackend's."""
    pieces = [f"<{i}>".encode() for i in range(N_VOCAB)]
    vocab = Vocab.from_tokens(pieces, control=range(4), eog=[2])
    options.setdefault("n_ctx", 256)
    options.setdefault("n_batch", 16)
    return ScriptedBackend(vocab, any_logits, **options)
