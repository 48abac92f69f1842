"""Building tries: what is accepted, what is refused and how, and what size costs."""

from __future__ import annotations

import enum
import gc
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

from eliza import Subset, Trie
from eliza._trie import from_arrays_with_order
from eliza.errors import InvalidArgument, InvalidType

V = 32000


def trie_of(*sequences, n_vocab=V, **kwargs):
    leaves = {f"c{i}": ids for i, ids in enumerate(sequences)}
    return Trie.from_tokens(leaves, n_vocab=n_vocab, **kwargs)


def leaves_of(trie):
    return [trie.tokens(i) for i in range(len(trie))]


def test_a_small_trie():
    trie = Trie.from_tokens(
        {"THINK": [100, 101], "EXECUTE": [200], "THANK": [100, 102, 7]}, n_vocab=V
    )
    assert len(trie) == 3
    assert trie.names == ("THINK", "THANK", "EXECUTE")
    assert trie.name(1) == "THANK"
    assert leaves_of(trie) == [(100, 101), (100, 102, 7), (200,)]
    assert trie.max_depth == 3
    assert trie.n_vocab == V
    assert trie.n_nodes == 5  # the root, after 100, three ends
    assert not trie.needs_exits
    assert trie.fingerprint == b""
    assert "3 leaves" in repr(trie)


def test_fingerprint_is_kept():
    assert trie_of([1], fingerprint=b"\x00abc").fingerprint == b"\x00abc"
    with pytest.raises(InvalidType, match="a fingerprint is bytes, got str"):
        trie_of([1], fingerprint="abc")


@pytest.mark.parametrize("leaves", [[], {}, (), iter([])])
def test_fc014_no_leaves(leaves):
    with pytest.raises(InvalidArgument, match="no leaves: give at least one"):
        Trie.from_tokens(leaves, n_vocab=V)


def test_fc014_no_leaves_in_arrays():
    for offsets in ([0], []):
        with pytest.raises(InvalidArgument, match="no leaves"):
            Trie.from_arrays([], offsets, n_vocab=V)


def test_a_leaf_without_ids():
    with pytest.raises(InvalidArgument, match="leaf 'WAIT': it has no ids"):
        Trie.from_tokens({"GO": [1], "WAIT": []}, n_vocab=V)
    with pytest.raises(InvalidArgument, match="leaf 1: it has no ids"):
        Trie.from_arrays([1, 2], [0, 1, 1, 2], n_vocab=V)
    with pytest.raises(InvalidArgument, match="leaf 'b': it has no ids"):
        Trie.from_arrays([1, 2], [0, 1, 1, 2], ["a", "b", "c"], n_vocab=V)


def test_fc017_the_same_leaf_twice_is_one():
    trie = Trie.from_tokens([("go", [9]), ("go", [9]), ("stop", [12])], n_vocab=V)
    assert trie.names == ("go", "stop")
    by_ids = Trie.from_arrays([9, 9, 12], [0, 1, 2, 3], n_vocab=V)
    assert leaves_of(by_ids) == leaves_of(trie)
    assert by_ids.names is None
    assert by_ids.name(0) is None


def test_two_names_for_the_same_ids():
    message = "leaf 'go' and leaf 'GO' have the same ids"
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_tokens({"go": [9, 4], "stop": [3], "GO": [9, 4]}, n_vocab=V)
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_arrays([9, 9], [0, 1, 2], ["go", "GO"], n_vocab=V)


def test_two_sequences_for_one_name():
    message = "leaf 'go' is given twice with different ids: at 0 and at 2"
    leaves = [("go", [9, 4]), ("stop", [3]), ("go", [9])]
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_tokens(leaves, n_vocab=V)
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_arrays([9, 4, 3, 9], [0, 2, 3, 4], ["go", "stop", "go"], n_vocab=V)


@pytest.mark.parametrize(
    "bad", [-1, 2**31, 2**32 + 5, 2**40, 2**63, 2**64, -(2**63), V]
)
def test_fc035_id_outside_the_vocabulary(bad):
    message = rf"leaf 'REPLY' \[2\]: id {bad} is outside \[0, {V}\)"
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_tokens({"GO": [5], "REPLY": [1, 2, bad]}, n_vocab=V)
    with pytest.raises(InvalidArgument, match=message.replace("'REPLY'", "1")):
        Trie.from_arrays([5, 1, 2, bad], [0, 1, 4], n_vocab=V)
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_arrays([5, 1, 2, bad], [0, 1, 4], ["GO", "REPLY"], n_vocab=V)


