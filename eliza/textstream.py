"""Bytes of tokens to text: whole characters only, and nothing past a stop text."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from eliza.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["TextStream"]


class TextStream:
    """Turns the bytes of each step into text that can be shown at once.

    Bytes of an unfinished character wait for the rest; so does text that may be the
    beginning of a stop text. Bytes that can be no character become U+FFFD.

    Parameters
    ----------
    stop : iterable of str
        Texts at which free text ends; they are not part of it.
    """

    def __init__(self, stop: Iterable[str] = ()) -> None:
        if isinstance(stop, str):
            raise InvalidType("stop is a str; give a list of stop texts")
        self.stop = tuple(stop)
        for i, text in enumerate(self.stop):
            if not isinstance(text, str):
                raise InvalidType(f"stop[{i}] is {text!r}; a stop text is a str")
            if not text:
                raise InvalidArgument(f"stop[{i}] is empty; it would stop everything")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def reset(self) -> None:
        """Forget what waits."""
        self._decoder.reset()
        self._held = ""

    def bound(self, data: bytes) -> str:
        """Return the text of constrained ids; stop texts do not apply to it."""
        return self.flush() + self._decoder.decode(data)

    def free(self, data: bytes) -> tuple[str, bool]:
        """Return the text of free ids, and whether a stop text was met."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        if not self.stop:
            return text, False
        ends = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        if ends:
            return text[: min(ends)], True
        keep = max(_overlap(text, stop) for stop in self.stop)
        if keep:
            self._held = text[-keep:]
            text = text[:-keep]
        return text, False

    def flush(self) -> str:
        """Return the text that waited for a stop text."""
        text, self._held = self._held, ""
        return text

    def state(self) -> tuple[str, bytes]:
        """Return what waits: text, and bytes of an unfinished character."""
        return self._held, self._decoder.getstate()[0]

    def load(self, state: tuple[str, bytes]) -> None:
        """Let that wait which `state` gave."""
        self._held, unread = state
        self._decoder.setstate((unread, 0))


def _overlap(text: str, stop: str) -> int:
    """Return how long an end of the text is that begins the stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
