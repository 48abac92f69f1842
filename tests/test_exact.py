"""The search and the scores against brute force over the reference."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import Trie
from eliza.reference import Reference
from support import END, choice_sets, hashed, model_of, plain_vocab, scripted

PROMPT = [4, 5]


def brute(leaves, seed, whole, spread=3.0):
    logits = hashed(seed, 64, spread)
    reference = Reference(leaves, exits=[END, 3])
    return reference.scores(
        lambda path: logits((*PROMPT, *path)).astype(float).tolist(), whole
    )


def ask(leaves, seed, spread=3.0, options=None, **request):
    model = model_of(hashed(seed, 64, spread), plain_eog(), **(options or {}))
    trie = Trie.from_tokens(leaves, n_vocab=64)
    return model.choose(PROMPT, trie, **request)


def plain_eog():
    return plain_vocab(eog=(END, 3))


def best(scores, leaves):
    """The best name; ties go to the lexicographically lowest ids."""
    return min(scores, key=lambda name: (-scores[name], leaves[name]))


@settings(max_examples=300, deadline=None)
@given(
    choice_sets(),
    st.integers(0, 10_000),
    st.sampled_from([0.0, 0.5, 1.0, 3.0, math.inf]),
    st.sampled_from([0.5, 3.0, 12.0]),
)
def test_exact_is_the_best_whole_choice(leaves, seed, delta, spread):
    scores = brute(leaves, seed, whole=True, spread=spread)
    answer = ask(leaves, seed, spread, delta=delta)
    assert answer.logprob == pytest.approx(scores[answer.value], abs=1e-4)
    assert answer.logprob >= max(scores.values()) - 1e-4
    low, high = answer.probability_bounds
    total = math.log(sum(math.exp(x) for x in scores.values()))
    share = math.exp(scores[answer.value] - total)
    assert low - 1e-5 <= share <= high + 1e-5


@settings(max_examples=200, deadline=None)
@given(choice_sets(), st.integers(0, 10_000), st.booleans())
def test_rankings_are_brute_force(leaves, seed, whole):
    scores = brute(leaves, seed, whole)
    kind = "whole" if whole else "masked"
    answer = ask(leaves, seed, method="greedy", ranking=kind)
    ranking = answer.ranking
    assert {r.value: r.logprob for r in ranking} == pytest.approx(scores, abs=1e-4)
    probabilities = [r.probability for r in ranking]
    assert sum(probabilities) == pytest.approx(1, abs=1e-6)
    assert probabilities == sorted(probabilities, reverse=True)
    if not whole:
        assert sum(math.exp(x) for x in scores.values()) == pytest.approx(1, abs=1e-6)
        assert probabilities == pytest.approx(
            [math.exp(r.logprob) for r in ranking], abs=1e-6
        )
    own = {r.value: r for r in ranking}[answer.value]
    assert answer.probability == own.probability
    others = [r.logprob for r in ranking if r.value != answer.value]
    expected = own.logprob - max(others) if others else math.inf
    assert answer.margin == pytest.approx(expected)


@settings(max_examples=150, deadline=None)
@given(choice_sets(), st.integers(0, 10_000))
def test_greedy_is_the_reference_walk(leaves, seed):
    logits = hashed(seed, 64)
    reference = Reference(leaves, exits=[END, 3])
    path = reference.greedy(lambda path: logits((*PROMPT, *path)).tolist())
    answer = ask(leaves, seed, method="greedy")
    assert answer.value == reference.leaf(path)
    score = sum(
        reference.logprobs(path[:n], logits((*PROMPT, *path[:n])).tolist())[token]
        for n, token in enumerate(path)
    )
    assert answer.logprob == pytest.approx(score, abs=1e-4)


@settings(max_examples=150, deadline=None)
@given(choice_sets(), st.integers(0, 10_000), st.data())
def test_allow_is_the_set_of_the_permitted_alone(leaves, seed, data):
    names = data.draw(st.lists(st.sampled_from(sorted(leaves)), min_size=1))
    part = {name: leaves[name] for name in set(names)}
    for request in ({"ranking": "masked"}, {"method": "greedy", "ranking": "whole"}):
        whole_set = ask(leaves, seed, allow=names, **request)
        alone = ask(part, seed, **request)
        assert whole_set.value == alone.value
        assert whole_set.logprob == pytest.approx(alone.logprob, abs=1e-9)
        assert list(whole_set.ranking) == list(alone.ranking)


@settings(max_examples=100, deadline=None)
@given(
    choice_sets(),
    st.integers(0, 10_000),
    st.sampled_from(
        [
            {"tree": False},
            {"max_rows": 3},
            {"max_branches": 2, "max_rows": 8},
            {"n_ctx": 12},
        ]
    ),
)
def test_the_runtimes_limits_change_nothing(leaves, seed, options):
    for request in ({}, {"ranking": "whole"}, {"ranking": "masked"}):
        free = ask(leaves, seed, **request)
        bound = ask(leaves, seed, options=options, **request)
        assert bound.value == free.value
        assert bound.logprob == free.logprob
        if free.ranking is not None:
            assert list(bound.ranking) == list(free.ranking)


def test_order_of_input_changes_nothing():
    leaves = {"a": (10, 11), "b": (10, 12), "c": (10,), "d": (20, 11, 12)}
    for seed in range(30):
        answers = set()
        for turn in range(4):
            items = list(leaves.items())
            shuffled = dict(items[turn:] + items[:turn])
            answers.add(ask(shuffled, seed).value)
        assert len(answers) == 1


def test_the_search_decodes_less_than_a_ranking():
    rng = np.random.default_rng(0)
    leaves = {}
    while len(leaves) < 200:
        ids = tuple(rng.integers(4, 64, rng.integers(2, 6)).tolist())
        leaves["-".join(map(str, ids))] = ids
    searched = ranked = 0
    for seed in range(5):
        answer = ask(leaves, seed, spread=6.0)
        searched += answer.stats.positions
        full = ask(leaves, seed, spread=6.0, ranking="whole")
        ranked += full.stats.positions
        assert answer.value == full.value
    assert searched < ranked / 5


@pytest.mark.parametrize(
    ("behind", "batches"), [(0.1, [2, 2]), (0.5, [4]), (1.5, [3]), (math.inf, [3])]
)
def test_a_forced_run_is_decoded_where_its_branch_leads(behind, batches):
    """Two names of four ids. Ids of a run that loses at once would be for nothing."""
    leaves = {"a": (10, 11, 12, 13), "b": (20, 21, 22, 23)}
    follows = {(): {10: 9.0, 20: 9.0 - behind}, (20,): {5: 30.0}}
    for n in range(1, 4):  # after a 10 the others are certain, after a 20 they are not
        follows[leaves["a"][:n]] = {leaves["a"][n]: 30.0}
    model = model_of(scripted(follows, len(PROMPT)), plain_eog())
    model.choose(PROMPT, ["<6>"], method="greedy")  # the prompt's own pass
    seen = []
    answer = model.choose(
        PROMPT,
        Trie.from_tokens(leaves, n_vocab=64),
        trace=lambda event: event.kind == "decoded" and seen.append(event.positions),
    )
    assert answer.value == "a"
    assert seen == batches


def test_the_lead_is_over_the_best_choice_too():
    """A branch hardly better than a complete choice may still lose to it."""
    leaves = {"a": (10, 11, 12, 13), "b": (20,)}
    follows = {(): {10: 9.0, 20: 8.9}, (10,): {5: 30.0}}
    model = model_of(scripted(follows, len(PROMPT)), plain_eog())
    model.choose(PROMPT, ["<6>"], method="greedy")
    answer = model.choose(PROMPT, Trie.from_tokens(leaves, n_vocab=64))
    assert (answer.value, answer.stats.positions) == ("b", 1)
