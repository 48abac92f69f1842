"""Encoding a prompt that begins as the last one did: only what is new.

An agent sends its whole conversation again with each question, and llama.cpp would
encode it from the start: 2 us for each token, 16 ms for 6,600. A tokenizer begins
afresh behind a control token, so what stands before the last one that both prompts
have keeps its ids, and the rest is encoded behind that token alone.

That holds for a token only whose text no other token that is cut out of texts can
overlap; see `Borders`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eliza.ledger import common_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Borders", "PromptMemo"]

#: Shorter prompts are encoded as a whole: to look for what is known takes as long.
SHORTEST = 256


class Borders:
    """The control tokens behind which a tokenizer begins afresh, whatever follows.

    Where the texts of such tokens overlap, which of them is cut out depends on what
    stands around: a token with such a text is no border.

    Parameters
    ----------
    control : mapping of int to str
        The ids that become one of these texts, and are never text themselves.
    others : iterable of str
        What is cut out of a text besides, such as user-defined tokens.
    """

    def __init__(self, control: Mapping[int, str], others: list[str]) -> None:
        self._control = control
        self._texts = [*control.values(), *others]
        self._known: dict[int, str] = {}

    def text(self, token: int) -> str:
        """Return the text of a border, or "" for any other id."""
        found = self._known.get(token)
        if found is None:
            text = self._control.get(token, "")
            found = text if text and self._stands_alone(text) else ""
            self._known[token] = found
        return found

    def _stands_alone(self, text: str) -> bool:
        if self._texts.count(text) != 1 or _overlap(text, text):
            return False
        return not any(
            other in text or text in other or _overlap(text, other)
            for other in self._texts
            if other and other != text
        )


def _overlap(a: str, b: str) -> bool:
    """Whether a proper end of one text begins the other."""
    return any(
        a[-n:] == b[:n] or b[-n:] == a[:n] for n in range(1, min(len(a), len(b)))
    )


class _Cut(NamedTuple):
    """A place behind a border."""

    offset: int  # in characters
    n_ids: int  # before it
    token: int  # the border


class _Known(NamedTuple):
    text: str
    ids: list[int]
    cuts: list[_Cut]


class PromptMemo:
    """Encodes prompts, and keeps the last one. May be used from several threads.

    Parameters
    ----------
    encode : callable
        Returns the ids of a text, in which the texts of control tokens become those.
    borders : callable
        Returns the `Borders` of the vocabulary; called when they are first needed.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], borders: Callable[[], Borders]
    ) -> None:
        self._encode = encode
        self._find_borders = borders
        self._borders: Borders | None = None
        self._last: _Known | None = None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        if len(text) < SHORTEST:
            return self._encode(text)
        last = self._last  # whole, whichever thread set it
        if last is None:  # whoever encodes one prompt only pays nothing
            ids = self._encode(text)
            self._last = _Known(text, ids, [])
            return ids.copy()
        if self._borders is None:
            self._borders = self._find_borders()
            last = self._marked(last)
        same = common_prefix(last.text, text)
        cuts = [cut for cut in last.cuts if cut.offset <= same]
        known = self._behind(last, cuts, text)
        if known is None:
            known = self._marked(_Known(text, self._encode(text), []))
        self._last = known
        return known.ids.copy()

    def _behind(self, last: _Known, cuts: list[_Cut], text: str) -> _Known | None:
        """Encode what is new of a text, behind the last of these cuts."""
        if not cuts or self._borders is None:
            return None
        offset, n_ids, token = cuts[-1]
        fresh = self._encode(self._borders.text(token) + text[offset:])
        if fresh[:1] != [token]:
            return None
        ids = last.ids[:n_ids] + fresh[1:]
        return self._marked(_Known(text, ids, cuts))

    def _marked(self, known: _Known) -> _Known:
        """Add the cuts of a text behind those that are known."""
        assert self._borders is not None
        cuts = known.cuts.copy()
        offset, n_ids = cuts[-1][:2] if cuts else (0, 0)
        border = self._borders.text
        for i in range(n_ids, len(known.ids)):
            token = known.ids[i]
            if text := border(token):
                # Each place at which the text stands has become the id, in this order.
                at = known.text.find(text, offset)
                if at < 0:
                    break
                offset = at + len(text)
                cuts.append(_Cut(offset, i + 1, token))
        return known._replace(cuts=cuts)
