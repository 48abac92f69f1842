"""What the caller allows, brought to one form: texts to write and values to return."""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza._trie import Trie
from eliza.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Choices"]

_KINDS = (
    "a list of strings, an Enum class, a typing.Literal, a mapping from text to "
    "value, a Trie, or (name, ids) pairs"
)


#: The last set of texts, which often comes again: 25 us less for 30 of them. Sets of
#: more than so many are not kept, for their memory.
_last: Choices | None = None
_KEPT = 4096


class Choices:
    """A set of choices in the caller's order.

    Attributes
    ----------
    texts : tuple of str
        What the model may write, each once; empty when `trie` is given.
    values : tuple
        What is returned for each text.
    index : tuple of int
        Where each text first stood in what the caller gave.
    given : tuple of int
        For each thing the caller gave, its place in `values`.
    trie : Trie or None
        A set given by ids. `values` are then its names, or leaf numbers where it has
        none, in leaf order.
    """

    __slots__ = ("given", "index", "texts", "trie", "values")

    def __init__(
        self,
        texts: tuple[str, ...],
        values: tuple[Any, ...],
        index: tuple[int, ...],
        given: tuple[int, ...],
        trie: Trie | None = None,
    ) -> None:
        self.texts = texts
        self.values = values
        self.index = index
        self.given = given
        self.trie = trie

    @classmethod
    def parse(cls, given: Any, n_vocab: int) -> Choices:
        """Read what a caller passed as choices.

        Parameters
        ----------
        given : object
            A list or tuple (or another ordered iterable) of str, int, bool, None or
            Enum members; an Enum class; a typing.Literal; a mapping from text to the
            value to return; a `Trie`; or pairs of name and ids.
        n_vocab : int
            Vocabulary size, for pairs of name and ids.

        Returns
        -------
        Choices

        Raises
        ------
        InvalidType
            A str, bytes, a set, or an entry of a type that has no text.
        InvalidArgument
            No choices, or one text with two values.
        """
        global _last
        if type(given) in (list, tuple) and {*map(type, given)} == {str}:
            texts = tuple(given)
            if _last is not None and _last.texts == texts:  # they often come again
                return _last
            if len({*texts}) == len(texts) and "" not in texts:
                # Nothing to look into: 11 ms for 100,000 texts in place of 75.
                places = tuple(range(len(texts)))
                made = cls(texts, texts, places, places)
                if len(texts) <= _KEPT:
                    _last = made
                return made
        if isinstance(given, Trie):
            return cls._of_trie(given)
        if isinstance(given, (str, bytes, set, frozenset)):
            kind = type(given).__name__
            why = "has no order" if "set" in kind else "is one text, not a list of them"
            raise InvalidType(f"choices is a {kind}, which {why}; give {_KINDS}")
        if typing.get_origin(given) is typing.Literal:
            return cls._of_entries(typing.get_args(given))
        if isinstance(given, Mapping):
            for key in given:
                if not isinstance(key, str):
                    raise InvalidType(f"a key of choices is {key!r}; keys are texts")
            return cls._unique(list(given.items()))
        if not isinstance(given, Iterable):
            raise InvalidType(f"choices is {given!r}; give {_KINDS}")
        entries = list(given)
        if entries and all(map(_is_pair, entries)):
            return cls._of_pairs(entries, n_vocab)
        return cls._of_entries(entries)

    @classmethod
    def _of_trie(cls, trie: Trie) -> Choices:
        names = trie.names
        order = tuple(range(len(trie)))
        return cls((), order if names is None else names, order, order, trie)

    @classmethod
    def _of_pairs(cls, pairs: list[Any], n_vocab: int) -> Choices:
        trie = Trie.from_tokens(pairs, n_vocab=n_vocab)
        names = trie.names or ()
        leaf = {name: i for i, name in enumerate(names)}
        given = tuple(leaf[name] for name, _ in pairs)
        return cls((), names, tuple(given.index(i) for i in leaf.values()), given, trie)

    @classmethod
    def _of_entries(cls, entries: Iterable[Any]) -> Choices:
        return cls._unique(
            [(_text(f"choices[{i}]", entry), entry) for i, entry in enumerate(entries)]
        )

    @classmethod
    def _unique(cls, pairs: list[tuple[str, Any]]) -> Choices:
        if not pairs:
            raise InvalidArgument("there are no choices")
        first: dict[str, int] = {}
        for i, (text, value) in enumerate(pairs):
            if not text:
                raise InvalidArgument(f"choices[{i}] is the empty string")
            seen = first.setdefault(text, i)
            if seen != i and not _same(pairs[seen][1], value):
                raise InvalidArgument(
                    f"choices[{seen}] and choices[{i}] are both written {text!r} but "
                    f"stand for {pairs[seen][1]!r} and {value!r}"
                )
        index = tuple(first.values())
        place = {text: i for i, text in enumerate(first)}
        given = tuple(place[text] for text, _ in pairs)
        return cls(tuple(first), tuple(pairs[i][1] for i in index), index, given)

    def permitted(self, allow: Any) -> NDArray[np.bool_]:
        """Bring `allow=` to a mask over `values`.

        Parameters
        ----------
        allow : array of bool or int, or iterable of str or Enum members
            A mask over what the caller gave, positions in it, or entries of it.

        Returns
        -------
        ndarray of bool, shape (len(values),)

        Raises
        ------
        InvalidType, InvalidArgument
            A wrong length, a position outside, a text that is no choice, or nothing
            permitted.
        """
        if isinstance(allow, (str, bytes)) or not isinstance(allow, Iterable):
            raise InvalidType(
                f"allow is {allow!r}; give a mask, positions, or a list of choices"
            )
        entries = allow if isinstance(allow, np.ndarray) else list(allow)
        mask = np.zeros(len(self.values), np.bool_)
        given = np.asarray(self.given, np.intp)
        if not isinstance(entries, np.ndarray) and any(
            isinstance(entry, (str, enum.Enum)) for entry in entries
        ):
            places = [self.find(x, f"allow[{i}]") for i, x in enumerate(entries)]
            mask[places] = True
        else:
            mask[given[_positions(entries, len(given))]] = True
        if not mask.any():
            raise InvalidArgument("allow permits none of the choices")
        return mask

    def find(self, entry: Any, what: str) -> int:
        """Return where a choice stands in `values`.

        Parameters
        ----------
        entry : str, int, bool, None or Enum member
            As it was given among the choices, or its text.
        what : str
            What it is, for the message.
        """
        known = self.texts if self.trie is None else self.values
        try:
            return known.index(_text(what, entry))
        except ValueError:
            raise InvalidArgument(
                f"{what} is {entry!r}, which is not one of the {len(known)} choices"
            ) from None


