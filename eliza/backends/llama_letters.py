"""Texts that llama.cpp would end the process over: letters without an id.

Its SentencePiece tokenizer writes a letter that the vocabulary does not have by the ids
of its bytes. Where those are missing too, it looks for them all the same, and the
exception that follows passes through C: nothing can catch it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from eliza.errors import InvalidArgument, shown

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Letters"]

#: What the tokenizer puts in place of a space, also of one that it adds.
SPACE = "\u2581"


class Letters:
    """The letters that a vocabulary can write.

    Parameters
    ----------
    texts : collection of str
        Those of all ids that stand for text or for a byte.
    cut_out : collection of str
        Those that become ids wherever they stand: user-defined tokens.
    control : collection of str
        Those that do so where a text is parsed for them.
    """

    def __init__(
        self,
        texts: Collection[str],
        cut_out: Collection[str],
        control: Collection[str],
    ) -> None:
        self._texts = frozenset(texts)
        self._plain = _any_of(cut_out)
        self._special = _any_of([*cut_out, *control])
        self._checked: set[str] = set()

    @property
    def complete(self) -> bool:
        """Whether every byte has an id, so that any text can be written."""
        return all(f"<0x{byte:02X}>" in self._texts for byte in range(256))

    def check(self, text: str, special: bool) -> None:
        """Raise InvalidArgument if a text has a letter that cannot be written."""
        cut = self._special if special else self._plain
        rest = text if cut is None else cut.sub("", text)
        for letter in {*rest.replace(" ", SPACE), SPACE} - self._checked:
            if letter not in self._texts and not all(
                f"<0x{byte:02X}>" in self._texts or chr(byte) in self._texts
                for byte in letter.encode()
            ):
                raise InvalidArgument(
                    f"{shown(text)} cannot be written: the vocabulary has no id for "
                    f"{letter!r}, nor for its bytes"
                )
            self._checked.add(letter)


def _any_of(texts: Collection[str]) -> re.Pattern[str] | None:
    longest_first = sorted(filter(None, texts), key=len, reverse=True)
    return (
        re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
    )
