"""One `TrieCache` under threads and forks; memory over many builds and evictions."""

from __future__ import annotations

import gc
import multiprocessing
import random
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import eliza
from children import use_cache, use_new_cache
from eliza import Trie, TrieCache
from eliza.cache import Entry
from eliza.errors import InvalidArgument
from eliza.reference import Reference
from forks import can_fork, forks, in_child
from support import V, on_linux, resident
from t32 import t32

END = 2
THREADS = 8


def entry(name="a"):
    trie = Trie.from_tokens({name: [5]}, n_vocab=V)
    return Entry(trie, None, trie.nbytes)


def in_threads(work, n=THREADS, seconds=60):
    """Run work(i) in n threads; return the results, or raise what one raised."""
    with ThreadPoolExecutor(n) as pool:
        futures = [pool.submit(work, i) for i in range(n)]
        return [future.result(seconds) for future in futures]


# -- builds ----------------------------------------------------------------------------


def test_threads_that_miss_the_same_key_build_once():
    cache = TrieCache()
    builds = []
    all_here = threading.Barrier(THREADS)

    def build():
        builds.append(threading.get_ident())
        time.sleep(0.05)  # the others come and wait
        return entry()

    def ask(_):
        all_here.wait()
        return cache.lookup("key", build)

    found = in_threads(ask)
    assert len(builds) == 1
    assert len({id(one.trie) for one in found}) == 1
    assert (cache.stats().misses, cache.stats().hits) == (1, THREADS - 1)


