"""RTKT, the binary form of a token tree: written one way, read with every check."""

from __future__ import annotations

import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eliza import TokenTreeDescriptor, TokenTreePayload, rtkt
from eliza.errors import InvalidArgument, InvalidType
from payloads import (
    TOP,
    leaf_sets,
    payload_of,
    rtkt_encoding,
    rtkt_model,
    rtkt_of,
)

read = TokenTreePayload.from_rtkt

SMALL = {"THINK": [100, 101], "EXECUTE": [200], "THANK": [100, 102, 7], "TH": [100]}


def small():
    return payload_of(SMALL).to_rtkt()


def refused(data, message):
    with pytest.raises(InvalidArgument, match=message) as raised:
        read(data)
    assert type(raised.value) is InvalidArgument


def test_the_bytes_of_a_small_tree():
    """Written out by hand from the description of the format."""
    assert small() == bytes.fromhex(
        "52544b54 01000000 06000000 616374696f6e 06000000"  # header, "action", 6 nodes
        "ffffffff 00 02000000 01000000 05000000"  # root: 1, 5
        "64000000 01 02000000 02000000 03000000"  # 1, id 100, terminal: 2, 3
        "65000000 01 00000000"  # 2, id 101, terminal
        "66000000 00 01000000 04000000"  # 3, id 102: 4
        "07000000 01 00000000"  # 4, id 7, terminal
        "c8000000 01 00000000"  # 5, id 200, terminal
    )


def test_reading_a_small_tree():
    payload = read(small())
    assert payload.model_id == ""
    assert payload.paths == ("action",)
    assert payload.leaves() == [
        ("100", (100,)),
        ("100,101", (100, 101)),
        ("100,102,7", (100, 102, 7)),
        ("200", (200,)),
    ]
    assert payload.trie(n_vocab=300).needs_exits
    assert payload == read(bytearray(small())) == read(memoryview(small()))
    with pytest.raises(InvalidType, match="RTKT is given as bytes, got str"):
        read(small().decode("latin-1"))


@given(st.text(st.characters(codec="utf-8"), max_size=8), leaf_sets)
def test_agrees_with_the_model(path, leaves):
    payload = payload_of(leaves, path)
    data = payload.to_rtkt()
    assert data == rtkt_encoding(path, leaves.values())
    again = read(data)
    assert again.paths == (path,)
    assert again.leaves() == [
        (",".join(map(str, ids)), ids) for ids in sorted(map(tuple, leaves.values()))
    ]
    assert rtkt_model(data) == (path, [ids for _, ids in again.leaves()])
    assert again.to_rtkt() == data
    assert TokenTreePayload.from_json(again.to_json()).to_rtkt() == data


@given(leaf_sets, st.randoms())
def test_the_order_of_leaves_does_not_matter(leaves, random):
    shuffled = list(leaves.items())
    random.shuffle(shuffled)
    assert payload_of(dict(shuffled)).to_rtkt() == payload_of(leaves).to_rtkt()


def test_which_descriptor():
    one, two = payload_of({"a": [1]}, "x"), payload_of({"b": [2]}, "contexts[]")
    both = TokenTreePayload("m", one.descriptors + two.descriptors)
    for choice in ("contexts[]", both.descriptors[1], two.descriptors[0]):
        assert both.to_rtkt(choice) == two.to_rtkt()
    with pytest.raises(InvalidArgument, match="path 'x' is not in this payload"):
        both.to_rtkt(TokenTreeDescriptor("x", two.descriptors[0].leaves))


def test_order_of_nodes_is_free_below_their_parents():
    nodes = [(-1, 0, [2, 1]), (9, 1, []), (5, 1, [4, 3]), (7, 1, []), (6, 1, [])]
    data = rtkt_of(b"p", nodes)
    assert [ids for _, ids in read(data).leaves()] == [(5,), (5, 6), (5, 7), (9,)]
    assert read(data).to_rtkt() != data
    assert read(read(data).to_rtkt()) == read(data)


# Damage


def test_fc088_cut_anywhere():
    data = small()
    for n in range(len(data)):
        refused(data[:n], "not RTKT")
        refused(memoryview(data)[:n], "not RTKT")
    for more in (b"\0", data, b"\0" * 9):
        refused(data + more, f"{len(more)} bytes follow the last node")


def test_fc088_zeros_and_other_files():
    for data in (b"", bytes(100), b"RTKT", b'{"modelId":""}', b"GGUF" + bytes(60)):
        refused(data, "not RTKT")
    refused(b"GGUF" + bytes(60), r"it begins with b'GGUF', not with b'RTKT'")


