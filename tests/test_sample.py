"""Drawing: frequencies, filters, how much randomness is used, what is refused."""

from __future__ import annotations

import math
import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import Trie
from eliza.errors import InvalidArgument, InvalidType, NoCandidateError
from eliza.reference import Reference
from rows import KINDS, make_row, rows
from test_trie_properties import EXITS, V, dense, named, points, walk

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def cursor_of(ids, n_vocab=V):
    ids = np.sort(np.array(ids))
    return Trie.from_arrays(ids, np.arange(len(ids) + 1), n_vocab=n_vocab).cursor()


def distribution(logits, temperature, top_k, top_p, min_p):
    """What is left of a list of logits, as probabilities: the filters, plainly."""
    x = np.where(np.isnan(logits), -math.inf, logits).astype(float)
    if (x == math.inf).any():
        p = (x == math.inf).astype(float)
    else:
        p = np.exp((x - x.max()) / temperature)
    ranked = sorted(range(len(x)), key=lambda i: (-x[i], i))
    ranked = [i for i in ranked if p[i] > 0]
    if top_k:
        ranked = ranked[:top_k]
    if top_p < 1:
        reached = np.cumsum(p[ranked])
        ranked = ranked[: int(np.argmax(reached >= top_p * reached[-1])) + 1]
    ranked = [i for i in ranked if p[i] >= min_p * p[ranked[0]]]
    out = np.zeros(len(x))
    out[ranked] = p[ranked] / p[ranked].sum()
    return out


def chi_square(counts, p):
    """The statistic, and the value that one run in 100,000 exceeds by chance."""
    assert (counts[p == 0] == 0).all()
    kept = p > 0
    expected = p[kept] * counts.sum()
    value = ((counts[kept] - expected) ** 2 / expected).sum()
    free = kept.sum() - 1
    z = 4.265  # of the normal distribution; Wilson and Hilferty's approximation
    limit = free * (1 - 2 / (9 * free) + z * math.sqrt(2 / (9 * free))) ** 3
    return value, limit


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 4},
        {"top_p": 0.7},
        {"min_p": 0.05},
        {"temperature": 2.0, "top_k": 6, "top_p": 0.8, "min_p": 0.1},
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_frequencies(options, kind):
    options = OFF | options
    rng = np.random.default_rng(12)
    n = 10
    values = np.random.default_rng(3).normal(size=40)
    row = make_row(values, kind)
    ids = np.arange(1, 4 * n, 4)
    cursor = cursor_of(ids, 40)
    drawn = [
        cursor.sample(row.form, rng, dtype=row.dtype, **options) for _ in range(20_000)
    ]
    counts = np.bincount(drawn, minlength=40)[ids]
    assert counts.sum() == len(drawn)
    value, limit = chi_square(counts, distribution(row.values[ids], **options))
    assert value < limit


def test_fc004_nested_choices_are_drawn_by_their_probabilities():
    leaves = {"a": [7], "ab": [7, 8], "abc": [7, 8, 9], "ac": [7, 9]}
    trie = Trie.from_tokens(leaves, n_vocab=V, exits=[2])
    after = {path: np.zeros(V, np.float32) for path in ((), (7,), (7, 8))}
    after[7,][[2, 8, 9]] = np.log([0.25, 0.5, 0.25])
    counts = np.zeros(4)
    for seed in range(4000):
        rng = np.random.default_rng(seed)
        cursor = trie.cursor()
        while not cursor.done:
            cursor.accept(cursor.sample(after[cursor.path], rng))
        counts[cursor.leaf] += 1
    assert np.abs(counts / 4000 - 0.25).max() < 0.03


def test_fc017_equal_leaves_are_one():
    trie = Trie.from_arrays([9, 9, 11], [0, 1, 2, 3], n_vocab=V)
    rng = np.random.default_rng(0)
    cursor = trie.cursor()
    row = np.zeros(V, np.float32)
    drawn = [cursor.sample(row, rng) for _ in range(1000)]
    assert abs(drawn.count(9) - 500) < 60


