"""GGUF files: their metadata and where their tensors lie.

Nothing in the file is trusted: every length is compared with what is left of it before
anything is read, so that a damaged or hostile file ends in a `BundleError`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from eliza.errors import BundleError, Closed, shown
from eliza.files.opened import OpenedFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GgufFile", "GgufTensor"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4

#: Type of a value in the metadata: the format of `struct`.
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9

#: Kind of tensor: its name, the values in a block, and the bytes of a block.
KINDS = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies, and what it is.

    Attributes
    ----------
    name : str
    kind : str
        Number type of the values: "F32", "Q4_1" and so on.
    shape : tuple of int
        Rows first, as in NumPy; the file has it the other way round.
    offset, nbytes : int
        Where it begins in the file, and its size there.
    row_bytes : int
        The bytes of one row, which is a whole number of blocks.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    row_bytes: int


class GgufFile(OpenedFile):
    """A GGUF file that is open for reading; a context manager.

    Parameters
    ----------
    path : str or path

    Attributes
    ----------
    metadata : mapping of str to object
        Numbers, texts, and lists of them. A text that is not UTF-8 has surrogates in
        place of the bytes that are wrong, so that none are lost.
    tensors : mapping of str to GgufTensor

    Raises
    ------
    BundleError
        It cannot be read, is no GGUF file, is cut short or damaged; the message says
        where.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def read(
        self, tensor: GgufTensor, start: int = 0, stop: int | None = None
    ) -> NDArray[np.uint8]:
        """Return the bytes of some rows of a tensor; of all rows by default.

        Raises
        ------
        BundleError
            They cannot be read.
        """
        if self._file.closed:
            raise Closed(f"{self.path} is closed; open it again")
        rows = tensor.nbytes // tensor.row_bytes
        stop = rows if stop is None else min(stop, rows)
        nbytes = max(0, stop - start) * tensor.row_bytes
        data = np.empty(nbytes, np.uint8)
        try:
            self._file.seek(tensor.offset + start * tensor.row_bytes)
            done = self._file.readinto(data)  # type: ignore[attr-defined]
        except OSError as error:
            raise BundleError(f"{self.path} cannot be read: {error.strerror}") from None
        if done != nbytes:
            raise BundleError(f"{self.path} was cut short while it was read")
        return data

    # The header

    def _read_header(self) -> None:
        magic = self._file.read(4)
        if magic != _MAGIC:
            raise BundleError(
                f"{self.path} is not a GGUF file: it begins with {magic!r}"
            )
        version = self._scalar("<I", "the version")
        if version not in _VERSIONS:
            raise BundleError(
                f"{self.path} has version {version} of GGUF; eliza reads 2 and 3"
            )
        n_tensors = self._scalar("<Q", "the number of tensors")
        n_values = self._scalar("<Q", "the number of values")
        # The shortest value has a key of no letters, a type and a byte.
        self._require(n_values, 13, "values")
        metadata: dict[str, Any] = {}
        for i in range(n_values):
            key = self._text(f"the key of value {i}")
            if key in metadata:
                raise BundleError(f"{self.path} has the value {shown(key)} twice")
            metadata[key] = self._value(self._scalar("<I", shown(key)), key)
        self.metadata = MappingProxyType(metadata)
        self._read_tensors(n_tensors)

    def _read_tensors(self, n_tensors: int) -> None:
        self._require(n_tensors, 24, "tensors")
        found = [self._tensor_entry(i) for i in range(n_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise BundleError(f"{self.path}: general.alignment is {alignment!r}")
        start = -(-self._file.tell() // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, number, shape, offset in found:
            if name in tensors:
                raise BundleError(f"{self.path} has the tensor {shown(name)} twice")
            tensor = self._placed(name, number, shape, start + offset)
            tensors[name] = tensor
        self.tensors = MappingProxyType(tensors)

    def _tensor_entry(self, i: int) -> tuple[str, int, tuple[int, ...], int]:
        name = self._text(f"the name of tensor {i}")
        n_dims = self._scalar("<I", shown(name))
        if not 1 <= n_dims <= _MAX_DIMENSIONS:
            raise BundleError(
                f"{self.path}: tensor {shown(name)} has {n_dims} dimensions"
            )
        dims = [self._scalar("<Q", shown(name)) for _ in range(n_dims)]
        number = self._scalar("<I", shown(name))
        return name, number, tuple(dims[::-1]), self._scalar("<Q", shown(name))

    def _placed(
        self, name: str, number: int, shape: tuple[int, ...], offset: int
    ) -> GgufTensor:
        if number not in KINDS:
            raise BundleError(
                f"{self.path}: tensor {shown(name)} has the number type {number}, "
                "which eliza does not know"
            )
        kind, values, size = KINDS[number]
        if 0 in shape or shape[-1] % values:
            raise BundleError(
                f"{self.path}: tensor {shown(name)} of type {kind} has shape {shape}"
            )
        row_bytes = shape[-1] // values * size
        nbytes = row_bytes
        for n in shape[:-1]:
            nbytes *= n
        if offset + nbytes > self._size:
            raise BundleError(
                f"{self.path} is cut short: tensor {shown(name)} ends at byte "
                f"{offset + nbytes}, the file at {self._size}"
            )
        return GgufTensor(name, kind, shape, offset, nbytes, row_bytes)

    # Values

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind], shown(key))
        if kind == _STRING:
            return self._text(shown(key), "surrogateescape")
        if kind == _ARRAY:
            return self._list(key)
        raise BundleError(
            f"{self.path}: {shown(key)} has the type {kind}, which eliza does not know"
        )

    def _list(self, key: str) -> list[Any]:
        kind = self._scalar("<I", shown(key))
        n = self._scalar("<Q", shown(key))
        if kind == _STRING:
            self._require(n, 8, shown(key))
            what = shown(key)
            return [self._text(what, "surrogateescape") for _ in range(n)]
        form = _SCALARS.get(kind)
        if form is None:
            raise BundleError(
                f"{self.path}: {shown(key)} is a list of the type {kind}; eliza reads "
                "lists of numbers and of texts"
            )
        self._require(n, struct.calcsize(form), shown(key))
        data = self._file.read(n * struct.calcsize(form))
        values: list[Any] = np.frombuffer(data, np.dtype(form)).tolist()
        return values

    def _scalar(self, form: str, what: str) -> Any:
        size = struct.calcsize(form)
        data = self._file.read(size)
        if len(data) < size:
            raise BundleError(f"{self.path} is cut short within {what}")
        return struct.unpack(form, data)[0]

    def _text(self, what: str, errors: str = "strict") -> str:
        size = self._scalar("<Q", what)
        if size > self._size:
            raise BundleError(
                f"{self.path} is damaged: {what} claims a text of {size} bytes"
            )
        data = self._file.read(size)
        if len(data) < size:
            raise BundleError(f"{self.path} is cut short within {what}")
        try:
            return data.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise BundleError(
                f"{self.path} is damaged: {what} is not UTF-8: {error.reason}"
            ) from None

    def _require(self, n: int, size: int, what: str) -> None:
        """Refuse a number of things that cannot be there."""
        if n * size > self._size - self._file.tell():
            raise BundleError(
                f"{self.path} is cut short or damaged: it claims {n} items of {what}"
            )
