"""RTKT, a token tree as bytes: what native samplers read.

All numbers are little-endian. The header is u32 magic, u32 version 1, u32 length of the
path, the path as UTF-8, u32 number of nodes. A node is i32 id, u8 terminal (a leaf ends
here), u32 number of children, and a u32 index per child. The root comes first and has
id -1; the index of a child is greater than that of its parent.

One set of sequences has one encoding: nodes stand in pre-order, children in the order
of their ids. The decoder takes any order that the rules above allow. Names of leaves
are not part of the format.
"""

# Nodes have no fixed size, so one loop finds where they begin; the rest is arithmetic
# on arrays. A loop that unpacked node by node took 680 ms, where this takes 350 (a tree
# of 390,000 nodes), and one that packed them 770 instead of 330.

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eliza.errors import InvalidArgument

__all__ = ["MAGIC", "MAX_IDS", "decode", "encode"]

MAGIC = b"RTKT"

#: Most ids that the leaves of a decoded tree may hold in all. A chain of n nodes that
#: are all terminal takes 13 n bytes and spells n²/2 ids.
MAX_IDS = 1 << 24

_VERSION = 1
_ROOT = -1
_NODE = 9  # bytes of a node, its children aside
_U32 = struct.Struct("<I")
_WORD = np.arange(4)

_Bytes = NDArray[np.uint8]
_Places = NDArray[np.int64]


def encode(path: str, leaves: Sequence[Sequence[int]]) -> bytes:
    """Write a set of id sequences.

    Parameters
    ----------
    path : str
        What the tree is for.
    leaves : sequence of sequence of int
        Sorted, without repetition, none empty; ids lie in [0, 2**31 - 1).

    Returns
    -------
    bytes
    """
    ids = [_ROOT]
    parents = [0]
    ends = []
    branch = [0]  # from the root to the node that was made last
    before: Sequence[int] = ()
    for leaf in leaves:
        shared = _n_shared(before, leaf)
        first, new = len(ids), len(leaf) - shared
        ids.extend(leaf[shared:])
        parents.append(branch[shared])
        parents.extend(range(first, first + new - 1))
        branch[shared + 1 :] = range(first, first + new)
        ends.append(branch[-1])
        before = leaf
    name = path.encode()
    head = MAGIC + struct.pack("<II", _VERSION, len(name)) + name
    return head + _U32.pack(len(ids)) + _write_nodes(ids, parents, ends)


