"""The sequence ids that nodes of a tree carry, and what llama.cpp makes of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza.backends.base import parents_array
from eliza.backends.llama_tree import Tree, read_parents
from eliza.errors import InvalidArgument


@st.composite
def grown(draw):
    """A tree that grows by batches: the parents of the nodes of each."""
    batches, known = [], 0
    for size in draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)):
        parents = [draw(st.integers(-1, known + i - 1)) for i in range(size)]
        batches.append(parents)
        known += size
    return batches


@settings(max_examples=500, deadline=None)
@given(grown())
def test_each_node_sees_its_ancestors_and_nothing_else(batches):
    """llama.cpp lets a cell see those that share an id with it and stand before it."""
    tree, free = Tree(), list(range(100))
    ids, depths, parent = [], [], []  # of each node: ids of its cell, depth, parent
    for parents in batches:
        before = tree.depths[:]
        growth = tree.plan(parents, free)
        assert tree.depths == before  # nothing has changed yet
        for source, id_, depth in growth.begun:
            for cell, at in zip(ids, depths, strict=True):
                if source in cell and at <= depth:
                    cell.add(id_)
        ids += map(set, growth.owners)
        depths += growth.depths
        parent += parents
        tree.add(growth)
        free = free[: len(free) - len(growth.begun)]
        assert len(tree) == len(parent)
        assert tree.depths == depths
        assert sorted([*free, *tree.ids]) == list(range(100))
        for node in range(len(parent) - len(parents), len(parent)):
            ancestors, at = {node}, node
            while parent[at] >= 0:
                at = parent[at]
                ancestors.add(at)
            assert depths[node] == len(ancestors)
            assert ids[node]
            seen = {
                other
                for other, cell in enumerate(ids)
                if cell & ids[node] and depths[other] <= depths[node]
            }
            assert seen == ancestors


def test_a_branch_that_grows_by_one_node_needs_one_id():
    tree, free = Tree(), [4, 5, 6]
    for parent in (-1, 0, 1):
        tree.add(tree.plan([parent], free))
    assert tree.ids == [6]


def test_more_branches_than_ids():
    with pytest.raises(InvalidArgument, match=r"more than 2 new branches.*tree_room"):
        Tree().plan([-1, -1, -1], [1, 2])


@pytest.mark.parametrize("parents", [[-1], [4, 5, -1, 7], [-1] * 9])
def test_parents_as_the_plain_reader_has_them(parents):
    assert read_parents(parents, len(parents), 5) is parents
    assert parents_array(parents, len(parents), 5).tolist() == parents


@pytest.mark.parametrize(
    "parents", [[], (-1, 0), [5, 0], [-2, 0], [0], [True, 0], [0.0, 0], [1 << 70, 0]]
)
def test_all_else_is_left_to_the_plain_reader(parents):
    assert read_parents(parents, 2, 5) is None
