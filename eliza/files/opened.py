"""A file that is open for reading, whose header is read at once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import BinaryIO, Self

from eliza.errors import BundleError

__all__ = ["OpenedFile"]


class OpenedFile(ABC):
    """A file whose header was found good; a context manager.

    Parameters
    ----------
    path : str or path

    Raises
    ------
    BundleError
        It cannot be read, or what `_read_header` says.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BundleError(f"{self.path} cannot be read: {reason}") from error
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self._read_header()
        except OSError as error:
            self.close()
            raise BundleError(f"{self.path} cannot be read: {error.strerror}") from None
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _read_header(self) -> None:
        """Read and check what the file says of itself, from its beginning."""

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close it."""
        self.close()