@settings(max_examples=400)
@given(
    dense,
    rows(V),
    st.floats(0.01, 10),
    st.integers(0, 5),
    st.one_of(st.just(1.0), st.floats(0.01, 1)),
    st.one_of(st.just(0.0), st.floats(0, 1)),
    st.integers(0, 2**32),
    st.data(),
)
def test_one_double_or_none(ids, row, temperature, top_k, top_p, min_p, seed, data):
    """The draw follows from the double; none is taken for a single id."""
    ref = Reference(named(ids), EXITS)
    trie = Trie.from_tokens(named(ids), n_vocab=V, exits=EXITS)
    inner = [path for path in points(ref) if ref.leaf(path) is None]
    path = data.draw(st.sampled_from(inner))
    cursor = walk(trie, path)
    rng, twin = np.random.default_rng(seed), np.random.default_rng(seed)
    options = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    allowed = np.array(sorted(ref.allowed(path)))
    before = row.form.copy()
    if ref.argmax(path, row.values) is None:
        with pytest.raises(NoCandidateError, match="NaN or -inf"):
            cursor.sample(row.form, rng, dtype=row.dtype, **options)
    else:
        p = distribution(row.values[allowed], **options)
        drawn = cursor.sample(row.form, rng, dtype=row.dtype, **options)
        assert p[allowed == drawn] > 0
        left = np.flatnonzero(p)
        if len(left) > 1:
            at = twin.random()
            reached = np.cumsum(p[left])
            near = np.abs(reached - at).min() < 1e-9
            assert near or drawn == allowed[left[np.argmax(reached > at)]]
    assert rng.bit_generator.state == twin.bit_generator.state
    np.testing.assert_array_equal(before.view("u1"), row.form.copy().view("u1"))


def test_every_bit_generator_and_both_handles():
    cursor = cursor_of([3, 5, 9])
    row = np.zeros(V, np.float32)
    for cls in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    ):
        twin = np.random.Generator(cls(5))
        expected = [[3, 5, 9][int(twin.random() * 3)] for _ in range(50)]
        for rng in (np.random.Generator(cls(5)), cls(5)):
            assert [cursor.sample(row, rng) for _ in range(50)] == expected


def test_the_generators_lock_is_held():
    """While someone else holds the lock nothing is drawn."""
    cursor = cursor_of([3, 5])
    rng = np.random.default_rng(0)
    done = threading.Event()

    def work():
        cursor.sample(np.zeros(V, np.float32), rng)
        done.set()

    with rng.bit_generator.lock:
        thread = threading.Thread(target=work)
        thread.start()
        assert not done.wait(0.2)
    thread.join()
    assert done.is_set()


@pytest.mark.parametrize(
    "rng", [None, 0, random.Random(0), np.random.RandomState(0), np.random]
)
def test_generators_are_checked(rng):
    row = np.zeros(V, np.float32)
    with pytest.raises(InvalidType, match=r"rng must be a numpy\.random\.Generator"):
        cursor_of([3, 5]).sample(row, rng)


@pytest.mark.parametrize("temperature", [0, 1e-5, 1e-8, 1e-45, 5e-324])
def test_fc025_low_temperatures_take_the_best(temperature):
    row = np.zeros(8, np.float16)
    row[[3, 5]] = [2.875, 11.0625]
    cursor = cursor_of([3, 5], 8)
    rng, twin = np.random.default_rng(0), np.random.default_rng(0)
    for _ in range(50):
        assert cursor.sample(row, rng, temperature=temperature) == 5
    assert rng.bit_generator.state == twin.bit_generator.state


@pytest.mark.parametrize("temperature", [1e6, 1.7e308])
def test_fc025_high_temperatures_make_all_equal(temperature):
    row = np.zeros(8, np.float16)
    row[[3, 5]] = [2.875, 11.0625]
    rng = np.random.default_rng(0)
    cursor = cursor_of([3, 5], 8)
    drawn = [cursor.sample(row, rng, temperature=temperature) for _ in range(1000)]
    assert abs(drawn.count(3) - 500) < 60


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"temperature": -1},
            InvalidArgument,
            "temperature must be finite and not neg",
        ),
        ({"temperature": math.nan}, InvalidArgument, "temperature must be finite"),
        ({"temperature": math.inf}, InvalidArgument, "temperature must be finite"),
        ({"temperature": "1"}, InvalidType, "temperature must be a number, got str"),
        ({"temperature": None}, InvalidType, "temperature must be a number, got None"),
        ({"temperature": True}, InvalidType, "temperature must be a number, got bool"),
        ({"top_k": -1}, InvalidArgument, "top_k must not be negative, got -1"),
        ({"top_k": 1.5}, InvalidType, "top_k must be an int, got float"),
        ({"top_p": 0}, InvalidArgument, r"top_p must lie in \(0, 1\], got 0"),
        ({"top_p": 1.1}, InvalidArgument, "top_p must lie in"),
        ({"top_p": math.nan}, InvalidArgument, "top_p must lie in"),
        ({"min_p": -0.1}, InvalidArgument, r"min_p must lie in \[0, 1\], got -0.1"),
        ({"min_p": 1.1}, InvalidArgument, "min_p must lie in"),
        ({"min_p": math.nan}, InvalidArgument, "min_p must lie in"),
    ],
)
def test_fc025_options_are_checked(options, kind, message):
    rng, twin = np.random.default_rng(0), np.random.default_rng(0)
    with pytest.raises(kind, match=message):
        cursor_of([3, 5]).sample(np.zeros(V, np.float32), rng, **options)
    assert rng.bit_generator.state == twin.bit_generator.state