def test_fc088_each_bit():
    """The format has no checksum: another tree may come out, but only a sound one."""
    data = small()
    passed = 0
    for at in range(8 * len(data)):
        broken = bytearray(data)
        broken[at // 8] ^= 1 << at % 8
        expected = rtkt_model(bytes(broken))
        try:
            payload = read(broken)
        except InvalidArgument:
            assert expected is None
        else:
            passed += 1
            assert expected == (payload.paths[0], [ids for _, ids in payload.leaves()])
    assert 0 < passed < 4 * len(data)


@pytest.mark.parametrize("value", [0, 5, 7, 2**16, 2**28, 2**31, 2**32 - 1])
@pytest.mark.parametrize("at", [8, 18, 27, 44])
def test_fc088_lengths_are_not_trusted(at, value):
    """The length of the path, the number of nodes, numbers of children."""
    data = bytearray(small())
    struct.pack_into("<I", data, at, value)
    tracemalloc.start()
    refused(data, "not RTKT")
    assert tracemalloc.get_traced_memory()[1] < 200_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "claims 0 nodes, and has room for 1 to 0"),
        ([(-1, 0, [])], "no leaves, only a root"),
        ([(-1, 1, [])], "root is terminal"),
        ([(-1, 1, [1]), (5, 1, [])], "root is terminal"),
        ([(0, 0, [1]), (5, 1, [])], "root has id 0, not -1"),
        ([(-2, 0, [1]), (5, 1, [])], "root has id -2, not -1"),
        ([(-1, 0, [1]), (-1, 1, [])], "node 1 has id -1; ids are not negative"),
        ([(-1, 0, [1]), (-(2**31), 1, [])], "node 1 has id -2147483648"),
        ([(-1, 0, [1]), (5, 2, [])], "node 1 has terminal mark 2, not 0 or 1"),
        ([(-1, 0, [1]), (5, 255, [])], "node 1 has terminal mark 255"),
        ([(-1, 0, [1]), (5, 0, [])], "node 1 has no children and is not terminal"),
        ([(-1, 0, [0]), (5, 1, [])], r"node 0 has child 0; it must lie in \[1, 2\)"),
        ([(-1, 0, [2]), (5, 1, [])], r"node 0 has child 2; it must lie in \[1, 2\)"),
        ([(-1, 0, [1]), (5, 1, [1])], r"node 1 has child 1; it must lie in \[2, 2\)"),
        ([(-1, 0, [1, 2**32 - 1]), (5, 1, [])], "node 0 has child 4294967295"),
        ([(-1, 0, [1, 2**31]), (5, 1, [])], "node 0 has child 2147483648"),
        ([(-1, 0, [1, 1]), (5, 1, [])], "node 1 is a child of 2 nodes, not of one"),
        (
            [(-1, 0, [1, 2]), (5, 1, [2]), (6, 1, [])],
            "node 2 is a child of 2 nodes, not of one",
        ),
        (
            [(-1, 0, [1]), (5, 1, []), (6, 1, [])],
            "node 2 is a child of 0 nodes, not of one",
        ),
        (
            [(-1, 0, [1, 2]), (5, 1, []), (5, 1, [])],
            "two children of one node have the same id",
        ),
        (
            [(-1, 0, [1, 2]), (5, 0, [3]), (5, 0, [4]), (6, 1, []), (7, 1, [])],
            "two children of one node have the same id",
        ),
    ],
)
def test_what_a_tree_may_not_be(nodes, message):
    refused(rtkt_of(b"action", nodes), message)


def test_headers():
    data = small()
    refused(data[:4] + b"\2" + data[5:], "it is of version 2; this reads version 1")
    refused(data[:15], "15 bytes, a header has 16")
    for claimed in (9, 2**32 - 1):
        many = data[:18] + struct.pack("<I", claimed) + data[22:]
        refused(many, f"it claims {claimed} nodes, and has room for 1 to 8")
    refused(data.replace(b"action", b"acti\xffn"), "its path is not UTF-8 text")
    refused(data.replace(b"action", b"ac\xed\xa0\x80n"), "its path is not UTF-8 text")


def test_fc035_the_highest_id():
    assert read(payload_of({"a": [TOP - 1]}).to_rtkt()).leaves()[0][1] == (TOP - 1,)
    refused(rtkt_of(b"", [(-1, 0, [1]), (TOP, 1, [])]), "id 2147483647 is outside")


# Size


def test_fc111_a_deep_tree():
    n = 100_000
    payload = payload_of({"deep": range(n), "fork": [*range(n // 2), 7, 7]})
    data = payload.to_rtkt()
    assert len(data) == 22 + 9 * (n + 3) + 4 * (n + 2)
    assert sorted(ids for _, ids in read(data).leaves()) == sorted(
        ids for _, ids in payload.leaves()
    )


def test_leaves_that_add_up():
    """A chain in which every node ends a leaf spells far more ids than it has bytes."""
    n = 100_000
    nodes = [(-1, 0, [1]), *((1, 1, [i + 1]) for i in range(1, n)), (1, 1, [])]
    data = rtkt_of(b"", nodes)
    tracemalloc.start()
    start = time.thread_time()
    refused(data, f"leaves hold {n * (n + 1) // 2} ids, more than {rtkt.MAX_IDS}")
    assert time.thread_time() - start < 20  # seconds; to spell them takes minutes
    assert tracemalloc.get_traced_memory()[1] < 50 * len(data)
    tracemalloc.stop()


def test_many_children_that_are_not_there():
    """The largest number of children that fits, of which none is right."""
    n = 100_000
    data = rtkt_of(b"", [(-1, 0, [1] * n), (5, 1, [])])
    refused(data, f"node 1 is a child of {n} nodes")
