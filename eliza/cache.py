"""Tries that were built before, found again by what they were built from.

>>> cache = TrieCache()
>>> trie = cache.get({"THINK": [100, 101], "EXECUTE": [200]}, n_vocab=32000)
>>> cache.get([("EXECUTE", [200]), ("THINK", [100, 101])], n_vocab=32000) is trie
True
>>> stats = cache.stats()
>>> stats.hits, stats.misses, stats.bytes == trie.nbytes
(1, 1, True)
"""

from __future__ import annotations

import copy
import operator
import os
import threading
import weakref
from collections import OrderedDict
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Protocol,
    SupportsIndex,
    TypeVar,
)

from eliza._cache import Recipe
from eliza.errors import InvalidArgument, InvalidType

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from eliza._trie import Trie

    Ids = Iterable[SupportsIndex]
    Leaves = Mapping[str, Ids] | Iterable[tuple[str, Ids]]

_T = TypeVar("_T")

__all__ = ["CacheStats", "Entry", "Source", "TrieCache"]

# Guards what all caches hold, for about a microsecond at a time: nothing is built under
# it, and no code but this runs. One for all of them, so that a fork can wait for it: a
# child finds every cache whole, and the lock free. Reentrant, because the collector may
# run in the middle, and finalizers call what they like.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_lock.release,
    )


class Source(Protocol):
    """Leaves under several paths: what `TrieCache.get` takes beside plain leaves."""

    @property
    def model_id(self) -> str:
        """The name of the model that the ids belong to."""

    def leaves(self, path: str | None) -> Leaves:
        """Return the leaves under a path."""


