"""Work in other threads that can hang without the checks hanging with it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from eliza.conformance.subject import Subject

__all__ = ["Gate", "Worker"]


class Worker:
    """Work in another thread."""

    def __init__(self, subject: Subject, work: Callable[[], Any]) -> None:
        self._subject = subject
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._value = work()
        except BaseException as error:
            self._error = error

    @property
    def alive(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def result(self, what: str) -> Any:
        """Wait for the end; return what came, or raise what was raised."""
        self._thread.join(self._subject.patience)
        if self._thread.is_alive():
            raise self._subject.hang(what)
        if self._error is not None:
            raise self._error
        return self._value


class Gate:
    """Stands in for `on_piece`: holds a decode before its n-th piece.

    Parameters
    ----------
    inner : callable or None
        What `on_piece` was; it is called after the gate was opened.
    n : int
        Which piece to stop at, from 1.
    """

    def __init__(self, inner: Callable[[], None] | None, n: int, patience: float):
        self.seen = 0
        self.open = threading.Event()
        self._inner = inner
        self._n = n
        self._patience = patience
        self._reached = threading.Event()

    def __call__(self) -> None:
        """Hold, if this is the piece."""
        self.seen += 1
        if self.seen == self._n:
            self._reached.set()
            self.open.wait(self._patience)
        if self._inner is not None:
            self._inner()

    def reached(self, worker: Worker) -> bool:
        """Wait until the piece is reached; return whether it was before the end."""
        until = time.monotonic() + self._patience
        while worker.alive and time.monotonic() < until:
            if self._reached.wait(0.01):
                return True
        return self._reached.is_set()
