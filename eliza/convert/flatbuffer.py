"""Flatbuffers from nested tables, without code generated from a schema.

A table is a mapping from the numbers of its fields to nodes. What only becomes known
while a file is written (where a weight lies, by how much it is scaled) is packed as it
is and put in later: each number and each array knows its place once it is packed.

>>> version = Number("u32", 3)
>>> data = pack(Table({0: version, 3: Text("a model")}), b"TFL3")
>>> version.value = 4
>>> version.patch(data)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from eliza.errors import NotSupported

try:
    import flatbuffers
except ImportError as error:
    raise NotSupported(
        f".tflite and .litertlm files are written with the package flatbuffers "
        f"({error}): pip install 'eliza[convert]'"
    ) from error

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Array", "Number", "Table", "Tables", "Text", "pack"]

#: Types of numbers: format of `struct`, and the builder's method.
_FORMATS = {
    "bool": ("<?", "PrependBool"),
    "i8": ("<b", "PrependInt8"),
    "u8": ("<B", "PrependUint8"),
    "i32": ("<i", "PrependInt32"),
    "u32": ("<I", "PrependUint32"),
    "u64": ("<Q", "PrependUint64"),
    "f32": ("<f", "PrependFloat32"),
}


class Number:
    """A number of a given type, stored in the table itself."""

    def __init__(self, kind: str, value: float) -> None:
        self.kind = kind
        self.value = value
        self.at = -1

    def patch(self, data: bytearray) -> None:
        """Write the value, which may have changed, to its place."""
        struct.pack_into(_FORMATS[self.kind][0], data, self.at, self.value)


class Array:
    """A vector of numbers."""

    def __init__(self, values: NDArray) -> None:  # type: ignore[type-arg]
        self.values = values
        self.at = -1

    def patch(self, data: bytearray) -> None:
        """Write the values, which may have changed, to their place."""
        data[self.at : self.at + self.values.nbytes] = self.values.tobytes()


class Text:
    """A text."""

    def __init__(self, value: str) -> None:
        self.value = value


class Tables:
    """A vector of tables."""

    def __init__(self, items: Items[Table]) -> None:
        self.items = items


class Table:
    """A table: its fields by their numbers."""

    def __init__(self, fields: Mapping[int, Node]) -> None:
        self.fields = fields


Node = Number | Array | Text | Table | Tables


def pack(root: Table, identifier: bytes | None = None) -> bytearray:
    """Return a finished flatbuffer.

    Parameters
    ----------
    root : Table
    identifier : bytes, optional
        Four bytes that name the kind of file.
    """
    packer = _Packer()
    packer.builder.Finish(packer.table(root), identifier)
    data: bytearray = packer.builder.Output()
    for node, from_end in packer.places:
        node.at = len(data) - from_end
    return data


class _Packer:
    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1 << 16)
        #: Numbers and arrays, and how far from the end of the file each begins.
        self.places: list[tuple[Number | Array, int]] = []
        self.packed: dict[int, int] = {}

    def table(self, table: Table) -> int:
        builder = self.builder
        # Whatever a table points to is packed before it: a file is built from its end.
        children = {
            slot: self.once(node)
            for slot, node in table.fields.items()
            if not isinstance(node, Number)
        }
        builder.StartObject(max(table.fields, default=-1) + 1)
        for slot, node in table.fields.items():
            if isinstance(node, Number):
                getattr(builder, _FORMATS[node.kind][1])(node.value)
                self.places.append((node, builder.Offset()))
            else:
                builder.PrependUOffsetTRelative(children[slot])
            builder.Slot(slot)
        end: int = builder.EndObject()
        return end

    def once(self, node: Array | Text | Table | Tables) -> int:
        at = self.packed.get(id(node))
        if at is None:
            at = self.packed[id(node)] = self.child(node)
        return at

    def child(self, node: Array | Text | Table | Tables) -> int:
        builder = self.builder
        at: int
        if isinstance(node, Text):
            at = builder.CreateString(node.value)
        elif isinstance(node, Table):
            at = self.table(node)
        elif isinstance(node, Array):
            at = builder.CreateNumpyVector(node.values)
            self.places.append((node, at - 4))  # after the length
        else:
            offsets = [self.table(item) for item in node.items]
            builder.StartVector(4, len(offsets), 4)
            for offset in reversed(offsets):
                builder.PrependUOffsetTRelative(offset)
            at = builder.EndVector()
        return at
