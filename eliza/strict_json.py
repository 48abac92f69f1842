"""JSON from strangers: decoded into typed structs, and nothing let through.

`msgspec` does the decoding, and is strict about syntax, numbers, escapes and types. It
lets three things pass that may not: a name that comes twice in one object (the last one
wins), bytes that are no UTF-8 in a part that nobody asked for, and nesting as deep as
the C stack. Its messages do not say which item of a list was wrong. All that is here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from eliza.errors import InvalidArgument, InvalidType

__all__ = ["MAX_DEPTH", "read_json", "shorten"]

T = TypeVar("T")

#: Deepest nesting of arrays and objects.
MAX_DEPTH = 64

_CHUNK = 1 << 18
_QUOTE, _BACKSLASH, _COLON, _OPEN, _CLOSE = 1, 2, 3, 4, 5
_KIND = np.zeros(256, np.uint8)
for _characters, _kind in (
    (b'"', _QUOTE),
    (b"\\", _BACKSLASH),
    (b":", _COLON),
    (b"[{", _OPEN),
    (b"]}", _CLOSE),
):
    _KIND[list(_characters)] = _kind

# Strings, the second group telling keys from values; and what stands between them.
_STRING = rb'("(?:[^"\\]++|\\.)*+")[ \t\r\n]*+(:)?'
_KEY = re.compile(_STRING + rb"|[{}]")
_STEP = re.compile(_STRING + rb"|[\[\]{},]")


def read_json(
    data: bytes | bytearray | memoryview | str,
    kind: type[T],
    count: Callable[[T], int],
) -> T:
    """Decode a JSON text.

    Parameters
    ----------
    data : bytes, bytearray, memoryview or str
        The whole text; bytes are UTF-8 without a byte order mark.
    kind : type
        A `msgspec.Struct`, whose fields are structs, tuples and dicts of them, or plain
        values. Keys that it does not have are skipped.
    count : callable
        Gives the number of keys that the objects in a decoded value have together, or
        -1 if that cannot be told.

    Returns
    -------
    kind

    Raises
    ------
    InvalidType
        `data` or a value in it has the wrong type.
    InvalidArgument
        It is no JSON, or lacks a field; it has a key twice in one object; it is nested
        deeper than `MAX_DEPTH`.
    """
    text = _as_bytes(data)
    if not text or text.isspace():
        raise InvalidArgument("not JSON: it is empty")
    _check_utf8(text)
    keys = _survey(text)
    try:
        value = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        _explain(text, kind)
        raise InvalidArgument(str(error)) from None
    except msgspec.DecodeError as error:
        raise _malformed(error) from None
    # Each key is followed by a colon. Where there are no more of them than the value
    # has keys, there was nothing to skip, and no key came twice.
    if keys != count(value):
        _check_keys(text)
    return value


def shorten(text: str) -> str:
    """Return how to write a string from a stranger in a message."""
    return repr(text if len(text) <= 60 else text[:59] + "…")


def _as_bytes(data: bytes | bytearray | memoryview | str) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"not JSON: character {error.start} is half a surrogate pair, "
                f"{data[error.start]!r}"
            ) from None
    if type(data) is bytes:
        return data
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)  # which nobody can change while it is read
    raise InvalidType(f"JSON is given as bytes or str, got {type(data).__name__}")


def _check_utf8(text: bytes) -> None:
    if text.startswith(codecs.BOM_UTF8):
        raise InvalidArgument("not JSON: it begins with a byte order mark")
    if text.isascii():
        return
    view = memoryview(text)
    at = 0
    while at < len(text):
        part = view[at : at + _CHUNK]
        try:
            at += codecs.utf_8_decode(part, "strict", at + len(part) == len(text))[1]
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                f"not JSON: it is not UTF-8 text ({error.reason}, byte "
                f"{at + error.start})"
            ) from None


def _malformed(error: msgspec.DecodeError) -> InvalidArgument:
    reason = str(error).removeprefix("JSON is malformed: ")
    return InvalidArgument(f"not JSON: {reason[:1].lower()}{reason[1:]}")


def _survey(text: bytes) -> int:
    """Check how deep a text is nested; return the number of colons outside strings.

    A decoder goes down by recursion, up to a limit that a small stack does not last
    for, so this comes first. Up to the first fault in the text the answer is right;
    further the decoder does not go.
    """
    # By arrays, a chunk at a time: 0.04 s and a few megabytes for 8 MB of text, which a
    # loop over the matches of `_STEP` takes 0.4 s for.
    depth = colons = 0
    inside = escaped = False  # a string; the first byte of the chunk
    for start in range(0, len(text), _CHUNK):
        size = min(_CHUNK, len(text) - start)
        part = np.frombuffer(text, np.uint8, size, start)
        at = np.flatnonzero(_KIND[part])
        kind = _KIND[part[at]]
        slashes = at[kind == _BACKSLASH]
        if escaped or slashes.size:
            behind = _escaped(slashes, escaped)
            escaped = behind.size > 0 and behind[-1] == size
            keep = (kind != _BACKSLASH) & ~np.isin(at, behind, assume_unique=True)
            kind = kind[keep]
        quotes = np.cumsum(kind == _QUOTE) + inside
        inside = bool(quotes[-1] & 1) if quotes.size else inside
        kind = kind[(quotes & 1 == 0) & (kind != _QUOTE)]
        colons += int(np.count_nonzero(kind == _COLON))
        levels = np.cumsum((kind == _OPEN).astype(np.int64) - (kind == _CLOSE)) + depth
        if levels.size:
            if levels.max() > MAX_DEPTH:
                raise InvalidArgument(f"nested deeper than {MAX_DEPTH} levels")
            depth = int(levels[-1])
    return colons


def _escaped(slashes: np.ndarray[Any, np.dtype[np.intp]], first: bool) -> Any:
    """Return the places behind runs of an odd number of backslashes, ascending."""
    if first:  # as if there were one before the chunk
        slashes = np.concatenate(([-1], slashes))
    begins = np.flatnonzero(np.diff(slashes, prepend=-3) != 1)
    lengths = np.diff(begins, append=slashes.size)
    return (slashes[begins] + lengths)[lengths % 2 == 1]


def _check_keys(text: bytes) -> None:
    """Raise an error if a well-formed text has a key twice in one object."""
    seen: list[set[str]] = []  # the keys of each object around
    for match in _KEY.finditer(text):
        token, colon = match.groups()
        if match[0] == b"{":
            seen.append(set())
        elif match[0] == b"}":
            seen.pop()
        elif colon:
            key = msgspec.json.decode(token, type=str)
            if key in seen[-1]:
                where = _path_at(text, match.start())
                raise InvalidArgument(f"{where}the key {shorten(key)} comes twice")
            seen[-1].add(key)


def _path_at(text: bytes, end: int) -> str:
    """Return where a place in a well-formed text is, as in `a.b[2]: `."""
    path: list[bytes | int] = []  # the key or the index, in each array and object
    for match in _STEP.finditer(text, 0, end):
        token, colon = match.groups()
        first = match[0][:1]
        if token is not None:
            if colon:
                path[-1] = token
        elif first == b",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else b""
        elif first in b"[{":
            path.append(0 if first == b"[" else b"")
        else:
            path.pop()
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{msgspec.json.decode(step)[:60]}"
        for step in path[:-1]
    ]
    return "".join(steps).removeprefix(".") + ": " if steps else ""


def _explain(text: bytes, kind: Any) -> None:
    """Raise the error that a text has, given that it is not of a type."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise _malformed(error) from None
    _check_keys(text)
    _locate(text, kind, "")


