"""`TrieCache`: what is one entry and what are two, limits, what is found again."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest

import eliza
from eliza import Trie, TrieCache
from eliza.errors import InvalidArgument, InvalidType
from eliza.payload import TokenTreeDescriptor, TokenTreeLeaf, TokenTreePayload
from eliza.reference import Reference
from support import content, on_linux, resident
from t32 import t32

V = 64
LEAVES = {"THINK": [10, 11], "EXECUTE": [20], "REPLY": [10, 12, 13]}


class Payload:
    """The least that has leaves under paths."""

    def __init__(self, model_id, **paths):
        self.model_id = model_id
        self.paths = paths

    def leaves(self, path):
        return self.paths[path]


# -- what is one entry, and what are two -----------------------------------------------


def test_a_hit_is_the_same_trie():
    cache = TrieCache()
    trie = cache.get(LEAVES, n_vocab=V)
    assert content(trie) == content(Trie.from_tokens(LEAVES, n_vocab=V))
    again = [
        dict(reversed(LEAVES.items())),
        list(LEAVES.items()),
        [*LEAVES.items(), ("EXECUTE", [20])],  # one leaf, given twice
        ((name, np.array(ids, np.int64)) for name, ids in LEAVES.items()),
    ]
    for leaves in again:
        assert cache.get(leaves, n_vocab=V) is trie
    assert cache.get(LEAVES, n_vocab=np.int32(V), exits=()) is trie
    stats = cache.stats()
    assert (stats.hits, stats.misses, stats.entries) == (5, 1, 1)
    assert stats.bytes == trie.nbytes
    with pytest.raises(AttributeError):
        stats.hits = 0


def test_fc128_the_order_of_exits_makes_no_difference():
    cache = TrieCache()
    leaves = {"a": [5], "ab": [5, 6], "c": [7], "cd": [7, 8]}
    one = cache.get(leaves, n_vocab=V, exits=[2, 3])
    assert cache.get(leaves, n_vocab=V, exits={3, 2}) is one
    by_name = {"a": [2, 3], "c": [3]}
    two = cache.get(leaves, n_vocab=V, exits=by_name)
    swapped = {"c": (3,), "a": np.array([3, 2])}
    assert cache.get(leaves, n_vocab=V, exits=swapped) is two
    for trie, exits in ((one, [2, 3]), (two, by_name)):
        want = Trie.from_tokens(leaves, n_vocab=V, exits=exits)
        assert content(trie) == content(want)


def test_fc094_the_tokenizer_is_in_the_key():
    a, b = {"Yes": [9], "No": [12]}, {"Yes": [109], "No": [112]}
    cache = TrieCache()
    tries = [
        cache.get(leaves, n_vocab=n_vocab, exits=exits, fingerprint=fingerprint)
        for leaves in (a, b)
        for n_vocab in (200, 201)
        for exits in (None, [2], [3])
        for fingerprint in (b"", b"A", b"B")
    ]
    assert len({id(trie) for trie in tries}) == len(tries) == 36
    assert cache.stats().misses == 36
    for leaves in (a, b):
        again = cache.get(leaves, n_vocab=200, exits=[2], fingerprint=b"A")
        assert content(again) == content(
            Trie.from_tokens(leaves, n_vocab=200, exits=[2], fingerprint=b"A")
        )
    assert cache.stats().misses == 36  # nothing was compiled
    assert cache.stats().hits == 2


def test_fc095_ids_that_run_together():
    # what would stand between two names if lengths were left out
    look_alike = "i" + "\0" * 8 + "\2\0\0\0" + "n" + "\0" * 8 + "b"
    cache = TrieCache()
    sets = [
        {"a": [1, 23]},
        {"a": [12, 3]},
        {"a": [1], "b": [23]},
        {"a": [23], "b": [1]},  # names swapped
        {"ab": [1], "c": [23]},
        {"a": [1], "bc": [23]},
        {"1": [1]},
        {"": [1]},
        {"\ud800": [1]},  # half a surrogate pair, and the bytes that stand for it
        {"\ufffd": [1]},
        {"a": [1, 1]},
        {"a": [1, 0]},
        {"a": [256]},
        {"a": [1, 0, 0, 0]},
        {"a": [1], "b": [2]},
        {"a" + look_alike: [1]},
    ]
    tries = [cache.get(leaves, n_vocab=300) for leaves in sets]
    for leaves, trie in zip(sets, tries, strict=True):
        assert content(trie) == content(Trie.from_tokens(leaves, n_vocab=300))
    assert cache.stats().misses == len(sets)


@pytest.mark.parametrize(
    "leaves", [["1"], [[1]], {"1": "1"}, {1: [1]}, {"1": [True]}, {"1": [1.0]}, "1"]
)
def test_fc095_a_text_is_no_id(leaves):
    cache = TrieCache()
    cache.get({"1": [1]}, n_vocab=V)
    with pytest.raises(InvalidType):
        cache.get(leaves, n_vocab=V)
    vocab = t32()
    vocab.place("A", ["A", "B"], cache=cache)
    with pytest.raises(InvalidType, match=r"choices\[1\] must be a string; got 7"):
        vocab.place("A", ["A", 7], cache=cache)
    with pytest.raises(InvalidType, match="suffix must be a string"):
        vocab.place("A", ["A", "B"], None, cache=cache)
    assert cache.stats().entries == 2


def test_fc095_model_path_and_name():
    cache = TrieCache()
    one = {"b.c": [1]}
    payloads = [
        (Payload("m", a=one), "a"),
        (Payload("m", **{"a.b": {"c": [1]}}), "a.b"),
        (Payload("m", **{"a.b": one}), "a.b"),
        (Payload("m1", a=one), "a"),
        (Payload("m", **{"1a": one}), "1a"),
        (Payload("", ma=one), "ma"),
        (Payload("ma", **{"": one}), ""),
        (Payload("ma", **{"None": one}), "None"),
    ]
    tries = [cache.get(payload, path=path, n_vocab=V) for payload, path in payloads]
    tries.append(cache.get(one, n_vocab=V))
    only = Payload("ma")
    only.paths = {None: one}
    tries.append(cache.get(only, n_vocab=V))
    assert len({id(trie) for trie in tries}) == len(tries) == cache.stats().misses
    for (payload, path), trie in zip(payloads, tries, strict=False):
        want = Trie.from_tokens(payload.leaves(path), n_vocab=V)
        assert content(trie) == content(want)
        twin = Payload(payload.model_id, **payload.paths)
        assert cache.get(twin, path=path, n_vocab=V) is trie


def test_token_tree_payloads():
    cache = TrieCache()
    leaves = (TokenTreeLeaf("THINK", (10, 11)), TokenTreeLeaf("EXECUTE", (20,)))
    payload = TokenTreePayload("m", [TokenTreeDescriptor("action", leaves)])
    trie = cache.get(payload, path="action", n_vocab=V)
    assert content(trie) == content(payload.trie("action", n_vocab=V))
    again = TokenTreePayload.from_json(payload.to_json())
    assert cache.get(again, path="action", n_vocab=V) is trie
    other = TokenTreePayload("m2", payload.descriptors)
    assert cache.get(other, path="action", n_vocab=V) is not trie
    with pytest.raises(InvalidArgument, match="parameters"):
        cache.get(payload, path="parameters", n_vocab=V)


def test_payloads_are_checked():
    cache = TrieCache()
    with pytest.raises(InvalidArgument, match="path is 'a', but these leaves have no"):
        cache.get(LEAVES, path="a", n_vocab=V)
    with pytest.raises(InvalidType, match="path is 1; it is a str"):
        cache.get(Payload("m", a=LEAVES), path=1, n_vocab=V)
    with pytest.raises(InvalidType, match="model_id is None; it is a str"):
        cache.get(Payload(None, a=LEAVES), path="a", n_vocab=V)
    with pytest.raises(InvalidArgument, match=r"leaf 'x'.* id 64 is outside"):
        cache.get(Payload("m", a={"x": [V]}), path="a", n_vocab=V)


def random_exits(rng, pairs):
    by_name = {rng.choice(pairs)[0]: (3,)}
    return rng.choice([None, (3,), (3, 4), by_name, by_name])


def random_request(rng):
    """Draw arguments of `get` so alike that many pairs are nearly equal."""
    names = ["a", "b", "ab", "a\0", "", "1"]
    leaves = {}
    for _ in range(rng.randint(1, 2)):
        ids = tuple(rng.choice((1, 12, 2)) for _ in range(rng.randint(1, 2)))
        leaves.setdefault(ids, rng.choice(names))
    pairs = [(name, ids) for ids, name in leaves.items()]
    if len({name for name, _ in pairs}) < len(pairs):
        pairs = pairs[:1]
    return {
        "leaves": pairs,
        "n_vocab": rng.choice((20, 21)),
        "exits": random_exits(rng, pairs),
        "fingerprint": rng.choice((b"", b"f")),
    }


def meaning(request):
    """What a request is, order aside."""
    exits = request["exits"]
    if isinstance(exits, dict):
        exits = ("by name", *sorted(exits.items()))
    leaves = frozenset(request["leaves"])
    return leaves, request["n_vocab"], exits, request["fingerprint"]


def by_hand(leaves, n_vocab, exits, fingerprint):
    """What `content` must say of the trie of a request."""
    by_name = isinstance(exits, dict)
    ref = Reference(
        dict(leaves), () if by_name else exits or (), exits if by_name else None
    )
    rows = [
        (ids, name, tuple(sorted(ref.exits_of[ids])))
        for ids, name in sorted(ref.name_of.items())
    ]
    return n_vocab, fingerprint, rows


def check_random_pairs(n):
    cache = TrieCache()
    rng = random.Random(95)
    seen = 0
    for _ in range(n):
        one, two = random_request(rng), random_request(rng)
        if rng.random() < 0.7:  # the same but for one thing, if that
            field = rng.choice(["n_vocab", "exits", "fingerprint"])
            if field == "exits":
                two["exits"] = random_exits(rng, one["leaves"])
            two = one | {field: two[field]}
        two["leaves"] = rng.sample(two["leaves"], len(two["leaves"]))
        tries = cache.get(**one), cache.get(**two)
        same = meaning(one) == meaning(two)
        seen += same
        assert (tries[0] is tries[1]) == same, (one, two)
        for request, trie in zip((one, two), tries, strict=True):
            assert content(trie) == by_hand(**request)
    assert 0 < seen < n


def test_fc095_random_pairs():
    check_random_pairs(3_000)


@pytest.mark.long
def test_fc095_a_hundred_thousand_random_pairs():
    check_random_pairs(100_000)


def test_large_sets_have_one_key_too():
    """Beyond the 64 KiB that go into the hash at once, in one leaf and in many."""
    cache = TrieCache()
    ids = np.arange(40_000) % V
    many = {f"name {i}": [i // V // V, i // V % V, i % V] for i in range(5_000)}
    for leaves in ({"long": ids}, {"x" * 200_000: [1], "y": [2]}, many):
        trie = cache.get(leaves, n_vocab=V)
        other = [(name, [*ids]) for name, ids in reversed(leaves.items())]
        assert cache.get(other, n_vocab=V) is trie
        other[-1][1][0] = V - 1
        assert cache.get(other, n_vocab=V) is not trie
        renamed = [(name + "!", ids) for name, ids in leaves.items()]
        assert cache.get(renamed, n_vocab=V) is not trie


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"leaves": {}}, InvalidArgument, "there are no leaves"),
        ({"leaves": {"a": []}}, InvalidArgument, "leaf 'a': it has no ids"),
        ({"leaves": {"a": [V]}}, InvalidArgument, "id 64 is outside"),
        ({"leaves": {"a": [1], "b": [1]}}, InvalidArgument, "have the same ids"),
        ({"leaves": [("a", [1]), ("a", [2])]}, InvalidArgument, "given twice"),
        ({"exits": {"X": [1]}}, InvalidArgument, "exits for 'X', which is no leaf"),
        ({"n_vocab": True}, InvalidType, "n_vocab must be an int"),
        ({"fingerprint": "A"}, InvalidType, "a fingerprint is bytes, got str"),
    ],
)
def test_errors_are_those_of_the_trie_and_are_not_kept(arguments, error, message):
    cache = TrieCache()
    arguments = {"leaves": LEAVES, "n_vocab": V} | arguments
    for _ in range(2):
        with pytest.raises(error, match=message):
            cache.get(**arguments)
    assert cache.stats().entries == 0


# -- limits ----------------------------------------------------------------------------


def sets(n, size=30, seed=0):
    """Give n different sets of choices."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        ids = rng.integers(0, 30_000, (size, 4))
        ids[:, 0] = np.arange(size)
        yield {f"{i}.{k}": list(leaf) for k, leaf in enumerate(ids.tolist())}