@pytest.mark.parametrize("bad", [True, 1.0, "7", None, np.True_, np.float32(1), b"7"])
def test_fc035_not_an_id(bad):
    with pytest.raises(InvalidType, match=r"leaf 'REPLY' \[1\]: an id must be an int"):
        Trie.from_tokens({"REPLY": [3, bad]}, n_vocab=V)


@pytest.mark.parametrize("dtype", [bool, float, "U1", object])
def test_fc035_arrays_of_another_type(dtype):
    with pytest.raises(InvalidType, match="tokens must be a 1-D array of ints"):
        Trie.from_arrays(np.array([1, 0], dtype), [0, 1, 2], n_vocab=V)
    if dtype is not object:
        with pytest.raises(InvalidType, match=r"leaf 'a' \[0\]"):
            Trie.from_tokens({"a": np.array([1, 0], dtype)}, n_vocab=V)


def test_fc035_ids_that_are_fine():
    assert trie_of([V - 1]).tokens(0) == (V - 1,)
    assert trie_of([np.int64(7), np.uint8(9)]).tokens(0) == (7, 9)
    for dtype in "bBhHiIlLqQ":
        ids = np.array([3, 100], dtype)
        assert trie_of(ids).tokens(0) == (3, 100)
        assert Trie.from_arrays(ids, [0, 2], n_vocab=V).tokens(0) == (3, 100)
    assert trie_of(range(3)).tokens(0) == (0, 1, 2)
    assert trie_of(x for x in (5, 4)).tokens(0) == (5, 4)
    assert trie_of([0], n_vocab=1).tokens(0) == (0,)
    largest = 2**31 - 1
    assert trie_of([largest - 1], n_vocab=largest).tokens(0) == (largest - 1,)


@pytest.mark.parametrize("ids", ["78", b"78", {7, 8}, {7: 8}, None, 7, np.array(7)])
def test_ids_that_are_no_sequence(ids):
    with pytest.raises(InvalidType, match="leaf 'a': expected a sequence of ints"):
        Trie.from_tokens({"a": ids}, n_vocab=V)


def test_names_are_str():
    with pytest.raises(InvalidType, match=r"leaves\[1\]: a name is a str, got int 3"):
        Trie.from_tokens([("a", [1]), (3, [2])], n_vocab=V)
    with pytest.raises(InvalidType, match=r"names\[0\]: a name is a str, got bytes"):
        Trie.from_arrays([1], [0, 1], [b"a"], n_vocab=V)
    with pytest.raises(InvalidType, match="names must be a sequence of str"):
        Trie.from_arrays([1], [0, 1], "a", n_vocab=V)
    with pytest.raises(InvalidArgument, match="there are 2 leaves, but 1 names"):
        Trie.from_arrays([1, 2], [0, 1, 2], ["a"], n_vocab=V)


def test_names_of_every_kind():
    class Color(enum.StrEnum):
        RED = "red"

    names = ["", "ä", "🐈", "\0", "half \ud800", "x" * 10_000, Color.RED]
    trie = Trie.from_tokens([(n, [i]) for i, n in enumerate(names)], n_vocab=V)
    assert trie.names == tuple(names)
    assert {type(name) for name in trie.names} == {str}
    for i, name in enumerate(names):
        assert trie.subset([name]).leaves().tolist() == [i]


@pytest.mark.parametrize("leaves", ["ab", b"ab", 7, None])
def test_leaves_that_are_none(leaves):
    with pytest.raises(InvalidType, match="leaves must be a mapping"):
        Trie.from_tokens(leaves, n_vocab=V)


@pytest.mark.parametrize("pair", [("a",), ("a", [1], [2]), "ab", 7])
def test_leaves_that_are_no_pairs(pair):
    with pytest.raises(InvalidType, match=r"leaves\[1\]: expected a \(name, ids\)"):
        Trie.from_tokens([("b", [1]), pair], n_vocab=V)


@pytest.mark.parametrize(
    ("n_vocab", "kind"),
    [(0, InvalidArgument), (-1, InvalidArgument), (2**31, InvalidArgument)]
    + [(x, InvalidType) for x in (True, 32.0, "32", None)],
)
def test_vocabulary_sizes(n_vocab, kind):
    with pytest.raises(kind, match="n_vocab must"):
        Trie.from_tokens({"a": [0]}, n_vocab=n_vocab)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 1], "from 0 to the number of tokens, 3; they go from 0 to 1"),
        ([1, 3], "they go from 1 to 3"),
        ([0, 5], "they go from 0 to 5"),
        ([0, 2, 1, 3], r"not decrease: offsets\[2\] is 1 after 2"),
        ([0, -1, 3], r"not decrease: offsets\[1\] is -1 after 0"),
        ([0, 2**63, 3], "not decrease"),
    ],
)
def test_offsets_are_checked(offsets, message):
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_arrays([1, 2, 3], offsets, n_vocab=V)