class CacheStats(NamedTuple):
    """What a cache did, and what it holds.

    Attributes
    ----------
    hits : int
        Calls that were answered without building, also those that waited while
        another thread built.
    misses : int
        Builds, failed ones included.
    evictions : int
        Entries that had to make room for others.
    entries : int
        Entries that are held now.
    bytes : int
        The memory that they take.
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    bytes: int


class Entry(NamedTuple, Generic[_T]):
    """What a key of a cache stands for.

    Attributes
    ----------
    trie : Trie, or another set of choices
        What was built; anything that can be referred to weakly.
    extra : object
        What else was found when it was built; immutable.
    nbytes : int
        The memory of both and of the key.
    """

    trie: _T
    extra: Any
    nbytes: int


class _Build:
    """A build under way, for the threads that wait for it."""

    __slots__ = ("entry", "error", "pid", "ready", "thread")

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.entry: Entry[Any] | None = None
        self.error: Exception | None = None
        self.pid = os.getpid()
        self.thread = threading.get_ident()


class TrieCache:
    """Tries by what they were built from, those used last.

    When there are too many, or they take too much memory, the one that was not used
    for the longest time is put out. A trie that is still in use somewhere when it is
    put out lives on, and is found again.

    Thread-safe: threads that ask for the same trie wait while one of them builds it;
    different ones are built side by side. A cache can be used after a fork in both
    processes, each of which goes on with its own.

    Parameters
    ----------
    max_entries : int
        The most entries to hold.
    max_bytes : int
        The most memory that the entries may take together, as `Trie.nbytes` says when
        they come in. A trie that is larger is returned, and not held.

    Attributes
    ----------
    max_entries, max_bytes : int
        As given.

    Raises
    ------
    InvalidArgument, InvalidType
        A limit is negative, or no int.
    """

    def __init__(self, max_entries: int = 128, max_bytes: int = 256 << 20) -> None:
        self.max_entries = _limit(max_entries, "max_entries")
        self.max_bytes = _limit(max_bytes, "max_bytes")
        self._held: OrderedDict[Hashable, Entry[Any]] = OrderedDict()
        self._bytes = 0
        # Tries that were put out and are in use, by key, and what else belongs to them.
        self._out: weakref.WeakValueDictionary[Hashable, Any]
        self._out = weakref.WeakValueDictionary()
        self._rest: weakref.WeakKeyDictionary[Any, tuple[Any, int]]
        self._rest = weakref.WeakKeyDictionary()
        self._building: dict[Hashable, _Build] = {}
        self._hits = self._misses = self._evictions = 0

    def get(
        self,
        leaves: Leaves | Source,
        *,
        n_vocab: SupportsIndex,
        exits: Ids | Mapping[str, Ids] | None = None,
        fingerprint: bytes = b"",
        path: str | None = None,
    ) -> Trie:
        """Return the trie of some leaves, built now or before.

        Parameters
        ----------
        leaves : mapping of str to sequence of int, iterable of such pairs, or Source
            As in `Trie.from_tokens`; or what has leaves under a path, such as a
            `TokenTreePayload`.
        n_vocab, exits, fingerprint
            As in `Trie.from_tokens`.
        path : str, optional
            Which leaves of a Source.

        Returns
        -------
        Trie
            Equal to what `Trie.from_tokens` makes of the same arguments. Whether one is
            at hand is decided by SHA-256 over all of them; the order of leaves and
            exits makes no difference, and everything else does: names, the vocabulary's
            size and fingerprint, the model and the path of a Source.

        Raises
        ------
        InvalidArgument, InvalidType
            As `Trie.from_tokens`; a path for what has none.
        """
        origin: tuple[str, ...] = ()
        given: Any = leaves
        if hasattr(given, "leaves"):
            origin = _origin(given.model_id, path)
            given = given.leaves(path)
        elif path is not None:
            raise InvalidArgument(
                f"path is {path!r}, but these leaves have no paths: give a payload"
            )
        recipe = Recipe(given, n_vocab, exits, fingerprint, origin)

        def build() -> Entry[Trie]:
            trie = recipe.build()
            return Entry(trie, None, trie.nbytes)

        return self.lookup(recipe.key, build).trie

    def lookup(self, key: Hashable, build: Callable[[], Entry[_T]]) -> Entry[_T]:
        """Return the entry of a key of any kind, built now or before.

        `get` uses it with bytes; `Vocab.place` with the texts themselves.

        Parameters
        ----------
        key : hashable
            Equal keys mean equal entries.
        build : callable
            Called if there is no such entry, with no lock held. An error reaches all
            threads that wait for the entry, and is not kept.

        Returns
        -------
        Entry
        """
        with _lock:
            entry = self._held.get(key)
            if entry is not None:
                self._held.move_to_end(key)
                self._hits += 1
                return entry
        return self._build(key, build)

    def stats(self) -> CacheStats:
        """Return counts since the beginning, and what is held now."""
        with _lock:
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                entries=len(self._held),
                bytes=self._bytes,
            )

    def clear(self) -> None:
        """Forget all tries, but not the counts. Tries that are in use live on."""
        with _lock:
            held, self._held = self._held, OrderedDict()
            self._bytes = 0
            self._out.clear()
            self._rest.clear()
        del held  # not under the lock: freeing may run callbacks of other people

    # -- building ----------------------------------------------------------------------

    def _build(self, key: Hashable, build: Callable[[], Entry[_T]]) -> Entry[_T]:
        """Build, unless another thread does, or has done so."""
        own = _Build()
        try:
            with _lock:
                entry = self._find(key)
                other = self._building.get(key)
                if entry is not None:
                    self._hits += 1
                # One of before a fork is nobody's: its thread is not in this process.
                elif other is None or other.pid != own.pid:
                    other = self._building[key] = own
                    self._misses += 1
            if other is own:
                entry = build()
            if entry is not None:
                self._hold(key, entry)
                own.entry = entry
                return entry
        except Exception as error:
            own.error = error
            raise
        finally:
            with _lock:
                if self._building.get(key) is own:
                    del self._building[key]
            own.ready.set()
        assert other is not None
        return self._wait(other, key, build)

    def _wait(
        self, other: _Build, key: Hashable, build: Callable[[], Entry[_T]]
    ) -> Entry[_T]:
        """Wait for another thread's build."""
        if other.thread == threading.get_ident():
            return build()  # asked for from within its own build
        other.ready.wait()
        if other.error is not None:
            # Each thread gets one of its own: raising writes into the exception.
            raise _copy_of(other.error) from other.error
        if other.entry is None:  # the build was interrupted, by Ctrl-C perhaps
            return self._build(key, build)
        with _lock:
            self._hits += 1
        return other.entry

    def _find(self, key: Hashable) -> Entry[Any] | None:
        """Return an entry that came in meanwhile, or was put out and is in use."""
        entry = self._held.get(key)
        if entry is None:
            trie = self._out.get(key)
            if trie is not None:
                entry = Entry(trie, *self._rest[trie])
        return entry

    def _hold(self, key: Hashable, entry: Entry[Any]) -> None:
        """Take an entry in, and put out what there is no room for."""
        out = []
        with _lock:
            before = self._held.pop(key, None)
            if before is not None:
                self._bytes -= before.nbytes
            if entry.nbytes > self.max_bytes:
                out.append((key, entry))
            else:
                self._held[key] = entry
                self._bytes += entry.nbytes
            while len(self._held) > self.max_entries or self._bytes > self.max_bytes:
                old = self._held.popitem(last=False)
                self._bytes -= old[1].nbytes
                self._evictions += 1
                out.append(old)
            for old_key, (trie, extra, nbytes) in out:
                self._out[old_key] = trie
                self._rest[trie] = extra, nbytes
        del out, before  # not under the lock: see `clear`


def _copy_of(error: Exception) -> Exception:
    try:
        return copy.copy(error)
    except Exception:  # a class whose constructor takes something else than its args
        return error


def _limit(value: SupportsIndex, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidType(f"{name} is {value!r}; it is an int, 0 or more")
    limit = operator.index(value)
    if limit < 0:
        raise InvalidArgument(f"{name} is {limit}; it is 0 or more")
    return limit


def _origin(model_id: object, path: object) -> tuple[str, ...]:
    """Return what tells the leaves of one path from those of another."""
    if not isinstance(model_id, str):
        raise InvalidType(f"the payload's model_id is {model_id!r}; it is a str")
    if path is None:
        return (model_id,)
    if not isinstance(path, str):
        raise InvalidType(f"path is {path!r}; it is a str, or None")
    return (model_id, path)
