"""T32: a byte-level vocabulary of 32 ids, small enough to follow by hand.

Ids 0 to 3 are control ids. `AB` is one id, `AC` two; `Yes` is there twice; the cat and
the dog share three of their four bytes; id 22 is 64 spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from eliza.vocab import Vocab

PAD, BOS, END, IM_END = range(4)
PIECES: list[str | bytes] = [
    *("<pad>", "<s>", "</s>", "<|im_end|>"),
    *("A", "B", "AB", "C", " A", "Yes", "Yes", " Yes", "No", "Ma", "ybe", "e"),
    *(b"\xf0", b"\x9f", b"\x90", b"\x88", b"\x95"),
    *(" ", " " * 64, '"', "\\", "/", "<", "|", "im_end", ">", "n", "t"),
]
#: The logits of T32 are wider than its ids: the rest is padding.
ROW = 40


def t32(
    eog: Iterable[int] = (END,),
    bos: int | None = BOS,
    encode: Callable[[str, bool], list[int]] | None = None,
) -> Vocab:
    """Make the vocabulary; by default a prompt begins with BOS."""
    return Vocab.from_tokens(PIECES, range(4), eog, bos, encode)


def row(scores: dict[int, float], width: int = ROW) -> list[float]:
    """Make a row of logits that is 0 but for the given ids."""
    return [scores.get(i, 0.0) for i in range(width)]


def byte_pair(
    merges: Sequence[tuple[str, str]], alphabet: str, start: str = ""
) -> Vocab:
    """Make a byte-pair vocabulary: END, the letters, then one id for each merge.

    `start` is what the encoder puts before a text.
    """
    pieces = ["</s>", *alphabet]
    ranks = {}
    for left, right in merges:
        ranks.setdefault((left, right), len(ranks))
        pieces.append(left + right)
    ids: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        ids.setdefault(piece, i)

    def encode(text: str, special: bool) -> list[int]:
        parts = list(start + text) if text else []
        while True:
            pairs = list(pairwise(parts))
            best = min(
                (p for p in pairs if p in ranks), key=ranks.__getitem__, default=None
            )
            if best is None:
                return [ids[part] for part in parts]
            at = pairs.index(best)
            parts[at : at + 2] = ["".join(best)]

    return Vocab.from_tokens(pieces, eog=[0], encode=encode)
