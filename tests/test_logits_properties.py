"""The kernels against the reference, over every form of row and every point."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eliza import Trie, argmax_batch, bitmask_batch, mask_batch
from eliza.errors import NoCandidateError
from eliza.reference import Reference
from rows import bits_of, rows
from test_trie_properties import EXITS, V, dense, named, points, sequences, walk


def log_softmax(x, among):
    """Log-softmax in float64; NaN is -inf; those at +inf share everything."""
    x = np.where(np.isnan(x), -math.inf, x).astype(np.float64)
    among = np.where(np.isnan(among), -math.inf, among).astype(np.float64)
    infinite = among == math.inf
    if infinite.any():
        return np.where(x == math.inf, -math.log(infinite.sum()), -math.inf)
    top = among.max()
    return x - (top + math.log(np.exp(among - top).sum()))


@settings(max_examples=400)
@given(st.one_of(sequences, dense), rows(V), st.data())
def test_kernels_agree(ids, row, data):
    ref = Reference(named(ids), EXITS)
    trie = Trie.from_tokens(named(ids), n_vocab=V, exits=EXITS)
    path = data.draw(st.sampled_from(points(ref)))
    cursor = walk(trie, path)
    before = row.form.copy()
    kwargs = {"dtype": row.dtype}
    if cursor.done:
        for kernel in (cursor.argmax, cursor.mask, cursor.logprobs):
            with pytest.raises(NoCandidateError, match="complete"):
                kernel(row.form, **kwargs)
        with pytest.raises(NoCandidateError, match="complete"):
            cursor.bitmask()
        np.testing.assert_array_equal(bits_of(row.form), bits_of(before))
        return
    allowed = sorted(ref.allowed(path))
    best = ref.argmax(path, row.values)
    if best is None:
        for kernel in (cursor.argmax, cursor.logprobs):
            with pytest.raises(NoCandidateError, match="NaN or -inf"):
                kernel(row.form, **kwargs)
    else:
        assert cursor.argmax(row.form, **kwargs) == best
        for whole in (False, True):
            got = cursor.logprobs(row.form, whole, **kwargs)
            among = row.values[:V] if whole else row.values[allowed]
            np.testing.assert_allclose(
                got, log_softmax(row.values[allowed], among), rtol=1e-6, atol=1e-6
            )
    np.testing.assert_array_equal(bits_of(row.form), bits_of(before))
    cursor.mask(row.form, **kwargs)
    np.testing.assert_array_equal(bits_of(row.form[allowed]), bits_of(before[allowed]))
    assert np.isneginf(np.delete(row.read(), allowed)).all()
    bits = np.unpackbits(cursor.bitmask().view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == allowed


@given(dense, st.data())
def test_batches_do_what_single_calls_do(ids, data):
    """Some rows without a cursor, some with a subset, some where a choice may end."""
    trie = Trie.from_tokens(named(ids), n_vocab=V, exits=EXITS)
    ref = Reference(named(ids), EXITS)
    inner = [path for path in points(ref) if ref.leaf(path) is None]
    n = data.draw(st.integers(0, 6))
    cursors = []
    for _ in range(n):
        if data.draw(st.booleans()):
            cursors.append(None)
        elif data.draw(st.booleans()):
            cursors.append(trie.cursor(allow=[data.draw(st.integers(0, len(ids) - 1))]))
        else:
            cursors.append(walk(trie, data.draw(st.sampled_from(inner))))
    length = data.draw(st.integers(V, V + 3))
    row = rows(length).filter(lambda row: len(row.form) == length)
    table = [data.draw(row) for _ in range(n)]
    for kind in ("float32", "float16"):
        block = np.array([r.values for r in table], kind).reshape(n, length)
        block = block[:, ::-1][:, ::-1] if n % 2 else np.asfortranarray(block)
        check_batch(cursors, block)


def check_batch(cursors, block):
    usable = True
    expected = np.full(len(cursors), -1, np.int32)
    masked = block.copy()
    for i, cursor in enumerate(cursors):
        if cursor is None:
            continue
        try:
            expected[i] = cursor.argmax(block[i])
        except NoCandidateError:
            usable = False
        cursor.mask(masked[i])
    if usable:
        got = argmax_batch(block, cursors)
        assert got.dtype == np.int32
        assert got.tolist() == expected.tolist()
    else:
        with pytest.raises(NoCandidateError, match=r"row \d+: every allowed id"):
            argmax_batch(block, cursors)
    mask_batch(block, cursors)
    np.testing.assert_array_equal(bits_of(block), bits_of(masked))
    words = np.full((len(cursors), 2), 7, np.int32)
    bitmask_batch(words, cursors)
    for got, cursor in zip(words, cursors, strict=True):
        single = np.full(2, 7, np.int32)
        if cursor is not None:
            cursor.bitmask(single)
        np.testing.assert_array_equal(got, single)