@on_linux
def test_fc096_ten_thousand_sets():
    cache = TrieCache()
    levels = []
    for i, leaves in enumerate(sets(10_000)):
        cache.get(leaves, n_vocab=30_000)
        if i >= 1_000 and i % 1_000 == 0:
            gc.collect()
            levels.append(resident())
        assert cache.stats().entries <= 128
    stats = cache.stats()
    assert (stats.misses, stats.evictions) == (10_000, 10_000 - 128)
    assert max(levels) - levels[0] < 4 << 20


def check_large_sets(n, n_leaves, length):
    limit = 8 << 20
    cache = TrieCache(max_bytes=limit)
    levels = []
    ids = np.random.default_rng(96).integers(0, 30_000, (n_leaves, length)).tolist()
    names = [str(i) for i in range(n_leaves)]
    for i in range(n):
        leaves = [
            (name, [i % 30_000, *leaf]) for name, leaf in zip(names, ids, strict=True)
        ]
        assert len(cache.get(leaves, n_vocab=30_000)) == n_leaves
        assert cache.stats().bytes <= limit
        levels.append(resident())
    assert cache.stats().evictions >= n // 2
    return levels


@on_linux
def test_fc096_large_sets():
    check_large_sets(20, 10_000, 9)


@on_linux
@pytest.mark.long
def test_fc096_two_hundred_sets_of_a_hundred_thousand_ids():
    levels = check_large_sets(200, 10_000, 9)
    assert max(levels[50:]) - max(levels[:50]) < 16 << 20


