"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

__all__ = ["atomic_file", "write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes, mode: int) -> None:
    """Write a file under another name, sync it, and rename it.

    Whoever opens `path` finds what was there before or all of `data`, also after a
    crash. After an error nothing is left behind.

    Parameters
    ----------
    path : str or os.PathLike
        Where the file goes; what is there is replaced.
    data : bytes
        What it holds.
    mode : int
        Permissions, less the umask.

    Raises
    ------
    OSError
        It could not be written.
    """
    with atomic_file(path, mode) as file:
        file.write(data)


@contextmanager
def atomic_file(path: str | os.PathLike[str], mode: int) -> Iterator[BinaryIO]:
    """Open a file that appears under its name when the block ends, as a whole.

    The file can be written and read. If the block raises, nothing is left behind, and
    what was there before stays.

    Parameters
    ----------
    path : str or os.PathLike
    mode : int
        Permissions, less the umask.

    Raises
    ------
    OSError
        It could not be written.
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:100]}.{os.urandom(8).hex()}.tmp")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(temporary, flags, mode)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    with suppress(OSError):  # the file is in place, whatever comes of this
        sync_folder(folder or os.curdir)


def sync_folder(folder: str) -> None:
    """Make a rename in a folder last, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