def test_arrays_of_another_shape():
    with pytest.raises(InvalidType, match=r"shape \(1, 3\)"):
        Trie.from_arrays(np.ones((1, 3), np.int32), [0, 3], n_vocab=V)
    with pytest.raises(InvalidType, match="offsets must be"):
        Trie.from_arrays([1], [0.0, 1.0], n_vocab=V)


def test_arrays_are_neither_kept_nor_changed():
    tokens = np.array([5, 1, 9, 9, 3], np.int32)[::1]
    offsets = np.array([0, 2, 5], np.int64)
    tokens.flags.writeable = offsets.flags.writeable = False
    trie = Trie.from_arrays(tokens, offsets, n_vocab=V)
    assert leaves_of(trie) == [(5, 1), (9, 9, 3)]
    tokens = np.array([5, 1, 9, 9, 3], np.int32)
    trie = Trie.from_arrays(tokens, offsets, n_vocab=V)
    tokens[:] = 0
    assert leaves_of(trie) == [(5, 1), (9, 9, 3)]
    backwards = np.array([3, 9, 9, 1, 5], np.int32)[::-1]
    assert leaves_of(Trie.from_arrays(backwards, offsets, n_vocab=V)) == [
        (5, 1),
        (9, 9, 3),
    ]


def test_exits_for_all_by_name_and_by_place():
    leaves = {"b": [7, 8], "a": [7]}
    assert trie_of([7], [7, 8]).exits(0) == ()
    shared = Trie.from_tokens(leaves, n_vocab=V, exits=(3, 2, 3))
    assert [shared.exits(i) for i in range(2)] == [(2, 3), (2, 3)]
    own = Trie.from_tokens(leaves, n_vocab=V, exits={"a": {5, 4}})
    assert [own.exits(i) for i in range(2)] == [(4, 5), ()]
    placed = Trie.from_arrays([7, 8, 7], [0, 2, 3], n_vocab=V, exits={1: [4]})
    assert [placed.exits(i) for i in range(2)] == [(4,), ()]
    twice = Trie.from_arrays([7, 7, 8], [0, 1, 2, 3], n_vocab=V, exits={1: [4], 0: [6]})
    assert [twice.exits(i) for i in range(2)] == [(4, 6), ()]
    assert Trie.from_tokens(leaves, n_vocab=V, exits={"a": []}).exits(0) == ()


@pytest.mark.parametrize(
    ("exits", "message"),
    [
        ({"c": [1]}, "exits for 'c', which is no leaf"),
        ({0: [1]}, "exits for 0, which is no leaf"),
        ({"a": [V]}, r"exits of leaf 'a' \[0\]: id 32000 is outside"),
        ([1, -1], r"exits \[1\]: id -1 is outside"),
        (5, "exits: expected a sequence of ints, got int"),
        ("ab", "exits: expected a sequence of ints, got str"),
        ([None], r"exits \[0\]: an id must be an int"),
    ],
)
def test_exits_are_checked(exits, message):
    with pytest.raises(InvalidArgument, match=message):
        Trie.from_tokens({"a": [7], "b": [7, 8]}, n_vocab=V, exits=exits)


@pytest.mark.parametrize("key", [2, -1, True, "a", None, 0.5])
def test_exits_by_place_are_checked(key):
    with pytest.raises(InvalidArgument, match=r"which is outside \[0, 2\)"):
        Trie.from_arrays([7, 8], [0, 1, 2], n_vocab=V, exits={key: [1]})


@pytest.mark.parametrize("leaf", [-1, 2, 2**40])
def test_leaf_numbers_are_checked(leaf):
    trie = trie_of([1], [2])
    for call in (trie.name, trie.tokens, trie.exits):
        with pytest.raises(InvalidArgument, match=rf"leaf {leaf} is outside \[0, 2\)"):
            call(leaf)
        with pytest.raises(InvalidType, match="a leaf number must be an int"):
            call("c0")


