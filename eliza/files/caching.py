"""The folder for what can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_folder"]


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


def _platform_folder() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "eliza"
    if sys.platform == "win32" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"]) / "eliza" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eliza"
