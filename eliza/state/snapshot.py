"""A generation as a slot, and a slot as a generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eliza.errors import BundleError, OffPathError
from eliza.sampling import make_rng
from eliza.state.slots import Slot, pack_rng, unpack_rng

if TYPE_CHECKING:
    import numpy as np

    from eliza.generation import Generation
    from eliza.state.slots import Identity

__all__ = ["put", "take"]


def take(generation: Generation, identity: Identity) -> Slot:
    """Return a generation as it stands."""
    timeline = generation.timeline
    row = timeline.kept_row()
    return Slot(
        identity=identity,
        ids=tuple(timeline.ids),
        pending=tuple(generation.pending),
        generated=tuple(generation.ids),
        path=tuple(generation.path),
        finish=generation.finish,
        text=generation.text.state(),
        rng=pack_rng(generation.sampler.rng),
        row=row,
        state=timeline.sequence.save() if timeline.position else b"",
    )


def put(
    generation: Generation, slot: Slot, seed: int | np.random.Generator | None
) -> None:
    """Bring a generation to where a slot was taken.

    Raises
    ------
    BundleError
        The slot contradicts itself; nothing has changed.
    ContextOverflow, BackendError
        The runtime could not take the state.
    """
    vocab, constraint = generation.vocab, generation.constraint
    for ids in (slot.ids, slot.pending, slot.generated):
        if any(not 0 <= token < vocab.n_vocab for token in ids):
            raise BundleError("the slot holds an id that the model does not have")
    if slot.finish not in (None, "choice", "stop", "length"):
        raise BundleError(f"the slot's finish is {slot.finish!r}")
    if slot.row is not None and len(slot.row) < vocab.n_vocab:
        raise BundleError("the slot's row of logits is shorter than the vocabulary")
    if constraint is not None:
        trial = constraint.copy()
        trial.rollback(len(generation.path))
        try:
            for token in slot.path:
                trial.accept(token)
        except OffPathError as error:
            raise BundleError(f"the slot left its choices: {error}") from None
    rng = generation.sampler.rng
    rng = unpack_rng(slot.rng, rng) if seed is None else make_rng(seed)
    timeline = generation.timeline
    if slot.ids:
        timeline.load(list(slot.ids), slot.state, slot.row)
    else:
        timeline.truncate(0)
    generation.sampler.rng = rng
    if constraint is not None:
        generation.rewind()
        for token in slot.path:
            constraint.accept(token)
    generation.path = list(slot.path)
    generation.pending = list(slot.pending)
    generation.ids = list(slot.generated)
    generation.finish = slot.finish
    generation.text.load(slot.text)
