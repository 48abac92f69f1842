"""A loaded model, and `choose`: one of the things you allow, from one prompt."""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, cast

from eliza.cache import TrieCache
from eliza.chat import ChatTemplate
from eliza.choosing.choices import Choices
from eliza.choosing.choose import Placed, Prior, answer
from eliza.choosing.request import Request, Sampling
from eliza.errors import Cancelled, Closed, InvalidArgument, InvalidType
from eliza.generation import Generation
from eliza.host import Host, check_limit
from eliza.locking import ModelLock
from eliza.messages import is_messages
from eliza.sampling import Sampler
from eliza.session import Session
from eliza.speculation import DraftModel, make_drafter
from eliza.step import Counters
from eliza.textstream import TextStream
from eliza.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from numpy.random import Generator

    from eliza.backends.base import Backend, Capabilities
    from eliza.choosing.answer import Answer
    from eliza.choosing.trail import Event
    from eliza.state.slots import Identity
    from eliza.tokenizer import Prompt
    from eliza.vocab import Vocab

__all__ = ["Model"]

#: How many sets of choices keep what they score without an input.
KEPT_PRIORS = 32


class Model:
    """A model in some runtime, ready to choose.

    Thread-safe: calls queue on one lock; `close` works from any thread and interrupts
    the call that runs.

    Parameters
    ----------
    backend : Backend
        Owned by the model.
    model_id : str, optional
        By default what the backend says.

    Attributes
    ----------
    backend : Backend
        As given.
    model_id : str
        Which model this is, or ""; what a payload's is compared with.
    cache : TrieCache
        The choices of `choose`, compiled: those that come again after a prompt with the
        same end are not tokenized again. May be replaced, by one that models share.
    chat : ChatTemplate
        Writes chat messages as this model was trained to read them.
    """

    def __init__(self, backend: Backend, model_id: str | None = None) -> None:
        if isinstance(backend, (str, os.PathLike)):
            raise InvalidType(
                f"{os.fspath(backend)!r} is a path, not a backend; eliza.load opens it"
            )
        self.backend = backend
        self.model_id = backend.model_id if model_id is None else model_id
        self.cache = TrieCache()
        template = getattr(backend, "chat_template", None)  # optional in a backend
        self.chat = ChatTemplate(template, backend.vocab)
        self._lock = ModelLock()
        self._closing = False
        self._closed = False
        self._cancel: Any = None
        self._session: Session | None = None
        self._priors: dict[Any, Prior] = {}
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._past: list[Counters] = []  # of sessions that were closed or dropped
        self._counting = threading.Lock()
        self._in_trace = False

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
        prompt: Prompt,
        choices: Any,
        *,
        suffix: str | None = None,
        method: str = "exact",
        allow: Any = None,
        ranking: str | None = None,
        normalize: str = "none",
        prior_prompt: Prompt | None = None,
        weights: Any = None,
        threshold: float | None = None,
        default: Any = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        rng: Generator | int | None = None,
        delta: float | None = None,
        spelling: str = "canonical",
        cancel: Any = None,
        trace: Callable[[Event], Any] | None = None,
    ) -> Answer:
        """Answer a prompt with exactly one of the choices.

        Parameters
        ----------
        prompt : str, iterable of int, or list of messages
            What stands before the answer. Text is parsed with the model's special
            tokens, and gets the begin-of-sequence id where the model wants one.
            Messages, ``[{"role": "user", "content": "..."}, ...]``, are written by the
            model's own template, their contents never parsed for special tokens; if the
            last is the assistant's, the answer continues it. See `ChatTemplate`.
        choices : iterable, Enum, Literal, mapping, Trie or (name, ids) pairs
            What is allowed; see `eliza.choosing.choices.Choices.parse`. A text is
            written as the tokenizer would write it after this prompt: give it a
            leading space where the prompt ends without one and the model expects it.
        suffix : str, optional
            What would follow the answer, such as a closing quote. It decides how the
            end of a choice is written, and where a choice ends that another continues;
            None: the model's end-of-generation ids.
        method : {"exact", "greedy", "sample"}
            "exact": the choice with the best whole score. "greedy": the most likely id
            at each point where choices part, which is faster and can be led astray by
            a likely beginning of an unlikely choice. "sample": an id drawn at each such
            point.
        allow : array of bool or int, or iterable of str, optional
            Which of the choices are permitted in this call, by position or text.
        ranking : {"masked", "whole"}, optional
            Score every permitted choice as well. Never changes `value`.
        normalize : {"none", "tokens", "bytes", "prior"}
            What the whole log-likelihood of a choice is divided by (its ids, the bytes
            of its text), or what is subtracted from it (its log-likelihood after
            `prior_prompt`), before scores are compared.
        prior_prompt : str, iterable of int, or list of messages, optional
            For "prior": the same frame without the input. Its scores are kept for
            later calls with the same choices.
        weights : mapping or sequence, optional
            Log weights added to the scores: by choice, the others having 0, or one for
            each in the order of `choices`.
        threshold : float, optional
            Below this probability the answer is `default`, and `abstained` is true. The
            exact search goes on until that is certain.
        default : object
            The answer below the threshold.
        temperature, top_k, top_p, min_p
            For "sample", over the allowed ids and in this order; see `Cursor.sample`.
        rng : numpy.random.Generator or int, optional
            For "sample": a generator, which moves on, or a seed.
        delta : float, optional
            How far below the best bound, in nats, a branch joins a batch of the exact
            search; by default what suits the runtime. Changes the cost, not the answer.
        spelling : {"canonical", "all"}
            "canonical": a choice has the ids that the tokenizer writes. "all": the
            model may write it with any ids that give its text, which takes a pass for
            nearly every id. Not with "exact" or `ranking`; `logprob` is that of the ids
            that were taken.
        cancel : object with is_set(), optional
            Looked at between pieces of work, such as a `threading.Event`.
        trace : callable, optional
            Called with an `Event` for each batch that is computed and for each point at
            which choices are weighed. What it raises ends the call; nothing of the
            model may be called in it.

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
        NotSupported
            Whole likelihoods or rankings over all spellings; messages, where the model
            has no template or jinja2 is missing.
        Cancelled, Closed
            By `cancel`, or `close` from another thread.
        """
        start = time.perf_counter()
        draw = temperature, top_k, top_p, min_p
        scores = ranking, normalize, prior_prompt, weights, threshold, default
        asked = (*scores, rng, delta, spelling, *draw)
        if all(map(operator.is_, asked, _DEFAULTS)):  # 20 us less than to check it all
            request = Request.plain(method)
        else:
            request = Request(
                method=method,
                ranking=ranking,
                normalize=normalize,
                prior_prompt=prior_prompt,
                weights=weights,
                threshold=threshold,
                default=default,
                sampling=Sampling(*draw),
                rng=rng,
                delta=delta,
                spelling=spelling,
            )
        if suffix is not None and not isinstance(suffix, str):
            raise InvalidType(f"suffix is {suffix!r}; it is a text, or None")
        if cancel is not None and not hasattr(cancel, "is_set"):
            raise InvalidType(
                f"cancel is {cancel!r}; give an object with is_set(), such as a "
                "threading.Event"
            )
        with self._lock:
            self._check()
            self._cancel = cancel
            try:
                parsed = Choices.parse(choices, self.vocab.n_vocab)
                before = self._read(prompt)
                placed = Placed.of(
                    self.vocab, before, parsed, suffix or "", self.cache, spelling
                )
                prior = None
                if prior_prompt is not None:
                    prior = self._prior(prior_prompt, parsed, suffix or "")
                return answer(
                    self._own_session(),
                    parsed,
                    placed,
                    request,
                    allow,
                    prior,
                    start,
                    None if trace is None else self._traced(trace),
                )
            finally:
                self._cancel = None
                if self._closing:  # inside trace
                    self.close()

    def _traced(self, trace: Callable[[Event], Any]) -> Callable[[Event], None]:
        """Return a trace during which nothing of the model may be called.

        What it computed would stand where the choice is about to read its logits.
        """

        def told(event: Event) -> None:
            self._in_trace = True
            try:
                trace(event)
            finally:
                self._in_trace = False

        return told

    def _read(self, prompt: Prompt) -> str | Iterable[int]:
        """Write messages; leave other prompts as they are."""
        if is_messages(prompt):
            return self.chat.ids(prompt)
        return cast("str | Iterable[int]", prompt)

    def _prior(self, prompt: Prompt, choices: Choices, suffix: str) -> Prior:
        """Return what the choices score after the prior's prompt, from memory if known.

        It has a sequence of its own, so that the prompt's stays in the cache.
        """
        before = self._read(prompt)
        placed = Placed.of(self.vocab, before, choices, suffix, self.cache)
        which: Any = choices.texts
        if choices.trie is not None:
            which = len(choices.trie), choices.trie.fingerprint, placed.exits
        key = (tuple(placed.prompt_ids), which, suffix)
        known = self._priors.pop(key, None)
        if known is None:
            session = self._new_session()
            try:
                computed = Prior.compute(session, placed)
            finally:
                session.close()
            known = Prior(computed.scores)
        else:
            computed = known
        self._priors[key] = known
        while len(self._priors) > KEPT_PRIORS:
            del self._priors[next(iter(self._priors))]
        return computed

    # -- generating --------------------------------------------------------------

    def open(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repeat_penalty: float = 1.0,
        penalty_last_n: int = 64,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | Generator | None = None,
        stop: Iterable[str] = (),
        draft: Any = None,
        draft_max: int = 16,
    ) -> Session:
        """Start a generation of its own beside `choose`.

        Parameters
        ----------
        max_tokens : int, optional
            The most ids it may generate after a prompt, forced ones included.
        temperature, top_k, top_p, min_p, repeat_penalty, penalty_last_n, logit_bias
            How ids are picked; see `eliza.sampling.Sampler`. Temperature 0 takes the
            likeliest.
        seed : int or numpy.random.Generator, optional
            Where draws come from.
        stop : iterable of str
            Texts at which free text ends. They do not apply inside a constraint.
        draft : {"lookup"}, Model or Drafter, optional
            Who guesses ids ahead, so that one pass may give several: the text so far,
            a smaller model of the same vocabulary, or an object of one's own. Picks
            stay what they are without it, for equal logits; see `eliza.speculation`.
        draft_max : int
            The most ids to guess at once. How many are guessed, if any, depends on how
            often guesses held so far.

        Returns
        -------
        Session

        Raises
        ------
        InvalidArgument, InvalidType
            An option is wrong, or the draft model has another vocabulary.
        NotSupported
            `draft` with a runtime that cannot take wrong guesses back.
        """
        sampler = Sampler(
            self.vocab.n_vocab,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            penalty_last_n=penalty_last_n,
            logit_bias=logit_bias,
            seed=seed,
        )
        check_limit(max_tokens)
        stop = tuple(TextStream(stop).stop)
        with self._lock:
            self._check()
        # Without our lock: a draft model has one of its own, and may draft by us.
        drafter = make_drafter(
            draft,
            self.vocab,
            can_truncate=self.capabilities.truncate,
            draft_max=draft_max,
        )
        try:
            with self._lock:
                self._check()
                return self._new_session(
                    sampler,
                    max_tokens=max_tokens,
                    stop=stop,
                    drafter=drafter,
                    draft_max=draft_max,
                )
        except BaseException:
            if isinstance(drafter, DraftModel):
                drafter.close()
            raise

    def _new_session(self, sampler: Sampler | None = None, **options: Any) -> Session:
        generation = Generation(
            Timeline(self.backend.open(), self.capabilities, self.backend.n_ctx),
            self.vocab,
            sampler or Sampler(self.vocab.n_vocab),
            **options,
        )
        session = Session(
            generation,
            Host(
                self._lock,
                self._check,
                self.chat,
                self.cache,
                self.model_id,
                self._identity,
                self._past.append,
            ),
        )
        self._sessions.add(session)
        return session

    def drafter_for(self, vocab: Vocab) -> DraftModel:
        """Return a drafter of this model for one with another vocabulary object."""
        with self._lock:
            self._check()
            return DraftModel(self.backend, self._lock, vocab, self._past.append)

    def _identity(self, choices: str) -> Identity:
        from eliza.state.slots import Identity

        return Identity(
            self.backend.name,
            self.backend.fingerprint.hex(),
            self.vocab.fingerprint.hex(),
            choices,
        )

    @property
    def counters(self) -> Counters:
        """What all its sessions did, those that are closed and `choose` included.

        What it drafted for another model's session is there once that is closed.
        """
        with self._counting:  # what is appended meanwhile stays behind
            n = len(self._past)
            past = Counters()
            for counters in self._past[:n]:
                past = past.plus(counters)
            self._past[:n] = [past]
        for session in list(self._sessions):
            if not session.closed:
                past = past.plus(session.counters)
        return past

    def _own_session(self) -> Session:
        if self._session is None:
            self._session = self._new_session()
        return self._session

    async def achoose(self, prompt: Prompt, choices: Any, **options: Any) -> Answer:
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
        if self._in_trace:
            raise InvalidArgument(
                "the model is in the middle of a choice: nothing of it may be called "
                "inside trace"
            )
        if self._cancel is not None and self._cancel.is_set():
            raise Cancelled("the call was cancelled")

    def close(self) -> None:
        """Free the model. May be called twice, and while another thread chooses.

        The call that runs ends with `Closed` within one piece of work.
        """
        self._closing = True
        if self._lock.foreign:
            return  # what there is to free is the parent's
        with self._lock:
            if not self._closed and not self._in_trace:
                self._closed = True
                self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = type(self.backend).__name__
        if self._closed:
            return f"<Model on {kind}, closed>"
        return f"<Model {self.model_id!r} on {kind}: {self.vocab.n_vocab:,} ids>"


#: Of the options of `choose` that a `Request` is made of, in the order used there.
_DEFAULTS = operator.itemgetter(
    *("ranking", "normalize", "prior_prompt", "weights", "threshold", "default", "rng"),
    *("delta", "spelling", "temperature", "top_k", "top_p", "min_p"),
)(Model.choose.__kwdefaults__ or {})


class _AnyEvent(threading.Event):
    """An event that also counts as set when the caller's own is."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or (self._other is not None and self._other.is_set())
