"""One lock per model: calls queue, and a forked child is told instead of hanging."""

from __future__ import annotations

import os
import threading

from eliza.errors import BackendError

__all__ = ["ModelLock"]


class ModelLock:
    """A re-entrant lock that refuses to be taken in another process.

    A lock that some thread held when the process forked is never freed in the child,
    and the threads that compute are not there either: the first call would hang.
    """

    __slots__ = ("_lock", "_pid")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()

    @property
    def foreign(self) -> bool:
        """Whether this is another process than the one that made the lock."""
        return os.getpid() != self._pid

    def take_if_free(self) -> bool:
        """Take it as `with` does, unless another thread has it; return whether."""
        return not self.foreign and self._lock.acquire(blocking=False)

    def free(self) -> None:
        """Give it back after `take_if_free`."""
        self._lock.release()

    def __enter__(self) -> None:
        if self.foreign:
            raise BackendError(
                "the model was loaded in another process; load it after the fork"
            )
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