def test_subsets():
    trie = trie_of([1], [2], [3])
    other = trie_of([1], [2], [3])
    subset = trie.subset([2, 0, 2])
    assert isinstance(subset, Subset)
    assert len(subset) == 2
    assert subset.leaves().tolist() == [0, 2]
    assert subset.trie is trie
    assert trie.subset(subset) is subset
    assert subset.nbytes == 16
    assert "2 of 3" in repr(subset)
    for form in (("c2", "c0"), {"c0", "c2"}, np.array([0, 2], np.uint64)):
        assert trie.subset(form).leaves().tolist() == [0, 2]
    assert trie.subset(np.array([1, 0, 1, 0, 1, 1], bool)[::2]).leaves().tolist() == [
        0,
        1,
        2,
    ]
    with pytest.raises(InvalidArgument, match="subset of another trie"):
        other.cursor(allow=subset)


@pytest.mark.parametrize(
    ("allow", "kind", "message"),
    [
        ([], InvalidArgument, "permits none of the 2 leaves"),
        (np.zeros(2, bool), InvalidArgument, "permits none"),
        (np.zeros(0, np.int32), InvalidArgument, "permits none"),
        (np.ones(3, bool), InvalidArgument, "as long as there are leaves, 2; got 3"),
        (np.array([0, 2]), InvalidArgument, r"allow\[1\]: leaf 2 is outside \[0, 2\)"),
        (np.array([-1]), InvalidArgument, r"allow\[0\]: leaf -1 is outside"),
        (
            np.array([2**64 - 1], np.uint64),
            InvalidArgument,
            "leaf 18446744073709551615",
        ),
        (["c0", "go"], InvalidArgument, r"allow\[1\]: there is no leaf 'go'"),
        (["c0", 1], InvalidType, r"allow\[1\]: a name is a str, got int"),
        ("c0", InvalidType, "got str"),
        (b"c0", InvalidType, "got bytes"),
        (7, InvalidType, "got int"),
        ([None], InvalidType, "got ndarray of dtype object"),
        (np.ones(2), InvalidType, "dtype float64"),
        (np.ones((1, 2), bool), InvalidType, r"shape \(1, 2\)"),
    ],
)
def test_allow_is_checked(allow, kind, message):
    trie = trie_of([1], [2])
    with pytest.raises(kind, match=message):
        trie.cursor(allow=allow)


def test_allow_by_name_needs_names():
    trie = Trie.from_arrays([1, 2], [0, 1, 2], n_vocab=V)
    with pytest.raises(InvalidArgument, match="built without names"):
        trie.subset(["a"])


def test_nothing_is_made_past_the_checks():
    for cls in (Trie, Subset, type(trie_of([1]).cursor())):
        for make in (cls, lambda cls=cls: cls.__new__(cls), lambda cls=cls: cls(1)):
            with pytest.raises(TypeError, match="made by"):
                make()
        with pytest.raises(TypeError):
            type("Sub", (cls,), {})


def test_memory_is_freed_at_once():
    """A trie does not wait for the garbage collector, cursors or not."""
    trie = trie_of([1, 2], [1, 3])
    trie.cursor(exits=[7])
    subset = trie.subset([0])
    trie.cursor(allow=subset)
    alive = weakref.ref(trie)
    gc.disable()
    try:
        del trie
        assert alive() is not None  # through the subset
        del subset
        assert alive() is None
    finally:
        gc.enable()


def test_names_and_exits_count_in_nbytes():
    plain = Trie.from_arrays([1, 2], [0, 1, 2], n_vocab=V)
    named = Trie.from_arrays([1, 2], [0, 1, 2], ["ab", "c"], n_vocab=V)
    assert named.nbytes == plain.nbytes + 3 + 3 * 8
    exits = Trie.from_arrays([1, 2], [0, 1, 2], n_vocab=V, exits=[5])
    assert exits.nbytes == plain.nbytes + 4


def test_depth_needs_no_recursion():
    depth = 100_000
    ids = np.arange(depth, dtype=np.int32) % V
    other = ids.copy()
    other[-1] = 7
    trie = trie_of(ids, other, ids[:50_000], exits=[9])
    assert trie.max_depth == depth
    assert trie.tokens(1) == tuple(other)
    cursor = trie.cursor()
    run = cursor.forced()
    assert len(run) == 50_000
    for token in run.tolist():
        cursor.accept(token)
    assert cursor.allowed().tolist() == [9, int(ids[50_000])]
    cursor.accept(int(ids[50_000]))
    cursor.rollback(50_000)
    assert cursor.path == (0,)


