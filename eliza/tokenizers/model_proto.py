"""What is needed of a SentencePiece `*.model`: its pieces and their kinds.

The file is a protocol buffer; the library tells the kinds only in part. Of the message,
field 1 is repeated, one message for each piece: its text (1), score (2) and kind (3).
"""

from __future__ import annotations

from collections.abc import Iterator

from eliza.errors import BundleError

__all__ = ["BYTE", "CONTROL", "NORMAL", "UNKNOWN", "UNUSED", "USER_DEFINED", "Kinds"]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class Kinds:
    """The pieces of a model and what they are.

    Attributes
    ----------
    texts : list of str
    kinds : list of int
        `NORMAL` and the others, which are those of GGUF files.

    Raises
    ------
    BundleError
        It is not such a message.
    """

    def __init__(self, data: bytes) -> None:
        self.texts: list[str] = []
        self.kinds: list[int] = []
        try:
            for field, value in _fields(data):
                if field == 1 and isinstance(value, bytes):
                    piece = dict(_fields(value))
                    text, kind = piece.get(1, b""), piece.get(3, NORMAL)
                    if isinstance(text, bytes) and isinstance(kind, int):
                        self.texts.append(text.decode())
                        self.kinds.append(kind)
        except (IndexError, ValueError) as error:
            raise BundleError(f"this is not a SentencePiece model: {error}") from error

    def of(self, *kinds: int) -> set[int]:
        """Return the ids of some kinds."""
        return {i for i, kind in enumerate(self.kinds) if kind in kinds}


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Give the numbers of a message's fields with their values."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"a field of wire type {wire}")
        if at + size > len(data):
            raise ValueError("it is cut short")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
