"""Constraints inside llama-cpp-python's own completions.

    from eliza.hooks.llama_cpp_python import create_completion

    place = model.vocab.place(prompt, choices)
    create_completion(llama, place.prompt_ids, place.trie)

`create_completion` and `create_chat_completion` sample through a chain link: no Python
for the candidates, and errors reach the caller. `logits_processor` is for calls that
take one; it runs in a callback of ctypes, whose exceptions llama-cpp-python cannot see.
So it keeps its error, lets nothing but an end of the generation through, and raises by
`check`, or at once by `stop`, if that is given as a stopping criterion:

    keep = logits_processor(trie, eog=llama)
    llama.create_completion(prompt, logits_processor=LogitsProcessorList([keep]),
                            stopping_criteria=StoppingCriteriaList([keep.stop]))
    keep.check()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from eliza._chain import Chain
from eliza._cursor import Cursor
from eliza._trie import Trie
from eliza.errors import BackendError, InvalidArgument, NotSupported, TokenLimit
from eliza.hooks._processor import Processor, mask_row
from eliza.hooks.llama import Link, Penalties, chain

__all__ = [
    "LlamaProcessor",
    "create_chat_completion",
    "create_completion",
    "logits_processor",
    "sampling_with",
]

#: What llama-cpp-python would give to its own sampler, and the chain has not: beside
#: None, the value that does nothing.
_NOT_OURS: dict[str, Any] = {
    "typical_p": 1.0,
    "tfs_z": 1.0,
    "mirostat_mode": 0,
    "grammar": None,
    "logits_processor": [],
    "tools": [],
    "functions": [],
    "response_format": {"type": "text"},
}


class LlamaProcessor(Processor):
    """A logits processor for llama-cpp-python; made by `logits_processor`."""

    def __init__(self, trie: Trie | Cursor, **options: Any) -> None:
        super().__init__(trie, **options)
        if not len(self._start.ends):
            raise InvalidArgument(
                'eog= is needed, also with after="free": after an error only these '
                "ids are let through"
            )

    def __call__(self, ids: Any, logits: Any) -> Any:
        """Mask the logits, in place, of what may follow the ids."""
        try:
            if self._error is None:
                mask_row(self._follow.place(ids), logits)
        except BaseException as error:
            # Raised, it would be printed, and the logits used as they are.
            self._error = error
        if self._error is not None:
            logits[:] = -np.inf
            ends = self._start.ends
            logits[ends[ends < len(logits)]] = 0
        return logits

    def stop(self, _ids: Any, _logits: Any) -> bool:
        """Raise what `__call__` met; a stopping criterion that never stops."""
        self.check()
        return False


def logits_processor(trie: Trie | Cursor, **options: Any) -> LlamaProcessor:
    """Return a logits processor; see the module for how its errors are raised.

    Parameters
    ----------
    trie : Trie or Cursor
        The choices.
    **options
        `eog`, `exits`, `allow`, `after`, `prompt_length`, as in `Processor`.
    """
    return LlamaProcessor(trie, **options)


class _Sampler:
    """What stands in for llama-cpp-python's own sampler during a completion."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self.begun = False

    def begin(self, *_args: Any, **_options: Any) -> _Sampler:
        """Start anew: what a model calls as `_init_sampler`."""
        self._chain.reset()
        self.begun = True
        return self

    def sample(self, context: Any, idx: int = -1) -> int:
        return self._chain.sample(int(context.ctx), idx)

    def close(self) -> None:
        """Do nothing: the chain has an owner."""


@contextmanager
def _making(llama: Any, sampler: _Sampler) -> Iterator[None]:
    """Let the completions that begin in here take a sampler of ours."""
    if not callable(getattr(type(llama), "_init_sampler", None)):
        raise NotSupported(
            f"{type(llama).__name__} has no _init_sampler: use logits_processor"
        )
    before = llama.__dict__.get("_init_sampler")
    llama._init_sampler = sampler.begin
    try:
        yield
    finally:
        if before is None:
            del llama._init_sampler
        else:
            llama._init_sampler = before


@contextmanager
def sampling_with(llama: Any, sampler: Chain) -> Iterator[Chain]:
    """Let a model's completions sample from a chain, each from the beginning.

    What the calls say about sampling, such as a temperature, is not looked at.

    Parameters
    ----------
    llama : llama_cpp.Llama
    sampler : Chain
        It stays yours to close.

    Raises
    ------
    NotSupported
        This version of llama-cpp-python makes its samplers in another way.
    """
    with _making(llama, _Sampler(sampler)):
        try:
            yield sampler
        finally:
            llama._sampler = None


