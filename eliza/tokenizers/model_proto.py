"""What is needed of a SentencePiece `*.model`: its pieces and their kinds.

The file is a protocol buffer; the library tells the kinds only in part. Of the message,
field 1 is repeated, one message for each piece: its text (1), score (2) and kind (3).
"""

from __future__ import annotations

from eliza.errors import BundleError
from eliza.files.protobuf import fields

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
            for field, value in fields(data):
                if field == 1 and isinstance(value, bytes):
                    piece = dict(fields(value))
                    text, kind = piece.get(1, b""), piece.get(3, NORMAL)
                    if isinstance(text, bytes) and isinstance(kind, int):
                        self.texts.append(text.decode())
                        self.kinds.append(kind)
        except ValueError as error:
            raise BundleError(f"this is not a SentencePiece model: {error}") from error

    def of(self, *kinds: int) -> set[int]:
        """Return the ids of some kinds."""
        return {i for i, kind in enumerate(self.kinds) if kind in kinds}
