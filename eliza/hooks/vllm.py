"""Constraints inside vLLM, by a logits processor of its version-1 interface.

    from vllm import LLM, SamplingParams
    from eliza.hooks.vllm import extra_args

    llm = LLM(..., logits_processors=["eliza.hooks.vllm:TrieLogitsProcessor"])
    llm.generate(prompt, SamplingParams(
        temperature=0, extra_args=extra_args(trie, eog=tokenizer), max_tokens=32))

Requests without such `extra_args` are not touched. Positions are derived from the ids
that a request has put out, at each step, so that a request that is moved, preempted or
resumed goes on where it was.

vLLM is not installed where eliza is tested: the tests use the interface's published
classes in a stand-in.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza._trie import Trie
from eliza.errors import BackendError, BundleError, InvalidArgument, NotSupported
from eliza.hooks._follow import Place
from eliza.hooks._processor import keep_values
from eliza.hooks._start import Start, end_ids_of

if TYPE_CHECKING:
    LogitsProcessor: Any = object
    MoveDirectionality: Any = None
else:
    try:
        from vllm.v1.sample.logits_processor import LogitsProcessor, MoveDirectionality
    except ImportError as error:
        raise NotSupported(
            f"eliza.hooks.vllm needs vLLM with its version-1 engine ({error})"
        ) from error

__all__ = ["KEY", "TrieLogitsProcessor", "extra_args"]

#: The key in `SamplingParams.extra_args`.
KEY = "eliza"

#: How many tries of former requests are kept.
_KEPT = 128


def extra_args(
    trie: Trie,
    *,
    eog: Any = None,
    exits: Iterable[int] | None = None,
    allow: Iterable[str] | Iterable[int] | None = None,
    after: str = "end",
) -> dict[str, Any]:
    """Return `SamplingParams.extra_args` that constrain a request.

    They hold texts and numbers only, so that they can go to the engine's process or
    over HTTP.

    Parameters
    ----------
    trie : Trie
        The choices.
    eog : int, iterable of int, or tokenizer
        The ids that end a generation; needed for ``after="end"``.
    exits, allow, after
        As in the other hooks; `allow` as names or leaf numbers.
    """
    given: dict[str, Any] = {
        "trie": base64.b64encode(trie.to_bytes()).decode("ascii"),
        "eog": list(end_ids_of(eog)),
        "after": after,
    }
    if exits is not None:
        given["exits"] = [int(id) for id in exits]
    if allow is not None:
        given["allow"] = [x if isinstance(x, str) else int(x) for x in allow]
    _start_of(given)
    return {KEY: given}


_tries: OrderedDict[str, Trie] = OrderedDict()


def _trie_of(text: Any) -> Trie:
    if not isinstance(text, str):
        raise InvalidArgument(f'extra_args["{KEY}"]["trie"] must be a text')
    trie = _tries.get(text)
    if trie is None:
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidArgument(
                f'extra_args["{KEY}"]["trie"] is no base64: {error}'
            ) from None
        try:
            trie = Trie.from_bytes(data)
        except BundleError as error:
            raise InvalidArgument(f'extra_args["{KEY}"]["trie"]: {error}') from None
    _tries[text] = trie
    _tries.move_to_end(text)
    while len(_tries) > _KEPT:
        _tries.popitem(last=False)
    return trie


def _start_of(given: Any) -> Start:
    """Read what `extra_args` wrote; it may come from anyone."""
    if not isinstance(given, Mapping):
        raise InvalidArgument(f'extra_args["{KEY}"] must be what extra_args() returns')
    unknown = sorted(set(given) - {"trie", "eog", "after", "exits", "allow"})
    if unknown:
        raise InvalidArgument(f'extra_args["{KEY}"] has an unknown key {unknown[0]!r}')
    return Start(
        _trie_of(given.get("trie")),
        eog=given.get("eog"),
        exits=given.get("exits"),
        allow=given.get("allow"),
        after=given.get("after", "end"),
    )


class _Request:
    """One constrained request: where it starts, and its running list of ids."""

    __slots__ = ("_last", "_place", "_start", "_taken", "output")

    def __init__(self, start: Start, output: list[int]) -> None:
        self.output = output  # vLLM's own list, which grows
        self._start = start
        self._begin()

    def _begin(self) -> None:
        self._place = Place(self._start)
        self._taken = 0
        self._last = -1

    def place(self) -> Place:
        """Go on by the ids that were put out since the last step.

        Only these are looked at, and the one before: a step of a long text costs what
        the first did.
        """
        output, n = self.output, len(self.output)
        taken = self._taken
        if taken and (n < taken or output[taken - 1] != self._last):
            self._begin()
        while self._taken < n:
            if self._start.free and self._place.cursor.done:
                self._taken, self._last = n, output[n - 1]
                break
            token = output[self._taken]
            self._place.step(token, False)
            self._taken, self._last = self._taken + 1, token
        return self._place


class TrieLogitsProcessor(LogitsProcessor):  # type: ignore[misc]
    """Keeps requests that ask for it to the choices of their tries."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request whose `extra_args` cannot be kept, before it runs."""
        given = (sampling_params.extra_args or {}).get(KEY)
        if given is not None:
            _start_of(given)

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._requests: dict[int, _Request] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False: the highest id may be forbidden."""
        return False

    @classmethod
    def needs_output_token_ids(cls) -> bool:
        """Return True: with asynchronous scheduling they are then filled in."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """Follow requests that were removed, added and moved, in this order."""
        if batch_update is None:
            return
        requests = self._requests
        for index in batch_update.removed:
            requests.pop(index, None)
        for index, params, _prompt, output in batch_update.added:
            given = (params.extra_args or {}).get(KEY)
            if given is None:
                requests.pop(index, None)
            else:
                requests[index] = _Request(_start_of(given), output)
        for a, b, direction in batch_update.moved:
            first, second = requests.pop(a, None), requests.pop(b, None)
            if first is not None:
                requests[b] = first
            if second is not None and direction == MoveDirectionality.SWAP:
                requests[a] = second

    def apply(self, logits: Any) -> Any:
        """Put -inf, in place, on what the constrained requests may not put out."""
        if not self._requests:
            return logits
        import torch

        bound = []
        for row, request in self._requests.items():
            if -1 in request.output[-2:]:
                raise BackendError(
                    "vLLM has placeholders for the ids that were put out: start it "
                    "without asynchronous scheduling"
                )
            place = request.place()
            ids = place.allowed()
            if ids is not None:
                bound.append((row, place, ids))
        if not bound:
            return logits
        n_vocab = max(place.cursor.trie.n_vocab for _, place, _ in bound)
        if logits.shape[1] < n_vocab:
            raise InvalidArgument(
                f"logits of shape {tuple(logits.shape)}; a trie is for {n_vocab} ids"
            )
        lengths = [len(ids) for _, _, ids in bound]
        rows = np.repeat([row for row, _, _ in bound], lengths)
        columns = np.concatenate([ids for _, _, ids in bound])
        at = (
            torch.as_tensor(rows, device=logits.device),
            torch.as_tensor(columns, dtype=torch.long, device=logits.device),
        )
        kept = logits[at].float().cpu().numpy()
        first = 0
        for (row, place, _), length in zip(bound, lengths, strict=True):
            values = kept[first : first + length]
            kept[first : first + length] = keep_values(place, values, row)
            first += length
        logits[[row for row, _, _ in bound]] = -torch.inf
        logits[at] = torch.as_tensor(kept, device=logits.device).to(logits.dtype)
        return logits