def test_get_from_threads_is_one_trie():
    leaves = {str(i): [i // V, i % V, 7] for i in range(2_000)}
    cache = TrieCache()
    all_here = threading.Barrier(THREADS)

    def ask(_):
        all_here.wait()
        return cache.get(leaves, n_vocab=V)

    for _ in range(10):
        cache.clear()
        before = cache.stats().misses
        assert len({id(trie) for trie in in_threads(ask)}) == 1
        assert cache.stats().misses == before + 1


def test_waiters_get_a_trie_that_is_too_large_to_keep():
    cache = TrieCache(max_bytes=0)
    all_here = threading.Barrier(THREADS)
    builds = []

    def build():
        builds.append(1)
        time.sleep(0.05)
        return entry()

    def ask(_):
        all_here.wait()
        return cache.lookup("key", build).trie

    assert len({id(trie) for trie in in_threads(ask)}) == len(builds) == 1


def test_different_keys_are_built_side_by_side_and_without_a_lock():
    cache = TrieCache()
    meet = threading.Barrier(3)

    def ask(i):
        def build():
            meet.wait(10)  # all three are within their builds
            cache.stats()
            cache.get({"x": [i]}, n_vocab=V)
            meet.wait(10)
            return entry(str(i))

        return cache.lookup(i, build).trie.names

    assert in_threads(ask, 3) == [("0",), ("1",), ("2",)]


def test_an_error_reaches_all_and_is_not_kept():
    cache = TrieCache()
    all_here = threading.Barrier(THREADS)
    builds = []

    def build():
        builds.append(1)
        time.sleep(0.05)
        raise InvalidArgument("no such thing")

    def ask(_):
        all_here.wait()
        with pytest.raises(InvalidArgument, match="no such thing") as caught:
            cache.lookup("key", build)
        return caught.value

    errors = in_threads(ask)
    assert len(builds) == 1
    assert len({id(error) for error in errors}) == THREADS  # each has its own
    assert cache.stats().entries == 0
    assert cache.lookup("key", entry).trie.names == ("a",)


def test_an_error_that_cannot_be_copied():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(one)

    cache = TrieCache()
    all_here = threading.Barrier(2)

    def build():
        time.sleep(0.05)
        raise Odd(1, 2)

    def ask(_):
        all_here.wait()
        with pytest.raises(Odd):
            cache.lookup("key", build)

    in_threads(ask, 2)


def test_an_interrupted_build_is_taken_up_by_who_waits():
    cache = TrieCache()
    building, asked = threading.Event(), threading.Event()

    def interrupted():
        building.set()
        asked.wait(10)
        time.sleep(0.05)
        raise KeyboardInterrupt

    def first():
        with pytest.raises(KeyboardInterrupt):
            cache.lookup("key", interrupted)

    def second():
        building.wait(10)
        asked.set()
        return cache.lookup("key", entry).trie.names

    assert in_threads(lambda i: (first, second)[i](), 2) == [None, ("a",)]


def test_a_build_that_asks_for_itself_does_not_wait_for_itself():
    cache = TrieCache()
    inner = entry("inner")

    def build():
        found = cache.lookup("key", lambda: inner)
        assert found is inner
        return entry("outer")

    assert cache.lookup("key", build).trie.names == ("outer",)
    assert cache.lookup("key", entry).trie.names == ("outer",)


def test_finalizers_may_use_the_cache():
    """The collector runs in the midst of anything, and so does what it calls."""
    cache = TrieCache(max_entries=2)

    class Loop:
        def __init__(self):
            self.loop = self

        def __del__(self):
            cache.get({"y": [6]}, n_vocab=V)
            cache.stats()

    class Out(weakref.WeakValueDictionary):
        def __setitem__(self, key, trie):
            Loop()
            gc.collect()
            super().__setitem__(key, trie)

    cache._out = Out()  # where the lock is held
    for i in range(20):
        cache.get({"x": [i]}, n_vocab=V)
    assert cache.stats().entries == 2
    held = [one.nbytes for one in cache._held.values()]
    assert cache.stats().bytes == sum(held)


# -- eight threads ---------------------------------------------------------------------


def walks():
    """Sets of choices, and for each what every walk through it must meet."""
    rng = random.Random(80)
    out = []
    for k in range(12):
        leaves = {}
        while len(leaves) < 20:
            ids = tuple(rng.randint(4, 9) for _ in range(rng.randint(1, 5)))
            leaves.setdefault(ids, f"{k}.{len(leaves)}")
        named = {name: ids for ids, name in leaves.items()}
        ref = Reference(named, exits=[END])
        steps = {}
        for path in leaves:
            for n in range(len(path) + 1):
                steps[path[:n]] = sorted(ref.allowed(path[:n]))
        out.append((named, ref, steps))
    return out


def check_walks(seconds):
    """Walk at random through sets that come and go, and compare every step."""
    cache = TrieCache(max_entries=4)
    known = walks()
    vocab = t32()
    shared = Trie.from_tokens(known[0][0], n_vocab=V, exits=[END])
    texts = [["Yes", "No", f"A{'B' * n}"] for n in range(6)]
    placed = [vocab.place("A", some, '"').trie.names for some in texts]
    stop = time.monotonic() + seconds

    def work(i):
        rng = random.Random(i)
        row = np.zeros(V, np.float32)
        done = 0
        while time.monotonic() < stop:
            k = rng.randrange(-2, len(known))
            if k < 0:  # by text
                n = rng.randrange(len(texts))
                assert vocab.place("A", texts[n], '"', cache).trie.names == placed[n]
                continue
            leaves, ref, steps = known[k]
            trie = cache.get(leaves, n_vocab=V, exits=[END]) if k else shared
            cursor, path = trie.cursor(), ()
            while not cursor.done:
                allowed = cursor.allowed().tolist()
                assert allowed == steps[path]
                row[:] = 0
                token = rng.choice(allowed)
                row[token] = 1
                assert cursor.argmax(row) == token
                cursor.accept(token)
                path += (token,)
            assert cursor.name == ref.leaf(path)
            done += 1
        return done

    assert min(in_threads(work, seconds=seconds + 60)) > 10
    stats = cache.stats()
    assert stats.entries <= 4
    assert min(stats.evictions, stats.misses, stats.hits) > 100
    assert stats.bytes == sum(one.nbytes for one in cache._held.values())
    assert not cache._building


def test_fc080_eight_threads_and_a_small_cache():
    check_walks(2)


@pytest.mark.long
def test_fc080_eight_threads_for_ten_seconds():
    check_walks(10)


# -- forks -----------------------------------------------------------------------------


@can_fork
@forks
def test_fc120_fork_amid_threads_that_use_the_cache():
    cache = TrieCache(max_entries=4)
    stop = threading.Event()

    def busy(seed):
        rng = random.Random(seed)
        while not stop.is_set():
            cache.get({"a": [5, rng.randrange(9)], "b": [6]}, n_vocab=V)

    threads = [threading.Thread(target=busy, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(30):
            in_child(lambda: use_cache(cache))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    use_cache(cache)


@can_fork
@forks
def test_fc120_fork_while_another_thread_holds_the_lock():
    cache = TrieCache()
    held = threading.Event()

    def hold():
        with eliza.cache._lock:
            held.set()
            time.sleep(0.2)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    in_child(lambda: use_cache(cache))
    thread.join()
    use_cache(cache)


@can_fork
@forks
def test_fc120_fork_amid_a_build_of_the_same_key():
    """The thread that builds is not in the child: the child builds for itself."""
    cache = TrieCache()
    building, go_on = threading.Event(), threading.Event()

    def slow():
        building.set()
        go_on.wait(30)
        return entry("parent")

    thread = threading.Thread(target=lambda: cache.lookup("key", slow))
    thread.start()
    building.wait(10)

    def child():
        found = cache.lookup("key", lambda: entry("child"))
        assert found.trie.names == ("child",)
        assert not cache._building
        use_cache(cache)

    try:
        in_child(child)
    finally:
        go_on.set()
        thread.join()
    assert cache.lookup("key", entry).trie.names == ("parent",)


@can_fork
@forks
def test_fc120_two_threads_fork_at_once():
    cache = TrieCache()
    in_threads(lambda _: [in_child(lambda: use_cache(cache)) for _ in range(10)], 4)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_fc120_other_ways_to_start_a_process(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    use_cache(TrieCache())
    process = multiprocessing.get_context(method).Process(target=use_new_cache)
    process.start()
    process.join(60)
    assert process.exitcode == 0


# -- memory ----------------------------------------------------------------------------


def check_memory(n):
    """Build, walk and evict; what is in use is found again now and then."""
    cache = TrieCache(max_entries=4)
    vocab = t32()
    texts = ["Yes", "No", "A", "B", "C", "AB"]
    held = None
    levels = []
    for i in range(n):
        leaves = {"a": [5, i % V, i // V % V], "b": [6], "c": [6, 3 + i // V // V % 60]}
        trie = cache.get(leaves, n_vocab=V, exits={"b": [END]})
        cursor = trie.cursor()
        cursor.accept(5)
        copy = cursor.copy()
        copy.accept(i % V)
        if i % 10 == 0:
            vocab.place([1, 4 + i % 28], texts[: 1 + i // 10 % 6], cache=cache)
            with pytest.raises(InvalidArgument):
                cache.get({"a": [1], "b": [1]}, n_vocab=V)
        if i % 100 == 0:
            held = trie
        elif i % 100 == 50:
            names = dict(zip(held.names, map(held.tokens, range(3)), strict=True))
            again = cache.get(names, n_vocab=V, exits={"b": [END]})
            assert again is held
        if i % (n // 20) == 0:
            gc.collect()
            levels.append(resident())
    assert len(cache._out) <= 2
    assert max(levels[5:]) - max(levels[:5]) < 5 << 20


@on_linux
def test_fc099_memory_is_flat():
    check_memory(10_000)


@on_linux
@pytest.mark.long
def test_fc099_memory_is_flat_over_a_hundred_thousand_rounds():
    check_memory(100_000)