def _n_shared(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _write_nodes(ids: list[int], parents: list[int], ends: list[int]) -> bytes:
    parent = np.array(parents[1:], np.int64)
    n_children = np.bincount(parent, minlength=len(ids))
    after = np.cumsum(_NODE + 4 * n_children)
    at = after - _NODE - 4 * n_children
    out = np.zeros(after[-1], np.uint8)
    _put(out, at, ids)
    out[at[ends] + 4] = 1
    _put(out, at + 5, n_children)
    # Node i + 1 is child number `rank` of its parent.
    order = np.argsort(parent, kind="stable")
    older = np.cumsum(n_children) - n_children
    rank = np.arange(len(order)) - older[parent[order]]
    _put(out, at[parent[order]] + _NODE + 4 * rank, order + 1)
    return out.tobytes()


def _put(out: _Bytes, at: _Places, values: Any) -> None:
    words = np.asarray(values).astype("<i4")
    out[at[:, None] + _WORD] = words.view(np.uint8).reshape(-1, 4)


def _get(data: _Bytes, at: _Places, kind: str) -> _Places:
    words: NDArray[np.integer[Any]] = data[at[:, None] + _WORD].view(kind)
    return words[:, 0].astype(np.int64)


def decode(data: bytes) -> tuple[str, list[tuple[int, ...]]]:
    """Read a set of id sequences.

    Parameters
    ----------
    data : bytes
        The whole encoding.

    Returns
    -------
    path : str
    leaves : list of tuple of int
        Sorted; at least one, none empty, no two equal.

    Raises
    ------
    InvalidArgument
        The bytes do not follow the format, or hold more than `MAX_IDS` ids.
    """
    path, total, begin = _read_header(data)
    ids, parents, ends = _read_nodes(data, begin, total)
    depths = [0] * total
    for node in range(1, total):
        depths[node] = depths[parents[node]] + 1
    n_ids = sum([depths[node] for node in ends])
    if n_ids > MAX_IDS:
        raise _wrong(f"its leaves hold {n_ids} ids, more than {MAX_IDS}")
    leaves = [_spell(node, ids, parents) for node in ends]
    leaves.sort()
    return path, leaves


def _read_header(data: bytes) -> tuple[str, int, int]:
    """Return the path, the number of nodes, and where the nodes begin."""
    if data[:4] != MAGIC:
        raise _wrong(f"it begins with {data[:4]!r}, not with {MAGIC!r}")
    if len(data) < 16:
        raise _wrong(f"it is cut short: {len(data)} bytes, a header has 16")
    version, length = struct.unpack_from("<II", data, 4)
    if version != _VERSION:
        raise _wrong(f"it is of version {version}; this reads version {_VERSION}")
    if length > len(data) - 16:
        raise _wrong(f"it is cut short: a path of {length} bytes does not fit")
    try:
        path = data[12 : 12 + length].decode()
    except UnicodeDecodeError as error:
        raise _wrong(f"its path is not UTF-8 text ({error.reason})") from None
    begin = 16 + length
    (total,) = _U32.unpack_from(data, begin - 4)
    room = (len(data) - begin) // _NODE
    if not 1 <= total <= room:
        raise _wrong(f"it claims {total} nodes, and has room for 1 to {room}")
    return path, total, begin


def _read_nodes(
    data: bytes, begin: int, total: int
) -> tuple[list[int], list[int], list[int]]:
    """Return the id and the parent of each node, and the nodes that are terminal."""
    at = _find_nodes(data, begin, total)
    raw = np.frombuffer(data, np.uint8)
    ids = _get(raw, at, "<i4")
    terminal = raw[at + 4]
    n_children = _get(raw, at + 5, "<u4")

    if ids[0] != _ROOT:
        raise _wrong(f"the root has id {ids[0]}, not {_ROOT}")
    if terminal[0]:
        raise _wrong("the root is terminal: a leaf has at least one id")
    if total == 1:
        raise _wrong("it has no leaves, only a root")
    for node in np.flatnonzero(ids[1:] < 0)[:1] + 1:
        raise _wrong(f"node {node} has id {ids[node]}; ids are not negative")
    for node in np.flatnonzero(terminal > 1)[:1]:
        raise _wrong(f"node {node} has terminal mark {terminal[node]}, not 0 or 1")
    for node in np.flatnonzero((n_children == 0) & (terminal == 0))[:1]:
        raise _wrong(f"node {node} has no children and is not terminal")

    parent_of = np.repeat(np.arange(total), n_children)
    older = np.cumsum(n_children) - n_children
    rank = np.arange(len(parent_of)) - older[parent_of]
    child = _get(raw, at[parent_of] + _NODE + 4 * rank, "<u4")
    for i in np.flatnonzero((child <= parent_of) | (child >= total))[:1]:
        raise _wrong(
            f"node {parent_of[i]} has child {child[i]}; it must lie in "
            f"[{parent_of[i] + 1}, {total})"
        )
    times = np.bincount(child, minlength=total)[1:]
    for node in np.flatnonzero(times != 1)[:1] + 1:
        raise _wrong(f"node {node} is a child of {times[node - 1]} nodes, not of one")
    parents = np.zeros(total, np.int64)
    parents[child] = parent_of
    if len(np.unique((parents << 32) + ids)) != total:
        raise _wrong("two children of one node have the same id")
    return ids.tolist(), parents.tolist(), np.flatnonzero(terminal).tolist()


def _find_nodes(data: bytes, begin: int, total: int) -> _Places:
    """Return where each node begins; nodes and children all lie within the data."""
    places = []
    at, end = begin, len(data)
    for node in range(total):
        if at + _NODE > end:
            raise _wrong(f"it is cut short before node {node} of {total}")
        places.append(at)
        at += _NODE + 4 * int(_U32.unpack_from(data, at + 5)[0])
    if at != end:
        raise _wrong(
            f"it is cut short in node {total - 1}"
            if at > end
            else f"{end - at} bytes follow the last node"
        )
    return np.array(places, np.int64)


def _spell(node: int, ids: list[int], parents: list[int]) -> tuple[int, ...]:
    """Return the ids from the root to a node."""
    spelled = []
    while node:
        spelled.append(ids[node])
        node = parents[node]
    spelled.reverse()
    return tuple(spelled)


def _wrong(reason: str) -> InvalidArgument:
    return InvalidArgument(f"not RTKT: {reason}")
