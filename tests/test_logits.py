"""Rows of logits: which are taken, and the kernels at their edges."""

from __future__ import annotations

import array
import math
import sys

import numpy as np
import pytest

from eliza import Trie, argmax_batch
from eliza._logits import log_sum_exp
from eliza.errors import InvalidArgument, InvalidType, NoCandidateError
from rows import KINDS, bfloat16, bits_of, make_row

V = 32


def cursor_of(ids, n_vocab=V):
    ids = np.array(ids)
    return Trie.from_arrays(ids, np.arange(len(ids) + 1), n_vocab=n_vocab).cursor()


def kernels(cursor):
    return cursor.argmax, cursor.logprobs, cursor.mask


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        (np.zeros(0, np.float32), InvalidArgument, r"at least 32 long, .*shape \(0,\)"),
        (np.zeros(31, np.float32), InvalidArgument, r"at least 32 long, .*\(31,\)"),
        (np.zeros((1, 32), np.float32), InvalidArgument, r"1-D, .*shape \(1, 32\)"),
        (np.zeros((32, 1), np.float32), InvalidArgument, r"1-D, .*shape \(32, 1\)"),
        (np.zeros((1, 1, 32), np.float32), InvalidArgument, r"\(1, 1, 32\)"),
        (np.zeros((2, 32), np.float32), InvalidArgument, r"shape \(2, 32\)"),
        (np.float32(1), InvalidArgument, r"shape \(\)"),
        (np.zeros(32), InvalidType, r"float64 .*convert it with \.astype"),
        (np.zeros(32, np.int32), InvalidType, "int32 .*dequantize it to float32"),
        (np.zeros(32, np.int8), InvalidType, "int8 .*dequantize it to float32"),
        (np.zeros(32, np.uint16), InvalidType, "dtype uint16"),
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


def test_rows_off_their_alignment():
    cursor = cursor_of([3, 5])
    odd = np.frombuffer(bytearray(133), np.uint8)[1:129].view(np.float32)
    for kernel in kernels(cursor):
        with pytest.raises(InvalidArgument, match=r"not aligned .*: copy it"):
            kernel(odd)


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_ids", [1, 7, 8, 9, 15, 16, 17, 100, 299, 300])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_mask_by_number_of_ids(kind, n_ids, first):
    """Dense and sparse, from any place in memory; nothing beside the row changes."""
    rng = np.random.default_rng(n_ids)
    for n_vocab in (300, 2_000):
        ids = np.sort(rng.choice(n_vocab, n_ids, replace=False))
        wide = make_row(rng.standard_normal(n_vocab + 40), kind)
        cells = slice(first, first + n_vocab + 9)
        expected = wide.form.copy()
        expected[cells] = make_row([-np.inf], kind).form
        expected[first + ids] = wide.form[first + ids]
        cursor_of(ids, n_vocab).mask(wide.form[cells], dtype=wide.dtype)
        np.testing.assert_array_equal(bits_of(wide.form), bits_of(expected))


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 2, -1])
def test_fc027_types_agree(kind, step):
    row = make_row([0.5, 2, 1, 3], kind, step)
    for ids, best in (([0, 1, 2, 3], 3), ([0, 2], 2)):
        cursor = cursor_of(ids, 4)
        assert cursor.argmax(row.form, dtype=row.dtype) == best
        np.testing.assert_allclose(
            cursor.logprobs(row.form, dtype=row.dtype),
            row.values[ids] - np.log(np.exp(row.values[ids].astype(float)).sum()),
        )


def test_fc027_bfloat16_by_its_name():
    """Arrays of ml_dtypes, which NumPy cannot hand out as a buffer."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    row = np.array([0.5, 2, 1, 3], ml_dtypes.bfloat16)
    cursor = cursor_of([0, 2], 4)
    assert cursor.argmax(row) == 2
    assert cursor.argmax(row, dtype="bfloat16") == 2
    cursor.mask(row)
    assert row.astype(float).tolist() == [0.5, -math.inf, 1, -math.inf]
    assert argmax_batch(row[None, :], [cursor]).tolist() == [2]
    with pytest.raises(InvalidType, match="dtype float8_e4m3fn"):
        cursor.argmax(row.astype(ml_dtypes.float8_e4m3fn))


class Foreign(np.ndarray):
    """Like an array of another library: 16-bit cells, and a dtype that has a name."""

    dtype = property(lambda self: self.name)


@pytest.mark.parametrize("name", ["bfloat16", "mlx.core.bfloat16", "torch.bfloat16"])
def test_fc027_bfloat16_of_another_library(name):
    row = bfloat16([0.5, 2, 1, 3]).view(Foreign)
    row.name = name
    cursor = cursor_of([0, 2], 4)
    assert cursor.argmax(row) == 2
    row.name = "uint16"
    with pytest.raises(InvalidType, match="dtype uint16"):
        cursor.argmax(row)


@pytest.mark.parametrize("dtype", ["float16", "bf16", 7])
def test_dtype_is_checked(dtype):
    row = np.zeros(V, np.float32)
    with pytest.raises(InvalidArgument, match="dtype must be None or 'bfloat16'"):
        cursor_of([3]).argmax(row, dtype=dtype)
    assert sys.getrefcount(row) == 2


def test_dtype_must_fit_the_row():
    for form in (np.zeros(V, np.float32), np.zeros(V, np.float16), np.zeros(V, "i2")):
        with pytest.raises(InvalidType, match="logits must be"):
            cursor_of([3]).argmax(form, dtype="bfloat16")


@pytest.mark.parametrize(
    "logits", [{3: -65504, 5: 65504}, dict.fromkeys(range(8), -65504)]
)
def test_fc029_the_mask_fits_half_precision(logits):
    row = np.zeros(8, np.float16)
    for token, value in logits.items():
        row[token] = value
    cursor = cursor_of([3], 8)
    assert cursor.argmax(row) == 3
    cursor.mask(row)
    assert row[3] == -65504
    assert np.isneginf(np.delete(row, 3)).all()


def test_fc030_quantized_logits_are_refused():
    row = np.array([-128, 127, -128, 10, -20], np.int8)
    for kernel in kernels(cursor_of([0, 2], 5)):
        with pytest.raises(InvalidType, match=r"int8 .*dequantize it to float32"):
            kernel(row)


def test_every_half_float():
    """All 65,536 of each kind read as NumPy reads them, through lse of one value."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    half = bits.view(np.float16)
    for rows, exact, dtype in (
        (half, half.astype(np.float32), None),
        (bits, (bits.astype(np.uint32) << 16).view(np.float32), "bfloat16"),
    ):
        exact = np.where(np.isnan(exact), -math.inf, exact)
        got = [log_sum_exp(rows[i : i + 1], dtype) for i in range(1 << 16)]
        np.testing.assert_array_equal(np.array(got, np.float32), exact)


def test_log_sum_exp_of_half_floats_and_gaps():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5000) * 5
    for kind in KINDS:
        for step in (1, 3, -1):
            row = make_row(values, kind, step)
            exact = math.log(np.exp(row.values.astype(float)).sum())
            assert abs(log_sum_exp(row.form, row.dtype) - exact) < 2e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 2])
def test_infinite_logits_are_counted_in_every_form(kind, step):
    values = np.zeros(600)
    values[[3, 5, 599]] = math.inf
    row = make_row(values, kind, step)
    got = cursor_of([3, 4], 600).logprobs(row.form, True, dtype=row.dtype)
    np.testing.assert_allclose(got, [-math.log(3), -math.inf])
