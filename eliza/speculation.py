"""Ids proposed ahead of the model, and when proposing them pays.

A drafter guesses how the text goes on. The guesses join the next batch, the model's own
pick is made at each of them, under the constraint that holds there, and those up to the
first wrong one stay. Picks are thus those of plain decoding for equal logits, drawn
ones too: each takes the same number from the generator at the same place.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Protocol

from eliza._lookup import find_match
from eliza.errors import (
    Closed,
    InvalidArgument,
    InvalidType,
    NotSupported,
    OffPathError,
)
from eliza.step import Counters
from eliza.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eliza.backends.base import Backend
    from eliza.constraint import Constraint
    from eliza.locking import ModelLock
    from eliza.vocab import Vocab

__all__ = ["DraftModel", "Drafter", "Gate", "PromptLookup", "make_drafter"]


class Drafter(Protocol):
    """Guesses what comes next."""

    def propose(self, history: Sequence[int], n: int) -> Sequence[int]:
        """Return at most n ids that may follow the history; none if it has no idea.

        The ids are only guesses: what is returned changes the cost, not the outcome.
        Several sessions may share a drafter; it stays whoever's it is.
        """


class PromptLookup:
    """Proposes what followed the last ids when they came before.

    Text that repeats its prompt (summaries, edits, code) is guessed well by it; it
    computes nothing.

    Parameters
    ----------
    longest, shortest : int
        How many of the last ids must have come before: the longest match wins, and
        among equals the latest.
    """

    def __init__(self, longest: int = 6, shortest: int = 3) -> None:
        if not 1 <= shortest <= longest:
            raise InvalidArgument(
                f"shortest is {shortest} and longest {longest}: "
                "1 <= shortest <= longest holds"
            )
        self._longest, self._shortest = longest, shortest

    def propose(self, history: Sequence[int], n: int) -> list[int]:
        """Return what followed; a repetition that reaches the end goes on in turn."""
        ids = history if type(history) is list else list(history)
        begin = find_match(ids, self._longest, self._shortest)
        if begin < 0:
            return []
        period = len(ids) - begin
        return [ids[begin + i % period] for i in range(n)]


class DraftModel:
    """Proposes what a smaller model of the same vocabulary would write, greedily.

    Parameters
    ----------
    backend : Backend
        The smaller model; stays the caller's, and must outlive this.
    lock : ModelLock
        Held while it computes.
    vocab : Vocab
        Of the model that it drafts for.
    on_close : callable, optional
        Called with its counters, once.

    Raises
    ------
    InvalidArgument
        The vocabularies differ: ids would mean other texts. The message says where.
    """

    def __init__(
        self,
        backend: Backend,
        lock: ModelLock,
        vocab: Vocab,
        on_close: Callable[[Counters], None] | None = None,
    ) -> None:
        _check_same(vocab, backend.vocab)
        self._lock = lock
        self._n_vocab = vocab.n_vocab
        with lock:
            self._timeline = Timeline(
                backend.open(), backend.capabilities, backend.n_ctx
            )
        self._room = backend.n_ctx
        self._on_close = on_close
        self._lost = False  # its model was closed

    @property
    def on_piece(self) -> Callable[[], None] | None:
        """Called before each piece of its decodes; may raise, to cancel."""
        return self._timeline.sequence.on_piece

    @on_piece.setter
    def on_piece(self, check: Callable[[], None] | None) -> None:
        self._timeline.sequence.on_piece = check

    def propose(self, history: Sequence[int], n: int) -> list[int]:
        """Return the n ids of its greedy continuation, fewer at the context's end.

        None while another thread computes with the smaller model. To wait would gain
        nothing, and two models that draft for each other would wait for ever. None
        either once the smaller model is closed: what it drafted for goes on without.
        """
        n = min(n, self._room - len(history))
        if self._lost or n < 1 or not len(history) or not self._lock.take_if_free():
            return []
        ids: list[int] = []
        try:
            timeline = self._timeline
            timeline.realign()
            timeline.sync(list(history))
            while True:
                row = timeline.row()[: self._n_vocab]
                token = int(row.argmax())
                if row[token] != row[token]:  # NaN: it has no idea
                    return ids
                ids.append(token)
                if len(ids) == n:
                    return ids
                timeline.append([token], whole=True)
        except Closed:
            self._lost = True
            from eliza.logs import get_logger  # few ever log anything

            get_logger("eliza.speculation").warning(
                "the draft model was closed: nothing is drafted any more"
            )
            return []
        finally:
            self._lock.free()

    def close(self) -> None:
        """Free its timeline. May be called twice."""
        if not self._lock.foreign:
            with self._lock:
                self._timeline.sequence.close()
                tell, self._on_close = self._on_close, None
            if tell is not None:
                tell(Counters(self._timeline.passes, self._timeline.positions))


def _check_same(target: Vocab, draft: Vocab) -> None:
    if target.n_vocab != draft.n_vocab:
        raise InvalidArgument(
            f"the draft model has {draft.n_vocab} ids and the model {target.n_vocab}: "
            "a drafter needs the same vocabulary"
        )
    if target.fingerprint == draft.fingerprint:
        return
    for token in range(target.n_vocab):
        ours, theirs = target.decode([token]), draft.decode([token])
        if ours != theirs:
            raise InvalidArgument(
                f"the draft model writes id {token} as {theirs!r} and the model as "
                f"{ours!r}: a drafter needs the same vocabulary"
            )
    raise InvalidArgument(
        "the draft model's vocabulary differs from the model's in the kinds of its "
        "ids or in its rules: a drafter needs the same"
    )


def permitted(
    proposed: list[int], constraint: Constraint | None, ends: Callable[[int], bool]
) -> list[int]:
    """Return the ids up to the first that could not stand.

    Parameters
    ----------
    constraint : Constraint or None
        What binds the first of them; it is not moved.
    ends : callable
        Whether an id ends a generation: nothing follows it.
    """
    at = None if constraint is None else constraint.copy()
    draft: list[int] = []
    for token in proposed:
        if at is None:
            if ends(token):
                break
        elif at.done:
            break
        else:
            try:
                at.accept(token)
            except OffPathError:
                break
            if at.done and ends(token):
                break
        draft.append(token)
    return draft


def ids_of(proposed: object, n_vocab: int) -> list[int]:
    """Return what a drafter gave as ids."""
    try:
        ids = [operator.index(token) for token in proposed]  # type: ignore[attr-defined]
    except TypeError:
        raise InvalidType(
            f"the drafter proposed {proposed!r}; propose() returns a list of ids"
        ) from None
    for token in ids:
        if not 0 <= token < n_vocab:
            raise InvalidArgument(
                f"the drafter proposed id {token}; ids lie in [0, {n_vocab})"
            )
    return ids


class Gate:
    """Decides how many ids to draft, by what drafting brought and cost so far.

    With a chance p that a drafted id is confirmed, n of them yield 1 + p + ... + p^n
    ids for a pass that takes longer than a plain one. The n with the most ids per time
    is taken. Where none pays, one id is tried now and then, the more seldom the more
    often that failed.

    Parameters
    ----------
    most : int
        The most ids to draft at once.
    """

    # What n more ids add to a pass, in plain passes, before it was measured: that is
    # SmolLM2 on two cores, where 2 ids take 1.6 times as long as one, 16 take 6.7 and
    # 64 take 23 times. Other machines are told apart by one factor, which is measured.
    _FIRST, _EACH = 0.25, 0.35
    _FIRST_CHANCE = 0.75

    def __init__(self, most: int) -> None:
        self.most = most
        self._hits = self._FIRST_CHANCE
        self._misses = 1 - self._hits
        self._factor = 1.0
        self._plain = 0.0
        self._wait = 0
        self._pause = 1

    @property
    def chance(self) -> float:
        """How likely a drafted id is confirmed, later outcomes counting more."""
        return self._hits / (self._hits + self._misses)

    def cost(self, n: int) -> float:
        """Return what n drafted ids add to a pass, in plain passes."""
        return self._factor * (self._FIRST + self._EACH * n)

    def length(self, room: int) -> int:
        """Return how many ids to draft now, perhaps none, at most `room`."""
        p = self.chance
        most = min(self.most, room)
        if most < 1:
            return 0
        best, n_best, yielded, term = 1.0, 0, 1.0, 1.0
        for n in range(1, most + 1):
            term *= p
            yielded += term
            speed = yielded / (1 + self.cost(n))
            if speed > best:
                best, n_best = speed, n
        if n_best:
            return n_best
        if self._wait:
            self._wait -= 1
            return 0
        return 1

    def note_plain(self, seconds: float) -> None:
        """Note what a pass over one id took."""
        if self._plain:  # a pause of the machine counts for little
            self._plain += (min(seconds, 1.5 * self._plain) - self._plain) / 8
        else:
            self._plain = seconds

    def note(self, drafted: int, accepted: int, seconds: float | None) -> None:
        """Note what a batch with drafted ids brought, and took in all.

        None where more ids than one waited, so that it cannot be compared.
        """
        if self._plain > 0 and seconds is not None:
            added = seconds / self._plain - 1
            factor = added / (self._FIRST + self._EACH * drafted)
            self._factor += (min(max(factor, 0.02), 3.0) - self._factor) / 8
        self._hits += accepted
        self._misses += accepted < drafted
        if self._hits + self._misses > 32:  # what is long ago fades
            self._hits, self._misses = self._hits * 0.75, self._misses * 0.75
        if accepted:
            self._pause = 1
        else:
            self._pause = min(2 * self._pause, 64)
            self._wait = self._pause


def make_drafter(
    draft: Any, vocab: Vocab, *, can_truncate: bool, draft_max: int
) -> Drafter | None:
    """Return the drafter that a caller means by `draft`.

    Parameters
    ----------
    draft : None, "lookup", Model or Drafter
        What `Model.open` was given.

    Raises
    ------
    InvalidArgument, InvalidType
        It is none of these, or has another vocabulary.
    NotSupported
        The runtime cannot take wrong guesses back.
    """
    if isinstance(draft_max, bool) or not isinstance(draft_max, int):
        raise InvalidType(f"draft_max is {draft_max!r}; it is a whole number")
    if draft_max < 1:
        raise InvalidArgument(f"draft_max is {draft_max}; it is 1 or more")
    if draft is None:
        return None
    if not can_truncate:
        raise NotSupported(
            "this runtime or model keeps no past states, so that wrong guesses could "
            "not be taken back: open the session without draft"
        )
    if isinstance(draft, str):
        if draft != "lookup":
            raise InvalidArgument(f"draft is {draft!r}; the only name is 'lookup'")
        return PromptLookup()
    if hasattr(draft, "propose"):
        drafter: Drafter = draft
        return drafter
    if hasattr(draft, "drafter_for"):
        made: Drafter = draft.drafter_for(vocab)
        return made
    raise InvalidType(
        f"draft is a {type(draft).__name__}; give None, 'lookup', a Model, or an "
        "object with propose(history, n)"
    )
