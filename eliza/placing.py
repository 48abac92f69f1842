"""From texts to leaves: the ids of each choice where it stands.

A tokenizer does not write a choice the same way everywhere: ids merge across the border
to the prompt and across the border to what follows. So each choice is encoded together
with the end of the prompt and with the suffix, and the trie starts where the encodings
part:

    prompt        … Say | : | ␣"           the prompt's own ids
    encoded       … Say | : | ␣"Yes | ",   with a choice and the suffix `",`
                  … Say | : | ␣"No | ",    with another
    root                    ^              after the longest start that all share
    leaves                    ␣"Yes, ␣"No  up to the id that covers the last byte

Only the end of the prompt is encoded again. `_tails` finds how much of it is enough,
`_encodings` proves it on each choice, `_cut` finds the root and the ends of the leaves,
`_separate` what ends a choice that others continue.
"""

from __future__ import annotations

import reprlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eliza._trie import from_arrays_with_order
from eliza.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from eliza._trie import Trie
    from eliza.vocab import Vocab

    Ids = list[int]

__all__ = ["Placement", "place", "shown"]

#: How many ids of a long prompt are encoded again with each choice.
STRETCH = 16
#: How many ids after the cut must come out as the prompt has them. One is enough for
#: every vocabulary of the tests, long runs of one character included.
AGREE = 4


@dataclass(frozen=True, eq=False, slots=True)
class Placement:
    """Choices as ids after a prompt.

    Attributes
    ----------
    prompt_ids : int32 array, read-only
        What the model must have read before the first id of a choice. Where a merge
        crosses the end of the prompt, these are fewer ids than the prompt's own.
    trie : Trie
        The choices; its names are their texts.
    order : int32 array, read-only
        `order[leaf]` is the index of that leaf's text in the caller's choices (the
        first one, if a text was given twice).
    overlap : int
        How many bytes at the start of each leaf belong to the prompt, not to the
        choice. A space that the tokenizer puts before a text counts among them.
    """

    prompt_ids: NDArray[np.int32]
    trie: Trie
    order: NDArray[np.int32]
    overlap: int


class _Tail(NamedTuple):
    """Where a prompt is cut, and the text that is encoded again before each choice."""

    kept: int  # the ids of the prompt before the cut
    text: str  # what is encoded again
    own: Ids  # its ids
    skip: int  # how many of `own` only lead up to the cut
    agree: int  # how many of `own` the encoding with a choice must start with


def place(
    vocab: Vocab, prompt: Ids, choices: Sequence[str], suffix: str, *, rooted: bool
) -> Placement:
    """Find the ids of each choice after a prompt.

    Parameters
    ----------
    vocab : Vocab
        The vocabulary.
    prompt : list of int
        The ids of the prompt, all within the vocabulary.
    choices : sequence of str
        The texts; the same text twice is one choice.
    suffix : str
        What follows each choice.
    rooted : bool
        An id of the prompt must remain before the trie.

    Returns
    -------
    Placement
        See there.

    Raises
    ------
    InvalidArgument
        A choice is empty, cannot be written with this vocabulary, or cannot be told
        from another; there are none; or no id of the prompt remains.
    InvalidType
        `choices` is not a sequence, or holds something that is not a string.
    """
    first = _distinct(choices)
    after = _utf8(suffix, "suffix")
    tail, encodings = _encodings(vocab, prompt, first, suffix)
    root, ends, overlap = _cut(vocab, tail, first, after, encodings)
    ids = prompt[: tail.kept] + encodings[0][tail.skip : root]
    if rooted and not ids:
        why = "the tokenizer merges all of it with a choice" if prompt else "no ids"
        raise InvalidArgument(
            f"empty prompt: {why}, and a model must read at least one id before the "
            "choices; put some text there"
        )
    names = list(first)
    bodies = [encoded[root:] for encoded in encodings]
    ends = [end - root for end in ends]
    exits = _separate(vocab, names, bodies, ends)

    tokens = chain.from_iterable(map(islice, bodies, ends))
    trie, order = from_arrays_with_order(
        np.fromiter(tokens, np.int32, sum(ends)),
        np.array([0, *accumulate(ends)], np.int64),
        names,
        vocab.n_vocab,
        exits or None,
        vocab.fingerprint,
    )
    if len(names) != len(choices):
        order = np.array(list(first.values()), np.int32)[order]
    return Placement(_frozen(np.array(ids, np.int32)), trie, _frozen(order), overlap)


