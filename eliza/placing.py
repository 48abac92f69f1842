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

Only the end of the prompt is encoded again, and the leaves depend on nothing before it:
see `tails`. So a cache has them by that end and by the texts. `_cut` finds the root and
the ends of the leaves, `_separate` what ends a choice that others continue.
"""

from __future__ import annotations

import reprlib
import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eliza._trie import from_arrays_with_order
from eliza.cache import Entry
from eliza.errors import InvalidArgument, InvalidType, shown
from eliza.frozen import Frozen
from eliza.tails import TooShort, common, encode_all, prompt_ends

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from eliza._trie import Trie
    from eliza.cache import TrieCache
    from eliza.tails import End, Ids, Tail
    from eliza.vocab import Vocab

__all__ = ["Placement", "Spot", "locate", "place"]


class Placement(Frozen):
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

    __slots__ = ("prompt_ids", "trie", "order", "overlap")  # noqa: RUF023
    prompt_ids: NDArray[np.int32]
    trie: Trie
    order: NDArray[np.int32]
    overlap: int

    def __init__(
        self,
        prompt_ids: NDArray[np.int32],
        trie: Trie,
        order: NDArray[np.int32],
        overlap: int,
    ) -> None:
        self._set(prompt_ids, trie, order, overlap)

    def __eq__(self, other: object) -> bool:
        return self is other  # arrays are not equal or unequal as a whole

    def __hash__(self) -> int:
        return object.__hash__(self)


class Spot(NamedTuple):
    """Where the root of a trie lies, and what its leaves are."""

    back: int  # how many ids at the end of the prompt are not before the root
    lead: Ids  # the ids that stand there instead
    order: NDArray[np.int32]
    overlap: int


def place(
    vocab: Vocab,
    prompt: Ids,
    choices: Sequence[str],
    suffix: str,
    *,
    rooted: bool,
    cache: TrieCache | None,
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
    cache : TrieCache or None
        Where the choices are looked up by their texts.

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
    ids, entry = locate(vocab, prompt, choices, suffix, rooted=rooted, cache=cache)
    spot = entry.extra
    prompt_ids = _frozen(np.array(ids, np.int32))
    return Placement(prompt_ids, entry.trie, spot.order, spot.overlap)


def locate(
    vocab: Vocab,
    prompt: Ids,
    choices: Sequence[str],
    suffix: str,
    *,
    rooted: bool,
    cache: TrieCache | None,
) -> tuple[Ids, Entry[Trie]]:
    """Do what `place` does; return the ids before the root, and trie and `Spot`."""
    texts = _texts(choices)
    suffix = _plain(suffix, "suffix")
    for end in prompt_ends(vocab, prompt):
        build = partial(_build, vocab, end, texts, suffix)
        try:
            if cache is None:
                entry = build()
            else:
                # The vocabulary by its number: its fingerprint tells equal ones from
                # different ones, which only files need, and takes 50 ms for 49,152 ids.
                key = (vocab._serial, end.afresh, tuple(end.ids), texts, suffix)
                entry = cache.lookup(key, build)
            break
        except TooShort:
            continue
    spot: Spot = entry.extra
    ids = prompt[: len(prompt) - spot.back] + spot.lead
    if rooted and not ids:
        why = (
            "the prompt is too short: the tokenizer merges all of it with a choice"
            if prompt
            else "empty prompt: no ids"
        )
        raise InvalidArgument(
            f"{why}, and a model must read at least one id before the choices; put "
            f"{'more' if prompt else 'some'} text there"
        )
    return ids, entry


def _build(vocab: Vocab, end: End, texts: tuple[str, ...], suffix: str) -> Entry[Trie]:
    """Find the leaves after the end of a prompt, and build their trie."""
    first = _distinct(texts)
    after = _utf8(suffix, "suffix")
    tail, encodings = encode_all(vocab, end, first, suffix)
    root, ends, overlap = _cut(vocab, tail, first, after, encodings)
    names = list(first)
    bodies = [encoded[root:] for encoded in encodings]
    ends = [at - root for at in ends]
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
    if len(names) != len(texts):
        order = np.array(list(first.values()), np.int32)[order]
    lead = encodings[0][tail.skip : root]
    spot = Spot(len(end.ids) - tail.kept, lead, _frozen(order), overlap)
    return Entry(
        trie, spot, trie.nbytes + order.nbytes + sum(map(sys.getsizeof, texts))
    )


def _frozen(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.flags.writeable = False
    return array


# -- what the caller gave --------------------------------------------------------------


def _texts(choices: Sequence[str]) -> tuple[str, ...]:
    """Return the choices as plain strings."""
    known = type(choices) in (list, tuple)
    if not known and (
        isinstance(choices, (str, bytes)) or not isinstance(choices, Sequence)
    ):
        raise InvalidType(
            "choices must be a sequence of strings, such as a list; got "
            + reprlib.repr(choices)
        )
    texts = tuple(choices)
    if {*map(type, texts)} == {str}:
        return texts
    if not texts:
        raise InvalidArgument("there are no choices; give at least one")
    return tuple([_plain(text, f"choices[{i}]") for i, text in enumerate(texts)])


def _plain(text: str, what: str) -> str:
    """Return what a string says, whatever class it is of."""
    if not isinstance(text, str):
        raise InvalidType(f"{what} must be a string; got {reprlib.repr(text)}")
    return text if type(text) is str else str.__str__(text)


def _distinct(texts: Sequence[str]) -> dict[str, int]:
    """Return the choices with the index of their first appearance."""
    first: dict[str, int] = {}
    for i, text in enumerate(texts):
        if not _utf8(text, f"choices[{i}]"):
            raise InvalidArgument(f"choices[{i}] is the empty string ''")
        first.setdefault(text, i)
    return first


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what}: {shown(text)} has a lone surrogate at {error.start}, which "
            "stands for no character"
        ) from None


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
    vocab: Vocab, tail: Tail, first: dict[str, int], after: bytes, encodings: list[Ids]
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
            root = common(ids, one)
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
