"""Normalised and weighted scores, thresholds and draws against brute force."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import InvalidArgument, InvalidType, NoCandidateError, Trie
from eliza.reference import Reference, log_sum_exp
from support import END, choice_sets, hashed, model_of, plain_vocab, scripted
from t32 import t32

PROMPT, PRIOR = [4, 5], [4]
EOG = (END, 3)


def likelihoods(leaves, seed, prompt, whole=True, spread=3.0):
    logits = hashed(seed, 64, spread)
    reference = Reference(leaves, exits=EOG)
    return reference.scores(
        lambda path: logits((*prompt, *path)).astype(float).tolist(), whole
    )


def brute(leaves, seed, normalize, weights, spread=3.0, allow=None):
    """Return the score of each permitted choice, computed in the plainest way."""
    part = {name: leaves[name] for name in leaves if allow is None or name in allow}
    scores = likelihoods(part, seed, PROMPT, spread=spread)
    if normalize == "tokens":
        scores = {name: x / len(part[name]) for name, x in scores.items()}
    elif normalize == "bytes":
        size = {i: len(f"<{i}>") for i in range(64)}
        scores = {
            name: x / sum(size[i] for i in part[name]) for name, x in scores.items()
        }
    elif normalize == "prior":  # of the whole set: it is kept for it
        prior = likelihoods(leaves, seed, PRIOR, spread=spread)
        scores = {name: x - prior[name] for name, x in scores.items()}
    return {name: x + weights.get(name, 0.0) for name, x in scores.items()}


def ask(leaves, seed, spread=3.0, limits=None, **request):
    vocab = plain_vocab(eog=EOG)
    model = model_of(hashed(seed, 64, spread), vocab, **(limits or {}))
    if request.get("normalize") == "prior":
        request["prior_prompt"] = PRIOR
    return model.choose(PROMPT, Trie.from_tokens(leaves, n_vocab=64), **request)


NORMALIZATIONS = st.sampled_from(["none", "tokens", "bytes", "prior"])


@st.composite
def weighted_sets(draw):
    leaves = draw(choice_sets())
    weights = draw(
        st.dictionaries(st.sampled_from(sorted(leaves)), st.floats(-5, 5), max_size=4)
    )
    return leaves, weights


@settings(max_examples=400, deadline=None)
@given(
    weighted_sets(), st.integers(0, 10_000), NORMALIZATIONS, st.booleans(), st.data()
)
def test_the_search_finds_the_brute_force_winner(drawn, seed, normalize, some, data):
    leaves, weights = drawn
    allow = None
    if some:
        allow = data.draw(st.lists(st.sampled_from(sorted(leaves)), min_size=1))
    scores = brute(leaves, seed, normalize, weights, allow=allow)
    answer = ask(
        leaves, seed, normalize=normalize, weights=weights or None, allow=allow
    )
    best = max(scores.values())
    assert scores[answer.value] == pytest.approx(best, abs=1e-4)
    low, high = answer.probability_bounds
    share = math.exp(scores[answer.value] - log_sum_exp(scores.values()))
    assert low - 1e-4 <= share <= high + 1e-4


def random_set(rng):
    """Choices over a few ids, so that they share beginnings and continue each other."""
    tokens = range(4, 4 + rng.randint(2, 8))
    many = rng.choice((3, 12, 12, 40))
    leaves = {tuple(rng.choices(tokens, k=rng.randint(1, 6))) for _ in range(many)}
    for ids in rng.sample(sorted(leaves), rng.randint(0, 2)):
        leaves.add(ids[: rng.randint(1, len(ids))])
    picked = rng.sample(sorted(leaves), rng.randint(1, len(leaves)))
    return {f"c{i}": ids for i, ids in enumerate(picked)}


def test_the_brute_force_winner_in_2000_random_sets():
    """Every normalisation, choices that others continue, weights, allow=, any delta,
    and runtimes that can hold few rows or branches, or have no trees."""
    rng = random.Random(2000)
    seen = Counter()
    for n in range(2000):
        seed, spread = rng.randrange(10**6), rng.choice((0.5, 3.0, 12.0))
        normalize = ("none", "tokens", "bytes", "prior")[n % 4]
        leaves = random_set(rng)
        names = sorted(leaves)
        weights = {name: rng.uniform(-5, 5) for name in names[: rng.randint(0, 4)]}
        allow = rng.sample(names, rng.randint(1, len(names))) if n % 3 == 0 else None
        delta = rng.choice((None, 0.0, 0.5, 3.0, math.inf))
        limits = rng.choice(({}, {}, {"tree": False}, {"max_rows": 3}))
        scores = brute(leaves, seed, normalize, weights, spread, allow)
        answer = ask(
            leaves,
            seed,
            spread,
            limits=limits,
            normalize=normalize,
            weights=weights or None,
            allow=allow,
            delta=delta,
        )
        winner = max(scores, key=scores.get)
        others = [x for name, x in scores.items() if name != winner]
        # Rows are float32: what lies closer together may come out either way.
        clear = scores[winner] > max(others, default=-math.inf) + 1e-3
        assert answer.value == winner or not clear, f"set {n}"
        assert scores[answer.value] == pytest.approx(scores[winner], abs=1e-4)
        ids = [leaves[name] for name in scores]
        seen["clear"] += clear
        seen["decided"] += len(ids) > 1
        seen["prefix"] += any(a != b and b[: len(a)] == a for a in ids for b in ids)
        seen["weights"] += bool(weights)
        seen["allow"] += len(ids) < len(leaves)
        seen["many"] += len(ids) > 12
    # The sets are what they are said to be.
    assert seen["clear"] > 1950
    assert min(seen["decided"], seen["weights"]) > 1500
    assert min(seen["prefix"], seen["allow"], seen["many"]) > 200, seen


@settings(max_examples=200, deadline=None)
@given(weighted_sets(), st.integers(0, 10_000), NORMALIZATIONS)
def test_rankings_are_brute_force(drawn, seed, normalize):
    leaves, weights = drawn
    scores = brute(leaves, seed, normalize, weights)
    answer = ask(
        leaves, seed, ranking="whole", normalize=normalize, weights=weights or None
    )
    assert {r.value: r.score for r in answer.ranking} == pytest.approx(scores, abs=1e-4)
    assert {r.value: r.logprob for r in answer.ranking} == pytest.approx(
        likelihoods(leaves, seed, PROMPT), abs=1e-4
    )
    total = log_sum_exp(scores.values())
    for ranked in answer.ranking:
        share = math.exp(scores[ranked.value] - total)
        assert ranked.probability == pytest.approx(share, abs=1e-4)
    assert sum(r.probability for r in answer.ranking) == pytest.approx(1, abs=1e-6)


@settings(max_examples=200, deadline=None)
@given(choice_sets(), st.integers(0, 10_000), NORMALIZATIONS, st.floats(0.01, 0.99))
def test_a_threshold_is_decided_rightly(leaves, seed, normalize, threshold):
    scores = brute(leaves, seed, normalize, {})
    answer = ask(
        leaves, seed, normalize=normalize, threshold=threshold, default="none of them"
    )
    share = math.exp(max(scores.values()) - log_sum_exp(scores.values()))
    if abs(share - threshold) > 1e-4:
        assert answer.abstained == (share < threshold)
    assert (answer.value == "none of them") == answer.abstained
    assert (answer.index is None) == answer.abstained
    full = ask(
        leaves,
        seed,
        normalize=normalize,
        threshold=threshold,
        default="none of them",
        ranking="whole",
    )
    if abs(share - threshold) > 1e-4:
        assert full.abstained == answer.abstained


@settings(max_examples=100, deadline=None)
@given(choice_sets(), st.integers(0, 10_000), st.floats(0.05, 0.95))
def test_a_masked_ranking_beside_it_decides_no_threshold(leaves, seed, threshold):
    """The answer is the exact one, and so is how sure it is."""
    alone = ask(leaves, seed, threshold=threshold)
    beside = ask(leaves, seed, threshold=threshold, ranking="masked")
    assert beside.abstained == alone.abstained
    assert beside.choice == alone.choice


def test_a_threshold_costs_no_more_than_it_must():
    rng = np.random.default_rng(0)
    leaves = {}
    while len(leaves) < 100:
        ids = tuple(rng.integers(4, 64, rng.integers(2, 5)).tolist())
        leaves["-".join(map(str, ids))] = ids
    for seed in range(5):
        plain = ask(leaves, seed, spread=6.0).stats.positions
        easy = ask(leaves, seed, spread=6.0, threshold=1e-9).stats.positions
        full = ask(leaves, seed, spread=6.0, ranking="whole").stats.positions
        assert plain <= easy < full


def test_threshold_with_a_masked_ranking():
    model = model_of(scripted({(): {9: 2.0}}, 2), t32(), width=40)
    options = {"method": "greedy", "ranking": "masked"}
    sure = model.choose("n", ["Yes", "No"], threshold=0.8, **options)
    assert (sure.value, sure.abstained) == ("Yes", False)
    unsure = model.choose("n", ["Yes", "No"], threshold=0.9, default="?", **options)
    assert (unsure.value, unsure.abstained, unsure.index) == ("?", True, None)
    assert unsure.probability == sure.probability


# -- draws ---------------------------------------------------------------------------

LEAVES = {"a": (10, 11), "b": (10, 12, 13), "c": (20, 11), "d": (20,)}


def chi_square(counts, expected):
    return sum(
        (counts.get(name, 0) - n) ** 2 / n for name, n in expected.items() if n > 0
    )


def test_fc004_samples_follow_the_masked_distribution():
    model = model_of(hashed(3, 64, 1.0), plain_vocab(eog=EOG))
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    rng = np.random.default_rng(7)
    counts: dict[str, int] = {}
    n = 4000
    for _ in range(n):
        value = model.choose(PROMPT, trie, method="sample", rng=rng).value
        counts[value] = counts.get(value, 0) + 1
    scores = likelihoods(LEAVES, 3, PROMPT, whole=False, spread=1.0)
    expected = {name: n * math.exp(x) for name, x in scores.items()}
    assert set(counts) == set(LEAVES)
    assert chi_square(counts, expected) < 16.3  # 3 degrees of freedom, p = 0.001


def test_draws_follow_the_ranking():
    model = model_of(hashed(3, 64, 1.0), plain_vocab(eog=EOG))
    answer = model.choose(PROMPT, Trie.from_tokens(LEAVES, n_vocab=64), ranking="whole")
    rng = np.random.default_rng(8)
    counts: dict[str, int] = {}
    n = 20_000
    for _ in range(n):
        value = answer.ranking.draw(rng)
        counts[value] = counts.get(value, 0) + 1
    expected = {r.value: n * r.probability for r in answer.ranking}
    assert chi_square(counts, expected) < 16.3
    assert answer.ranking.draw(5) == answer.ranking.draw(5)


def test_a_seed_repeats_a_sample():
    model = model_of(hashed(3, 64, 0.1), plain_vocab(eog=EOG))
    trie = Trie.from_tokens(LEAVES, n_vocab=64)

    def drawn(seed):
        return model.choose(PROMPT, trie, method="sample", rng=seed).value

    assert [drawn(s) for s in range(30)] == [drawn(s) for s in range(30)]
    assert len({drawn(s) for s in range(30)}) > 1


def test_sampling_options_reach_the_kernel():
    model = model_of(hashed(3, 64, 1.0), plain_vocab(eog=EOG))
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    greedy = model.choose(PROMPT, trie, method="greedy").value
    for options in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}):
        for seed in range(10):
            answer = model.choose(PROMPT, trie, method="sample", rng=seed, **options)
            assert answer.value == greedy


def test_fc060_truncation_comes_after_the_constraint():
    logits = lambda history: {i: -float(i) for i in range(64)}  # noqa: E731
    model = model_of(logits)
    pairs = [("r50", [50]), ("r51", [51])]
    for options in ({"top_k": 1}, {"top_k": 40}, {"top_p": 0.1}, {"min_p": 0.9}):
        answer = model.choose([4], pairs, method="sample", rng=1, **options)
        assert answer.value in ("r50", "r51")
    assert model.choose([4], pairs, method="sample", rng=1, top_k=1).value == "r50"


# -- priors --------------------------------------------------------------------------


def test_priors_are_computed_once():
    model = model_of(hashed(1, 64), plain_vocab(eog=EOG))
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    options = {"normalize": "prior", "prior_prompt": PRIOR}
    first = model.choose(PROMPT, trie, **options)
    second = model.choose([4, 5, 6], trie, **options)
    plain = model.choose([4, 5, 7], trie)
    assert first.stats.positions > second.stats.positions
    assert second.stats.reused_tokens == 2  # the prior does not push the prompt out
    assert plain.stats.forward_passes <= second.stats.forward_passes + 3


def test_priors_of_pairs_are_computed_once():
    model = model_of(hashed(1, 64), plain_vocab(eog=EOG))
    options = {"normalize": "prior", "prior_prompt": PRIOR}
    costs = [
        model.choose([4, 5], list(LEAVES.items()), **options).stats.positions
        for _ in range(3)
    ]
    assert costs[0] > costs[1] == costs[2]
    assert len(model._priors) == 1


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("ranking", [None, "whole", "masked"])
def test_a_prior_of_zero_is_said_to_be(both, ranking):
    """No score is left where a probability is divided by zero."""
    plain = hashed(1, 64)

    def logits(history):
        row = plain(history).copy()
        if both or history == tuple(PRIOR):
            row[20] = -np.inf
        return row

    model = model_of(logits, plain_vocab(eog=EOG))
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    options = {"normalize": "prior", "prior_prompt": PRIOR, "ranking": ranking}
    with pytest.raises(NoCandidateError, match=r"'d' a probability of zero.*allow="):
        model.choose(PROMPT, trie, **options)
    answer = model.choose(PROMPT, trie, allow=["a", "b"], **options)
    assert answer.value in ("a", "b")
    assert not np.isnan(answer.probability_bounds or answer.probability).any()


def test_many_priors_are_bounded():
    model = model_of(hashed(1, 64), plain_vocab(eog=EOG))
    trie = Trie.from_tokens(LEAVES, n_vocab=64)
    for n in range(100):
        model.choose(
            PROMPT, trie, normalize="prior", prior_prompt=[4 + n % 50, 5 + n % 7]
        )
    assert len(model._priors) <= 32


# -- what makes no sense -------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"method": "greedy", "normalize": "tokens"},
            InvalidArgument,
            "method='exact'",
        ),
        ({"method": "greedy", "weights": [0, 0]}, InvalidArgument, "method='exact'"),
        (
            {"method": "sample", "normalize": "bytes"},
            InvalidArgument,
            "ranking='whole'",
        ),
        ({"normalize": "length"}, InvalidArgument, "normalize is 'length'"),
        ({"normalize": "prior"}, InvalidArgument, "needs prior_prompt="),
        ({"prior_prompt": "x"}, InvalidArgument, "for normalize='prior'"),
        ({"threshold": 1.5}, InvalidArgument, r"threshold is 1.5; it lies in \[0, 1\]"),
        ({"threshold": math.nan}, InvalidArgument, "threshold is nan"),
        ({"threshold": "high"}, InvalidType, "threshold is 'high'"),
        ({"default": "x"}, InvalidArgument, "pass threshold="),
        ({"method": "greedy", "threshold": 0.5}, InvalidArgument, "ranking='masked'"),
        ({"temperature": 0.5}, InvalidArgument, "for method='sample'"),
        ({"rng": 3, "method": "greedy"}, InvalidArgument, "for method='sample'"),
        ({"method": "sample", "rng": "x"}, InvalidType, "rng is 'x'"),
        ({"method": "sample", "temperature": -1.0}, InvalidArgument, "temperature"),
        ({"weights": [1.0]}, InvalidArgument, "1 entries for 2 choices"),
        ({"weights": {"Maybe": 1.0}}, InvalidArgument, "'Maybe', which is not one"),
        ({"weights": {"Yes": math.inf}}, InvalidArgument, "use allow="),
        ({"weights": {"Yes": "big"}}, InvalidType, "a log weight is a number"),
        ({"weights": 3}, InvalidType, "weights is 3"),
    ],
)
def test_requests_that_make_no_sense(options, error, message):
    model = model_of(scripted({(): {9: 1.0}}, 2), t32(), width=40)
    with pytest.raises(error, match=message):
        model.choose("n", ["Yes", "No"], **options)
    assert model.choose("n", ["Yes", "No"]).value == "Yes"


def test_weights_in_the_callers_order():
    model = model_of(scripted({(): {9: 1.0}}, 2), t32(), width=40)
    for weights in ([0.0, 3.0], {"No": 3.0}):
        assert model.choose("n", ["Yes", "No"], weights=weights).value == "No"
    assert model.choose("n", ["No", "Yes"], weights=[0.5, 0.0]).value == "Yes"
