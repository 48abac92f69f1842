"""Rows of logits: which are taken, and the kernels at their edges."""

from __future__ import annotations

import array
import math

import numpy as np
import pytest

from eliza import Trie
from eliza._logits import log_sum_exp
from eliza.errors import InvalidArgument, InvalidType, NoCandidateError

V = 32


def cursor_of(ids, n_vocab=V):
    ids = np.array(ids)
    return Trie.from_arrays(ids, np.arange(len(ids) + 1), n_vocab=n_vocab).cursor()


def kernels(cursor):
    return cursor.argmax, cursor.logprobs, cursor.mask


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        (np.zeros(0, np.float32), InvalidArgument, r"at least 32 long; .*shape \(0,\)"),
        (np.zeros(31, np.float32), InvalidArgument, r"at least 32 long; .*\(31,\)"),
        (np.zeros((1, 32), np.float32), InvalidArgument, r"1-D, .*shape \(1, 32\)"),
        (np.zeros((32, 1), np.float32), InvalidArgument, r"1-D, .*shape \(32, 1\)"),
        (np.zeros((1, 1, 32), np.float32), InvalidArgument, r"\(1, 1, 32\)"),
        (np.zeros((2, 32), np.float32), InvalidArgument, r"shape \(2, 32\)"),
        (np.float32(1), InvalidArgument, r"shape \(\)"),
        (np.zeros(32), InvalidType, r"float64 .*convert it with \.astype"),
        (np.zeros(32, np.int32), InvalidType, "dtype int32"),
        (np.zeros(32, ">f4"), InvalidType, "dtype >f4"),
        (np.zeros(32, "f4,f4"), InvalidType, "dtype"),
        (np.zeros(32, object), InvalidType, "dtype object"),
        (bytes(128), InvalidType, "got bytes"),
        ([0.0] * 32, InvalidType, "got list"),
        (None, InvalidType, "got NoneType"),
        ("row", InvalidType, "got str"),
    ],
)
def test_fc033_rows_of_another_form(row, kind, message):
    cursor = cursor_of([3, 5])
    for kernel in kernels(cursor):
        with pytest.raises(kind, match=message):
            kernel(row)


@pytest.mark.parametrize("n", [32, 33, 40])
def test_fc033_rows_that_are_taken(n):
    cursor = cursor_of([3, 5])
    row = np.zeros(n, np.float32)
    row[5] = 1
    for form in (row, memoryview(row), array.array("f", row)):
        assert cursor.argmax(form) == 5
        assert len(cursor.logprobs(form)) == 2
        cursor.mask(form)
        assert np.flatnonzero(np.asarray(form) > -np.inf).tolist() == [3, 5]


def test_rows_with_gaps_or_off_their_alignment():
    cursor = cursor_of([3, 5])
    wide = np.zeros(64, np.float32)
    with pytest.raises(InvalidArgument, match="contiguous"):
        cursor.argmax(wide[::2])
    odd = np.frombuffer(bytearray(133), np.uint8)[1:129].view(np.float32)
    with pytest.raises(InvalidArgument, match="contiguous"):
        cursor.argmax(odd)


def test_mask_needs_a_writable_row():
    row = np.zeros(V, np.float32)
    row.flags.writeable = False
    cursor = cursor_of([3, 5])
    assert cursor.argmax(row) == 3
    with pytest.raises(InvalidArgument, match="read-only: it must be writable"):
        cursor.mask(row)
    assert (row == 0).all()


@pytest.mark.parametrize(
    ("logits", "best"),
    [
        ({3: math.nan, 5: 1}, 5),
        ({1: math.nan, 3: 2, 5: 1}, 3),
        ({1: math.inf, 3: 2, 5: 1}, 3),
        ({3: math.inf, 5: 1}, 3),
        ({3: -math.inf, 5: -3e38}, 5),
    ],
)
def test_fc023_nan_and_infinity(logits, best):
    row = np.zeros(8, np.float32)
    for token, value in logits.items():
        row[token] = value
    cursor = cursor_of([3, 5], 8)
    assert cursor.argmax(row) == best
    logprobs = cursor.logprobs(row)
    assert cursor.allowed()[logprobs.argmax()] == best
    assert math.isclose(np.exp(logprobs).sum(), 1)


def test_fc023_nothing_but_nan():
    cursor = cursor_of([3, 5], 8)
    row = np.zeros(8, np.float32)
    row[[3, 5]] = math.nan
    for kernel in (cursor.argmax, cursor.logprobs):
        with pytest.raises(NoCandidateError, match="NaN or -inf: 3, 5"):
            kernel(row)


