"""`.tflite` files: that they are whole, and what was noted in them.

The runtime reads weights where the file says that they lie. In a file that was cut
short that is behind its end, and the system ends the process. Nor does it look whether
what a signature refers to is there. So both are checked here.
"""

from __future__ import annotations

import json
import mmap
import os
from typing import TYPE_CHECKING, Any, BinaryIO

from eliza.errors import BundleError, NotSupported
from eliza.files.noted import ABOUT, is_sealed
from eliza.files.tables import Malformed, TableView

if TYPE_CHECKING:
    from typing import Self

__all__ = ["TfliteFile"]

_MAGIC = b"TFL3"
_GRAPHS, _BUFFERS, _METADATA, _SIGNATURES = 2, 4, 6, 7  # fields of a model
_GROUPS, _EXTERNAL = 8, 9  # of weights in other files
_DATA, _OFFSET, _SIZE = 0, 1, 2  # fields of a buffer


class TfliteFile:
    """A `.tflite` file that is open for reading; a context manager.

    Parameters
    ----------
    path : str or path

    Attributes
    ----------
    metadata : mapping of str to bytes
        What was noted in the file beside the model.
    note : mapping of str to object
        What eliza noted, if it wrote the file; else nothing.

    Raises
    ------
    BundleError
        It cannot be read, is no such file, is cut short or damaged.
    NotSupported
        Its weights are in other files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            with open(path, "rb") as file:
                self._data = self._mapped(file)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BundleError(f"{self.path} cannot be read: {reason}") from error
        try:
            root = TableView.root(self._data)
            buffers = root.tables(_BUFFERS)
            for number, buffer in enumerate(buffers):
                self._check(number, buffer)
            _check_signatures(root)
            self._refuse_external(root)
            self.metadata: dict[str, bytes] = {}
            for entry in root.tables(_METADATA):
                number = entry.number(1, "<I")
                if number >= len(buffers):
                    raise Malformed(f"there is no buffer {number}")
                self.metadata[entry.text(0)] = buffers[number].bytes(_DATA)
            self.note = self._note()
        except Malformed as error:
            self.close()
            raise BundleError(f"{self.path} is cut short or damaged: {error}") from None
        except BaseException:
            self.close()
            raise

    def _mapped(self, file: BinaryIO) -> mmap.mmap:
        start = file.read(8)
        if start[4:] != _MAGIC:
            raise BundleError(
                f"{self.path} is not a TFLite file: it begins with {start!r}"
            )
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _check(self, number: int, buffer: TableView) -> None:
        """Raise unless a buffer lies within the file, as all of it."""
        _, n = buffer.vector(_DATA, 1)
        begin, size = buffer.number(_OFFSET, "<Q"), buffer.number(_SIZE, "<Q")
        if n == 0 and begin > 1 and begin + size > len(self._data):
            raise Malformed(
                f"weight {number} ends at byte {begin + size}, the file at "
                f"{len(self._data)}"
            )

    def _refuse_external(self, root: TableView) -> None:
        """Raise if weights are elsewhere: the runtime would be told where by no one."""
        groups = [group.text(0) for group in root.tables(_GROUPS)]
        if groups or root.tables(_EXTERNAL):
            named = ", ".join(map(repr, groups[:4])) or "files that it does not name"
            raise NotSupported(
                f"{self.path} keeps its weights outside of itself, in {named}; eliza "
                "reads files that have all of a model in them"
            )

    def _note(self) -> dict[str, Any]:
        """Return what eliza noted, after checking that all is as it was then."""
        if ABOUT not in self.metadata:
            return {}
        try:
            noted = json.loads(self.metadata[ABOUT])
        except ValueError:
            noted = None
        if not isinstance(noted, dict):
            raise Malformed("what eliza noted in it is not JSON")
        mark = noted.get("tables")
        if not isinstance(mark, str) or not is_sealed(self._data, mark):
            raise Malformed("its tables are not as they were written")
        return noted

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._data.close()

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()


def _check_signatures(root: TableView) -> None:
    """Raise unless the graphs and tensors that signatures refer to are there."""
    sizes = [graph.vector(0, 4)[1] for graph in root.tables(_GRAPHS)]
    for signature in root.tables(_SIGNATURES):
        index = signature.number(4, "<I")
        if index >= len(sizes):
            raise Malformed(f"a signature refers to graph {index} of {len(sizes)}")
        for side in (0, 1):
            for entry in signature.tables(side):
                entry.text(0)
                if entry.number(1, "<I") >= sizes[index]:
                    raise Malformed("a signature refers to a tensor that is not there")
