"""Payloads in plain Python: what the readers must agree with, and damaged texts."""

from __future__ import annotations

import json
import random
import struct

from hypothesis import strategies as st

from eliza import TokenTreeDescriptor, TokenTreeLeaf, TokenTreePayload

TOP = 2**31 - 1
DEEPEST = 64

GOOD = (
    '{"modelId":"m","descriptors":[{"path":"action","leaves":['
    '{"name":"THINK","tokens":[100,101]},{"name":"EXECUTE","tokens":[200]}]}]}'
)


def payload_of(leaves, path="action", model_id="m"):
    """Make a payload with one descriptor from a mapping of names to ids."""
    return TokenTreePayload(
        model_id,
        [
            TokenTreeDescriptor(
                path, tuple(TokenTreeLeaf(n, tuple(t)) for n, t in leaves.items())
            )
        ],
    )


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
token_ids = st.one_of(st.integers(0, 5), st.integers(0, TOP - 1))
leaf_sets = st.dictionaries(
    st.lists(token_ids, min_size=1, max_size=6).map(tuple), names, min_size=1
).map(lambda leaves: {name: ids for ids, name in leaves.items()})
documents = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=8), leaf_sets, min_size=1, max_size=3
)


def json_model(data: bytes):
    """Return (model id, [(path, [(name, ids)])]) of a JSON payload, or None.

    The standard library reads it, and whatever it lets pass is refused here.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # no lone surrogates
        if not isinstance(value, dict) or _depth(value) > DEEPEST:
            return None
        descriptors = [
            (
                _text(descriptor["path"]),
                [
                    (_name(leaf["name"]), tuple(map(_id, _some(leaf["tokens"]))))
                    for leaf in _some(descriptor["leaves"])
                ],
            )
            for descriptor in _some(value["descriptors"])
        ]
        paths = [path for path, _ in descriptors]
        if len(set(paths)) != len(paths):
            return None
        return _text(value["modelId"]), descriptors
    except (ValueError, KeyError, TypeError):
        return None


def _object(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _refuse(_constant):
    raise ValueError


def _depth(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _text(value):
    if not isinstance(value, str):
        raise TypeError
    return value


def _name(value):
    if not _text(value):
        raise ValueError
    return value


def _some(value):
    if not isinstance(value, list) or not value:
        raise ValueError
    return value


def _id(value):
    if type(value) is not int or not 0 <= value < TOP:
        raise ValueError
    return value


def rtkt_of(path: bytes, nodes) -> bytes:
    """Write nodes, each (id, terminal, children), as they are."""
    parts = [struct.pack("<4sII", b"RTKT", 1, len(path)), path]
    parts.append(struct.pack("<I", len(nodes)))
    for token, terminal, children in nodes:
        n = len(children)
        parts.append(struct.pack(f"<iBI{n}I", token, terminal, n, *children))
    return b"".join(parts)


def rtkt_encoding(path: str, leaves) -> bytes:
    """Return the one encoding of a set of id sequences."""
    nodes: list[tuple[int, bool, list[int]]] = [(-1, False, [])]

    def add(prefix, parent):
        following = sorted({s[len(prefix)] for s in leaves if _goes_on(s, prefix)})
        for token in following:
            path = (*prefix, token)
            parent.append(len(nodes))
            nodes.append((token, path in leaves, []))
            add(path, nodes[-1][2])

    leaves = set(map(tuple, leaves))
    add((), nodes[0][2])
    return rtkt_of(path.encode(), nodes)


def _goes_on(sequence, prefix):
    return len(sequence) > len(prefix) and sequence[: len(prefix)] == prefix


def rtkt_model(data: bytes):
    """Return (path, sorted sequences) of an RTKT tree, or None."""
    try:
        magic, version, length = struct.unpack_from("<4sII", data)
        if (magic, version) != (b"RTKT", 1) or 12 + length > len(data):
            return None
        path = data[12 : 12 + length].decode("utf-8")
        at = 12 + length
        (total,) = struct.unpack_from("<I", data, at)
        at += 4
        nodes = []
        while len(nodes) < total:
            token, terminal, n = struct.unpack_from("<iBI", data, at)
            if at + 9 + 4 * n > len(data):
                return None
            nodes.append((token, terminal, struct.unpack_from(f"<{n}I", data, at + 9)))
            at += 9 + 4 * n
        if at != len(data) or nodes[0][:2] != (-1, 0):
            return None
    except (struct.error, UnicodeDecodeError, IndexError):
        return None
    spelled = {0: ()}
    leaves = []
    for i, (token, terminal, children) in enumerate(nodes):
        if i not in spelled or terminal > 1 or not (terminal or children):
            return None
        if i and not 0 <= token < TOP:
            return None
        if terminal:
            leaves.append(spelled[i])
        for child in children:
            if not i < child < total or child in spelled:
                return None
            spelled[child] = (*spelled[i], nodes[child][0])
    if len(set(spelled.values())) != total:
        return None
    return path, sorted(leaves)


JSON_SEEDS = (
    GOOD.encode(),
    b'{"modelId":"","descriptors":[{"path":"a\\u00e9","x":[{"k":[1,"\\"]"]}],"leaves":'
    b'[{"name":"\xc3\xa9\xf0\x9f\x90\x88","tokens":[0]}]},{"leaves":[{"tokens":[5,5,'
    b'2147483646],"name":"\\ud83d\\ude00\\\\"}],"path":"contexts[]"}],"y":-0.5e+3}',
)

_JSON_BITS = (
    *(b'{"', b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"\\udc00"),
    *(b"null", b"true", b"NaN", b"1.0", b"1e2", b"-1", b"-0", b"01", b"2147483647"),
    *(b"9" * 30, b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xef\xbb\xbf", b" "),
    *(b'"tokens":[7]', b'"to\\u006bens":[7],', b'"name":"A",', b'"path":"action",'),
    *(b'"modelId":"m",', b'"descriptors":[],', b'"x":{"y":1,"y":2},', b'"":1,', b"{}"),
    *(b"[" * 60, b"[]", b'{"a":' * 61 + b"0" + b"}" * 61, b"[" * 62 + b"]" * 62, b"\n"),
)


def damaged_json(rng: random.Random) -> bytes:
    """Return a text that was good, with up to four changes."""
    data = bytearray(rng.choice(JSON_SEEDS))
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        to = min(len(data), at + int(rng.expovariate(0.2)))
        change = rng.randrange(5)
        if change == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            del data[at:to]
        elif change == 2:
            data[at:at] = data[rng.randint(0, at) : at]
        elif change == 3:
            other = rng.choice(JSON_SEEDS)
            data[at:] = other[rng.randint(0, len(other)) :]
        else:
            data[at:at] = rng.choice(_JSON_BITS)
    return bytes(data)


def damaged_rtkt(rng: random.Random) -> bytes:
    """Return an encoding of a small tree with up to three changes."""
    path = rng.choice(["", "action", "é"])
    leaves = [
        [rng.randrange(4) for _ in range(rng.randint(1, 4))]
        for _ in range(rng.randint(1, 5))
    ]
    data = bytearray(rtkt_encoding(path, leaves))
    for _ in range(rng.randint(0, 3)):
        at = rng.randrange(len(data) + 1)
        change = rng.randrange(4)
        if change == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1 and at + 4 <= len(data):
            value = rng.choice([0, 1, 2, 3, 4, 5, len(data), 2**31, 2**32 - 1])
            struct.pack_into("<I", data, at, value)
        elif change == 2:
            del data[at : at + rng.randint(1, 16)]
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 16))
    return bytes(data)