def _positions(entries: Any, n: int) -> NDArray[np.intp]:
    """Check a mask over n entries, or positions in them; return positions."""
    array = np.asarray(entries)
    if array.dtype == np.bool_ and array.shape == (n,):
        return np.flatnonzero(array)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.intp)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidType(
            f"allow has dtype {array.dtype} and shape {array.shape}; it is a mask of "
            f"{n} bools, a list of positions, or a list of choices"
        )
    outside = array[(array < 0) | (array >= n)]
    if outside.size:
        raise InvalidArgument(
            f"allow has position {outside[0]}, which is outside [0, {n})"
        )
    return array.astype(np.intp)


def _is_pair(entry: Any) -> bool:
    return isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


def _text(what: str, entry: Any) -> str:
    """Return how an entry is written; the entry itself is what comes back."""
    if isinstance(entry, enum.Enum):
        value = entry.value
        return value if isinstance(value, str) else entry.name
    if isinstance(entry, str):
        return entry
    if entry is None or isinstance(entry, (bool, int)):
        import msgspec  # 5 ms, and most choices are strings

        return msgspec.json.encode(entry).decode()
    raise InvalidType(
        f"{what} is {entry!r} of type {type(entry).__name__}; "
        "a choice is a str, int, bool, None or Enum member"
    )