def create_completion(
    llama: Any,
    prompt: str | list[int],
    trie: Trie | Cursor,
    **options: Any,
) -> Any:
    """Complete a prompt with one of the choices.

    Parameters
    ----------
    llama : llama_cpp.Llama
    prompt : str or list of int
        Ids where the trie was made by `Vocab.place`, which says with which.
    trie : Trie or Cursor
        The choices; of a cursor, those that are left at its position.
    **options
        `eog` (by default the model's), `exits`, `allow`, `after`; `temperature` (0 by
        default: the highest), `top_k`, `top_p`, `min_p`, `seed`, `repeat_penalty`,
        `frequency_penalty`, `presence_penalty`, `logit_bias`; and what else
        `Llama.create_completion` takes. `max_tokens` is by default as many as the
        longest choice has.

    Returns
    -------
    dict, or an iterator with ``stream=True``
        As `Llama.create_completion`. In the dict the first of "choices" has a "choice"
        beside its "text": the name of the leaf, or its number.

    Raises
    ------
    TokenLimit
        The generation ended inside a choice.
    NoCandidateError
        No allowed id has a logit above -inf.
    BackendError
        A stream was to go on after another completion on the same model.
    """
    return _complete(llama, llama.create_completion, prompt, trie, options)


def create_chat_completion(
    llama: Any, messages: list[Any], trie: Trie | Cursor, **options: Any
) -> Any:
    """Answer a chat with one of the choices; see `create_completion`."""
    return _complete(llama, llama.create_chat_completion, messages, trie, options)


def _complete(
    llama: Any, call: Any, prompt: Any, trie: Trie | Cursor, options: dict[str, Any]
) -> Any:
    for name, nothing in _NOT_OURS.items():
        value = options.pop(name, None)
        if value is not None and value != nothing:
            raise InvalidArgument(
                f"{name}= does not go with a constraint: its choices are in the trie"
            )
    eog = options.pop("eog", None)
    link_options = _taken(options, "exits", "allow", "after")
    sampler = _chain(trie, llama if eog is None else eog, link_options, options)
    if options.get("max_tokens") is None and sampler.link.after == "end":
        options["max_tokens"] = sampler.link.cursor.trie.max_depth + 2
    if options.get("stream"):
        return _stream(llama, call, prompt, sampler, options)
    with sampler, sampling_with(llama, sampler):
        out = call(prompt, **options)
        _must_be_done(sampler, llama, options, out)
        link = sampler.link
        out["choices"][0]["choice"] = link.leaf if link.name is None else link.name
        return out


def _stream(
    llama: Any, call: Any, prompt: Any, sampler: Chain, options: dict[str, Any]
) -> Iterator[Any]:
    ours = _Sampler(sampler)
    with sampler:
        try:
            parts = last = None
            while True:
                # Only while the stream runs: in between, others may use the model.
                with _making(llama, ours):
                    if parts is None:
                        parts = call(prompt, **options)
                    if ours.begun and llama._sampler is not ours:
                        raise BackendError(
                            "another completion ran on this model while the stream "
                            "was suspended: the stream cannot go on"
                        )
                    part = next(parts, None)
                if part is None:
                    break
                last = part
                yield part
        finally:
            if llama._sampler is ours:
                llama._sampler = None
        _must_be_done(sampler, llama, options, last)


def _must_be_done(
    sampler: Chain, llama: Any, options: dict[str, Any], last: Any
) -> None:
    """Say why a completion, or the last part of it, ended inside a choice."""
    if sampler.link.done:
        return
    path = sampler.link.path
    if last["choices"][0]["finish_reason"] == "length":
        why = "raise max_tokens, or the n_ctx of the model"
    else:
        stop = options.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        text = llama.detokenize(list(path))
        found = [s for s in stops if s.encode() in text]
        why = (
            f"stop={found[0]!r} stands in it"
            if found
            else "a stopping criterion, a stop text of the chat format or an "
            "end-of-generation id in the choice stopped it"
        )
    raise TokenLimit(f"the completion ended inside a choice, after {path}: {why}")


def _chain(
    trie: Trie | Cursor,
    eog: Any,
    link_options: dict[str, Any],
    options: dict[str, Any],
) -> Chain:
    """Take what is about sampling out of the options and build a chain of it."""
    temperature = options.pop("temperature", 0.0)
    seed = options.pop("seed", None)
    draw = _taken(options, "top_k", "top_p", "min_p")
    if draw.get("top_k") == -1:  # off, as llama.cpp writes it
        draw["top_k"] = 0
    penalties = Penalties(
        repeat=options.pop("repeat_penalty", 1.0),
        frequency=options.pop("frequency_penalty", 0.0),
        presence=options.pop("presence_penalty", 0.0),
    )
    bias: Mapping[Any, float] = options.pop("logit_bias", None) or {}
    mode = "sample" if temperature else "greedy"
    if mode == "sample":
        draw.update(temperature=temperature, seed=seed)
    else:
        draw = {}
    return chain(
        Link(trie, mode=mode, eog=eog, **link_options),
        penalties=None if penalties == Penalties() else penalties,
        logit_bias={int(token): float(value) for token, value in bias.items()},
        **draw,
    )


def _taken(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: options.pop(name) for name in names if name in options}
