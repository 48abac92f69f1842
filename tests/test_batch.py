"""The batch forms: what is touched, what is refused; failures change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from eliza import Trie, argmax_batch, bitmask_batch, mask_batch
from eliza.errors import InvalidArgument, InvalidType, NoCandidateError

V = 40


def trie_of(*sequences):
    return Trie.from_tokens({str(i): ids for i, ids in enumerate(sequences)}, n_vocab=V)


def test_fc038_masks_do_not_leak():
    trie = trie_of([10, 11, 12], [20, 21])
    a, b = trie.cursor(), trie.cursor()
    at_root = np.zeros(2, np.int32)
    at_root[0] = 1 << 10 | 1 << 20
    kept = a.bitmask()
    a.accept(10)
    a.accept(11)
    assert kept.tolist() == at_root.tolist()
    assert b.bitmask().tolist() == at_root.tolist()
    rows = np.ones((3, V), np.float32)
    words = np.full((3, 2), -1, np.int32)
    mask_batch(rows, [a, b, None])
    bitmask_batch(words, [a, b, None])
    assert np.flatnonzero(rows[0] == 1).tolist() == [12]
    assert np.flatnonzero(rows[1] == 1).tolist() == [10, 20]
    assert (rows[2] == 1).all()
    assert words.tolist() == [[1 << 12, 0], at_root.tolist(), [-1, -1]]
    # The same buffer again: what a strict mask left does not stay.
    bitmask_batch(words, [b, b, None])
    assert words[0].tolist() == at_root.tolist()
    assert b.bitmask(words[0]) is not None


def test_fc045_each_constraint_stays_with_its_row():
    trie = trie_of([10, 11], [20, 21])
    one, two = trie.cursor(), trie.cursor()
    one.accept(10)
    two.accept(20)
    rows = np.zeros((3, V), np.float32)
    assert argmax_batch(rows, [one, None, two]).tolist() == [11, -1, 21]
    assert argmax_batch(rows[:2], [one, two]).tolist() == [11, 21]
    assert argmax_batch(rows, [None, two, one]).tolist() == [-1, 21, 11]
    assert argmax_batch(rows[:2], [None, None]).tolist() == [-1, -1]
    assert argmax_batch(rows[:0], []).tolist() == []


def test_fc128_ties_go_to_the_lowest_id():
    rows = np.ones((3, 512), np.float32)
    orders = ([5, 256, 300], [300, 5, 256], [256, 300, 5])
    cursors = [
        Trie.from_tokens({str(i): [i] for i in ids}, n_vocab=512).cursor()
        for ids in orders
    ]
    assert argmax_batch(rows, cursors).tolist() == [5, 5, 5]


def test_one_row_for_all():
    """A row repeated without copies, as np.broadcast_to makes it."""
    cursors = [trie_of([i], [i + 1]).cursor() for i in range(20)]
    row = np.arange(V, dtype=np.float32)
    got = argmax_batch(np.broadcast_to(row, (20, V)), cursors)
    assert got.tolist() == list(range(1, 21))


@pytest.mark.parametrize("call", [argmax_batch, mask_batch])
@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "message"),
    [
        ((2, V), np.float32, InvalidArgument, "there are 2 rows, but 3 cursors"),
        ((3, V - 1), np.float32, InvalidArgument, r"at least 40 long, .*\(3, 39\)"),
        ((3 * V,), np.float32, InvalidArgument, r"2-D, .*shape \(120,\)"),
        ((1, 3, V), np.float32, InvalidArgument, r"2-D, .*shape \(1, 3, 40\)"),
        ((3, V), np.float64, InvalidType, r"float64 .*\.astype"),
    ],
)
def test_rows_are_checked(call, shape, dtype, kind, message):
    cursors = [trie_of([1], [2]).cursor() for _ in range(3)]
    with pytest.raises(kind, match=message):
        call(np.zeros(shape, dtype), cursors)


def test_cursors_are_checked():
    cursor = trie_of([1], [2]).cursor()
    rows = np.zeros((2, V), np.float32)
    words = np.zeros((2, 2), np.int32)
    for call, target in ((argmax_batch, rows), (mask_batch, rows)):
        with pytest.raises(InvalidType, match=r"cursors\[1\]: expected a Cursor or No"):
            call(target, [cursor, 7])
    done = cursor.copy()
    done.accept(1)
    for call, target in (
        (argmax_batch, rows),
        (mask_batch, rows),
        (bitmask_batch, words),
    ):
        with pytest.raises(NoCandidateError, match=r"cursors\[1\]: .*complete.*None"):
            call(target, [cursor, done])
    assert (rows == 0).all()
    assert (words == 0).all()


def test_a_row_without_candidates_is_named():
    cursors = [trie_of([1], [2]).cursor() for _ in range(3)]
    rows = np.zeros((3, V), np.float32)
    rows[1, 1:3] = [np.nan, -np.inf]
    with pytest.raises(NoCandidateError, match="row 1: every allowed id"):
        argmax_batch(rows, cursors)


@pytest.mark.parametrize(
    ("out", "kind"),
    [
        (np.zeros(1, np.int32), InvalidArgument),
        (np.zeros((1, 2), np.int32), InvalidArgument),
        (np.zeros(4, np.int32)[::2], InvalidArgument),
        (np.frombuffer(bytes(8), np.int32), InvalidArgument),
        (np.zeros(2, np.int64), InvalidType),
        (np.zeros(2, np.float32), InvalidType),
        ([0, 0], InvalidType),
    ],
)
def test_words_are_checked(out, kind):
    cursor = trie_of([1], [2]).cursor()
    with pytest.raises(
        kind, match=r"a bit mask must be int32, 1-D, .* at least 2 words"
    ):
        cursor.bitmask(out)
    table = out[None] if isinstance(out, np.ndarray) else [out]
    with pytest.raises(
        kind, match=r"a bit mask must be int32, 2-D, one row per cursor"
    ):
        bitmask_batch(table, [cursor])


@pytest.mark.parametrize("n_vocab", [1, 31, 32, 33, 64, 65])
def test_words_at_their_borders(n_vocab):
    ids = sorted({0, n_vocab // 2, n_vocab - 1})
    trie = Trie.from_arrays(ids, range(len(ids) + 1), n_vocab=n_vocab)
    cursor = trie.cursor()
    words = cursor.bitmask()
    assert len(words) == (n_vocab + 31) // 32
    long = np.full(len(words) + 3, -1, np.int32)
    assert cursor.bitmask(long) is long
    for w in (words, long, cursor.bitmask(long.view(np.uint32))):
        bits = np.unpackbits(np.asarray(w).view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == ids
