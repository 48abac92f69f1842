"""What a generation gives at each step, and what it counts."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Counters", "Step"]


class Step(NamedTuple):
    """What one `Session.next` gave.

    Attributes
    ----------
    ids : tuple of int
        The ids of this step: the one that was picked, drafted ids that were confirmed
        after it, and the forced run after them. An end-of-generation id ends the span
        or the text and is not among them.
    text : str
        Their text, never half a character: bytes wait until the character is whole.
    forced : int
        How many of the ids were forced.
    logprob : float or None
        Log-probability of the picked ids among those allowed, by the model's own
        logits; None for free text.
    final : bool
        Whether the generation has ended.
    finish_reason : {"choice", "stop", "length"} or None
        Why: the constraint is complete; an end-of-generation id or a stop text came;
        `max_tokens` is reached in free text.
    drafted : int
        How many ids were proposed and computed along in this step's batch.
    accepted : int
        How many of them the model would have picked itself; they are among `ids`.
    """

    ids: tuple[int, ...]
    text: str
    forced: int
    logprob: float | None
    final: bool
    finish_reason: str | None
    drafted: int = 0
    accepted: int = 0


class Counters(NamedTuple):
    """What a session did since it was opened, or all sessions of a model together.

    Attributes
    ----------
    passes : int
        Batches that the runtime computed.
    positions : int
        Ids in them.
    generated : int
        Ids of all steps.
    forced : int
        Those that could only go one way.
    drafted : int
        Ids proposed by a drafter and computed.
    accepted : int
        Those that were confirmed.
    """

    passes: int = 0
    positions: int = 0
    generated: int = 0
    forced: int = 0
    drafted: int = 0
    accepted: int = 0

    def plus(self, other: Counters) -> Counters:
        """Return the sums."""
        return Counters(*(a + b for a, b in zip(self, other, strict=True)))
