"""One generation: ids in, steps out. The only generation loop of eliza.

Ids that were chosen, forced ones included, wait in `_pending` and join the next batch,
so that a forced run costs no pass of its own and nothing is decoded after the last
choice.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eliza.chat import ChatTemplate
from eliza.errors import (
    Cancelled,
    Closed,
    InvalidArgument,
    NoCandidateError,
)
from eliza.locking import ModelLock
from eliza.messages import is_messages
from eliza.textstream import TextStream
from eliza.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

    from eliza.backends.base import Capabilities, Row, Sequence
    from eliza.constraint import Constraint
    from eliza.vocab import Prompt, Vocab

__all__ = ["Session", "Step"]


class Step(NamedTuple):
    """What one `Session.next` gave.

    Attributes
    ----------
    ids : tuple of int
        The ids of this step: the one that was picked, and the forced run after it. An
        end-of-generation id ends the span or the text and is not among them.
    text : str
        Their text, never half a character: bytes wait until the character is whole.
    forced : int
        How many of the ids were forced.
    logprob : float or None
        Log-probability of the picked id among those allowed; None for free text.
    final : bool
        Whether the generation has ended.
    finish_reason : {"choice", "stop", "length"} or None
        Why: the constraint is complete; an end-of-generation id or a stop text came;
        `max_tokens` is reached.
    """

    ids: tuple[int, ...]
    text: str
    forced: int
    logprob: float | None
    final: bool
    finish_reason: str | None


class Session:
    """A timeline of ids with an optional constraint on what comes next.

    Made by `Model.open`. Iterating yields `Step` objects until the last one is final.
    Calls from several threads queue on the model's lock; `cancel` works at any time.

    Parameters
    ----------
    sequence : eliza.backends.base.Sequence
        The runtime's timeline; owned by the session.
    vocab : Vocab
        Its vocabulary.
    capabilities : Capabilities
        Of the sequence's backend.
    lock : ModelLock, optional
        Held during each call.
    max_tokens : int, optional
        The most ids to generate, forced ones included; None for no limit.
    stop : iterable of str
        Texts at which free text ends. They do not apply inside a constraint.
    check : callable, optional
        Called before each piece of work; may raise to interrupt it.
    chat : ChatTemplate, optional
        Writes messages; without it they are refused.
    """

    def __init__(
        self,
        sequence: Sequence,
        vocab: Vocab,
        capabilities: Capabilities,
        *,
        lock: ModelLock | None = None,
        max_tokens: int | None = None,
        stop: Iterable[str] = (),
        check: Callable[[], None] | None = None,
        chat: ChatTemplate | None = None,
    ) -> None:
        if max_tokens is not None and max_tokens < 0:
            raise InvalidArgument(
                f"max_tokens is {max_tokens}; it must be 0 or more, or None"
            )
        self.vocab = vocab
        self.chat = chat or ChatTemplate(None, vocab)
        self.timeline = Timeline(sequence, capabilities)
        self._lock = ModelLock() if lock is None else lock
        self._max_tokens = max_tokens
        self._outer_check = check
        self._cancelled = threading.Event()
        self._closed = False
        self._text = TextStream(stop)
        self._constraint: Constraint | None = None
        self._pick: Callable[[Row], int] | None = None
        self._restart()
        sequence.on_piece = self._check

    def _restart(self) -> None:
        self._pending: list[int] = []
        self._ids: list[int] = []
        self._finish: str | None = None
        self._text.reset()

    # -- what it knows -----------------------------------------------------------

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids generated since the last `prefill`, `sync` or `reset`."""
        return tuple(self._ids)

    @property
    def output(self) -> bytes:
        """The bytes of the generated ids, a character cut short included."""
        return self.vocab.decode(self._ids)

    @property
    def history(self) -> tuple[int, ...]:
        """All ids in order: prompt and generated, decoded or waiting."""
        return (*self.timeline.ids, *self._pending)

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended; None while it goes on."""
        return self._finish

    # -- feeding -----------------------------------------------------------------

    def sync(self, prompt: list[int]) -> int:
        """Make the timeline equal to a prompt, keeping what it shares with it.

        Parameters
        ----------
        prompt : list of int
            All ids; not empty.

        Returns
        -------
        int
            How many ids were kept.
        """
        if not len(prompt):
            raise InvalidArgument("empty prompt: a timeline needs at least one id")
        with self._lock:
            self._ready()
            self._restart()
            return self.timeline.sync(prompt)

    def prefill(self, prompt: Prompt) -> None:
        """Append a prompt: text, parsed with special tokens, ids, or chat messages.

        What stands at the very start gets the begin-of-sequence id where the vocabulary
        wants one. Messages are written by the model's own template; see `ChatTemplate`.
        """
        if is_messages(prompt):
            ids = self.chat.ids(prompt, start=not self.history)
        elif isinstance(prompt, str) and self.history:
            ids = self.vocab.encode(prompt, special=True)
        else:
            ids = self.vocab.prompt_ids(prompt)
        with self._lock:
            self._ready()
            ids = [*self._pending, *ids]
            if ids:
                self.timeline.append(ids)
            self._restart()

    def set_constraint(
        self, constraint: Constraint, pick: Callable[[Row], int] | None = None
    ) -> None:
        """Bind what comes next to a constraint, from its present position on.

        Parameters
        ----------
        constraint : Constraint
            Moved by the session.
        pick : callable, optional
            Given the logits, returns one of the allowed ids; by default the
            constraint's argmax.
        """
        with self._lock:
            self._ready()
            self._constraint = constraint
            self._pick = pick
            self._text.flush()
            if self._finish != "length":
                self._finish = None

    def clear_constraint(self) -> None:
        """Let free text come next."""
        with self._lock:
            self._ready()
            self._constraint = None
            if self._finish == "choice":
                self._finish = None

    # -- generating --------------------------------------------------------------

    def next(self) -> Step:
        """Generate the next ids.

        A failed call changes nothing that was chosen: it can be repeated.

        Returns
        -------
        Step
            After the end, an empty final step again.

        Raises
        ------
        Cancelled
            `cancel` was called; `reset` makes the session usable again.
        ContextOverflow
            The timeline is longer than the context.
        NoCandidateError
            All allowed ids are impossible (NaN or -inf).
        """
        with self._lock:
            self._ready()
            if self._finish is None and self._room() == 0:
                self._finish = "length"
            if self._finish is not None:
                return self._end_step()
            if self._constraint is None:
                return self._free_step()
            return self._bound_step(self._constraint)

    def __iter__(self) -> Iterator[Step]:
        while True:
            step = self.next()
            yield step
            if step.final:
                return

    def _bound_step(self, constraint: Constraint) -> Step:
        logprob = 0.0
        ids: list[int] = []
        room = self._room()
        run = constraint.forced()
        if not len(run) and not constraint.done:
            allowed = constraint.allowed()
            if not len(allowed):
                raise NoCandidateError(
                    f"at step {len(self._ids) + 1} of the generation nothing is "
                    "allowed, and the constraint is not done"
                )
            row = self._row()
            token = (self._pick or constraint.argmax)(row)
            values = constraint.logprobs(row)
            logprob = float(values[allowed.searchsorted(token)])
            constraint.accept(token)
            ids.append(token)
            run = constraint.forced()
        picked = len(ids)
        fits = run if room is None else run[: room - picked]
        for token in fits.tolist():
            constraint.accept(token)
            ids.append(token)
        if constraint.done:
            self._finish = "choice"
            if ids and self._ends(ids[-1]):
                ids.pop()
        elif room is not None and len(ids) == room:
            self._finish = "length"
        return self._emit(ids, len(fits), logprob)

    def _free_step(self) -> Step:
        token = free_argmax(self._row()[: self.vocab.n_vocab])
        if self._ends(token):
            self._finish = "stop"
            return self._end_step()
        if self._room() == 1:
            self._finish = "length"
        return self._emit([token], 0, None)

    def _ends(self, token: int) -> bool:
        """Whether an id ends a generation.

        Special ids only are looked up in `eog`, which takes a scan of the vocabulary
        (10 to 80 ms) when it is first needed.
        """
        return self.vocab.is_special(token) and token in self.vocab.eog

    def _emit(self, ids: list[int], forced: int, logprob: float | None) -> Step:
        self._pending.extend(ids)
        self._ids.extend(ids)
        data = self.vocab.decode(ids)
        if self._constraint is not None:
            text = self._text.bound(data)
        else:
            text, stopped = self._text.free(data)
            if stopped:
                self._finish = "stop"
        if self._finish is not None:
            text += self._text.flush()
        return Step(
            tuple(ids),
            text,
            forced,
            logprob,
            self._finish is not None,
            self._finish,
        )

    def _end_step(self) -> Step:
        return Step((), self._text.flush(), 0, None, True, self._finish)

    def _room(self) -> int | None:
        if self._max_tokens is None:
            return None
        return self._max_tokens - len(self._ids)

    # -- the backend -------------------------------------------------------------

    def row(self) -> Row:
        """Return the logits after the last id, valid until the next decode.

        Decodes what waits.
        """
        with self._lock:
            self._ready()
            return self._row()

    def _row(self) -> Row:
        if self._pending:
            self.timeline.append(self._pending)
            self._pending = []
        return self.timeline.row()

    # -- ending ------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the running call, or the next one, from any thread.

        It raises `Cancelled` within one piece of work, and so does each further call
        until `reset`. A second call does nothing more.
        """
        self._cancelled.set()

    def reset(self) -> None:
        """Drop the timeline, the constraint and a cancellation."""
        self._cancelled.clear()
        with self._lock:
            self._ready()
            self._restart()
            self._constraint = None
            self.timeline.truncate(0)

    def close(self) -> None:
        """Free the sequence. May be called twice; other calls then raise `Closed`."""
        self._cancelled.set()
        if self._lock.foreign:
            return  # what there is to free is the parent's
        with self._lock:
            if not self._closed:
                self._closed = True
                self.timeline.sequence.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise Closed("the session is closed")
        if self._cancelled.is_set():
            raise Cancelled("the session was cancelled; reset() makes it usable again")
        if self._outer_check is not None:
            self._outer_check()

    def _ready(self) -> None:
        """Begin a call, with the lock held."""
        self._check()
        self.timeline.realign()


def free_argmax(row: Row) -> int:
    """Return the id with the highest logit, ties to the lowest; NaN never wins."""
    token = int(row.argmax())
    if not row[token] > -np.inf:
        usable = np.where(np.isnan(row), -np.inf, row)
        token = int(usable.argmax())
        if not usable[token] > -np.inf:
            raise NoCandidateError("every logit of the row is NaN or -inf")
    return token