def test_infinite_logits_share_the_probability():
    cursor = cursor_of([3, 5, 7], 8)
    row = np.zeros(8, np.float32)
    row[[3, 7]] = math.inf
    half = math.log(0.5)
    assert cursor.logprobs(row).tolist() == [half, -math.inf, half]
    row[[0, 1]] = math.inf
    quarter = math.log(0.25)
    np.testing.assert_allclose(
        cursor.logprobs(row, whole_row=True), [quarter, -math.inf, quarter]
    )


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000])
def test_argmax_over_every_count(k):
    """The lanes and what they leave over, the winner in each place, ties included."""
    rng = np.random.default_rng(k)
    n_vocab = 5000
    ids = np.sort(rng.choice(n_vocab, k, replace=False))
    cursor = cursor_of(ids, n_vocab)
    row = rng.standard_normal(n_vocab).astype(np.float32) + 10
    row[ids] -= 20
    for i in range(0, k, max(1, k // 40)):
        changed = row.copy()
        changed[ids[i:]] = -5.0
        changed[ids[:i]] = np.minimum(changed[ids[:i]], -6)
        assert cursor.argmax(changed) == ids[i]
        changed[ids[i]] = 0
        assert cursor.argmax(changed) == ids[i]


def test_argmax_reads_no_forbidden_logit():
    """The ids stand where NaN and the largest numbers do not."""
    row = np.full(V, np.nan, np.float32)
    row[[4, 9]] = [-2, -1]
    row[5] = np.inf
    assert cursor_of([4, 9]).argmax(row) == 9


@pytest.mark.parametrize("n_vocab", [1, 2, 4095, 4096, 4097, 8192, 8193, 50_000])
def test_mask_over_blocks(n_vocab):
    rng = np.random.default_rng(n_vocab)
    edges = {0, n_vocab - 1, 4095, 4096, 8191, 8192} | set(
        rng.integers(0, n_vocab, 50).tolist()
    )
    ids = sorted(i for i in edges if i < n_vocab)
    for n in (n_vocab, n_vocab + 1, n_vocab + 5000):
        row = rng.standard_normal(n).astype(np.float32)
        expected = np.full(n, -np.inf, np.float32)
        expected[ids] = row[ids]
        cursor_of(ids, n_vocab).mask(row)
        np.testing.assert_array_equal(row, expected)


def test_mask_keeps_every_bit():
    """Signalling NaNs, subnormals and negative zero come through unchanged."""
    bits = np.array([0x7F800001, 0xFFC12345, 1, 0x80000000, 0x007FFFFF], np.uint32)
    row = np.zeros(V, np.float32)
    row[:5] = bits.view(np.float32)
    cursor_of([0, 1, 2, 3, 4]).mask(row)
    np.testing.assert_array_equal(row[:5].view(np.uint32), bits)


@pytest.mark.parametrize("n", [1, 7, 8, 15, 16, 17, 255, 256, 257, 271, 49_152])
@pytest.mark.parametrize("scale", [0.1, 10, 80])
def test_log_sum_exp(n, scale):
    rng = np.random.default_rng(n)
    row = (rng.standard_normal(n) * scale).astype(np.float32)
    top = row.max().astype(np.float64)
    exact = top + math.log(np.exp(row - top).sum())
    assert math.isclose(log_sum_exp(row), exact, rel_tol=0, abs_tol=2e-6 + 1e-7 * scale)
    row[rng.integers(0, n, n // 2)] = -np.inf
    row[rng.integers(0, n, n // 3)] = np.nan
    usable = row[row > -np.inf].astype(np.float64)
    if len(usable):
        exact = usable.max() + math.log(np.exp(usable - usable.max()).sum())
        assert abs(log_sum_exp(row) - exact) < 2e-6 + 1e-7 * scale


def test_log_sum_exp_at_the_edges():
    assert log_sum_exp(np.zeros(0, np.float32)) == -math.inf
    assert log_sum_exp(np.full(20, -np.inf, np.float32)) == -math.inf
    assert log_sum_exp(np.full(20, np.nan, np.float32)) == -math.inf
    assert log_sum_exp(np.array([1, np.inf, np.nan], np.float32)) == math.inf
    assert log_sum_exp(np.array([-3.4e38, 3.4e38], np.float32)) == np.float32(3.4e38)
    low = np.array([-3e38] * 4, np.float32)
    assert math.isclose(log_sum_exp(low), float(low[0]) + math.log(4))
    with pytest.raises(InvalidType, match="got list"):
        log_sum_exp([1.0])


def test_log_sum_exp_of_equal_values_is_exact_to_rounding():
    for n in (2, 100, 152_064):
        row = np.full(n, 12.5, np.float32)
        assert abs(log_sum_exp(row) - (12.5 + math.log(n))) < 1e-6
