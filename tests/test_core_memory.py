"""Nothing leaks, nothing is shared by accident: many rounds, threads, forks."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import sys
import threading

import numpy as np
import pytest

import children
from eliza import Trie, argmax_batch, mask_batch
from eliza.errors import ElizaError
from support import resident

V = 200
LONG = [pytest.mark.long, pytest.mark.timeout(3000)]


def leaves(rng, n):
    table = rng.integers(0, V, (n, 4))
    return {f"name {i}": row.tolist() for i, row in enumerate(np.unique(table, axis=0))}


def one_round(rng, folder):
    """Go once through everything that allocates, errors included."""
    names = leaves(rng, 40)
    trie = Trie.from_tokens(names, n_vocab=V, exits={"name 0": [1, 2]})
    subset = trie.subset(list(names)[::3])
    cursors = [trie.cursor(), trie.cursor(allow=subset), trie.cursor(allow=[0])]
    rows = rng.standard_normal((3, V)).astype(np.float32)
    argmax_batch(rows, cursors)
    mask_batch(rows, cursors)
    flat = np.zeros(V, np.float32)
    for cursor in cursors:
        cursor.copy().accept(cursor.sample(flat, rng, top_k=3))
        cursor.allowed(), cursor.forced(), cursor.completes(), cursor.bitmask()
        for bad in (None, np.zeros(3, np.float32), np.zeros(V), rows):
            with pytest.raises(ElizaError):
                cursor.argmax(bad)
        with pytest.raises(ElizaError):
            cursor.accept(V)
    if rng.random() < 0.02 or not (folder / "x.trie").exists():
        trie.save(folder / "x.trie")  # the disk takes 10 ms
    mapped = Trie.open(folder / "x.trie")
    assert mapped.cursor().remaining() == len(mapped)
    assert len(mapped.subset(["name 3"])) == len(trie.subset(["name 3"])) == 1
    assert pickle.loads(pickle.dumps(trie)).names == trie.names
    for bad in ({"a": [V]}, {"a": []}, {"a": [1, "b"]}, [("a", [1]), ("b", [1])]):
        with pytest.raises(ElizaError):
            Trie.from_tokens(bad, n_vocab=V)
    with pytest.raises(ElizaError):
        Trie.from_bytes(trie.to_bytes()[:-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("rounds", [1_500, pytest.param(100_000, marks=LONG)])
def test_fc099_memory_stays_flat(tmp_path, rounds):
    rng = np.random.default_rng(0)
    for _ in range(300):
        one_round(rng, tmp_path)
    gc.collect()
    before = resident()
    for _ in range(rounds):
        one_round(rng, tmp_path)
    gc.collect()
    assert resident() - before < 5 << 20


@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=LONG)])
def test_fc080_threads_share_a_trie(tmp_path, seconds):
    """Eight threads, one built and one mapped trie, cursors of their own."""
    rng = np.random.default_rng(0)
    names = leaves(rng, 300)
    trie = Trie.from_tokens(names, n_vocab=V)
    trie.save(tmp_path / "x.trie")
    mapped = Trie.open(tmp_path / "x.trie")
    subset = mapped.subset(list(names)[::2])
    stop = threading.Event()
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            cursor = (trie.cursor(), mapped.cursor(), mapped.cursor(allow=subset))[
                int(rng.integers(3))
            ]
            while not cursor.done:
                row = rng.standard_normal(V).astype(np.float32)
                allowed = cursor.allowed()
                best = cursor.argmax(row)
                if best != allowed[row[allowed].argmax()]:
                    wrong.append((cursor.path, best))
                cursor.accept(cursor.sample(row, rng))
            if list(cursor.path) != names[cursor.name]:
                wrong.append(cursor.path)
            if mapped.subset([cursor.name]).leaves().tolist() != [cursor.leaf]:
                wrong.append(cursor.name)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_fc120_tries_in_other_processes(method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    context = multiprocessing.get_context(method)
    trie = Trie.from_tokens(
        {"low": [1, 5], "high": [9, 2], "higher": [9, 3]}, n_vocab=12
    )
    trie.cursor()
    queue = context.Queue()
    child = context.Process(target=children.choose, args=(trie, queue))
    child.start()
    assert queue.get(timeout=60) == "higher"
    child.join(20)
    assert child.exitcode == 0
