"""Tries as bytes and files: round trips, damage of every kind, saving."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import stat
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eliza import Trie
from eliza.errors import BundleError, InvalidArgument, InvalidType
from eliza.reference import Reference
from test_trie_properties import EXITS, V, check_point, dense, named, points, walk

HEADER = struct.Struct("=8sIIIiIIIIIIQQIIII")
FIELDS = [
    *("magic", "byte_order", "version", "flags", "n_vocab", "n_nodes", "n_leaves"),
    *("n_pool", "n_inner", "n_exit_ids", "max_depth", "n_text", "n_bytes"),
    *("n_fingerprint", "body_crc", "header_crc", "zero"),
]


def small():
    leaves = {"go": [7], "go on": [7, 8, 1], "go off": [7, 8, 3], "ä": [9, 9]}
    return Trie.from_tokens(leaves, n_vocab=40, exits={"go": [2]}, fingerprint=b"tok")


def resealed(data, **fields):
    """The same file with other header fields and checksums that fit."""
    values = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))
    values |= fields
    if "body_crc" not in fields:
        values["body_crc"] = zlib.crc32(data[HEADER.size :])
    head = HEADER.pack(*values.values())
    if "header_crc" not in fields:
        values["header_crc"] = zlib.crc32(head[:-8])
    return HEADER.pack(*values.values()) + data[HEADER.size :]


def same(one, two):
    assert len(one) == len(two)
    assert one.names == two.names
    for leaf in range(len(one)):
        assert one.tokens(leaf) == two.tokens(leaf)
        assert one.exits(leaf) == two.exits(leaf)
    for name in ("n_vocab", "n_nodes", "max_depth", "needs_exits", "fingerprint"):
        assert getattr(one, name) == getattr(two, name)


def walk_everywhere(trie):
    """Do all that reads from a trie."""
    try:
        todo = [trie.cursor(exits=[5])]
    except InvalidArgument:  # an exit id became one that goes on
        return
    row = np.zeros(trie.n_vocab, np.float32)
    for here in todo:
        assert len(here.completes()) == len(here.allowed())
        assert len(here.forced()) <= trie.max_depth
        assert here.remaining() > 0
        assert len(here.path) == here.depth
        if here.done:
            assert here.name is None or trie.names
            continue
        assert here.argmax(row) == here.allowed()[0]
        here.mask(row.copy())
        here.logprobs(row)
        for token in here.allowed().tolist():
            other = here.copy()
            other.accept(token)
            assert other.path == (*here.path, token)
            todo.append(other)
        if len(todo) > 500:
            break
    for leaf in range(len(trie)):
        assert trie.tokens(leaf)
        assert isinstance(trie.exits(leaf), tuple)
        trie.name(leaf)
    if trie.names and len(set(trie.names)) == len(trie):
        assert trie.subset(trie.names[:1]).leaves().tolist() == [0]
    elif trie.names:
        with pytest.raises(BundleError):
            trie.subset(trie.names[:1])


def test_the_format_is_as_described():
    """The header by its fields; a change to it needs another version."""
    data = small().to_bytes()
    header = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))
    assert HEADER.size == 80
    assert header["magic"] == b"elizaTRI"
    assert header["byte_order"] == 0x01020304
    assert header["version"] == 1
    assert header["flags"] == 3
    assert header["n_bytes"] == len(data)
    assert header["body_crc"] == zlib.crc32(data[80:])
    assert header["header_crc"] == zlib.crc32(data[:72])
    counts = {name: header[name] for name in FIELDS[4:12]}
    assert counts == {
        "n_vocab": 40,
        "n_nodes": 6,
        "n_leaves": 4,
        "n_pool": 6,
        "n_inner": 1,
        "n_exit_ids": 1,
        "max_depth": 3,
        "n_text": 15,
    }
    assert data.endswith("gogo ongo offä".encode() + b"tok")


@given(dense, st.booleans(), st.booleans(), st.binary(max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_round_trips(tmp_path, ids, with_names, own_exits, fingerprint):
    if with_names:
        exits = {name: [9] for name in named(ids)} if own_exits else EXITS
        trie = Trie.from_tokens(
            named(ids), n_vocab=V, exits=exits, fingerprint=fingerprint
        )
    else:
        tokens = [token for path in ids for token in path]
        offsets = np.cumsum([0, *map(len, ids)])
        trie = Trie.from_arrays(
            tokens, offsets, n_vocab=V, exits=EXITS, fingerprint=fingerprint
        )
    data = trie.to_bytes()
    path = tmp_path / "x.trie"
    trie.save(path)
    assert path.read_bytes() == data
    opened = Trie.open(path)
    for other in (
        Trie.from_bytes(data),
        Trie.from_bytes(bytearray(data)),
        opened,
        Trie.open(str(path)),
        pickle.loads(pickle.dumps(trie)),
    ):
        same(trie, other)
        assert other.to_bytes() == data
    opened.verify()
    opened.verify()
    same(trie, opened)
    if with_names and not own_exits:
        ref = Reference(named(ids), EXITS)
        unchecked = Trie.open(path)
        for place in points(ref):
            check_point(walk(unchecked, place), ref, place)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_and_copies(protocol):
    trie = small()
    same(trie, pickle.loads(pickle.dumps(trie, protocol)))
    assert copy.copy(trie) is trie
    assert copy.deepcopy([trie])[0] is trie
    for other in (trie.cursor(), trie.subset([0])):
        with pytest.raises(TypeError):
            pickle.dumps(other, protocol)


def test_a_mapped_trie_outlives_its_file(tmp_path):
    path = tmp_path / "x.trie"
    small().save(path)
    cursor = Trie.open(path).cursor()
    path.unlink()
    cursor.accept(7)
    cursor.accept(2)
    assert cursor.name == "go"


@pytest.mark.parametrize("data", ["text", None, 7, [1, 2]])
def test_bytes_are_checked(data):
    with pytest.raises(InvalidType, match="a trie's bytes are bytes, got"):
        Trie.from_bytes(data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "0 bytes are fewer than a header's 80"),
        (lambda data: data[:79], "79 bytes are fewer"),
        (lambda data: bytes(len(data)), "it starts with b'"),
        (lambda data: b"GGUF" + data[4:], "it starts with b'GGUFaTRI'"),
        (lambda data: data[:-1], "cut short or longer"),
        (lambda data: data + b"\0", "cut short or longer"),
        (lambda data: resealed(data, byte_order=0x04030201), "another byte order"),
        (lambda data: resealed(data, version=2), "version 2 of the format.* reads 1"),
        (lambda data: resealed(data, header_crc=1), "header is damaged"),
        (lambda data: resealed(data, body_crc=1), "its checksum differs"),
        (lambda data: resealed(data, flags=4), "header is damaged"),
        (lambda data: resealed(data, zero=1), "header is damaged"),
        (lambda data: resealed(data, n_bytes=2**63), "cut short or longer"),
        (lambda data: resealed(data, n_text=2**64 - 1), "header is damaged"),
        (lambda data: resealed(data, n_text=14, n_fingerprint=4), "contradict"),
    ],
)
def test_fc088_headers(tmp_path, change, message):
    data = change(small().to_bytes())
    with pytest.raises(BundleError, match=message):
        Trie.from_bytes(data)
    path = tmp_path / "bad.trie"
    path.write_bytes(data)

    def use():
        Trie.open(path).verify()

    with pytest.raises(BundleError, match=message) as caught:
        use()
    assert caught.value.code == -3


@pytest.mark.parametrize("name", FIELDS[3:15])
@pytest.mark.parametrize("value", [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63])
def test_fc088_counts(name, value):
    """Every count at its extremes, with a checksum that fits."""
    data = small().to_bytes()
    now = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))[name]
    wide = name in ("n_text", "n_bytes")
    if value == now or (value >= 2**32 and not wide) or name == "body_crc":
        return
    if name == "n_vocab":
        value = min(value, 2**31 - 1)
    fields = {name: value}
    if name == "n_vocab" and value > now:  # a larger vocabulary is another trie
        assert Trie.from_bytes(resealed(data, **fields)).n_vocab == value
        return
    with pytest.raises(BundleError):
        Trie.from_bytes(resealed(data, **fields))


def test_fc088_every_cut_and_flip(tmp_path):
    data = small().to_bytes()
    path = tmp_path / "x.trie"
    for n in range(len(data)):
        with pytest.raises(BundleError):
            Trie.from_bytes(data[:n])
        path.write_bytes(data[:n])
        with pytest.raises(BundleError, match=r"x\.trie: "):
            Trie.open(path)
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BundleError):
            Trie.from_bytes(broken)


def body_cells(data):
    """Places of all 32-bit cells of the body."""
    return range(HEADER.size, len(data) - 3, 4)


def try_all(path, data):
    """Open an altered file and use it: errors of eliza, or a trie that works."""
    path.write_bytes(data)
    with contextlib.suppress(BundleError):
        walk_everywhere(Trie.open(path))
    try:
        trie = Trie.from_bytes(data)
    except BundleError:
        return
    walk_everywhere(trie)  # what passed every check works everywhere


@pytest.mark.parametrize("value", [0, 1, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_fc088_every_cell_with_a_checksum_that_fits(tmp_path, value):
    """A hostile file: each number of the body replaced in turn."""
    data = small().to_bytes()
    for at in body_cells(data):
        broken = bytearray(data)
        struct.pack_into("=I", broken, at, value)
        try_all(tmp_path / "x.trie", resealed(bytes(broken)))


@given(dense, st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fc088_random_damage(tmp_path, ids, data):
    trie = Trie.from_tokens(named(ids), n_vocab=V, exits=EXITS)
    broken = bytearray(trie.to_bytes())
    cells = st.sampled_from(body_cells(broken))
    near = st.integers(0, 2 * len(ids) + 3)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(cells)
        struct.pack_into("=I", broken, at, data.draw(near))
    try_all(tmp_path / "x.trie", resealed(bytes(broken)))


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_fc088_a_million_damaged_files(tmp_path):
    rng = np.random.default_rng(0)
    originals = []
    for n in (1, 2, 5, 30):
        table = np.unique(rng.integers(0, 4, (n, 4)), axis=0)
        sequences = {tuple(row[: rng.integers(1, 5)]) for row in table.tolist()}
        leaves = {str(i): ids for i, ids in enumerate(sorted(sequences))}
        originals.append(Trie.from_tokens(leaves, n_vocab=8, exits=[7]).to_bytes())
    places = [np.array(body_cells(data)) for data in originals]
    for i in range(1_000_000):
        data = bytearray(originals[i % len(originals)])
        for at in rng.choice(places[i % len(places)], rng.integers(1, 4)):
            value = rng.choice([rng.integers(0, 20), rng.integers(0, 2**32), 0])
            struct.pack_into("=I", data, at, value)
        damaged = resealed(bytes(data))
        if i % 20 == 0:  # the disk is slow
            try_all(tmp_path / "x.trie", damaged)
        with contextlib.suppress(BundleError):
            walk_everywhere(Trie.from_bytes(damaged))


def test_fc090_a_pickle_is_no_trie(tmp_path):
    marker = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(marker),)

    path = tmp_path / "x.trie"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BundleError):
        Trie.open(path)
    with pytest.raises(BundleError):
        Trie.from_bytes(path.read_bytes() * 10)
    assert not marker.exists()


def test_fc092_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.trie"
    trie = small()
    trie.save(path)
    before = path.read_bytes()
    other = Trie.from_tokens({"a": [1]}, n_vocab=5)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        other.save(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    folder = tmp_path / "folder"
    folder.mkdir()
    for bad in (folder, tmp_path / "none" / "x.trie"):
        with pytest.raises(OSError, match=str(tmp_path)):
            other.save(bad)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "x.trie"]
    other.save(path)
    assert Trie.open(path).names == ("a",)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        small().save(tmp_path / "x.trie")
    finally:
        os.umask(before)
    mode = stat.S_IMODE((tmp_path / "x.trie").stat().st_mode)
    assert mode == 0o666 & ~umask


def test_opening_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        Trie.open(tmp_path / "none.trie")
    with pytest.raises(IsADirectoryError):
        Trie.open(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(BundleError, match="0 bytes are fewer"):
        Trie.open(tmp_path / "empty")


def test_fc092_kill_during_a_save(tmp_path):
    """After a kill the name holds the old file or the new one, whole."""
    path = tmp_path / "x.trie"
    small().save(path)
    code = """
import sys
from eliza import Trie
tries = [Trie.from_arrays(range(n), range(n + 1), n_vocab=n) for n in (1000, 200_000)]
print("ready", flush=True)
while True:
    for trie in tries:
        trie.save(sys.argv[1])
"""
    rng = np.random.default_rng(0)
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        with child:
            assert child.stdout.readline() == "ready\n"
            try:
                child.wait(rng.uniform(0.001, 0.05))
            except subprocess.TimeoutExpired:
                child.kill()
        trie = Trie.open(path)
        trie.verify()
        assert len(trie) in (4, 1000, 200_000)