def _locate(text: bytes, kind: Any, where: str) -> None:
    """Raise the error of the first value that is not of its type, with its place."""
    try:
        msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        _locate_inside(text, kind, where)
        reason = str(error).split(" - at `$")[0].replace("`", "")
        wrong = InvalidType if reason.startswith("Expected") else InvalidArgument
        raise wrong(
            f"{where or 'the text'}: {reason[:1].lower()}{reason[1:]}"
        ) from None


def _locate_inside(text: bytes, kind: Any, where: str) -> None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        keys = dict(
            zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
        )
        needed = kind.__struct_fields__[: len(keys) - len(kind.__struct_defaults__)]
        unread = msgspec.defstruct(
            "unread",
            [
                (field, msgspec.Raw)
                if field in needed
                else (field, msgspec.Raw, msgspec.Raw(b""))
                for field in keys
            ],
            rename=keys,
        )
        try:
            values = msgspec.json.decode(text, type=unread)
        except msgspec.ValidationError:
            return
        types = get_type_hints(kind)
        for field, key in keys.items():
            value = bytes(getattr(values, field))
            if value:
                _locate(value, types[field], f"{where}.{key}".removeprefix("."))
    elif get_origin(kind) is dict and text.lstrip().startswith(b"{"):
        items = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        for key, item in items.items():
            _locate(bytes(item), get_args(kind)[1], f"{where}.{key[:60]}")
    elif get_origin(kind) is tuple and text.lstrip().startswith(b"["):
        (item, *_) = get_args(kind)
        decoder = msgspec.json.Decoder(item)
        for i, value in enumerate(_items(text)):
            try:
                decoder.decode(value)
            except msgspec.ValidationError:
                _locate(value, item, f"{where}[{i}]")


def _items(text: bytes) -> Iterator[bytes]:
    """Give the items of an array that has some, unread, one after the other."""
    depth = 0
    begin = text.index(b"[") + 1
    for match in _STEP.finditer(text):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        if depth == 0 or (depth == 1 and first == b","):
            yield text[begin : match.start()]
            begin = match.end()
