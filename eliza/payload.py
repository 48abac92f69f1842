"""Token trees as other programs hand them over: JSON, and the binary form RTKT.

A payload holds, for each path ("action", "parameters.city", "contexts[]"), the names
that may stand there with their token ids, made by the tokenizer of one model.

>>> payload = TokenTreePayload.from_json('''{"modelId": "m", "descriptors": [
...     {"path": "action", "leaves": [{"name": "THINK", "tokens": [100, 101]},
...                                   {"name": "EXECUTE", "tokens": [200]}]}]}''')
>>> payload.trie("action", n_vocab=32000).names
('THINK', 'EXECUTE')
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Self, SupportsIndex

import msgspec

from eliza import rtkt
from eliza._trie import Trie
from eliza.errors import InvalidArgument, InvalidType
from eliza.strict_json import read_json, shorten

__all__ = ["TokenTreeDescriptor", "TokenTreeLeaf", "TokenTreePayload"]

#: Ids lie below it. A vocabulary size is an int32.
_TOP = 2**31 - 1


class TokenTreeLeaf(msgspec.Struct, frozen=True, gc=False):
    """A choice: its name, and the ids that spell it."""

    name: str
    tokens: tuple[int, ...]


class TokenTreeDescriptor(msgspec.Struct, frozen=True):
    """The choices for one place in the output; what `path` means is the caller's."""

    path: str
    leaves: tuple[TokenTreeLeaf, ...]


class _Document(msgspec.Struct, rename="camel"):
    model_id: str
    descriptors: tuple[TokenTreeDescriptor, ...]


