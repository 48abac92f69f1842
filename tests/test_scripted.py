"""The scripted backend: what tests of everything above the backends rest on."""

import threading

import numpy as np
import pytest

from eliza.backends.base import Capabilities, TreeRoom
from eliza.errors import (
    BackendError,
    Cancelled,
    Closed,
    ContextOverflow,
    InvalidArgument,
    NotSupported,
)
from eliza.testing import Call, ScriptedBackend


class Ids:
    n_vocab = 32


def hashed(history):
    """A row that any missing, doubled or moved id changes."""
    seed = [len(history), *history]
    return np.random.default_rng(seed).standard_normal(32)


def expected(history):
    return hashed(tuple(history)).astype(np.float32)


def make(logits=hashed, **options):
    return ScriptedBackend(Ids, logits, **options)


def test_rows_follow_the_history():
    backend = make()
    sequence = backend.open()
    sequence.decode([5, 6])
    np.testing.assert_array_equal(sequence.logits(), expected([5, 6]))
    sequence.decode_many([7, 8, 9])
    for i in range(3):
        np.testing.assert_array_equal(
            sequence.logits(i), expected([5, 6, 7, 8, 9][: 3 + i])
        )
    sequence.truncate(3)
    sequence.decode([1])
    np.testing.assert_array_equal(sequence.logits_window(), expected([5, 6, 7, 1]))
    assert sequence.history == (5, 6, 7, 1)


def test_a_tree_is_its_chains():
    sequence = make().open()
    sequence.decode([5])
    sequence.decode_tree([6, 7, 8], [-1, 0, -1])
    np.testing.assert_array_equal(sequence.logits(1), expected([5, 6, 7]))
    sequence.decode_tree([9, 10], [2, 3])
    np.testing.assert_array_equal(sequence.logits(0), expected([5, 8, 9]))
    np.testing.assert_array_equal(sequence.logits(1), expected([5, 8, 9, 10]))
    assert sequence.position == 1
    sequence.clear_tree()
    with pytest.raises(InvalidArgument, match="no logits"):
        sequence.logits()
    with pytest.raises(InvalidArgument, match="parents"):
        sequence.decode_tree([9], [0])
    sequence.decode([6])
    np.testing.assert_array_equal(sequence.logits(), expected([5, 6]))


def test_mappings_and_padding():
    sequence = make(lambda history: {3: 5.0, 39: 100.0}, width=40).open()
    sequence.decode([1])
    row = sequence.logits_window()
    assert row.shape == (40,)
    assert row.dtype == np.float32
    assert (row[3], row[39], row.sum()) == (5.0, 100.0, 105.0)
    sequence = make(lambda history: [1.0, 2.0]).open()
    sequence.decode([1])
    np.testing.assert_array_equal(sequence.logits(), [1.0, 2.0] + [0.0] * 30)
    with pytest.raises(InvalidArgument, match="n_vocab=32"):
        make(width=31)


def test_calls_are_noted():
    backend = make()
    one, two = backend.open(), backend.open()
    one.decode([5, 6])
    two.decode_many([7, 8])
    one.decode_tree([9, 10], [-1, 0])
    one.clear_tree()
    one.truncate(1)
    one.close()
    with pytest.raises(ValueError):
        two.decode([99])
    assert backend.calls == [
        Call("open", (), 0, 0, 0),
        Call("open", (), 0, 0, 1),
        Call("decode", (5, 6), 1, 0, 0),
        Call("decode_many", (7, 8), 2, 0, 1),
        Call("decode_tree", (9, 10), 2, 2, 0, (-1, 0)),
        Call("clear_tree", (), 0, 2, 0),
        Call("truncate", (), 0, 1, 0),
        Call("close", (), 0, 1, 0),
    ]


def test_fc053_rows_that_were_not_asked_for():
    sequence = make().open()
    with pytest.raises(InvalidArgument, match="no logits"):
        sequence.logits()
    sequence.decode([5, 6, 7])
    for i in (1, -1):
        with pytest.raises(InvalidArgument, match="no logits for row"):
            sequence.logits_window(i)


def test_a_kept_window_is_spoilt_by_any_decode():
    backend = make()
    one, two = backend.open(), backend.open()
    one.decode([5])
    window, copy = one.logits_window(), one.logits()
    assert np.isfinite(window).all()
    two.decode([6])
    assert np.isnan(window).all()
    np.testing.assert_array_equal(copy, expected([5]))
    np.testing.assert_array_equal(one.logits_window(), expected([5]))
    window = one.logits_window()
    one.decode_tree([7], [-1])
    assert np.isnan(window).all()


