"""LiteRT's own log, sent to the logger `eliza.litert`.

The library writes to the process's standard error and has no way to be told otherwise.
So while a model is loaded, which is when it says a few dozen lines, standard error is
a file. What others write in that time is passed on.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["captured", "logger", "quiet_at_exit"]

logger = logging.getLogger("eliza.litert")

_LINE = re.compile(r"(VERBOSE|DEBUG|INFO|WARNING|ERROR|FATAL): ")
_MORE = ("└", "├", " ")  # goes on with the line before
# A missing accelerator is a warning to it, and no news to anyone else.
_LEVELS = {"ERROR": logging.WARNING, "FATAL": logging.ERROR}

# A fork waits for it: the child finds it free, and has a standard error of its own.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_lock.release,
    )


@contextmanager
def captured() -> Iterator[None]:
    """Send what the library writes to the logger."""
    with _lock:
        try:
            kept = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        with tempfile.TemporaryFile() as file:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                if sys.stderr is not None:
                    sys.stderr.flush()
                os.dup2(kept, 2)
                os.close(kept)
                file.seek(0)
                _pass_on(file.read().decode("utf-8", "replace"))


def _pass_on(text: str) -> None:
    ours = False
    for line in text.splitlines(keepends=True):
        found = _LINE.match(line)
        ours = bool(found) or (ours and line.startswith(_MORE))
        if ours:
            level = _LEVELS.get(found[1], logging.DEBUG) if found else logging.DEBUG
            logger.log(level, "%s", line.rstrip())
        else:
            os.write(2, line.encode())


def quiet_at_exit() -> None:
    """Keep the library from saying farewell when the process ends.

    It does so after everything that is Python, on file descriptor 2. What Python writes
    to standard error goes to a copy of it from then on.
    """
    atexit.register(_leave)


def _leave() -> None:
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # there is no standard error
        return
    if sys.stderr is not None:
        sys.stderr.flush()
    if sys.stderr is sys.__stderr__:
        sys.stderr = open(kept, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.dup2(nowhere, 2)
