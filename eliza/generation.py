"""The only generation loop of eliza: rows of logits in, steps out.

Ids that were chosen, forced ones included, wait in `pending` and join the next batch,
so that a forced run costs no pass of its own and nothing is decoded after the last
choice. Drafted ids join it behind them; see `speculation`.

A `Generation` knows nothing of threads, cancelling and closing: `session` does.
"""

from __future__ import annotations

import operator
import time
from typing import TYPE_CHECKING

from eliza._cursor import Cursor
from eliza.errors import (
    BackendError,
    ContextOverflow,
    InvalidArgument,
    InvalidType,
    NoCandidateError,
    OffPathError,
    TokenLimit,
)
from eliza.speculation import Gate, ids_of, permitted
from eliza.step import Counters, Step
from eliza.textstream import TextStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    from numpy.typing import NDArray

    from eliza.backends.base import Row
    from eliza.constraint import Constraint
    from eliza.sampling import Sampler
    from eliza.speculation import Drafter
    from eliza.timeline import Timeline
    from eliza.vocab import Vocab

    _Count = tuple[list[int], list[int], list[int], str | None, tuple[str, bytes]]

__all__ = ["Generation"]


class Generation:
    """What is generated above a timeline.

    Parameters
    ----------
    timeline : Timeline
        Owned by the generation.
    vocab : Vocab
        Of its model.
    sampler : Sampler
        Picks ids.
    max_tokens : int or None
        The most ids to generate, forced ones included.
    stop : iterable of str
        Texts at which free text ends.
    drafter : Drafter or None
        Proposes ids.
    draft_max : int
        The most ids to propose at once.

    Attributes
    ----------
    pending : list of int
        Ids that belong to the history and are not decoded yet.
    ids : list of int
        Those generated since the last `restart`.
    finish : str or None
        Why it ended, as `Step.finish_reason` says.
    constraint : Constraint or None
        What binds the next id.
    path : list of int
        Ids that the constraint took since it was bound.
    taken : list of int
        Ids that the running step has picked so far.
    """

    def __init__(
        self,
        timeline: Timeline,
        vocab: Vocab,
        sampler: Sampler,
        *,
        max_tokens: int | None = None,
        stop: Iterable[str] = (),
        drafter: Drafter | None = None,
        draft_max: int = 1,
    ) -> None:
        self.timeline = timeline
        self.vocab = vocab
        self.sampler = sampler
        self.max_tokens = max_tokens
        self.text = TextStream(stop)
        self.drafter = drafter
        self.gate = Gate(draft_max)
        self.constraint: Constraint | None = None
        self.path: list[int] = []
        self._pick: Callable[[Row], int] | None = None
        self._greedy = self._narrow = False
        self._generated = self._forced = self._drafted = self._accepted = 0
        self.restart()

    def restart(self) -> None:
        """Begin to count anew, above what the timeline holds."""
        self.pending: list[int] = []
        self.taken: list[int] = []
        self.ids: list[int] = []
        self.finish: str | None = None
        self._late: Exception | None = None  # of a pick, for the next step to raise
        self.text.reset()

    @property
    def history(self) -> list[int]:
        """All ids in order: decoded, waiting, or taken in the running step."""
        return [*self.timeline.ids, *self.pending, *self.taken]

    @property
    def counters(self) -> Counters:
        """What was done so far."""
        return Counters(
            self.timeline.passes,
            self.timeline.positions,
            self._generated,
            self._forced,
            self._drafted,
            self._accepted,
        )

    # -- what binds --------------------------------------------------------------

    def bind(
        self,
        constraint: Constraint,
        pick: Callable[[Row], int] | None = None,
        *,
        greedy: bool = False,
        narrow: bool = False,
    ) -> None:
        """Bind what comes next to a constraint, from its present position on.

        Parameters
        ----------
        pick : callable, optional
            Given the logits, returns an allowed id; by default the sampler picks.
        greedy : bool
            The highest logit is taken, whatever the sampler's temperature.
        narrow : bool
            `pick` reads no logits but those of the allowed ids.
        """
        self.constraint = constraint
        self.path = []
        self._pick = pick
        self._greedy = greedy
        narrow = narrow if pick is not None else not self.sampler.adjusts
        self._narrow = narrow and isinstance(constraint, Cursor)
        self._late = None
        if self.finish != "length":
            self.finish = None

    def unbind(self) -> None:
        """Let free text come next."""
        self.constraint = None
        self.path = []
        self._pick = self._late = None
        if self.finish == "choice":
            self.finish = None

    def rewind(self) -> None:
        """Take the constraint back to where it was bound: it binds what comes next."""
        if self.constraint is not None and self.path:
            try:
                self.constraint.rollback(len(self.path))
            except InvalidArgument as error:
                raise InvalidArgument(
                    "the constraint was moved by someone else than the session: bind "
                    f"it again ({error})"
                ) from error
        self.path = []

    @property
    def inside(self) -> bool:
        """Whether something binds the next id."""
        return self.constraint is not None and not self.constraint.done

    # -- the timeline ------------------------------------------------------------

    def realign(self) -> None:
        """Let ids wait again that the runtime has lost to a failure."""
        lost = self.timeline.realign()
        if lost:
            self.pending = [*lost, *self.pending]

    def prefill(
        self, ids: list[int], report: Callable[[int, int], None] | None, every: int
    ) -> None:
        """Append a prompt, and begin above it; no ids are no change."""
        if report is not None:
            self.timeline.check_room(self.timeline.position + len(self.pending + ids))
            self._decode([])  # what waits is part of each frontier
            self._report_above(ids, report, every)
        elif ids:
            before, waiting = self._count(), self.pending
            self.rewind()
            self.restart()
            try:
                self.timeline.append([*waiting, *ids])
            except BaseException:
                self._count_on(before)
                raise

    def _report_above(
        self, ids: list[int], report: Callable[[int, int], None], every: int
    ) -> None:
        """Append ids in pieces; what is saved at a frontier begins to count there."""
        before = self._count()
        history = self.timeline.ids
        if ids:
            self.rewind()
            self.restart()
        try:
            self.timeline.append_in_pieces(ids, report, every)
        except BaseException:
            self._count_on(before)
            self.pending = history[self.timeline.position :]
            raise

    def _count(self) -> _Count:
        """Return what a prompt ends: where the generation above the last one is."""
        return self.pending, self.ids, self.path, self.finish, self.text.state()

    def _count_on(self, count: _Count) -> None:
        """Let a generation go on that `restart` and `rewind` had ended."""
        self.rewind()
        self.pending, self.ids, self.path, self.finish, text = count
        self.text.load(text)
        if self.constraint is not None:
            for token in self.path:
                self.constraint.accept(token)

    def sync(
        self, prompt: list[int], report: Callable[[int, int], None] | None, every: int
    ) -> int:
        """Make the timeline a prompt, and begin above it."""
        timeline = self.timeline
        timeline.check_room(len(prompt))
        name = timeline.generation, timeline.position
        before = self._count()
        self.rewind()
        self.restart()
        try:
            return timeline.sync(prompt, report, every)
        except BaseException:
            if name == (timeline.generation, timeline.position):  # nothing has changed
                self._count_on(before)
            raise

    def cut(self, n: int) -> int:
        """Keep the first n ids of the history, or none; return how many stayed."""
        held = self.timeline.position
        n = max(0, min(n, held + len(self.pending)))
        pending = self.pending[: n - held] if n > held else []
        if n < held and not self.timeline.cut_back(n):
            n = 0
        self.restart()
        self.pending = pending
        self.rewind()
        return n

    # -- one step ----------------------------------------------------------------

    def step(self) -> Step:
        """Generate the next ids; a call that fails changes nothing that was chosen."""
        if self._late is not None:
            failure, self._late = self._late, None
            raise failure
        new = _Taken(None if self.max_tokens is None else self.max_tokens - self.n_ids)
        spent = new.room is not None and new.room <= 0
        before = self.finish
        if self.finish in (None, "length"):  # the limit may have been moved since
            self.finish = "length" if spent else None
        if self.finish is None and self.constraint is not None:
            if self.constraint.done:
                self.finish = "choice"
            self._follow_forced(new)
        elif self.finish == "length" and self.inside:
            raise TokenLimit(
                f"max_tokens={self.max_tokens} is reached inside a span: the choice is "
                f"not complete after {self.n_ids} ids. Set the session's max_tokens "
                "higher to go on, or reset it"
            )
        if self.finish is None and not new.ids:
            try:
                self._walk(new)
            except BaseException:
                if not new.ids:
                    self.finish = before
                raise
            self._follow_forced(new)
        return self._emit(new)

    def _walk(self, new: _Taken) -> None:
        """Decode what waits with a draft behind it, and pick until the two part."""
        begun = time.perf_counter()
        waiting = len(self.pending)
        draft = self._draft(new.room)
        draft = self._decode(draft)
        seconds = time.perf_counter() - begun
        first = len(self.pending) - 1
        self.taken = new.ids
        new.drafted = len(draft)
        failure: BaseException | None = None
        check = self.timeline.sequence.on_piece
        try:
            if check is not None:  # a cancel that came during the last piece
                check()
            for at in range(len(draft) + 1):
                if draft:
                    row = self.timeline.attempted_row(first + at)
                else:
                    row = self._row_to_pick_from()
                token = self._next_id(row, new)
                more = self._take(token, new)
                stands = at < len(draft) and token == draft[at]
                new.accepted += stands
                if not (more and stands):
                    break
        except BaseException as error:
            failure = error
        self.taken = []
        if draft:
            try:
                self.timeline.commit(first + 1 + new.accepted)
                self.pending, new.held = [], new.accepted
            except BackendError:
                pass  # it is empty now, by its contract: the next call fills it again
            except BaseException as error:
                failure = failure or error
            comparable = seconds if waiting == 1 else None
            self.gate.note(len(draft), new.accepted, comparable)
        elif self.drafter is not None and waiting == 1:  # a row at hand took no pass
            self.gate.note_plain(seconds)
        if failure is not None:
            self._fail(failure, new)

    def _fail(self, failure: BaseException, new: _Taken) -> None:
        """Raise what a pick failed with, unless ids came before it in the same batch.

        These stand, and the next step says what failed.
        """
        if not new.ids:
            raise failure
        if not isinstance(failure, Exception):  # an interrupt waits for nothing
            self._emit(new)
            raise failure
        if not isinstance(failure, NoCandidateError):  # it will meet the same row
            self._late = failure

    def _decode(self, draft: list[int]) -> list[int]:
        """Decode what waits, and the draft if it fits; return what did of it."""
        if draft:
            try:
                self.timeline.attempt([*self.pending, *draft])
                return draft
            except ContextOverflow:
                self.realign()  # the draft was too long, what waits may fit
        if self.pending:
            self.timeline.append(self.pending, self._reads_whole_rows)
            self.pending = []
        return []

    def _next_id(self, row: Row, new: _Taken) -> int:
        """Return the id that comes at this row: the only one there is, or a pick."""
        sampler, constraint = self.sampler, self.constraint
        if constraint is not None:
            if new.ids and len(run := constraint.forced()):
                new.forced += 1
                return int(run[0])
            allowed = constraint.allowed()
            if not len(allowed):
                raise NoCandidateError(
                    f"at step {self.n_ids + 1} of the generation nothing is "
                    "allowed, and the constraint is not done"
                )
        if self._pick is not None and constraint is not None:
            token = _picked(self._pick(row), allowed)
        else:
            wanted = sampler.last_n
            last = [*self._tail(wanted), *new.ids] if wanted else []
            adjusted = sampler.adjust(row, last)
            if constraint is None:
                return sampler.pick_free(adjusted)
            token = sampler.pick(constraint, adjusted, greedy=self._greedy)
        if constraint is not None:
            values = constraint.logprobs(row)
            value = float(values[allowed.searchsorted(token)])
            new.logprob = value + (new.logprob or 0.0)
        return token

    def _take(self, token: int, new: _Taken) -> bool:
        """Let an id belong to the generation; return whether more may follow."""
        constraint = self.constraint
        if constraint is None:
            if self._ends(token):
                self.finish = "stop"
                return False
            new.ids.append(token)
            text, stopped = self.text.free(self.vocab.decode([token]))
            new.text += text
            if stopped:
                self.finish = "stop"
            elif len(new.ids) == new.room:
                self.finish = "length"
        else:
            constraint.accept(token)
            self.path.append(token)
            if constraint.done:
                self.finish = "choice"
            if not (constraint.done and self._ends(token)):
                new.ids.append(token)
        return self.finish is None and len(new.ids) != new.room

    def _follow_forced(self, new: _Taken) -> None:
        """Take the ids that can only go one way, as far as the limit permits."""
        constraint = self.constraint
        if constraint is None or self.finish is not None:
            return
        run = constraint.forced()
        if new.room is not None:
            run = run[: new.room - len(new.ids)]
        for token in run.tolist():
            self._take(token, new)
            new.forced += 1
            new.logprob = new.logprob or 0.0

    def _ends(self, token: int) -> bool:
        """Whether an id ends a generation.

        Special ids only are looked up in `eog`, which takes a scan of the vocabulary
        (10 to 80 ms) when it is first needed.
        """
        return self.vocab.is_special(token) and token in self.vocab.eog

    def _emit(self, new: _Taken) -> Step:
        bound = self.constraint is not None
        self.pending += new.ids[new.held :]
        self.ids += new.ids
        self._generated += len(new.ids)
        self._forced += new.forced
        self._drafted += new.drafted
        self._accepted += new.accepted
        text = new.text
        if bound and new.ids:
            text = self.text.bound(self.vocab.decode(new.ids))
        if self.finish is not None:
            text += self.text.flush()
        return Step(
            tuple(new.ids),
            text,
            new.forced,
            new.logprob,
            self.finish is not None,
            self.finish,
            new.drafted,
            new.accepted,
        )

    @property
    def _reads_whole_rows(self) -> bool:
        """Whether a pick may read all logits of a row."""
        return self.constraint is None or not self._narrow

    def _row_to_pick_from(self) -> Row:
        """Return the row after what was decoded; what a pick does not read may be NaN.

        Cursors read the logits of allowed ids only; of other constraints it is not
        known, and bias and penalty change the row as a whole.
        """
        if self.constraint is None or self._reads_whole_rows:
            return self.row()
        self._decode([])
        if not self.timeline.has_row:
            return self.row()
        allowed = self.constraint.allowed()
        return self.timeline.narrow_row(allowed, self.vocab.n_vocab)

    # -- drafts ------------------------------------------------------------------

    def _draft(self, room: int | None) -> list[int]:
        """Return ids to try behind those that wait: what the constraint permits."""
        if self.drafter is None or not self.pending:
            return []
        most = self.timeline.sequence.max_rows - len(self.pending)
        n = self.gate.length(most if room is None else min(most, room - 1))
        if n < 1:
            return []
        proposed = ids_of(self.drafter.propose(self.history, n), self.vocab.n_vocab)
        return permitted(proposed[:n], self.constraint, self._ends)

    def _tail(self, n: int) -> list[int]:
        return [*self.timeline.tail(n), *self.pending][-n:]

    @property
    def n_ids(self) -> int:
        """How many ids were generated since the last `restart`."""
        return len(self.ids)

    # -- the row -----------------------------------------------------------------

    def row(self) -> Row:
        """Return the logits after the last id, valid until the next decode.

        Where they have to be computed again and that fails, the ids it took wait.
        """
        self._decode([])
        timeline = self.timeline
        if timeline.has_row:
            return timeline.row()
        ids = timeline.ids
        try:
            return timeline.row()
        except BaseException:
            self.pending = ids[timeline.position :]
            raise


class _Taken:
    """What a step took so far."""

    __slots__ = (
        "accepted", "drafted", "forced", "held", "ids", "logprob", "room", "text",
    )  # fmt: skip

    def __init__(self, room: int | None) -> None:
        self.room = room
        self.ids: list[int] = []
        self.text = ""
        self.logprob: float | None = None
        self.forced = self.drafted = self.accepted = 0
        self.held = 0  # how many of the ids the runtime has


def _picked(token: object, allowed: NDArray[np.int32]) -> int:
    """Return what a caller's pick gave as an id, if it is allowed."""
    try:
        number = operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidType(
            f"pick returned {token!r}; it returns one of the allowed ids"
        ) from None
    # 2 us where `number in allowed` takes 40, as cold as NumPy is after a decode.
    at = allowed.searchsorted(number)
    if at == len(allowed) or allowed[at] != number:
        raise OffPathError(f"pick returned id {number}, which is not allowed here")
    return number
