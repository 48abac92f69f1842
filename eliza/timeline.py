"""A sequence of a runtime together with the ledger of what it holds.

The runtime computes, the ledger remembers; here they are kept in step. Whatever fails,
is cancelled or interrupted, the timeline afterwards holds a beginning of what it
should, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from eliza.errors import BackendError, ContextOverflow, InvalidArgument
from eliza.ledger import Ledger, plan_sync
from eliza.narrow import NarrowRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from eliza.backends.base import Capabilities, HeadRows, Row, Sequence

__all__ = ["Timeline"]


class Timeline:
    """Ids that a runtime holds, and the logits after the last of them.

    Parameters
    ----------
    sequence : Sequence
        Owned by the timeline.
    capabilities : Capabilities
        Of its backend.
    n_ctx : int, optional
        How many ids its context takes at most.

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

    def __init__(
        self,
        sequence: Sequence,
        capabilities: Capabilities,
        n_ctx: int | None = None,
    ) -> None:
        self.sequence = sequence
        self.capabilities = capabilities
        self.passes = 0
        self.positions = 0
        self.on_pass: Callable[[int], None] | None = None
        self._n_ctx = n_ctx
        self._ledger = Ledger()
        self._has_row = False
        self._row_at = 0
        self._kept_row: Row | None = None
        self._trial: list[int] = []
        self._rows = NarrowRows(sequence, capabilities)
        self._room: Row | None = None  # where it is kept

    @property
    def ids(self) -> list[int]:
        """The ids, oldest first."""
        return list(self._ledger.ids)

    def tail(self, n: int) -> list[int]:
        """Return the last n ids."""
        ids = self._ledger.ids
        return ids[max(0, len(ids) - n) :]

    @property
    def position(self) -> int:
        """How many ids there are."""
        return self._ledger.position

    def check_room(self, n: int) -> None:
        """Raise ContextOverflow if n ids are more than the context takes at all.

        Asked before anything is dropped or computed. Whether they fit beside other
        sequences, only the runtime knows.
        """
        if self._n_ctx is not None and n > self._n_ctx:
            raise ContextOverflow(
                f"{n} ids do not fit into a context of {self._n_ctx}; n_ctx= of load() "
                "sets how many do"
            )

    @property
    def generation(self) -> int:
        """A number that moves whenever ids are dropped.

        `(generation, position)` names exact content.
        """
        return self._ledger.generation

    def sync(
        self,
        prompt: list[int],
        report: Callable[[int, int], None] | None = None,
        every: int = 0,
    ) -> int:
        """Make the timeline equal to a prompt; return how many ids were kept.

        With `report`, it is decoded in pieces; if that raises, the timeline keeps the
        pieces that were decoded. Without, a prompt that is refused (too long, or with
        a wrong id) leaves it as it was.
        """
        plan = plan_sync(
            self._ledger.ids,
            prompt,
            has_row=self.has_row,
            can_truncate=self.capabilities.truncate,
        )
        dropped = self._ledger.ids[plan.keep :]
        generation = self._ledger.generation
        self.truncate(plan.keep)
        if report is not None:
            self._report_pieces(prompt[plan.keep :], report, every)
        elif plan.keep < len(prompt):
            try:
                self.append(prompt[plan.keep :])
            except (ContextOverflow, InvalidArgument):
                if dropped:  # what was refused shall change nothing
                    self.append(dropped)
                    self._ledger.generation = generation
                raise
        return plan.keep

    def append_in_pieces(
        self, ids: list[int], report: Callable[[int, int], None], every: int
    ) -> None:
        """Decode ids piece by piece, and report each point at which all is whole.

        Parameters
        ----------
        report : callable
            Given the position and where it will end: before the first piece, and after
            each. It may raise: the timeline is then as before, or empty where the
            runtime cannot cut.
        every : int
            Pieces end at its multiples, so that a prefill that is resumed has the
            pieces of one that was not.
        """
        start = self.position
        # One that is not computed yet is not worth it: a cut decodes an id again.
        row = None if self.capabilities.head_rows else self.kept_row()
        try:
            self._report_pieces(ids, report, every)
        except BaseException:
            if self.cut_back(start):
                self._kept_row = row
            raise

    def _report_pieces(
        self, ids: list[int], report: Callable[[int, int], None], every: int
    ) -> None:
        start = self.position
        end = start + len(ids)
        report(start, end)
        while (at := self.position) < end:
            stop = min(end, (at // every + 1) * every)
            self.append(ids[at - start : stop - start])
            report(stop, end)

    def append(self, ids: list[int], whole: bool = False) -> None:
        """Decode ids; nothing changes if that fails.

        Parameters
        ----------
        whole : bool
            Whether the row after them will be read as a whole; see `HeadRows`.
        """
        self.check_room(self.position + len(ids))
        had_row, self._has_row = self._has_row, False  # it may compute a piece and fail
        if self.capabilities.head_rows:
            cast("HeadRows", self.sequence).whole_row = whole
        try:
            self.sequence.decode(ids)
        except InvalidArgument:  # nothing was computed, by its contract
            self._has_row = had_row
            raise
        self._ledger.extend(ids)
        self.count(len(ids))
        self._has_row = True
        self._row_at = 0
        self._kept_row = None

    def attempt(self, ids: list[int]) -> None:
        """Decode ids that may not stay, with a row after each; nothing is committed.

        `commit` follows. A failure in between leaves ids in the runtime that are not in
        the ledger; `realign` drops them.
        """
        self._has_row = False
        self._trial = []
        self.sequence.decode_many(ids)
        self._kept_row = None
        self._trial = ids
        self.count(len(ids))

    def attempted_row(self, i: int) -> Row:
        """Return the row after the i-th id of the attempt, until it is committed."""
        return self.sequence.logits_window(i)

    def commit(self, keep: int) -> None:
        """Take the first ids of the attempt into the timeline and drop the others.

        The runtime computes nothing for it; the row after the last id stays at hand.
        """
        trial, self._trial = self._trial, []
        if not 1 <= keep <= len(trial):
            raise InvalidArgument(f"keep is {keep}; it lies in [1, {len(trial)}]")
        if keep < len(trial):
            row = self.sequence.logits(keep - 1)
            self.sequence.truncate(self.position + keep)
            self._kept_row = row
        else:
            self._has_row = True
            self._row_at = keep - 1
        self._ledger.extend(trial[:keep])

    def load(self, ids: list[int], state: bytes, row: Row | None) -> None:
        """Put a state in place of the timeline that `Sequence.save` gave for these ids.

        Parameters
        ----------
        row : array, optional
            The logits after the last of them; without it they cannot be asked for.
        """
        try:
            self.sequence.restore(state, len(ids))
        except BackendError:
            self._has_row = False  # the rows may be gone though the ids are not
            raise
        self._ledger.replace(ids)
        self._has_row = False
        self._kept_row = row

    @property
    def has_row(self) -> bool:
        """Whether `row` decodes nothing."""
        return self._has_row or self._kept_row is not None

    def kept_row(self) -> Row | None:
        """Return a copy of the row after the last id, if it is at hand."""
        return self.row().copy() if self.has_row else None

    def truncate(self, n: int) -> None:
        """Keep the first n ids."""
        if n < self._ledger.position:
            self.sequence.truncate(n)
            self._ledger.cut(n)
            self._has_row = False
            self._kept_row = None

    def cut_back(self, n: int) -> bool:
        """Keep the first n ids, or none where the runtime cannot cut; say which.

        Whatever is in the runtime above the ledger goes too.
        """
        cut = self.capabilities.truncate or n in (0, self.sequence.position)
        n = n if cut else 0
        try:
            self.sequence.truncate(n)
        except BackendError:  # it is empty now, by its contract
            cut, n = False, self.sequence.position
        self._ledger.cut(n)
        self._has_row = False
        self._kept_row = None
        return cut

    def row(self) -> Row:
        """Return the logits after the last id, valid until the next decode.

        Where they were lost, to a cut or a failed decode, the last id is decoded again.
        """
        if self._kept_row is not None:
            return self._kept_row
        if not self._has_row:
            ids = self.ids
            if not ids:
                raise InvalidArgument("nothing was prefilled: there are no logits yet")
            self.sync(ids)
        return self.sequence.logits_window(self._row_at)

    def narrow_row(self, ids: NDArray[np.int32], n_vocab: int) -> Row:
        """Return the row after the last id for someone who reads some logits of it.

        Where the runtime can compute single logits, and these are few, the others are
        NaN; else it is the whole row. It is valid until the next decode, or the next
        narrow row.

        Parameters
        ----------
        ids : int32 array
            Those that are read.
        """
        if self._kept_row is not None or not self._has_row:
            return self.row()
        return self._rows.of(ids, n_vocab, self._row_at)

    def narrow_row_of(self, i: int, ids: NDArray[np.int32], n_vocab: int) -> Row:
        """Do the same for row i of the last decode of the sequence."""
        return self._rows.of(ids, n_vocab, i)

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

    def realign(self) -> list[int]:
        """Agree with the runtime again after an interrupt came between it and us.

        Returns the ids that it has lost: it could not be cut back to them.
        """
        held = self.sequence.position
        if held == self.position:
            return []
        if held > self.position:
            self.sequence.truncate(self.position if self.capabilities.truncate else 0)
        lost = self._ledger.ids[self.sequence.position :]
        self._ledger.cut(self.sequence.position)
        self._has_row = False
        self._kept_row = None
        return lost