def test_options_of_other_number_types():
    rng = np.random.default_rng(0)
    row = np.arange(V, dtype=np.float32)
    cursor = cursor_of([3, 5])
    options = {"temperature": np.float32(1), "top_k": np.int8(1), "min_p": 0}
    assert cursor.sample(row, rng, **options) == 5
    assert cursor.sample(row, rng, top_k=2**70) in (3, 5)


@pytest.mark.parametrize(
    ("logits", "possible"),
    [
        ({3: math.nan, 5: 1}, {5}),
        ({1: math.nan, 3: 2, 5: 1}, {3, 5}),
        ({1: math.inf, 3: 2, 5: 1}, {3, 5}),
        ({3: math.inf, 5: 1}, {3}),
        ({3: math.inf, 5: math.inf}, {3, 5}),
        ({3: -math.inf, 5: -3e38}, {5}),
    ],
)
def test_fc023_nan_and_infinity(logits, possible):
    row = np.zeros(8, np.float32)
    for token, value in logits.items():
        row[token] = value
    rng = np.random.default_rng(0)
    cursor = cursor_of([3, 5], 8)
    assert {cursor.sample(row, rng) for _ in range(200)} == possible


def test_fc019_fc023_nothing_to_draw_from():
    row = np.full(8, math.nan, np.float32)
    row[5] = -math.inf
    rng, twin = np.random.default_rng(0), np.random.default_rng(0)
    for temperature in (0, 1):
        with pytest.raises(NoCandidateError, match="NaN or -inf: 3, 5"):
            cursor_of([3, 5], 8).sample(row, rng, temperature=temperature)
    cursor = cursor_of([3, 5], 8)
    cursor.accept(3)
    with pytest.raises(NoCandidateError, match="complete"):
        cursor.sample(row, rng)
    assert rng.bit_generator.state == twin.bit_generator.state


def test_ties_at_the_edge_of_top_k_go_to_the_lowest_ids():
    row = np.zeros(V, np.float32)
    row[8] = 1
    rng = np.random.default_rng(0)
    cursor = cursor_of([2, 4, 6, 8])
    assert {cursor.sample(row, rng, top_k=2) for _ in range(200)} == {2, 8}


def test_top_p_stops_when_it_is_reached():
    """Half of four equal ones are two, the lowest."""
    rng = np.random.default_rng(0)
    cursor = cursor_of([2, 4, 6, 8])
    row = np.zeros(V, np.float32)
    assert {cursor.sample(row, rng, top_p=0.5) for _ in range(200)} == {2, 4}
    assert {cursor.sample(row, rng, top_p=0.51) for _ in range(200)} == {2, 4, 6}
    assert {cursor.sample(row, rng, top_p=1e-9) for _ in range(200)} == {2}


def test_the_filters_see_only_what_is_allowed():
    """A likely forbidden id takes no place in top-k and no share of top-p."""
    row = np.zeros(V, np.float32)
    row[0] = 50
    row[[3, 5]] = [1, 0]
    rng = np.random.default_rng(0)
    cursor = cursor_of([3, 5])
    assert cursor.sample(row, rng, top_k=1) == 3
    assert {cursor.sample(row, rng, top_p=0.9) for _ in range(100)} == {3, 5}
    assert {cursor.sample(row, rng, min_p=0.3) for _ in range(100)} == {3, 5}
