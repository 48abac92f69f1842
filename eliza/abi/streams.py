"""Models and streams behind the C names: handles, options, output that waits.

A handle is a number that is given out once, so that one which was ended is known as
such. Everything here may be called from any thread. The locks are `ModelLock`, because
a forked child would wait for a plain one for ever.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from eliza.errors import (
    BundleError,
    Cancelled,
    Closed,
    InvalidArgument,
    NotSupported,
)
from eliza.locking import ModelLock

if TYPE_CHECKING:
    from eliza.model import Model
    from eliza.session import Session
    from eliza.step import Step

__all__ = [
    "Config",
    "Context",
    "Output",
    "Stream",
    "context",
    "destroy",
    "find_stream",
    "stream",
]

#: Modes of `set_token_trie`.
MODES = ("greedy", "sample")

#: How far ahead a drafter guesses by default.
DRAFT = 16

# They look like pointers, and are none: steps of 16, as an allocator would give.
_numbers = itertools.count(0x10000, 16)
_contexts: dict[int, Context] = {}
_streams: dict[int, Stream] = {}


class Config(NamedTuple):
    """`eliza_llm_stream_config_t`, as far as it has an effect."""

    max_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 0.0
    top_k: int = 0
    repeat_penalty: float = 0.0
    draft_max: int = 0
    drafter_path: str = ""
    grammar: str = ""
    n_gpu_layers: int = 0
    cache_type_k: str = ""
    cache_type_v: str = ""
    context_size: int = 0
    seed: int = 0
    min_p: float = 0.0

    def of_the_model(self) -> dict[str, Any]:
        """Return what holds for all streams of a model, as options of `eliza.load`."""
        if self.cache_type_k != self.cache_type_v:
            raise NotSupported(
                f"cache_type_k is {self.cache_type_k!r} and cache_type_v "
                f"{self.cache_type_v!r}: they must be the same"
            )
        own: dict[str, Any] = {}
        if self.n_gpu_layers:
            own["n_gpu_layers"] = self.n_gpu_layers
        if self.cache_type_k:
            own["kv_type"] = self.cache_type_k
            if self.cache_type_k.startswith("q"):
                own["flash_attn"] = True  # llama.cpp has no quantised cache without
        options: dict[str, Any] = {"backend_options": own} if own else {}
        if self.context_size > 0:
            options["n_ctx"] = self.context_size
        return options

    def of_the_stream(self) -> dict[str, Any]:
        """Return what holds for one stream, as options of `Model.open`."""
        if self.grammar:
            raise NotSupported(
                "gbnf_grammar is set, and eliza keeps no grammars: bind choices with "
                "eliza_inference_set_token_trie"
            )
        return {
            "max_tokens": self.max_tokens if self.max_tokens > 0 else None,
            "temperature": max(self.temperature, 0.0),
            "top_k": max(self.top_k, 0),
            "top_p": 1.0 if self.top_p == 0 or self.top_p > 1 else self.top_p,
            "min_p": self.min_p,
            "repeat_penalty": self.repeat_penalty or 1.0,
            "seed": self.seed or None,
        }


class Context:
    """A bundle, and its model from when it is first needed.

    Parameters
    ----------
    path : str
        A model's file, or a bundle's folder.
    """

    def __init__(self, path: str) -> None:
        from eliza.backends import select
        from eliza.files.bundle import Bundle

        bundle = Bundle.of(path)
        select(bundle, need=("mask",)).unwrap()
        if bundle.folder is None:
            with open(path, "rb"):  # the system says what is wrong with it
                pass
        elif not bundle.artefacts():
            raise BundleError(f"{path} holds {bundle.content()}")
        self._path = path
        self._lock = ModelLock()
        self._model: Model | None = None
        self._options: dict[str, Any] = {}
        self._drafters: dict[str, Model] = {}
        self._streams: set[int] = set()
        self._closed = False
        self.handle = next(_numbers)
        _contexts[self.handle] = self

    def model(self) -> Model:
        """Return the model, loading it as it was loaded last."""
        with self._lock:
            return self._loaded(self._options)

    def _loaded(self, options: dict[str, Any]) -> Model:
        from eliza.loading import load

        if self._closed:
            raise Closed("the context was destroyed")
        if self._model is not None and options != self._options:
            if self._streams:
                raise InvalidArgument(
                    f"the model is loaded with {self._options or 'the defaults'}, not "
                    f"with {options or 'the defaults'}: close its streams first, or "
                    "create another context"
                )
            self._model.close()
            self._model = None
        if self._model is None:
            self._model = load(self._path, **options)
            self._options = options
        return self._model

    def open(self, config: Config) -> Stream:
        """Open a stream."""
        options = config.of_the_stream()
        shared = config.of_the_model()
        with self._lock:
            model = self._loaded(shared)
            if config.drafter_path:
                options["draft"] = self._drafter(config.drafter_path)
                options["draft_max"] = (
                    config.draft_max if config.draft_max > 0 else DRAFT
                )
            elif config.draft_max > 0:
                options.update(draft="lookup", draft_max=config.draft_max)
            made = Stream(model.open(**options), self)
            self._streams.add(made.handle)
            return made

    def _drafter(self, path: str) -> Model:
        from eliza.loading import load

        known = self._drafters.get(path)
        if known is None:
            known = self._drafters[path] = load(path)
        return known

    def forget(self, handle: int) -> None:
        """Know no longer of a stream."""
        self._streams.discard(handle)

    def destroy(self) -> None:
        """Close the streams and free the model."""
        _contexts.pop(self.handle, None)
        model = self._model
        self._closed = True
        for handle in list(self._streams):
            if handle in _streams:
                _streams[handle].cancel()
        if model is not None:
            model.close()  # interrupts what runs, and waits for it
        with self._lock:  # a model that was being loaded meanwhile
            for handle in list(self._streams):
                if handle in _streams:
                    _streams[handle].close()
            for loaded in (self._model, *self._drafters.values()):
                if loaded is not None:
                    loaded.close()
            self._model = None
            self._drafters.clear()

    # Texts and ids

    def tokenize(
        self, data: bytes, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Return the ids of a text in UTF-8."""
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"text is no UTF-8 at byte {error.start} ({error.reason})"
            ) from None
        return self.model().vocab.encode(text, special=parse_special, bos=add_special)

    def detokenize(self, ids: list[int]) -> bytes:
        """Return the bytes of ids."""
        return self.model().vocab.decode(ids)