class TokenTreePayload:
    """Choices for a number of paths, by the tokenizer of one model.

    Immutable; may be used from several threads.

    Parameters
    ----------
    model_id : str
        The model whose tokenizer made the ids; empty if that is not known.
    descriptors : iterable of TokenTreeDescriptor
        At least one. Paths differ; each has leaves, and each leaf a name and ids, which
        lie in [0, 2**31 - 1).

    Raises
    ------
    InvalidArgument
        A value is not as said above; the message says where.
    InvalidType
        Something has another type.
    """

    __slots__ = ("_descriptors", "_model_id")

    def __init__(
        self, model_id: str, descriptors: Iterable[TokenTreeDescriptor]
    ) -> None:
        self._model_id = _text(model_id, "modelId")
        if not isinstance(descriptors, Iterable):
            raise InvalidType(
                "descriptors: expected a sequence of TokenTreeDescriptor, got "
                f"{type(descriptors).__name__}"
            )
        self._descriptors = tuple(descriptors)
        if not self._descriptors:
            raise InvalidArgument("descriptors: there are none; give at least one")
        first: dict[str, int] = {}
        for i, descriptor in enumerate(self._descriptors):
            where = f"descriptors[{i}]"
            _check(descriptor, where)
            j = first.setdefault(descriptor.path, i)
            if j != i:
                raise InvalidArgument(
                    f"{where}.path: descriptors[{j}] has the path "
                    f"{shorten(descriptor.path)} already; put their leaves into one"
                )

    # Reading and writing

    @classmethod
    def from_json(cls, data: bytes | bytearray | memoryview | str) -> Self:
        """Read the JSON of a payload.

        Parameters
        ----------
        data : bytes, bytearray, memoryview or str
            ``{"modelId": str, "descriptors": [{"path": str, "leaves": [{"name": str,
            "tokens": [int, …]}, …]}, …]}``, UTF-8 without a byte order mark. Other keys
            are allowed and skipped.

        Returns
        -------
        TokenTreePayload

        Raises
        ------
        InvalidArgument
            It is no JSON, or anything stands behind it; a key is missing or comes twice
            in one object; it is nested deeper than 64 levels; and what the constructor
            raises.
        InvalidType
            A value has another type.
        """
        document = read_json(data, _Document, _count_keys)
        return cls(document.model_id, document.descriptors)

    def to_json(self) -> bytes:
        """Write the payload as JSON.

        Equal sets of choices give equal bytes: leaves are sorted by the code points of
        their names, and one that is given twice is written once. Descriptors stay in
        their order.

        Returns
        -------
        bytes
        """
        descriptors = []
        for descriptor in self._descriptors:
            leaf_of = {(leaf.name, leaf.tokens): leaf for leaf in descriptor.leaves}
            leaves = tuple([leaf_of[key] for key in sorted(leaf_of)])
            descriptors.append(TokenTreeDescriptor(descriptor.path, leaves))
        return msgspec.json.encode(_Document(self._model_id, tuple(descriptors)))

    @classmethod
    def from_rtkt(cls, data: bytes | bytearray | memoryview) -> Self:
        """Read the binary form, which `eliza.rtkt` describes.

        Parameters
        ----------
        data : bytes, bytearray or memoryview
            The whole encoding.

        Returns
        -------
        TokenTreePayload
            With the path of the header as its one path. The format carries no names:
            a leaf is called by its ids, as in ``"100,101"``. Nor does it carry a
            model: `model_id` is empty.

        Raises
        ------
        InvalidArgument
            The bytes do not follow the format, hold no leaves, or hold more than
            16,777,216 ids.
        InvalidType
            `data` is not bytes.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidType(f"RTKT is given as bytes, got {type(data).__name__}")
        path, leaves = rtkt.decode(bytes(data))
        named = tuple([TokenTreeLeaf(",".join(map(str, ids)), ids) for ids in leaves])
        return cls("", (TokenTreeDescriptor(path, named),))

    def to_rtkt(self, descriptor: TokenTreeDescriptor | str | None = None) -> bytes:
        """Write one descriptor in the binary form.

        Parameters
        ----------
        descriptor : TokenTreeDescriptor or str, optional
            One of `descriptors`, or its path. May be left out where there is only one.

        Returns
        -------
        bytes
            Equal sets of ids give equal bytes. Names and `model_id` are not in them.

        Raises
        ------
        InvalidArgument
            There is no such descriptor; two names have the same ids, or one name has
            two sequences of ids.
        """
        if isinstance(descriptor, TokenTreeDescriptor):
            if descriptor not in self._descriptors:
                path = shorten(descriptor.path)
                raise InvalidArgument(
                    f"the descriptor of path {path} is not in this payload"
                )
            descriptor = descriptor.path
        found = self._descriptors[self._index(descriptor)]
        trie = self.trie(found.path, n_vocab=_TOP)
        return rtkt.encode(found.path, [trie.tokens(i) for i in range(len(trie))])

    # Use

    @property
    def model_id(self) -> str:
        """The model whose tokenizer made the ids; empty if the payload names none."""
        return self._model_id

    @property
    def descriptors(self) -> tuple[TokenTreeDescriptor, ...]:
        """The descriptors, in the order they were given."""
        return self._descriptors

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the descriptors, in their order."""
        return tuple([descriptor.path for descriptor in self._descriptors])

    def leaves(self, path: str | None = None) -> list[tuple[str, tuple[int, ...]]]:
        """Return the name and the ids of each leaf of a path, in the order given.

        Parameters
        ----------
        path : str, optional
            May be left out where there is only one.

        Raises
        ------
        InvalidArgument
            There is no such path; the message lists those that there are.
        """
        return _pairs(self._descriptors[self._index(path)])

    def trie(
        self,
        path: str | None = None,
        *,
        n_vocab: SupportsIndex,
        exits: Iterable[SupportsIndex]
        | Mapping[str, Iterable[SupportsIndex]]
        | None = None,
    ) -> Trie:
        """Build the trie of a path.

        Parameters
        ----------
        path : str, optional
            May be left out where there is only one: descriptors are never merged.
        n_vocab : int
            Size of the vocabulary of the model.
        exits : iterable of int, or mapping of str to iterable of int, optional
            As in `Trie.from_tokens`.

        Returns
        -------
        Trie

        Raises
        ------
        InvalidArgument
            There is no such path; an id is outside the vocabulary; two names have the
            same ids, or one name has two sequences of ids.
        InvalidType
            As `Trie.from_tokens`.
        """
        i = self._index(path)
        try:
            return Trie.from_tokens(
                _pairs(self._descriptors[i]), n_vocab=n_vocab, exits=exits
            )
        except InvalidArgument as error:
            where = f"descriptors[{i}] ({shorten(self._descriptors[i].path)})"
            raise type(error)(f"{where}: {error}") from None

    def check_model(self, model_id: str) -> None:
        """Raise an error if the ids were made for another model.

        Parameters
        ----------
        model_id : str
            The model that is in use. A payload that names no model passes.

        Raises
        ------
        InvalidArgument
            The names differ; the message has both.
        InvalidType
            `model_id` is no str.
        """
        _of_type(model_id, str, "model_id")
        if self._model_id and self._model_id != model_id:
            raise InvalidArgument(
                f"the payload was made for model {shorten(self._model_id)}, and this "
                f"is {shorten(model_id)}: their tokenizers may differ"
            )

    def _index(self, path: str | None) -> int:
        paths = self.paths
        if path is None and len(paths) == 1:
            return 0
        if path in paths:
            return paths.index(path)
        more = f" and {len(paths) - 10} more" if len(paths) > 10 else ""
        known = ", ".join(map(shorten, paths[:10])) + more
        if path is None:
            raise InvalidArgument(f"which path? give one of {known}")
        raise InvalidArgument(
            f"there is no path {shorten(str(path))}; there is {known}"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTreePayload):
            return NotImplemented
        return (self._model_id, self._descriptors) == (
            other._model_id,
            other._descriptors,
        )

    def __hash__(self) -> int:
        return hash((self._model_id, self._descriptors))

    def __repr__(self) -> str:
        paths = ", ".join(f"{d.path}: {len(d.leaves)}" for d in self._descriptors)
        return f"<TokenTreePayload of model {self._model_id!r}, leaves: {paths}>"