def test_fc096_a_set_larger_than_the_cache():
    cache = TrieCache(max_bytes=4_000)
    small = cache.get({"a": [1]}, n_vocab=V)
    big = {str(i): [i // V, i % V] for i in range(1_000)}
    trie = cache.get(big, n_vocab=V)
    assert len(trie) == 1_000
    assert trie.nbytes > 4_000
    assert cache.stats().entries == 1  # nothing had to go for it
    assert cache.get({"a": [1]}, n_vocab=V) is small
    assert cache.get(big, n_vocab=V) is trie  # it is in use
    ref = weakref.ref(trie)
    del trie
    assert ref() is None  # and is gone at once when it is not
    assert cache.stats().misses == 2
    cache.get(big, n_vocab=V)
    assert cache.stats().misses == 3


def test_the_one_used_last_stays():
    cache = TrieCache(max_entries=2)
    a, b, c = ({"x": [i]} for i in range(3))
    cache.get(a, n_vocab=V)
    cache.get(b, n_vocab=V)
    cache.get(a, n_vocab=V)
    cache.get(c, n_vocab=V)  # b goes
    assert cache.stats().evictions == 1
    cache.get(a, n_vocab=V)
    cache.get(c, n_vocab=V)
    assert cache.stats().misses == 3
    cache.get(b, n_vocab=V)
    assert cache.stats().misses == 4
    assert cache.stats().entries == 2


def test_the_limit_by_bytes():
    one = Trie.from_tokens({"x": [1]}, n_vocab=V).nbytes
    cache = TrieCache(max_bytes=3 * one)
    for i in range(5):
        cache.get({"x": [i]}, n_vocab=V)
    stats = cache.stats()
    assert (stats.entries, stats.bytes, stats.evictions) == (3, 3 * one, 2)


@pytest.mark.parametrize("limits", [{"max_entries": 0}, {"max_bytes": 0}])
def test_a_cache_that_holds_nothing(limits):
    cache = TrieCache(**limits)
    trie = cache.get(LEAVES, n_vocab=V)
    assert content(trie) == content(Trie.from_tokens(LEAVES, n_vocab=V))
    assert (cache.stats().entries, cache.stats().bytes) == (0, 0)


@pytest.mark.parametrize("name", ["max_entries", "max_bytes"])
def test_limits_are_checked(name):
    for bad in (True, 1.0, "1", None):
        with pytest.raises(InvalidType, match=f"{name} is .*; it is an int"):
            TrieCache(**{name: bad})
    with pytest.raises(InvalidArgument, match=f"{name} is -1; it is 0 or more"):
        TrieCache(**{name: -1})
    assert getattr(TrieCache(**{name: np.int64(7)}), name) == 7


# -- who keeps a trie alive ------------------------------------------------------------


def test_fc099_an_evicted_trie_in_use_lives_and_is_found_again():
    cache = TrieCache(max_entries=1)
    cursor = cache.get(LEAVES, n_vocab=V).cursor()
    trie = weakref.ref(cursor.trie)
    cache.get({"other": [1]}, n_vocab=V)
    assert cache.stats().evictions == 1
    cursor.accept(20)
    assert cursor.name == "EXECUTE"
    assert cache.get(LEAVES, n_vocab=V) is cursor.trie
    assert cache.stats().misses == 2
    assert cache.stats().bytes == cursor.trie.nbytes
    cache.get({"other": [1]}, n_vocab=V)
    del cursor
    assert trie() is None


def test_fc099_nothing_is_left_of_an_evicted_trie():
    cache = TrieCache(max_entries=4)
    tries = [weakref.ref(cache.get({"x": [i]}, n_vocab=V)) for i in range(V)]
    assert sum(trie() is not None for trie in tries) == 4
    assert len(cache._out) == len(cache._rest) == 0


def test_fc099_a_cache_that_goes_lets_tries_go():
    cache = TrieCache()
    vocab = t32()
    tries = [
        weakref.ref(cache.get(LEAVES, n_vocab=V)),
        weakref.ref(vocab.place("A", ["B"], cache=cache).trie),
    ]
    ref = weakref.ref(cache)
    del cache
    assert ref() is None
    assert [trie() for trie in tries] == [None, None]


def test_clear():
    cache = TrieCache()
    kept = cache.get(LEAVES, n_vocab=V)
    gone = weakref.ref(cache.get({"x": [1]}, n_vocab=V))
    cache.clear()
    assert gone() is None
    assert cache.stats() == eliza.CacheStats(0, 2, 0, 0, 0)
    assert kept.cursor().remaining() == 3
    assert content(cache.get(LEAVES, n_vocab=V)) == content(kept)
    assert cache.stats().misses == 3


def test_what_the_caller_gave_is_not_kept():
    cache = TrieCache()
    leaves = {"a": [1, 2], "b": [3]}
    first = content(cache.get(leaves, n_vocab=V))
    leaves["a"][0] = 5
    leaves["c"] = [7]
    assert content(cache.get(leaves, n_vocab=V)) != first
    assert content(cache.get({"a": [1, 2], "b": [3]}, n_vocab=V)) == first
    choices = ["A", "B"]
    vocab = t32()
    placed = vocab.place("C", choices, cache=cache)
    choices[0] = "Yes"
    assert vocab.place("C", choices, cache=cache).trie.names == ("B", "Yes")
    assert vocab.place("C", ["A", "B"], cache=cache).trie is placed.trie