@pytest.mark.parametrize("ids", [[], [-1], [32], [2**40], [1.0], ["1"], [[1]]])
def test_fc037_bad_ids(ids):
    backend = make()
    sequence = backend.open()
    sequence.decode([5])
    for call in (sequence.decode, sequence.decode_many):
        with pytest.raises(ValueError):
            call(ids)
    with pytest.raises(ValueError):
        sequence.decode_tree(ids, [-1] * len(ids))
    assert len(backend.calls) == 2
    np.testing.assert_array_equal(sequence.logits(), expected([5]))


def test_limits():
    backend = make(n_ctx=6, max_rows=3)
    sequence = backend.open()
    assert sequence.max_rows == 3
    sequence.decode([1, 2])
    with pytest.raises(InvalidArgument, match=r"4 rows .* at most 3"):
        sequence.decode_many([1] * 4)
    with pytest.raises(ContextOverflow, match=r"7 ids .* context of 6"):
        sequence.decode([1] * 5)
    assert sequence.tree_room() == TreeRoom(nodes=3, branches=4)
    sequence.decode_tree([1, 2, 3], [-1, -1, 0])
    assert sequence.tree_room() == TreeRoom(nodes=1, branches=1)
    with pytest.raises(ContextOverflow):
        sequence.decode_tree([1, 2], [-1, -1])
    sequence.decode([3, 4, 5, 6])
    assert sequence.position == 6
    assert make().open().max_rows == (64 << 20) // (4 * 32)


def test_capabilities():
    backend = make(tree=False, truncate=False, search_delta=3.0)
    assert backend.capabilities == Capabilities(False, False, 3.0, save=True)
    sequence = backend.open()
    sequence.decode([1, 2])
    with pytest.raises(NotSupported):
        sequence.decode_tree([1], [-1])
    with pytest.raises(NotSupported):
        sequence.truncate(1)
    sequence.truncate(2)
    sequence.truncate(0)
    with pytest.raises(InvalidArgument):
        sequence.truncate(1)
    assert sequence.position == 0


def test_cancel_between_pieces_undoes_the_decode():
    backend = make(n_batch=4)
    sequence = backend.open()
    sequence.decode([5])
    pieces = []

    def on_piece():
        pieces.append(None)
        if len(pieces) == 3:
            raise Cancelled("stop")

    sequence.on_piece = on_piece
    with pytest.raises(Cancelled):
        sequence.decode([6] * 10)
    assert sequence.position == 1
    assert backend.calls[-1].ids == (5,)
    sequence.decode([7])
    np.testing.assert_array_equal(sequence.logits(), expected([5, 7]))


def test_a_script_that_raises_fails_the_decode():
    def logits(history):
        if history[-1] == 9:
            raise BackendError("as the script says")
        return hashed(history)

    sequence = make(logits).open()
    sequence.decode([5])
    for call in (
        lambda: sequence.decode([9]),
        lambda: sequence.decode_many([6, 9]),
        lambda: sequence.decode_tree([6, 9], [-1, 0]),
    ):
        with pytest.raises(BackendError, match="as the script says"):
            call()
        assert sequence.position == 1
    sequence.decode_tree([6], [-1])
    np.testing.assert_array_equal(sequence.logits(), expected([5, 6]))


def test_fc082_overlapping_calls_raise():
    entered, leave = threading.Event(), threading.Event()

    def slow(history):
        entered.set()
        assert leave.wait(10)
        return hashed(history)

    backend = make(slow)
    one, two = backend.open(), backend.open()
    thread = threading.Thread(target=one.decode, args=([5],))
    thread.start()
    assert entered.wait(10)
    for call in (
        lambda: two.decode([6]),
        lambda: one.decode_tree([6], [-1]),
        lambda: two.truncate(0),
        two.clear_tree,
        two.logits_window,
        backend.open,
    ):
        with pytest.raises(BackendError, match="overlap"):
            call()
    leave.set()
    thread.join(10)
    two.decode([6])
    np.testing.assert_array_equal(one.logits(), expected([5]))


def test_use_after_close():
    with make() as backend:
        sequence, other = backend.open(), backend.open()
        sequence.decode([5])
        sequence.close()
        sequence.close()
        with pytest.raises(Closed):
            sequence.logits()
        other.decode([5])
    backend.close()
    for use in (backend.open, lambda: other.decode([5]), other.logits_window):
        with pytest.raises(Closed):
            use()
