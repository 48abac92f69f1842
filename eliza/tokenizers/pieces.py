"""From the texts of a tokenizer's file to the bytes that its ids stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

__all__ = ["SPACE", "byte_letters", "byte_level", "plain", "sentence_piece"]

#: What SentencePiece writes for a space.
SPACE = "\u2581"

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")

#: From the text of an id to its bytes.
Reading = Callable[[str], bytes]


@cache
def byte_letters() -> dict[str, int]:
    """Return the printable letters by which byte-level BPE writes the bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(shown)]
    letters = {chr(b): b for b in shown}
    letters.update({chr(0x100 + i): b for i, b in enumerate(others)})
    return letters


def byte_level(text: str) -> bytes:
    """Return the bytes that the letters of byte-level BPE stand for."""
    letters = byte_letters()
    try:
        return bytes([letters[letter] for letter in text])
    except KeyError:  # an ordinary text, as some vocabularies hold a few
        return text.encode()


def sentence_piece(text: str) -> bytes:
    """Return the bytes of a piece of SentencePiece; `<0x0A>` is one byte."""
    byte = _BYTE.fullmatch(text)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return text.replace(SPACE, " ").encode()


def plain(text: str) -> bytes:
    """Return the bytes of a text that stands for itself."""
    return text.encode()
