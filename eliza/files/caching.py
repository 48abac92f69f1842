"""The folder for what can be made again."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["KEPT", "cache_folder", "mark_used", "tidy"]

#: How many files of one kind are kept: each may be as large as a model.
KEPT = 8

#: After how many seconds a file that is not complete is nobody's any more.
_FORGOTTEN = 24 * 3600


def cache_folder(name: str) -> Path:
    """Return a folder for one kind of things, after making it.

    It is below `ELIZA_CACHE`, or else where the platform keeps caches.

    Raises
    ------
    OSError
        It cannot be made.
    """
    given = os.environ.get("ELIZA_CACHE")
    folder = (Path(given) if given else _platform_folder()) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def mark_used(path: Path) -> None:
    """Note that a file in such a folder was used, so that it is kept longer.

    The time of its last change stays as it was: it may tell one model from another.
    """
    with suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def tidy(folder: Path, suffix: str) -> None:
    """Delete the files of one kind but for those that were used last.

    Whoever has one open or mapped is not disturbed. What could not be completed,
    because a process ended in the middle, goes after a day.
    """
    used = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                status = path.stat()
                if path.suffix == suffix:
                    used.append((max(status.st_atime_ns, status.st_mtime_ns), path))
                elif (
                    path.name.startswith(".")
                    and path.suffix == ".tmp"
                    and time.time() - status.st_mtime > _FORGOTTEN
                ):
                    path.unlink()
    for _, path in sorted(used, reverse=True)[KEPT:]:
        with suppress(OSError):
            path.unlink()
            path.with_name(f"{path.name}.lock").unlink()


def _platform_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "eliza"
    if sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"]) / "eliza" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eliza"
