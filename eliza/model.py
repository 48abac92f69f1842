"""A loaded model, and `choose`: one of the things you allow, from one prompt."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.choosing.answer import Answer, Stats
from eliza.choosing.choices import Choices
from eliza.choosing.decide import decide, path_counts, rank
from eliza.errors import Cancelled, Closed, InvalidArgument, InvalidType, NotSupported
from eliza.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from typing import Self

    from numpy.typing import NDArray

    from eliza._trie import Trie
    from eliza.backends.base import Backend, Capabilities
    from eliza.vocab import Vocab

__all__ = ["Model", "load"]

_METHODS = ("exact", "greedy")
_RANKINGS = (None, "masked", "whole")


def load(
    model: str | Path | Any,
    *,
    backend: str | None = None,
    n_ctx: int | None = None,
    n_threads: int | None = None,
    backend_options: dict[str, Any] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Model:
    """Load a model.

    Parameters
    ----------
    model : path or llama_cpp.Llama
        A `.gguf` file, or a live `Llama`, whose weights are then shared.
    backend : {"llama.cpp"}, optional
        The runtime; None chooses by the model.
    n_ctx : int, optional
        Context length in ids. By default the model's own, at most 4096.
    n_threads : int, optional
        By default one for each core this process may use.
    backend_options : dict, optional
        Passed on to `eliza.backends.llama_cpp.LlamaBackend`.
    progress : callable, optional
        Called with a fraction from 0 to 1 while the file loads.

    Returns
    -------
    Model
        A context manager; `close` it, or leave its `with` block, to free the memory.

    Raises
    ------
    BundleError
        The file is missing, cut short, or not a model.
    NotSupported
        The runtime is not installed, or is not known.
    """
    from eliza.backends.llama_cpp import LlamaBackend

    if backend not in (None, "llama.cpp"):
        raise NotSupported(f"backend {backend!r} is not known; there is 'llama.cpp'")
    options = dict(backend_options or {})
    options.update(
        (key, value)
        for key, value in (("n_ctx", n_ctx), ("n_threads", n_threads))
        if value is not None
    )
    if type(model).__module__.partition(".")[0] == "llama_cpp":
        return Model(LlamaBackend.from_llama(model, **options))
    return Model(LlamaBackend(model, progress=progress, **options))


class Model:
    """A model in some runtime, ready to choose.

    Thread-safe: calls queue on one lock; `close` works from any thread and interrupts
    the call that runs.

    Parameters
    ----------
    backend : Backend
        Owned by the model.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._lock = threading.RLock()
        self._closing = False
        self._closed = False
        self._cancel: Any = None
        self._session: Session | None = None

    @property
    def vocab(self) -> Vocab:
        """The model's vocabulary."""
        return self.backend.vocab

    @property
    def capabilities(self) -> Capabilities:
        """What its runtime can do."""
        return self.backend.capabilities

    # -- choosing ----------------------------------------------------------------

    def choose(
        self,
        prompt: str | Iterable[int],
        choices: Any,
        *,
        suffix: str | None = None,
        method: str = "exact",
        allow: Any = None,
        ranking: str | None = None,
        delta: float | None = None,
        cancel: Any = None,
    ) -> Answer:
        """Answer a prompt with exactly one of the choices.

        Parameters
        ----------
        prompt : str or iterable of int
            What stands before the answer. Text is parsed with the model's special
            tokens, and gets the begin-of-sequence id where the model wants one.
        choices : iterable, Enum, Literal, mapping, Trie or (name, ids) pairs
            What is allowed; see `eliza.choosing.choices.Choices.parse`. A text is
            written as the tokenizer would write it after this prompt: give it a
            leading space where the prompt ends without one and the model expects it.
        suffix : str, optional
            What would follow the answer, such as a closing quote. It decides how the
            end of a choice is written, and where a choice ends that another continues;
            None: the model's end-of-generation ids.
        method : {"exact", "greedy"}
            "exact": the choice with the best whole likelihood. "greedy": the most
            likely id at each point where choices part, which is faster and can be led
            astray by a likely beginning of an unlikely choice.
        allow : array of bool or int, or iterable of str, optional
            Which of the choices are permitted in this call, by position or text.
        ranking : {"masked", "whole"}, optional
            Score every permitted choice as well. Never changes `value`.
        delta : float, optional
            How far below the best bound, in nats, a branch joins a batch of the exact
            search; by default what suits the runtime. Changes the cost, not the answer.
        cancel : object with is_set(), optional
            Looked at between pieces of work, such as a `threading.Event`.

        Returns
        -------
        Answer

        Raises
        ------
        InvalidArgument, InvalidType
            Something about the request; nothing was computed.
        ContextOverflow
            The prompt does not fit the context.
        NoCandidateError
            The model gives every permitted choice NaN or no probability at all.
        Cancelled, Closed
            By `cancel`, or `close` from another thread.
        """
        if method not in _METHODS:
            raise InvalidArgument(f"method is {method!r}; it is one of {_METHODS}")
        if ranking not in _RANKINGS:
            raise InvalidArgument(f"ranking is {ranking!r}; it is one of {_RANKINGS}")
        if delta is not None and not delta >= 0:
            raise InvalidArgument(f"delta is {delta}; it is 0 or more nats")
        if suffix is not None and not isinstance(suffix, str):
            raise InvalidType(f"suffix is {suffix!r}; it is a text, or None")
        with self._lock:
            self._check()
            self._cancel = cancel
            try:
                return self._choose(
                    prompt, choices, suffix or "", method, allow, ranking, delta
                )
            finally:
                self._cancel = None

    def _choose(
        self,
        prompt: str | Iterable[int],
        given: Any,
        suffix: str,
        method: str,
        allow: Any,
        ranking: str | None,
        delta: float | None,
    ) -> Answer:
        start = time.perf_counter()
        choices = Choices.parse(given, self.vocab.n_vocab)
        prompt_ids, trie, order = self._place(prompt, choices, suffix)
        exits = self.vocab.eog if choices.trie is not None and trie.needs_exits else ()
        mask = None if allow is None else choices.permitted(allow)[order]
        cursor = trie.cursor(exits=exits, allow=mask)
        session = self._own_session()
        timeline = session.timeline
        passes, positions = timeline.passes, timeline.positions
        reused = session.sync(prompt_ids)
        made = decide(
            session,
            cursor,
            method=method,
            ranking=ranking,
            delta=delta,
        )
        decided, forced = path_counts(cursor, trie.tokens(made.leaf))
        at = int(order[made.leaf])
        ranked = probability = margin = None
        if ranking is not None and made.scores is not None:
            values = [choices.values[i] for i in order]
            ranked, probability, margin = rank(ranking, made.scores, values, made.leaf)
        return Answer(
            value=choices.values[at],
            index=choices.index[at],
            logprob=made.logprob,
            probability=probability,
            probability_bounds=made.bounds,
            margin=margin,
            ranking=ranked,
            stats=Stats(
                forward_passes=timeline.passes - passes,
                positions=timeline.positions - positions,
                prompt_tokens=len(prompt_ids),
                reused_tokens=reused,
                decided=decided,
                forced=forced,
                seconds=time.perf_counter() - start,
            ),
        )

    def _place(
        self, prompt: str | Iterable[int], choices: Choices, suffix: str
    ) -> tuple[list[int], Trie, NDArray[np.int32]]:
        """Return the ids of the prompt, the choices after it, and leaf -> choice."""
        if choices.trie is None:
            placed = self.vocab.place(prompt, choices.texts, suffix)
            return placed.prompt_ids.tolist(), placed.trie, placed.order
        if suffix:
            raise InvalidArgument(
                "suffix is for choices given as text; a set given by ids holds the "
                "ids that end a choice itself (exits=)"
            )
        ids = self.vocab.prompt_ids(prompt)
        return ids, choices.trie, np.arange(len(choices.trie), dtype=np.int32)

    # -- generating --------------------------------------------------------------

    def open(
        self, *, max_tokens: int | None = None, stop: Iterable[str] = ()
    ) -> Session:
        """Start a generation of its own beside `choose`.

        Parameters
        ----------
        max_tokens : int, optional
            The most ids it may generate after a prompt, forced ones included.
        stop : iterable of str
            Texts at which free text ends.

        Returns
        -------
        Session
        """
        with self._lock:
            self._check()
            return self._new_session(max_tokens, stop)

    def _new_session(
        self, max_tokens: int | None = None, stop: Iterable[str] = ()
    ) -> Session:
        return Session(
            self.backend.open(),
            self.vocab,
            self.capabilities,
            lock=self._lock,
            max_tokens=max_tokens,
            stop=stop,
            check=self._check,
        )

    def _own_session(self) -> Session:
        if self._session is None:
            self._session = self._new_session()
        return self._session

    async def achoose(
        self, prompt: str | Iterable[int], choices: Any, **options: Any
    ) -> Answer:
        """Do what `choose` does without blocking the event loop.

        A cancelled task cancels the call: it ends within one piece of work.
        """
        import asyncio  # takes as long as the rest of eliza, and few need it

        own = _AnyEvent(options.pop("cancel", None))
        task = asyncio.ensure_future(
            asyncio.to_thread(self.choose, prompt, choices, cancel=own, **options)
        )
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            own.set()
            with contextlib.suppress(Cancelled):
                await task
            raise

    # -- ending ------------------------------------------------------------------

    def _check(self) -> None:
        if self._closing:
            raise Closed("the model is closed")
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled("the call was cancelled")

    def close(self) -> None:
        """Free the model. May be called twice, and while another thread chooses.

        The call that runs ends with `Closed` within one piece of work.
        """
        self._closing = True
        with self._lock:
            if not self._closed:
                self._closed = True
                self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _AnyEvent(threading.Event):
    """An event that also counts as set when the caller's own is."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())
