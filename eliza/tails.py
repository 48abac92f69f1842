"""How much of the end of a prompt is encoded again with each choice.

The ids of a choice depend on what stands before it, in every tokenizer on no more than
a few ids. `prompt_ends` gives ever longer ends of a prompt. `encode_all` cuts one where
its own encoding agrees with the prompt's ids, and proves the cut on each choice: some
ids after it must come out as the prompt has them. What it returns depends on that end
alone; where the end proves too short, it says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from eliza.errors import InvalidArgument, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eliza.vocab import Vocab

    Ids = list[int]

__all__ = ["End", "Tail", "TooShort", "common", "encode_all", "prompt_ends"]

#: How many ids of a long prompt are encoded again with each choice.
STRETCH = 16
#: How many ids after the cut must come out as the prompt has them. One is enough for
#: every vocabulary of the tests, long runs of one character included.
AGREE = 4


class End(NamedTuple):
    """The last ids of a prompt, and whether a tokenizer begins afresh with them."""

    ids: Ids
    afresh: bool


class Tail(NamedTuple):
    """Where the end of a prompt is cut, and the text to encode before each choice."""

    kept: int  # the ids of the end before the cut
    text: str  # what is encoded again
    own: Ids  # its ids
    skip: int  # how many of `own` only lead up to the cut
    agree: int  # how many of `own` the encoding with a choice must start with


class TooShort(Exception):
    """The leaves do not depend on this end of the prompt alone."""


def prompt_ends(vocab: Vocab, prompt: Ids) -> Iterator[End]:
    """Give ever longer ends of a prompt; the last of them begins afresh.

    A tokenizer does so after a special id, and at the start.
    """
    table, n, size = vocab._table, len(prompt), STRETCH
    while True:
        low = max(0, n - size)
        table.of(prompt[low:])
        last = range(n - 1, low - 1, -1)
        fresh = next((i + 1 for i in last if prompt[i] in table.specials), 0)
        if fresh or not low:
            yield End(prompt[fresh:], True)
            return
        yield End(prompt[low:], False)
        size *= 2


def encode_all(
    vocab: Vocab, end: End, first: dict[str, int], suffix: str
) -> tuple[Tail, list[Ids]]:
    """Encode each choice after the cheapest tail that holds for all."""
    for tail in _tails(vocab, end):
        head = tail.own[: tail.agree]
        encodings: list[Ids] = []
        for name, i in first.items():
            try:
                ids = vocab._encode(tail.text + name + suffix, False)
            except InvalidArgument as error:
                raise InvalidArgument(f"choices[{i}] {shown(name)}: {error}") from error
            if ids[: tail.agree] != head:
                break
            encodings.append(ids)
        else:
            return tail, encodings
    if not end.afresh:
        raise TooShort
    raise InvalidArgument(
        f"choices[{i}] {shown(name)} merges with whatever stands before it, and the "
        "prompt ends in ids that the tokenizer would not write; give the prompt as text"
    )


def _tails(vocab: Vocab, end: End) -> Iterator[Tail]:
    """Give the ways to cut an end of a prompt, the cheapest first."""
    pieces = vocab._table.of(end.ids)
    if not end.afresh:
        tail = _stretch(vocab, end.ids, pieces)
        if tail is not None:
            yield tail
        return
    whole = _again(vocab, b"".join(pieces))
    if whole is not None and whole[1] == end.ids:
        yield Tail(0, *whole, skip=0, agree=0)
    else:
        yield from _unusual(vocab, end.ids, b"".join(pieces))


def _stretch(vocab: Vocab, ids: Ids, pieces: list[bytes]) -> Tail | None:
    """Cut a prompt that ends in `ids` where their encoding agrees with them."""
    starts = (i for i, piece in enumerate(pieces) if not b"\x80" <= piece[:1] < b"\xc0")
    first = next(starts, len(pieces))  # not within a character
    again = _again(vocab, b"".join(pieces[first:]))
    if again is None:
        return None
    text, own = again
    shared = common(own[::-1], ids[::-1])
    skip = len(own) - shared
    return Tail(len(ids) - shared, text, own, skip, skip + AGREE)


def _unusual(vocab: Vocab, ids: Ids, data: bytes) -> Iterator[Tail]:
    """Cut an end of ids which the tokenizer would not write.

    They stay as they are. The choices are encoded after as many of them as agree, or
    else by themselves: after a line break where a tokenizer puts a space before a text.
    """
    n = len(ids)
    text = data.decode(errors="replace").rpartition("\ufffd")[2]
    again = _again(vocab, text.encode())
    if again is not None:
        text, own = again
        shared = common(own[::-1], ids[::-1])
        if shared:
            skip = len(own) - shared
            yield Tail(n - shared, text, own, skip, agree=skip)
    text, own = (_again(vocab, b"\n") if vocab.text_start else None) or ("", [])
    yield Tail(n, text, own, skip=len(own), agree=len(own))


def _again(vocab: Vocab, data: bytes) -> tuple[str, Ids] | None:
    """Return the text that a tokenizer writes as `data`, and its ids, or None."""
    try:
        text = data.removeprefix(vocab.text_start).decode()
        return text, vocab._encode(text, False)
    except (UnicodeDecodeError, InvalidArgument):
        return None


def common(a: Ids, b: Ids) -> int:
    """Return the length of the common start."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
