"""The pipe: prompts in, steps out, from any thread, with cancel and saved state."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from eliza.errors import (
    Cancelled,
    Closed,
    InvalidArgument,
    InvalidType,
    NotSupported,
)
from eliza.generation import Generation
from eliza.host import FRONTIER, Frontier, Host, check_limit
from eliza.messages import is_messages
from eliza.speculation import DraftModel
from eliza.step import Counters, Step

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from typing import Self

    import numpy as np

    from eliza.backends.base import Row
    from eliza.constraint import Constraint
    from eliza.state.slots import Identity
    from eliza.timeline import Timeline
    from eliza.tokenizer import Prompt
    from eliza.tokentrie import TokenTrie
    from eliza.vocab import Vocab

__all__ = ["Session"]


class Session:
    """A timeline of ids with an optional constraint on what comes next.

    Made by `Model.open`. Iterating yields `Step` objects until the last one is final.
    Calls from several threads queue on the model's lock; `cancel` works at any time.

    Parameters
    ----------
    generation : Generation
        Owned by the session.
    host : Host
        The model's side.

    Attributes
    ----------
    vocab : Vocab
        The model's vocabulary.
    """

    def __init__(self, generation: Generation, host: Host) -> None:
        self.vocab: Vocab = generation.vocab
        self._generation = generation
        self._host = host
        self._lock = host.lock
        self._trie: TokenTrie | None = None
        self._cancelled = threading.Event()
        self._interrupt: threading.Event | None = None  # of the running call
        self._in_call = False
        self._closed = False
        generation.timeline.sequence.on_piece = self._check
        if isinstance(generation.drafter, DraftModel):
            generation.drafter.on_piece = self._check

    # -- what it knows -----------------------------------------------------------

    @property
    def timeline(self) -> Timeline:
        """What the runtime holds."""
        return self._generation.timeline

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids generated since the last `prefill`, `sync` or `reset`."""
        generation = self._generation
        return (*generation.ids, *generation.taken)

    @property
    def output(self) -> bytes:
        """The bytes of the generated ids, a character cut short included."""
        return self.vocab.decode(self.ids)

    @property
    def history(self) -> tuple[int, ...]:
        """All ids in order: prompt and generated, decoded or waiting."""
        return tuple(self._generation.history)

    @property
    def finish_reason(self) -> str | None:
        """Why the generation ended; None while it goes on.

        "length" inside a span, too, where `next` raises TokenLimit.
        """
        return self._generation.finish

    @property
    def counters(self) -> Counters:
        """What the session did since it was opened."""
        return self._generation.counters

    @property
    def name(self) -> str | None:
        """The name of the choice that the token trie is complete with, else None."""
        return None if self._trie is None else self._trie.cursor.name

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def max_tokens(self) -> int | None:
        """The most ids to generate after a prompt, forced ones included."""
        return self._generation.max_tokens

    @max_tokens.setter
    def max_tokens(self, value: int | None) -> None:
        self._generation.max_tokens = check_limit(value)

    # -- feeding -----------------------------------------------------------------

    def sync(
        self,
        prompt: Iterable[int],
        on_frontier: Callable[[Frontier], object] | None = None,
    ) -> int:
        """Make the timeline equal to a prompt, keeping what it shares with it.

        Choices that were set bind again, from their beginning.

        Parameters
        ----------
        prompt : iterable of int
            All ids; not empty.
        on_frontier : callable, optional
            As in `prefill`. If it raises, the timeline keeps what was decoded.

        Returns
        -------
        int
            How many ids were kept.

        Raises
        ------
        InvalidArgument, ContextOverflow
            The prompt is refused; without `on_frontier` nothing has changed.
        Cancelled, BackendError
            The session keeps what it holds of the prompt.
        """
        plain = type(prompt) is list and {*map(type, prompt)} <= {int}
        if plain and on_frontier is None:
            ids = cast("list[int]", prompt)  # the runtime checks those that are new
        else:
            ids = self.vocab.prompt_ids(prompt)
        if not ids:
            raise InvalidArgument("empty prompt: a timeline needs at least one id")
        with self._lock:
            self._ready()
            report = None if on_frontier is None else self._reporter(on_frontier)
            return self._generation.sync(ids, report, FRONTIER)

    def prefill(
        self, prompt: Prompt, on_frontier: Callable[[Frontier], object] | None = None
    ) -> None:
        """Append a prompt: text, parsed with special tokens, ids, or chat messages.

        What stands at the very start gets the begin-of-sequence id where the vocabulary
        wants one. Messages are written by the model's own template; see `ChatTemplate`.
        Choices that were set bind again, from their beginning.

        Parameters
        ----------
        prompt : str, iterable of int, or list of messages
            What to append. No ids are no change.
        on_frontier : callable, optional
            Called with a `Frontier` before the first id is decoded, at each multiple of
            512 ids and at the end. It may save the session, and nothing else of it may
            be called there. What it raises ends the prefill and passes through.

        Raises
        ------
        Cancelled, ContextOverflow, BackendError
            The session is as it was. A runtime that cannot cut may have lost its
            state: the next call computes it again.
        """
        if is_messages(prompt):
            chat = self._host.chat
            if chat is None:
                raise NotSupported("this session has no chat template: give text")
            ids = chat.ids(prompt, start=not self._generation.history)
        elif isinstance(prompt, str) and self._generation.history:
            ids = self.vocab.encode(prompt, special=True)
        else:
            ids = self.vocab.prompt_ids(prompt)
        with self._lock:
            self._ready()
            report = None if on_frontier is None else self._reporter(on_frontier)
            self._generation.prefill(ids, report, FRONTIER)

    def _reporter(
        self, on_frontier: Callable[[Frontier], object]
    ) -> Callable[[int, int], None]:
        if not callable(on_frontier):
            raise InvalidType(f"on_frontier is {on_frontier!r}; give a function")

        def report(current: int, total: int) -> None:
            passed = False

            def save_slot(path: str | os.PathLike[str]) -> None:
                if passed:
                    raise InvalidArgument(
                        "this frontier has passed: save_slot() of the session saves "
                        "what it holds now"
                    )
                self._save_here(path)

            self._in_call = True
            try:
                on_frontier(Frontier(current, total, save_slot))
            finally:
                self._in_call = False
                passed = True
            self._check()

        return report

    # -- what binds --------------------------------------------------------------

    def set_constraint(
        self,
        constraint: Constraint,
        pick: Callable[[Row], int] | None = None,
        *,
        narrow: bool = False,
    ) -> None:
        """Bind what comes next to a constraint, from its present position on.

        Parameters
        ----------
        constraint : Constraint
            Moved by the session.
        pick : callable, optional
            Given the logits, returns one of the allowed ids; by default the session's
            own sampling. Nothing of the session may be called in it; what it raises
            passes through `next`, and its id is taken by nobody.
        narrow : bool
            `pick` reads no logits but those of the allowed ids. A runtime that can
            compute single logits then computes no others; they are NaN.
        """
        with self._lock:
            self._ready()
            self._trie = None
            self._generation.bind(constraint, pick, narrow=narrow)

    def clear_constraint(self) -> None:
        """Let free text come next."""
        with self._lock:
            self._ready()
            self._trie = None
            self._generation.unbind()

    def set_token_trie(
        self,
        payload: Any,
        path: str | None = None,
        mode: str = "greedy",
        *,
        check_model: bool = True,
    ) -> None:
        """Bind what comes next to the choices of a payload, from their beginning.

        Parameters
        ----------
        payload : bytes, str, TokenTreePayload or Trie
            JSON or RTKT, or what was read from it.
        path : str, optional
            Which choices of the payload; needed where it has several.
        mode : {"greedy", "sample"}
            "greedy": the highest allowed logit. "sample": a draw among the allowed ids
            with the session's temperature and filters.
        check_model : bool
            Whether the payload's model must be this one.

        Raises
        ------
        InvalidArgument, InvalidType
            The payload is wrong, or of another model; the choices that were set before
            still hold.
        """
        from eliza.tokentrie import TokenTrie  # payloads take a while to import

        if mode not in ("greedy", "sample"):
            raise InvalidArgument(f"mode is {mode!r}; it is 'greedy' or 'sample'")
        host = self._host
        made = TokenTrie.of(
            payload, path, self.vocab, host.cache, host.model_id if check_model else ""
        )
        sampler = self._generation.sampler
        if mode == "sample" and not sampler.draws:
            raise InvalidArgument(
                "mode is 'sample', but the session's temperature is 0, which draws "
                "nothing: open it with a temperature"
            )
        with self._lock:
            self._ready()
            greedy = mode == "greedy" and sampler.draws
            self._trie = made
            self._generation.bind(made.cursor, greedy=greedy)

    def clear_token_trie(self) -> None:
        """Let free text come next; the same as `clear_constraint`."""
        self.clear_constraint()

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
        TokenLimit
            `max_tokens` is reached inside a span. Nothing is let go: with a higher
            `max_tokens` it goes on where it was.
        """
        return self._next(None)

    def _next(self, interrupt: threading.Event | None) -> Step:
        with self._lock:
            outer, self._interrupt = self._interrupt, interrupt
            try:
                self._ready()
                self._in_call = True
                try:
                    return self._generation.step()
                finally:
                    self._in_call = False
            finally:
                self._interrupt = outer

    def __iter__(self) -> Iterator[Step]:
        while True:
            step = self.next()
            yield step
            if step.final:
                return

    async def stream(self) -> AsyncIterator[Step]:
        """Yield the steps without blocking the event loop.

        Nothing is computed ahead: a stream that is dropped leaves the session where its
        last step was. A cancelled task ends its step within one piece of work; if that
        step was just complete, its ids are in `ids`. Nobody else's call is disturbed,
        and the session can be used on.
        """
        import asyncio  # takes as long as the rest of eliza, and few need it

        while True:
            interrupt = threading.Event()
            task = asyncio.ensure_future(asyncio.to_thread(self._next, interrupt))
            try:
                step = await asyncio.shield(task)
            except asyncio.CancelledError:
                interrupt.set()
                await asyncio.wait([task])
                if not task.cancelled():
                    task.exception()  # seen: nobody else will ask for it
                raise
            yield step
            if step.final:
                return

    def row(self) -> Row:
        """Return the logits after the last id, valid until the next decode.

        Decodes what waits.
        """
        with self._lock:
            self._ready()
            return self._generation.row()

    # -- saved state -------------------------------------------------------------

    def save_slot(self, path: str | os.PathLike[str]) -> None:
        """Write the session to a file, whole or not at all.

        The file, readable by its owner alone, holds the ids, the runtime's state, the
        position in the token trie, and the state of the generator.

        Raises
        ------
        NotSupported
            The runtime saves no states, or the constraint is not a token trie.
        OSError
            It could not be written; a file that was there before still is.
        """
        with self._lock:
            self._ready()
            self._save_here(path)

    def _save_here(self, path: str | os.PathLike[str]) -> None:
        from eliza.state.slots import write_slot
        from eliza.state.snapshot import take

        write_slot(path, take(self._generation, self._identity()))

    def restore_slot(
        self,
        path: str | os.PathLike[str],
        seed: int | np.random.Generator | None = None,
    ) -> None:
        """Go on where a saved session was.

        Parameters
        ----------
        path : path
            What `save_slot` wrote, from a session of the same model with the same
            options. If it had a token trie, this one must have the same.
        seed : int or Generator, optional
            Draw from this; by default the saved generator goes on.

        Raises
        ------
        BundleError
            The file is no slot, or damaged.
        InvalidArgument
            It belongs to another model, tokenizer or set of choices.
        ContextOverflow
            It does not fit into this context.
        OSError
            It cannot be read. The session is as it was after each of these.
        """
        from eliza.state.slots import read_slot
        from eliza.state.snapshot import put

        with self._lock:
            self._ready()
            slot = read_slot(path)
            identity = self._identity()
            slot.identity.check(identity, str(path))
            put(self._generation, slot, seed)

    def _identity(self) -> Identity:
        if not self.timeline.capabilities.save:
            raise NotSupported("this runtime saves no states: slots are not available")
        if self._generation.constraint is not None and self._trie is None:
            raise NotSupported(
                "a slot names its choices by their token trie; the session is bound by "
                "set_constraint: use set_token_trie"
            )
        return self._host.identity("" if self._trie is None else self._trie.digest)

    # -- ending ------------------------------------------------------------------

    def cancel(self) -> None:
        """Stop the running call, or the next one, from any thread.

        It raises `Cancelled` within one piece of work, and so does each further call
        until `reset` or `reset_keep`. A second call does nothing more.
        """
        self._cancelled.set()

    def reset(self) -> None:
        """Drop the timeline and a cancellation.

        Choices that were set bind again, from their beginning: only `clear_token_trie`
        and `clear_constraint` let free text come.
        """
        self.reset_keep(0)

    def reset_keep(self, n: int) -> int:
        """Begin anew above the first ids of the history.

        Parameters
        ----------
        n : int
            How many to keep; more than there are keeps all, fewer than 0 none.

        Returns
        -------
        int
            How many were kept: 0 where the runtime cannot cut its timeline there.
        """
        if isinstance(n, bool) or not isinstance(n, int):
            raise InvalidType(f"n is {n!r}; it is a whole number")
        with self._lock:  # before it is cleared, the call that runs has to see it
            if not self._in_call:
                self._cancelled.clear()
            self._ready()
            return self._generation.cut(n)

    def close(self) -> None:
        """Free the sequence. May be called twice; other calls then raise `Closed`."""
        self._cancelled.set()
        if self._lock.foreign:
            return  # what there is to free is the parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.timeline.sequence.close()
            self._host.on_close(self.counters)
        drafter = self._generation.drafter
        if isinstance(drafter, DraftModel):  # ours; it has a lock of its own
            drafter.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._host.on_close(self.counters)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise Closed("the session is closed")
        if self._cancelled.is_set():
            raise Cancelled("the session was cancelled; reset() makes it usable again")
        if self._interrupt is not None and self._interrupt.is_set():
            raise Cancelled("the task that waited for this step was cancelled")
        self._host.check()

    def _ready(self) -> None:
        """Begin a call, with the lock held."""
        self._check()
        if self._in_call:
            raise InvalidArgument(
                "the session is in the middle of a call: inside on_frontier only "
                "save_slot of the frontier may be called, inside a pick or a drafter "
                "nothing"
            )
        self._generation.realign()
