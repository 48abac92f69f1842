"""The bookkeeping of the search against a few lines of Python.

Within 1e-4: the sum over a row is made in single precision.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import Trie
from eliza._frontier import Frontier, forced_run, path_counts
from support import END, choice_sets

V = 64


def lse(values):
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(x - top) for x in values))


def expected(trie, cursor, row, base):
    """What a point gives: scores of complete leaves, and (id, likelihood) of others."""
    total = lse(row.astype(float).tolist())
    done, open_ = {}, []
    for token, leaf in zip(cursor.allowed(), cursor.completes(), strict=True):
        value = base + float(row[token]) - total
        if leaf >= 0:
            done.setdefault(int(leaf), []).append(value)
        else:
            open_.append((int(token), value))
    return {leaf: lse(values) for leaf, values in done.items()}, open_


@settings(max_examples=200, deadline=None)
@given(
    choice_sets(),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 1.0, 5.0, math.inf]),
    st.sampled_from([0.0, 1.0, 5.0, math.inf]),
    st.sets(st.sampled_from(["length", "prior", "weight"])),
)
def test_one_point(leaves, seed, delta, spread, parts):
    trie = Trie.from_tokens(leaves, n_vocab=V, exits=[END, 3])
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(V) * 4).astype(np.float32)
    cursor = trie.cursor()
    given_parts = {
        name: rng.uniform(0.5, 3.0, len(trie)) if name in parts else None
        for name in ("length", "prior", "weight")
    }
    length, prior, weight = given_parts.values()
    frontier = Frontier(**given_parts)
    frontier.reveal(cursor, row, "here", -0.5)
    done, open_ = expected(trie, cursor, row, -0.5)

    def score(value, leaf):
        value = value if length is None else value / length[leaf]
        value = value if prior is None else value - prior[leaf]
        return value if weight is None else value + weight[leaf]

    def bound(token, value):
        after = cursor.copy()
        after.accept(token)
        lo, hi = after.leaf_range
        value = value if length is None else value / length[lo:hi].max()
        value = value if prior is None else value - prior[lo:hi].min()
        value = value if weight is None else value + weight[lo:hi].max()
        mass = value if length is None else value + math.log(hi - lo)
        return value, mass

    scores = {leaf: score(value, leaf) for leaf, value in done.items()}
    best = max(scores.values(), default=-math.inf)
    assert frontier.best == pytest.approx(best, abs=1e-4)
    assert frontier.n_open == len(open_)
    if done:
        assert frontier.leaf == max(scores, key=lambda leaf: (scores[leaf], -leaf))
        assert frontier.logprob == pytest.approx(done[frontier.leaf], abs=1e-4)
        masses = [bound(*branch)[1] for branch in open_]
        low, high = frontier.share()
        assert high == pytest.approx(
            math.exp(best - lse(list(scores.values()))), abs=1e-4
        )
        assert low == pytest.approx(
            math.exp(best - lse([*scores.values(), *masses])), abs=1e-4
        )
    frontier.prune()
    winners = [branch for branch in open_ if bound(*branch)[0] > best]
    assert frontier.n_open == len(winners)
    assert frontier.n_idle == len(open_) - len(winners)
    if not winners:
        return
    winners.sort(key=lambda branch: -bound(*branch)[0])
    top = bound(*winners[0])[0]
    near = [branch for branch in winners if bound(*branch)[0] >= top - delta]
    taken = frontier.promising(delta)
    assert [(token, point) for token, point, _, _ in taken] == [
        (token, "here") for token, _ in near
    ]
    for (_, value), (token, _, after, logprob) in zip(near, taken, strict=True):
        assert logprob == pytest.approx(value, abs=1e-4)
        assert after.path == (token,)
    assert frontier.n_open == len(winners) - len(near)
    left = [branch for branch in winners if branch not in near]
    more = [token for token, _ in left[:1] if bound(*left[0])[0] >= top - spread]
    assert [token for token, *_ in frontier.one_more(spread)] == more
    assert frontier.n_open == len(left) - len(more)
    if frontier.n_open:  # the others are as they were
        rest = left[len(more) :]
        taken = frontier.promising(math.inf)
        assert [token for token, *_ in taken] == [token for token, _ in rest]


def test_ties_go_to_the_lowest_leaf_and_the_first_branch():
    trie = Trie.from_tokens({"a": [4], "b": [5], "c": [6, 7], "d": [8, 9]}, n_vocab=V)
    frontier = Frontier()
    frontier.reveal(trie.cursor(), np.zeros(V, np.float32), None, 0.0)
    assert frontier.leaf == 0
    frontier.prune()  # what ties with the best leaf only counts if it lies before it
    assert (frontier.n_open, frontier.n_idle) == (0, 2)
    assert [token for token, *_ in frontier.weighty(0.0)] == [6, 8]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_nothing_that_can_follow(value):
    trie = Trie.from_tokens({"a": [4], "b": [5, 6]}, n_vocab=V)
    frontier = Frontier()
    frontier.reveal(trie.cursor(), np.full(V, value, np.float32), None, 0.0)
    frontier.prune()
    assert (frontier.leaf, frontier.n_open, frontier.n_idle) == (-1, 0, 0)
    assert frontier.weighed == []


def test_an_infinite_bound_is_taken_whatever_delta_is():
    trie = Trie.from_tokens({"a": [4, 5], "b": [6, 7]}, n_vocab=V)
    frontier = Frontier(prior=np.array([-math.inf, 0.0]))
    frontier.reveal(trie.cursor(), np.zeros(V, np.float32), None, 0.0)
    frontier.prune()
    assert [token for token, *_ in frontier.promising(math.inf)] == [4]
    assert frontier.n_open == 1


@settings(max_examples=300, deadline=None)
@given(choice_sets())
def test_runs_and_counts_on_paths(leaves):
    trie = Trie.from_tokens(leaves, n_vocab=V, exits=[END, 3])
    for leaf in range(len(trie)):
        path = trie.tokens(leaf)
        cursor = trie.cursor()
        single = 0
        for token in path:
            before = cursor.copy()
            single += len(before.allowed()) == 1
            run = []
            at = before.copy()
            while not at.done and len(at.allowed()) == 1:
                at.accept(int(at.allowed()[0]))
                if at.done:
                    break
                run.append((at.path[-1], at.path))
            found = [(token, after.path) for token, after in forced_run(before)]
            assert found == run
            cursor.accept(token)
        root = trie.cursor()
        assert path_counts(root, path) == (
            len(path) - single + (not cursor.done),
            single,
        )
        assert root.path == ()