class Output(NamedTuple):
    """What one `next` gives to the caller's buffers."""

    ids: list[int]
    text: bytes
    drafted: int
    accepted: int
    final: bool
    waits: bool


class Stream:
    """A session, and output of it that had no room yet.

    Parameters
    ----------
    session : Session
        Owned by the stream.
    owner : Context
        Where it was opened.
    """

    def __init__(self, session: Session, owner: Context) -> None:
        self.session = session
        self._owner = owner
        self._lock = ModelLock()  # of what waits
        self._cancelled = threading.Event()
        self._ids: list[int] = []
        self._text = b""
        self._final = False
        self.handle = next(_numbers)
        _streams[self.handle] = self

    @property
    def _waits(self) -> bool:
        return bool(self._ids or self._text)

    def _check(self) -> None:
        if self.session.closed:
            raise Closed("the stream is closed")
        if self._cancelled.is_set():
            raise Cancelled("the stream was cancelled; reset makes it usable again")

    def next(self, ids_cap: int, text_cap: int) -> Output:
        """Give what waits, or else generate.

        Parameters
        ----------
        ids_cap, text_cap : int
            How many ids there is room for, and bytes, one of them for a NUL.
        """
        step: Step | None = None
        with self._lock:
            self._check()
            if not self._waits:
                step = self.session.next()
                self._ids = list(step.ids)
                self._text = step.text.encode()
                self._final = step.final
            ids = self._ids[:ids_cap]
            text = _whole(self._text, text_cap - 1)
            if self._waits and not ids and not text:
                raise InvalidArgument(
                    f"ids_cap is {ids_cap} and text_cap {text_cap}: too small for what "
                    "comes next, at most one id, and 4 bytes and a NUL; it is kept"
                )
            self._ids = self._ids[len(ids) :]
            self._text = self._text[len(text) :]
            return Output(
                ids,
                text,
                step.drafted if step else 0,
                step.accepted if step else 0,
                self._final and not self._waits,
                self._waits,
            )

    def prefill(self, ids: list[int]) -> None:
        """Append ids."""
        self._check()
        if ids:
            self.session.prefill(ids)

    def cancel(self) -> None:
        """Stop what runs, or else what comes next."""
        self._cancelled.set()
        self.session.cancel()

    def reset_keep(self, n: int) -> int:
        """Begin anew above the first n ids."""
        with self._lock:
            self._cancelled.clear()
            kept = self.session.reset_keep(n)
            self._ids, self._text, self._final = [], b"", False
            return kept

    def save_slot(self, path: str) -> None:
        """Write the session to a file."""
        with self._lock:
            if self._waits:
                raise InvalidArgument(
                    f"{len(self._ids)} ids and {len(self._text)} bytes of text wait to "
                    "be fetched, and are not part of a slot: call next before"
                )
            self.session.save_slot(path)

    def restore_slot(self, path: str) -> None:
        """Go on from a file."""
        with self._lock:
            self._check()
            self.session.restore_slot(path)
            self._ids, self._text, self._final = [], b"", False

    def set_token_trie(self, payload: bytes, path: str | None, mode: int) -> None:
        """Bind what comes next to choices."""
        if mode not in range(len(MODES)):
            raise InvalidArgument(f"mode is {mode}; it is 0, greedy, or 1, sample")
        self.session.set_token_trie(payload, path, MODES[mode])

    def close(self) -> None:
        """Free the session."""
        _streams.pop(self.handle, None)
        self._owner.forget(self.handle)
        self.session.close()


def _whole(text: bytes, room: int) -> bytes:
    """Return the first whole characters that have room."""
    if len(text) <= room:
        return text
    room = max(room, 0)
    while room and text[room] & 0xC0 == 0x80:
        room -= 1
    return text[:room]


def context(handle: int) -> Context:
    """Return the context of a handle."""
    if handle not in _contexts:
        raise _gone("ctx", handle)
    return _contexts[handle]


def stream(handle: int) -> Stream:
    """Return the stream of a handle."""
    if handle not in _streams:
        raise _gone("stream", handle)
    return _streams[handle]


def find_stream(handle: int) -> Stream | None:
    """Return the stream of a handle, if it is open."""
    return _streams.get(handle)


def destroy(handle: int) -> None:
    """Destroy a context; nothing to do for one that was."""
    found = _contexts.get(handle)
    if found is not None:
        found.destroy()


def _gone(what: str, handle: int) -> Exception:
    if handle == 0:
        return InvalidArgument(f"{what} is NULL")
    if handle in _contexts or handle in _streams:
        return InvalidArgument(f"{what} is the handle of something else")
    return Closed(f"{what} {handle:#x} was closed, or never given out")
