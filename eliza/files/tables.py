"""Reading the tables of a flatbuffer that nobody vouches for.

The package `flatbuffers` reads where the bytes tell it to, be it before the beginning.
Here each step is checked, and what does not lie within the buffer raises.
"""

from __future__ import annotations

import struct
from mmap import mmap
from typing import Any, Self

__all__ = ["Malformed", "TableView"]


class Malformed(ValueError):
    """The bytes are not a flatbuffer of this kind."""


class TableView:
    """A table within a buffer, by the numbers of its fields.

    Parameters
    ----------
    data : bytes or mmap
        The whole flatbuffer.
    at : int
        Where the table begins.
    """

    def __init__(self, data: bytes | mmap, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._number("<i", at)  # the list of offsets
        self._size = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes | mmap) -> Self:
        """Return the table that a flatbuffer begins with."""
        view = cls.__new__(cls)
        view._data = data
        return cls(data, view._number("<I", 0))

    def number(self, field: int, form: str, default: int = 0) -> Any:
        """Return a number, given its format in the way of `struct`."""
        at = self._place(field)
        return default if at is None else self._number(form, at)

    def text(self, field: int) -> str:
        """Return a text; "" if there is none."""
        data = self.bytes(field)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Malformed(f"a text is not UTF-8: {error.reason}") from None

    def bytes(self, field: int) -> bytes:
        """Return a vector of bytes."""
        at, n = self.vector(field, 1)
        return self._data[at : at + n]

    def vector(self, field: int, size: int) -> tuple[int, int]:
        """Return where the items of a vector begin, and how many there are.

        Parameters
        ----------
        size : int
            The bytes of an item.
        """
        at = self._target(field)
        if at is None:
            return 0, 0
        n = int(self._number("<I", at))
        if n * size > len(self._data) - at - 4:
            raise Malformed(f"a vector of {n} items of {size} bytes does not fit")
        return at + 4, n

    def table(self, field: int) -> Self | None:
        """Return a table, if there is one."""
        at = self._target(field)
        return None if at is None else type(self)(self._data, at)

    def tables(self, field: int) -> list[Self]:
        """Return a vector of tables."""
        at, n = self.vector(field, 4)
        starts = range(at, at + 4 * n, 4)
        return [type(self)(self._data, i + self._number("<I", i)) for i in starts]

    def _place(self, field: int) -> int | None:
        """Return where a field lies, if the table has it."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return None
        offset = self._number("<H", self._fields + entry)
        return self._at + offset if offset else None

    def _target(self, field: int) -> int | None:
        """Return where the thing begins that a field points to."""
        at = self._place(field)
        return None if at is None else at + int(self._number("<I", at))

    def _number(self, form: str, at: int) -> Any:
        if not 0 <= at <= len(self._data) - struct.calcsize(form):
            raise Malformed(f"an offset points to byte {at} of {len(self._data)}")
        return struct.unpack_from(form, self._data, at)[0]
