"""A session in plain Python that decodes one id at a time: what the pipe must equal."""

from __future__ import annotations

import codecs
import copy
from collections.abc import Callable, Sequence

import numpy as np

from eliza.reference import Reference


class Limit(Exception):
    """The limit is reached inside a span."""


class Stuck(Exception):
    """Nothing that may come has a usable logit."""


class PlainText:
    """All bytes so far, and what of their characters has been shown."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stop = tuple(stop)
        self.data = b""
        self.start = 0

    def chars(self) -> str:
        return codecs.getincrementaldecoder("utf-8")("replace").decode(self.data)

    def flush(self) -> str:
        text = self.chars()[self.start :]
        self.start += len(text)
        return text

    def bound(self, piece: bytes) -> str:
        waited = self.flush()
        self.data += piece
        return waited + self.flush()

    def free(self, piece: bytes) -> tuple[str, bool]:
        self.data += piece
        text = self.chars()[self.start :]
        found = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        if found:
            self.start += len(text)
            return text[: min(found)], True
        waits = 0
        for stop in self.stop:
            for n in range(1, len(stop)):
                if text.endswith(stop[:n]):
                    waits = max(waits, n)
        shown = text[: len(text) - waits]
        self.start += len(shown)
        return shown, False


class PlainSession:
    """What a session is, without batches, drafts, threads and files."""

    def __init__(
        self,
        logits: Callable[[tuple[int, ...]], np.ndarray],
        pieces: Sequence[bytes],
        eog: Sequence[int],
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        repeat_penalty: float = 1.0,
        penalty_last_n: int = 64,
        logit_bias: dict[int, float] | None = None,
        stop: Sequence[str] = (),
        max_tokens: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.logits, self.pieces, self.eog = logits, pieces, eog
        self.temperature, self.top_k = temperature, top_k
        self.penalty, self.last_n = repeat_penalty, penalty_last_n
        self.bias, self.max_tokens = logit_bias or {}, max_tokens
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.history: list[int] = []
        self.text = PlainText(stop)
        self.reference: Reference | None = None
        self.path: tuple[int, ...] = ()
        self.greedy = False
        self.restart()

    def restart(self) -> None:
        self.ids: list[int] = []
        self.finish: str | None = None
        self.text = PlainText(self.text.stop)

    def saved(self) -> dict:
        """Return what a slot holds."""
        names = ("history", "ids", "finish", "path", "rng", "text")
        return {name: copy.deepcopy(getattr(self, name)) for name in names}

    def load(self, state: dict) -> None:
        for name, value in copy.deepcopy(state).items():
            setattr(self, name, value)

    # -- the verbs ---------------------------------------------------------------

    def prefill(self, ids: Sequence[int]) -> None:
        if ids:
            self.history += ids
            self.restart()
            self.path = ()

    def sync(self, ids: Sequence[int]) -> None:
        self.history = list(ids)
        self.restart()
        self.path = ()

    def keep(self, n: int) -> None:
        del self.history[n:]
        self.restart()
        self.path = ()

    def bind(self, reference: Reference | None, greedy: bool = False) -> None:
        self.reference, self.path, self.greedy = reference, (), greedy
        if self.finish != "length" if reference else self.finish == "choice":
            self.finish = None

    @property
    def done(self) -> bool:
        return self.reference is not None and self.reference.leaf(self.path) is not None

    @property
    def inside(self) -> bool:
        return self.reference is not None and not self.done

    def begin(self) -> str | None:
        """Begin a step; return its text if it is over at once, raise at a limit."""
        spent = self.max_tokens is not None and len(self.ids) >= self.max_tokens
        if self.finish in (None, "length"):
            self.finish = "length" if spent else None
        if self.finish == "length" and self.inside:
            raise Limit
        if self.finish is None and self.done:
            self.finish = "choice"
        return None if self.finish is None else self.text.flush()

    def one(self) -> tuple[int | None, str, float | None]:
        """Take one id; return it (None: an end), its text, and its log-probability."""
        row = np.array(self.logits(tuple(self.history)), np.float32)
        score = None
        if self.reference is None:
            token = self._pick(row, range(len(self.pieces)), self.temperature == 0)
        else:
            score = 0.0
            forced = self.reference.forced(self.path)
            if forced:
                token = forced[0]
            else:
                allowed = sorted(self.reference.allowed(self.path))
                token = self._pick(row, allowed, self.greedy or self.temperature == 0)
                score = self.reference.logprobs(self.path, row.tolist())[token]
            self.path += (token,)
            if self.done:
                self.finish = "choice"
                if token in self.eog:
                    return None, "", score
        if self.reference is None and token in self.eog:
            self.finish = "stop"
            return None, "", None
        self.ids.append(token)
        self.history.append(token)
        if self.reference is not None:
            return token, self.text.bound(self.pieces[token]), score
        text, stopped = self.text.free(self.pieces[token])
        if stopped:
            self.finish = "stop"
        elif len(self.ids) == self.max_tokens:
            self.finish = "length"
        return token, text, None

    def _pick(self, row: np.ndarray, allowed: Sequence[int], greedy: bool) -> int:
        row = row.copy()
        for token, value in self.bias.items():
            row[token] += np.float32(value)
        if self.penalty != 1 and self.last_n:
            for token in set(self.history[-self.last_n :]):
                by = np.float32(self.penalty)
                row[token] = row[token] / by if row[token] > 0 else row[token] * by
        usable = [i for i in allowed if row[i] > -np.inf]
        if not usable:
            raise Stuck
        ranked = sorted(usable, key=lambda i: (-row[i], i))
        if greedy:
            return ranked[0]
        kept = sorted(ranked[: self.top_k or None])
        if len(kept) == 1:
            return kept[0]
        values = row[kept].astype(float)
        weights = np.exp((values - values.max()) / self.temperature)
        reached = np.cumsum(weights)
        at = int(np.searchsorted(reached, self.rng.random() * weights.sum(), "right"))
        return kept[min(at, len(kept) - 1)]

    def run(self, most: int = 10**6) -> str:
        """Take ids until the end, or so many; return the text."""
        text = self.begin()
        if text is not None:
            return text
        text = ""
        while self.finish is None and len(self.ids) < most:
            text += self.one()[1]
        return text + (self.text.flush() if self.finish else "")
