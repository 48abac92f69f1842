"""Messages of protobuf, field by field: the little of it that model files need."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["fields", "integers", "message", "number"]

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give the numbers of a message's fields with their values.

    A number is given as such, everything else as bytes.

    Raises
    ------
    ValueError
        The bytes are not such a message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"a field at byte {at} has the unknown kind {kind}")
        if size > len(data) - at:
            raise ValueError(f"a field of {size} bytes ends beyond the message")
        yield key >> 3, data[at : at + size]
        at += size


def integers(value: int | bytes) -> list[int]:
    """Return the numbers of a repeated field, which may be packed into bytes."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(one)
    return found


def number(field: int, value: int) -> bytes:
    """Write a field that is a number."""
    return _written(field << 3 | _VARINT) + _written(value)


def message(field: int, data: bytes) -> bytes:
    """Write a field that is a text, bytes or a message."""
    return _written(field << 3 | _BYTES) + _written(len(data)) + data


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the message ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number before byte {at} is too long")


def _written(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