def test_many_nested_prefixes():
    """3,000 leaves, each the beginning of the next: 4.5 million ids in all."""
    n = 3_000
    tokens = np.full(n * (n + 1) // 2, 5, np.int32)
    offsets = np.cumsum(np.arange(n + 1))
    trie = Trie.from_arrays(tokens, offsets, n_vocab=V, exits=[2])
    assert len(trie) == n
    assert trie.n_nodes == n + 1
    assert trie.needs_exits
    backwards, order = from_arrays_with_order(
        tokens, np.cumsum([0, *range(n, 0, -1)]), None, V, [2]
    )
    assert order.tolist() == list(range(n))[::-1]
    assert backwards.tokens(n - 1) == trie.tokens(n - 1)
    cursor = trie.cursor()
    for _ in range(n):
        cursor.accept(5)
    assert cursor.leaf == n - 1


def random_leaves(n, length, n_vocab, seed=0):
    """n different sequences of `length` ids in no order, which share beginnings."""
    rng = np.random.default_rng(seed)
    number = rng.permutation(n * 3)[:n]
    tokens = rng.integers(0, n_vocab, (n, length), dtype=np.int32)
    tokens[:, 0] = number % 97
    tokens[:, 1] = number // 97 % 89
    tokens[:, 2] = number // (97 * 89)
    return tokens.reshape(-1), np.arange(n + 1) * length


@pytest.mark.parametrize("n", [1, 47, 48, 49, 2000, 2001, 65_535, 65_536, 100_000])
def test_fc111_many_leaves(n):
    check_size(n)


@pytest.mark.long
def test_fc111_a_million_leaves():
    """A hundred times the leaves take at most 15 * 15 times as long."""
    seconds = {n: check_size(n) for n in (10_000, 1_000_000)}
    assert seconds[1_000_000] <= 225 * seconds[10_000]


def check_size(n):
    n_vocab = 152_064
    tokens, offsets = random_leaves(n, 6, n_vocab)
    seconds = []
    for _ in range(3):
        start = time.thread_time()
        trie, order = from_arrays_with_order(tokens, offsets, None, n_vocab)
        seconds.append(time.thread_time() - start)
    assert len(trie) == n
    table = tokens.reshape(n, 6)
    expected = np.lexsort(table.T[::-1])
    assert order.tolist() == expected.tolist()
    row = np.zeros(n_vocab, np.float32)
    for leaf in (0, n // 2, n - 1):
        path = trie.tokens(leaf)
        assert path == tuple(table[expected[leaf]])
        cursor = trie.cursor()
        for token in path:
            row[token] = 1
            assert cursor.argmax(row) == token
            cursor.accept(token)
            row[token] = 0
        assert cursor.leaf == leaf
    return min(seconds)


def test_wide_nodes():
    """One node with 50,000 children, most of them forbidden."""
    n = 50_000
    trie = Trie.from_arrays(np.arange(n), np.arange(n + 1), n_vocab=n)
    row = np.arange(n, dtype=np.float32)
    cursor = trie.cursor()
    assert cursor.argmax(row) == n - 1
    assert cursor.allowed().tolist() == list(range(n))
    for kept in ([7, 30_000, 49_999], [31_234], list(range(0, n, 2))):
        cursor = trie.cursor(allow=kept)
        assert cursor.allowed().tolist() == kept
        assert cursor.argmax(row) == kept[-1]
        assert cursor.completes().tolist() == kept
        assert cursor.forced().tolist() == (kept if len(kept) == 1 else [])


def test_out_of_memory_is_an_error():
    """With the address space closed, a build raises and what was there still works."""
    code = """
import resource
import numpy as np
from eliza import Trie
from eliza.errors import OutOfMemory
small = Trie.from_tokens({"a": [1], "b": [2]}, n_vocab=8)
n = 2_000_000
tokens = np.arange(n, 0, -1, dtype=np.int32)
offsets = np.arange(n + 1)
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
failures = 0
for extra in range(4, 200, 4):
    resource.setrlimit(resource.RLIMIT_AS, (now + (extra << 20), -1))
    try:
        Trie.from_arrays(tokens, offsets, n_vocab=n + 1)
        break
    except OutOfMemory as error:
        failures += 1
        assert "no memory" in str(error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
assert failures > 3, failures
assert len(Trie.from_arrays(tokens, offsets, n_vocab=n + 1)) == n
assert small.cursor().allowed().tolist() == [1, 2]
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("limits the address space as Linux does")
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
