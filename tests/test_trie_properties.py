"""Tries and cursors against the reference, over generated sets of choices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eliza._trie import Trie, from_arrays_with_order
from eliza.errors import InvalidArgument, OffPathError
from eliza.reference import Reference

V = 12
EXITS = (9, 10)  # generated ids stay below 8, so that an exit never leads on

sequences = st.lists(
    st.lists(st.integers(0, 7), min_size=1, max_size=6).map(tuple),
    min_size=1,
    max_size=14,
    unique=True,
)
# Few ids make shared prefixes, and choices that others continue.
dense = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple),
    min_size=1,
    max_size=20,
    unique=True,
)


def named(ids):
    return {f"c{i}": path for i, path in enumerate(ids)}


def points(ref):
    """Every path that can come about, the empty one first."""
    todo = [()]
    for path in todo:
        todo.extend((*path, token) for token in sorted(ref.allowed(path)))
    return todo


def walk(trie, path, **kwargs):
    cursor = trie.cursor(**kwargs)
    for token in path:
        cursor.accept(token)
    return cursor


def check_point(cursor, ref, path):
    """Compare all that a cursor says at one point with the reference."""
    allowed = sorted(ref.allowed(path))
    assert cursor.path == path
    assert cursor.depth == len(path)
    assert cursor.allowed().tolist() == allowed
    assert cursor.done == (ref.leaf(path) is not None)
    assert cursor.name == ref.leaf(path)
    assert tuple(cursor.forced()) == ref.forced(path)
    state = "DONE" if cursor.done else "INSIDE" if path else "ARMED"
    assert cursor.state == state
    ends = [ref.leaf((*path, token)) for token in allowed]
    leaves = cursor.completes().tolist()
    assert [None if i < 0 else cursor.trie.name(i) for i in leaves] == ends
    for token in range(V):
        other = cursor.copy()
        if token in allowed:
            other.accept(token)
            assert other.path == (*path, token)
            other.rollback()
        else:
            with pytest.raises(OffPathError, match=f"id {token} "):
                other.accept(token)
        assert other.path == path
        assert other.allowed().tolist() == allowed
    assert cursor.path == path


def below(ref, path):
    """How many choices are still possible."""
    if ref.leaf(path) is not None:
        return 1
    return sum(ids[: len(path)] == path for ids in ref.name_of)


@given(st.one_of(sequences, dense))
def test_every_point_agrees(ids):
    ref = Reference(named(ids), EXITS)
    trie = Trie.from_tokens(named(ids), n_vocab=V, exits=EXITS)
    for path in points(ref):
        cursor = walk(trie, path)
        check_point(cursor, ref, path)
        assert cursor.remaining() == below(ref, path)
        lo, hi = cursor.leaf_range
        assert hi - lo == cursor.remaining()
        if not cursor.done:
            assert all(trie.tokens(i)[: len(path)] == path for i in range(lo, hi))


@given(dense, st.data())
def test_exits_of_single_leaves(ids, data):
    own = {
        name: data.draw(st.sets(st.integers(8, 11), min_size=1, max_size=3))
        for name in named(ids)
    }
    both = data.draw(st.sets(st.integers(8, 11), max_size=2))
    ref = Reference(named(ids), both, own)
    trie = Trie.from_tokens(named(ids), n_vocab=V, exits=own)
    for leaf in range(len(trie)):
        assert trie.exits(leaf) == tuple(sorted(own[trie.name(leaf)]))
    for path in points(ref):
        check_point(walk(trie, path, exits=both), ref, path)


@given(st.one_of(sequences, dense), st.data())
def test_allow_is_the_trie_of_those_leaves(ids, data):
    mask = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    trie = Trie.from_tokens(named(ids), n_vocab=V)
    allow = np.array(mask)
    if not allow.any():
        with pytest.raises(InvalidArgument, match="none of"):
            trie.cursor(exits=EXITS, allow=allow)
        return
    kept = {trie.name(i): trie.tokens(i) for i in np.flatnonzero(allow)}
    ref = Reference(kept, EXITS)
    form = data.draw(
        st.sampled_from(
            [allow, np.flatnonzero(allow), list(kept), trie.subset(allow), mask]
        )
    )
    for path in points(ref):
        cursor = walk(trie, path, exits=EXITS, allow=form)
        check_point(cursor, ref, path)
        assert cursor.remaining() == below(ref, path)


# The sort takes 16, 3 or 2 ids at a time, depending on the size of the vocabulary.
@given(
    st.one_of(sequences, dense), st.randoms(), st.sampled_from([V, 2**20, 2**31 - 1])
)
def test_order_of_input_does_not_matter(ids, random, n_vocab):
    shuffled = [*ids, *random.sample(ids, len(ids) // 2)]
    random.shuffle(shuffled)
    names = {path: f"n{i}" for i, path in enumerate(ids)}
    leaves = [(names[path], path) for path in shuffled]
    trie = Trie.from_tokens(leaves, n_vocab=n_vocab)
    assert [trie.tokens(i) for i in range(len(trie))] == sorted(ids)
    assert trie.names == tuple(names[path] for path in sorted(ids))
    assert trie.max_depth == max(map(len, ids))
    tokens = [token for path in shuffled for token in path]
    offsets = np.cumsum([0, *map(len, shuffled)])
    again, order = from_arrays_with_order(
        tokens, offsets, [names[path] for path in shuffled], n_vocab
    )
    assert again.names == trie.names
    assert [shuffled[i] for i in order] == sorted(ids)
    assert order.tolist() == [shuffled.index(path) for path in sorted(ids)]
    assert again.n_nodes == trie.n_nodes


@given(st.one_of(sequences, dense), st.data())
def test_rollback_comes_back_to_the_same_point(ids, data):
    ref = Reference(named(ids), EXITS)
    trie = Trie.from_tokens(named(ids), n_vocab=V, exits=EXITS)
    path = data.draw(st.sampled_from(points(ref)))
    back = data.draw(st.integers(0, len(path)))
    cursor = walk(trie, path)
    cursor.rollback(back)
    check_point(cursor, ref, path[: len(path) - back])
    for token in path[len(path) - back :]:
        cursor.accept(token)
    check_point(cursor, ref, path)
    cursor.reset()
    check_point(cursor, ref, ())