def _pairs(descriptor: TokenTreeDescriptor) -> list[tuple[str, tuple[int, ...]]]:
    return [(leaf.name, leaf.tokens) for leaf in descriptor.leaves]


def _count_keys(document: _Document) -> int:
    """Return how many keys the objects of a document have, if none is unknown."""
    leaves = sum([len(descriptor.leaves) for descriptor in document.descriptors])
    return 2 * (1 + len(document.descriptors) + leaves)


def _check(descriptor: Any, where: str) -> None:
    """Raise an error with its place if a descriptor is not as it must be."""
    _of_type(descriptor, TokenTreeDescriptor, where)
    _text(descriptor.path, f"{where}.path")
    leaves = _of_type(descriptor.leaves, tuple, f"{where}.leaves")
    if not leaves:
        raise InvalidArgument(f"{where}.leaves: there are none; give at least one")
    if not _sound(leaves):
        for i, leaf in enumerate(leaves):
            _check_leaf(leaf, f"{where}.leaves[{i}]")


def _sound(leaves: tuple[Any, ...]) -> bool:
    """Tell whether all leaves pass `_check_leaf`."""
    # 100,000 leaves take 0.07 s, against 0.17 one by one.
    if set(map(type, leaves)) != {TokenTreeLeaf}:
        return False
    names = [leaf.name for leaf in leaves]
    tokens = [leaf.tokens for leaf in leaves]
    if set(map(type, names)) != {str} or set(map(type, tokens)) != {tuple}:
        return False
    ids = list(chain.from_iterable(tokens))
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= _TOP:
        return False
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        return False
    return all(names) and all(tokens)


def _check_leaf(leaf: Any, where: str) -> None:
    _of_type(leaf, TokenTreeLeaf, where)
    if not _text(leaf.name, f"{where}.name"):
        raise InvalidArgument(f"{where}.name: it is empty; each leaf needs a name")
    tokens = _of_type(leaf.tokens, tuple, f"{where}.tokens")
    if not tokens:
        raise InvalidArgument(f"{where}.tokens: {shorten(leaf.name)} has no ids")
    for i, token in enumerate(tokens):
        _of_type(token, int, f"{where}.tokens[{i}]")
        if not 0 <= token < _TOP:
            bits = token.bit_length()
            shown = f"id {token}" if bits < 100 else f"an id of {bits} bits"
            raise InvalidArgument(
                f"{where}.tokens[{i}]: {shown} is outside [0, {_TOP})"
            )


def _text(value: Any, where: str) -> str:
    text: str = _of_type(value, str, where)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{where}: half a surrogate pair, at {error.start} in {shorten(text)}"
        ) from None
    return text


def _of_type(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:  # a bool is an int, too
        raise InvalidType(
            f"{where}: expected {kind.__name__}, got {type(value).__name__}"
        )
    return value
