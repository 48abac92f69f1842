"""A sequence of a runtime together with the ledger of what it holds.

The runtime computes, the ledger remembers; here they are kept in step. Whatever fails,
is cancelled or interrupted, the timeline afterwards holds a beginning of what it
should, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from eliza.errors import InvalidArgument
from eliza.ledger import Ledger, plan_sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from eliza.backends.base import Capabilities, Row, Sequence

__all__ = ["Timeline"]


class Timeline:
    """Ids that a runtime holds, and the logits after the last of them.

    Parameters
    ----------
    sequence : Sequence
        Owned by the timeline.
    capabilities : Capabilities
        Of its backend.

    Attributes
    ----------
    sequence : Sequence
        The runtime's side.
    capabilities : Capabilities
        What it can do.
    passes, positions : int
        Batches given to the runtime so far, and the ids computed in them.
    on_pass : callable or None
        Called with the number of ids after each batch.
    """

    def __init__(self, sequence: Sequence, capabilities: Capabilities) -> None:
        self.sequence = sequence
        self.capabilities = capabilities
        self.passes = 0
        self.positions = 0
        self.on_pass: Callable[[int], None] | None = None
        self._ledger = Ledger()
        self._has_row = False
        self._kept_row: Row | None = None
        self._room: Row | None = None  # where it is kept

    @property
    def ids(self) -> list[int]:
        """The ids, oldest first."""
        return list(self._ledger.ids)

    @property
    def position(self) -> int:
        """How many ids there are."""
        return self._ledger.position

    @property
    def generation(self) -> int:
        """A number that moves whenever ids are dropped.

        `(generation, position)` names exact content.
        """
        return self._ledger.generation

    def sync(self, prompt: list[int]) -> int:
        """Make the timeline equal to a prompt; return how many ids were kept."""
        plan = plan_sync(
            self._ledger.ids,
            prompt,
            has_row=self._has_row or self._kept_row is not None,
            can_truncate=self.capabilities.truncate,
        )
        self.truncate(plan.keep)
        if plan.keep < len(prompt):
            self.append(prompt[plan.keep :])
        return plan.keep

    def append(self, ids: list[int]) -> None:
        """Decode ids; nothing changes if that fails."""
        self._has_row = False  # a decode that fails may have computed a piece
        self.sequence.decode(ids)
        self._ledger.extend(ids)
        self.count(len(ids))
        self._has_row = True
        self._kept_row = None

    def truncate(self, n: int) -> None:
        """Keep the first n ids."""
        if n < self._ledger.position:
            self.sequence.truncate(n)
            self._ledger.cut(n)
            self._has_row = False
            self._kept_row = None

    def row(self) -> Row:
        """Return the logits after the last id, valid until the next decode."""
        if self._kept_row is not None:
            return self._kept_row
        if not self._has_row:
            raise InvalidArgument("nothing was prefilled: there are no logits yet")
        return self.sequence.logits_window()

    def keep_row(self) -> None:
        """Copy the row after the last id, which paths above the timeline overwrite.

        So generation can go on from it when they are dropped. The copies of one
        timeline share their memory: a new 200 KB each time costs more than the copying.
        """
        if self._kept_row is None:
            row = self.row()
            if self._room is None or self._room.shape != row.shape:
                self._room = np.empty_like(row)
            np.copyto(self._room, row)
            self._kept_row = self._room
            self._has_row = False

    def unwind(self, n: int) -> None:
        """Cut what a path left in the runtime above the first n ids of the timeline.

        A runtime that cannot cut decodes the timeline again; n is then its position.
        """
        if self.sequence.position == n:
            return
        if self.capabilities.truncate:
            self.sequence.truncate(n)
        else:
            self.sequence.truncate(0)
            self.sequence.decode(self._ledger.ids)
            self.count(self._ledger.position)

    def count(self, positions: int) -> None:
        """Add a pass over so many positions to the counters."""
        self.passes += 1
        self.positions += positions
        if self.on_pass is not None:
            self.on_pass(positions)

    def realign(self) -> None:
        """Agree with the runtime again after an interrupt came between it and us."""
        held = self.sequence.position
        if held == self.position:
            return
        if held > self.position:
            self.sequence.truncate(self.position if self.capabilities.truncate else 0)
        self._ledger.cut(self.sequence.position)
        self._has_row = False
        self._kept_row = None
