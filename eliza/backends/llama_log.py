"""llama.cpp's own log, sent to the logger `eliza.llama_cpp`.

The library has one log callback per process. It is taken over when the first model is
opened and given back when the last one is closed, unless someone else has set another
in between. Errors are also collected for whoever made the call that caused them: the
library returns a bare number or null, and says the reason only here.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import re
import threading
from collections import deque
from typing import Any

from eliza.logs import get_logger

__all__ = ["collect", "errors_since", "logger", "n_errors", "reason", "release", "take"]

logger = get_logger("eliza.llama_cpp")

#: ggml_log_level to level; 5 continues the line before.
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
_CONTINUED = 5

#: The number of the last error that was logged, and the last errors themselves.
n_errors = 0
_numbers = itertools.count(1)
_errors: deque[tuple[int, int, str]] = deque(maxlen=64)

# Held for a microsecond at a time. A fork waits for it, so that a child finds it free.
# Reentrant, because the collector may free a model in the middle.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_lock.release,
    )
_holders = 0
_former: tuple[Any, Any] | None = None
# Never freed: the library may hold its address for as long as the process lives.
_callback: Any = None


class _Line(threading.local):
    """The line that this thread's calls are writing, and who reads its errors."""

    text = ""
    level = logging.INFO
    reader: list[str] | None = None


_line = _Line()


def take(lib: Any) -> None:
    """Route the log to the logger, if this is the first of the open models."""
    global _callback, _former, _holders
    with _lock:
        if _callback is None:
            _callback = lib.llama_log_callback(_on_log)
        if _holders == 0:
            _former = _current(lib)
            lib.llama_log_set(_callback, None)
        _holders += 1


def release(lib: Any) -> None:
    """Put the former callback back, if this was the last of the open models."""
    global _former, _holders
    with _lock:
        _holders -= 1
        if _holders == 0 and _former is not None:
            if _address(_current(lib)[0]) == _address(_callback):
                lib.llama_log_set(*_former)
            _former = None


class collect:  # noqa: N801
    """A context manager: collect the errors that this thread's calls cause."""

    def __enter__(self) -> list[str]:
        lines: list[str] = []
        self._outer = _line.reader
        _line.reader = lines
        return lines

    def __exit__(self, *exc_info: object) -> None:
        _line.reader = self._outer


def errors_since(n: int) -> list[str]:
    """Return the errors that this thread's calls caused since `n_errors` was n.

    What a decode uses: `collect` costs it 5 us, for a case that hardly ever comes.
    """
    me = threading.get_ident()
    return [text for at, thread, text in _errors.copy() if at > n and thread == me]


def reason(lines: list[str]) -> str:
    """Return why a call failed: the first error; the others follow from it."""
    if not lines:
        return "llama.cpp gives no reason"
    # Without the name of the C function that wrote the line.
    return re.sub(r"^\w+: ", "", lines[0])


def _current(lib: Any) -> tuple[Any, Any]:
    callback, data = lib.llama_log_callback(), ctypes.c_void_p()
    lib.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
    return callback, data


def _address(callback: Any) -> int | None:
    return ctypes.cast(callback, ctypes.c_void_p).value


def _on_log(level: int, text: bytes, _data: Any) -> None:
    # No exception may cross the library's frame, and there is nowhere to report one.
    try:
        if level != _CONTINUED:
            _flush()
            _line.level = _LEVELS.get(level, logging.INFO)
        _line.text += text.decode("utf-8", "replace")
        if _line.text.endswith("\n"):
            _flush()
    except Exception:
        _line.text = ""


def _flush() -> None:
    global n_errors
    text, _line.text = _line.text.strip(), ""
    if not text:
        return
    if _line.level >= logging.ERROR:
        n_errors = next(_numbers)
        _errors.append((n_errors, threading.get_ident(), text))
        if _line.reader is not None:
            _line.reader.append(text)
    logger.log(_line.level, "%s", text)