def _frozen(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.flags.writeable = False
    return array


# -- what the caller gave --------------------------------------------------------------


def _distinct(choices: Sequence[str]) -> dict[str, int]:
    """Return the choices with the index of their first appearance."""
    if isinstance(choices, (str, bytes)) or not isinstance(choices, Sequence):
        raise InvalidType(
            "choices must be a sequence of strings, such as a list; got "
            + reprlib.repr(choices)
        )
    if not choices:
        raise InvalidArgument("there are no choices; give at least one")
    first: dict[str, int] = {}
    for i, choice in enumerate(choices):
        if not _utf8(choice, f"choices[{i}]"):
            raise InvalidArgument(f"choices[{i}] is the empty string ''")
        first.setdefault(str.__str__(choice), i)
    return first


def _utf8(text: str, what: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidType(f"{what} must be a string; got {reprlib.repr(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what}: {shown(text)} has a lone surrogate at {error.start}, which "
            "stands for no character"
        ) from None


def shown(text: str) -> str:
    """Return a text as it appears in a message: quoted, and cut when it is long."""
    return repr(text) if len(text) <= 60 else f"{text[:57]!r}..."


# -- the end of the prompt -------------------------------------------------------------


def _common(a: Ids, b: Ids) -> int:
    """Return the length of the common start."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def _again(vocab: Vocab, data: bytes) -> tuple[str, Ids] | None:
    """Return the text that a tokenizer writes as `data`, and its ids, or None."""
    try:
        text = data.removeprefix(vocab.text_start).decode()
        return text, vocab._encode(text, False)
    except (UnicodeDecodeError, InvalidArgument):
        return None


def _tails(vocab: Vocab, prompt: Ids) -> Iterator[_Tail]:
    """Give the ways to cut a prompt, the cheapest first."""
    table, n, size = vocab._table, len(prompt), STRETCH
    while True:
        low = max(0, n - size)
        pieces = table.of(prompt[low:])
        last = range(n - 1, low - 1, -1)
        fresh = next((i + 1 for i in last if prompt[i] in table.specials), 0)
        if fresh or not low:
            break
        tail = _stretch(vocab, prompt[low:], pieces)
        if tail is not None:
            yield tail._replace(kept=tail.kept + low)
        size *= 2

    # After a special id, and at the start, a tokenizer begins afresh.
    pieces = pieces[fresh - low :]
    whole = _again(vocab, b"".join(pieces))
    if whole is not None and whole[1] == prompt[fresh:]:
        yield _Tail(fresh, *whole, skip=0, agree=0)
    else:
        yield from _unusual(vocab, prompt, b"".join(pieces))


def _stretch(vocab: Vocab, ids: Ids, pieces: list[bytes]) -> _Tail | None:
    """Cut a prompt that ends in `ids` where their encoding agrees with them."""
    starts = (i for i, piece in enumerate(pieces) if not b"\x80" <= piece[:1] < b"\xc0")
    first = next(starts, len(pieces))  # not within a character
    again = _again(vocab, b"".join(pieces[first:]))
    if again is None:
        return None
    text, own = again
    shared = _common(own[::-1], ids[::-1])
    skip = len(own) - shared
    return _Tail(len(ids) - shared, text, own, skip, skip + AGREE)


def _unusual(vocab: Vocab, prompt: Ids, data: bytes) -> Iterator[_Tail]:
    """Cut a prompt that ends in ids which the tokenizer would not write.

    They stay as they are. The choices are encoded after as many of them as agree, or
    else by themselves: after a line break where a tokenizer puts a space before a text.
    """
    n = len(prompt)
    text = data.decode(errors="replace").rpartition("\ufffd")[2]
    again = _again(vocab, text.encode())
    if again is not None:
        text, own = again
        shared = _common(own[::-1], prompt[::-1])
        if shared:
            skip = len(own) - shared
            yield _Tail(n - shared, text, own, skip, agree=skip)
    text, own = (_again(vocab, b"\n") if vocab.text_start else None) or ("", [])
    yield _Tail(n, text, own, skip=len(own), agree=len(own))


def _encodings(
    vocab: Vocab, prompt: Ids, first: dict[str, int], suffix: str
) -> tuple[_Tail, list[Ids]]:
    """Encode each choice after the shortest end of the prompt that holds for all."""
    for tail in _tails(vocab, prompt):
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
    raise InvalidArgument(
        f"choices[{i}] {shown(name)} merges with whatever stands before it, and the "
        "prompt ends in ids that the tokenizer would not write; give the prompt as text"
    )


# -- leaves ----------------------------------------------------------------------------


def _refusal(vocab: Vocab, ids: Ids, before: bytes, text: bytes) -> str:
    """Say why an encoding cannot stand for a choice."""
    special = next((token for token in ids if vocab.is_special(token)), None)
    if special is None:
        got = shown(text.removeprefix(before).decode(errors="replace"))
        return f"the tokenizer rewrites it; with what follows, it comes out as {got}"
    piece = vocab.piece(special).decode(errors="replace")
    return (
        f"the tokenizer writes it with id {special} ({piece!r}), which is special and "
        "never stands for text"
    )


def _cut(
    vocab: Vocab, tail: _Tail, first: dict[str, int], after: bytes, encodings: list[Ids]
) -> tuple[int, list[int], int]:
    """Check what each encoding spells, and find the root and the ends of the choices.

    Returns the number of ids before the root, for each choice that of the ids up to
    its end, and how many bytes of the prompt come after the root.
    """
    table = vocab._table
    before = vocab.decode(tail.own) if tail.own else vocab.text_start
    one = encodings[0]
    root = len(one)
    ends = []
    for (name, index), ids in zip(first.items(), encodings, strict=True):
        raw = name.encode()
        pieces = table.of(ids)
        text = b"".join(pieces)
        if text != before + raw + after or not table.specials.isdisjoint(ids):
            why = _refusal(vocab, ids, before, text)
            raise InvalidArgument(f"choices[{index}] {shown(name)}: {why}")
        edges = list(accumulate(map(len, pieces)))
        # A start that all choices share is theirs: the root lies in the prompt.
        root = min(root, bisect_right(edges, len(before)))
        if ids[:root] != one[:root]:
            root = _common(ids, one)
        ends.append(bisect_left(edges, len(before) + len(raw)) + 1)
    return root, ends, len(before) - len(vocab.decode(one[:root]))


def _key(ids: Ids) -> bytes:
    """Return bytes that sort as the ids do; a start of the ids is a start of them."""
    return struct.pack(f">{len(ids)}i", *ids)


def _separate(
    vocab: Vocab, names: list[str], bodies: list[Ids], ends: list[int]
) -> dict[int, Sequence[int]]:
    """Make the leaves differ; return what ends those that others continue.

    A leaf is `bodies[i][: ends[i]]`; what follows there is the suffix. The next id of
    it ends the choice. Where that id continues another choice as well, it joins the
    leaf, and the next one decides: `ends` is changed.
    """
    keys = [_key(ids[:end]) for ids, end in zip(bodies, ends, strict=True)]
    while True:
        order = sorted(range(len(keys)), key=keys.__getitem__)
        exits: dict[int, Sequence[int]] = {}
        longer: set[int] = set()
        for a, b in pairwise(order):
            if not keys[b].startswith(keys[a]):
                continue
            following = bodies[a][ends[a] : ends[a] + 1]
            if keys[a] == keys[b]:
                longer.update(i for i in (a, b) if ends[i] < len(bodies[i]))
                if longer.isdisjoint((a, b)):
                    raise InvalidArgument(
                        f"{shown(names[a])} and {shown(names[b])} have the same ids"
                    )
            elif following:
                wanted = keys[a] + _key(following)
                at = bisect_left(order, wanted, key=keys.__getitem__)
                if at < len(order) and keys[order[at]].startswith(wanted):
                    longer.add(a)
                else:
                    exits[a] = following
            elif vocab.eog:
                exits[a] = vocab.eog
            else:
                raise InvalidArgument(
                    f"{shown(names[a])} cannot be told from {shown(names[b])}, which "
                    "continues it: there is no more suffix, and the vocabulary has no "
                    "end-of-generation id"
                )
        if not longer:
            return exits
        for i in longer:
            ends[i] += 1
            keys[i] = _key(bodies[i][: ends[i]])
