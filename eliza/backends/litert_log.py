"""LiteRT's own log, sent to the logger `eliza.litert`.

The library writes to the process's standard error and has no way to be told otherwise.
So while a model is loaded, which is when it says a few dozen lines, standard error is
a file. What others write in that time is passed on.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["captured", "logger"]

logger = logging.getLogger("eliza.litert")

_LINE = re.compile(r"(VERBOSE|DEBUG|INFO|WARNING|ERROR|FATAL): ")
_MORE = ("└", "├", " ")  # goes on with the line before
# A missing accelerator is a warning to it, and no news to anyone else.
_LEVELS = {"ERROR": logging.WARNING, "FATAL": logging.ERROR}

_lock = threading.RLock()


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
