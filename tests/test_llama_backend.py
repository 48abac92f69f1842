"""Decoding with llama.cpp, on a small f32 model.

The oracle is llama.cpp itself, used in the plainest way: the whole history in one
fresh sequence. Everything else (pieces, rows, trees, cuts, neighbours) must agree with
it within rounding.
"""

import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eliza.backends.base import TreeRoom
from eliza.backends.llama_cpp import LlamaBackend
from eliza.errors import (
    BackendError,
    Cancelled,
    Closed,
    ContextOverflow,
    InvalidArgument,
    NotSupported,
)
from tiny import tiny_gguf

pytest.importorskip("llama_cpp")

TOLERANCE = 1e-4
EXACT = {"n_threads": 1, "kv_type": "f32"}
N_VOCAB = 372
RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def backend(path):
    with LlamaBackend(path, **EXACT) as backend:
        yield backend


@pytest.fixture(scope="module")
def truth(backend):
    known = {}

    def row_after(history):
        key = tuple(int(i) for i in history)
        if key not in known:
            sequence = backend.open()
            sequence.decode(key)
            known[key] = sequence.logits()
            sequence.close()
        return known[key]

    return row_after


@pytest.fixture
def sequence(backend):
    sequence = backend.open()
    yield sequence
    sequence.close()


@pytest.fixture
def recurrent(tmp_path):
    path = tiny_gguf(tmp_path / "mamba.gguf", arch="mamba")
    with LlamaBackend(path, **EXACT, n_batch=16) as backend:
        yield backend


def some_ids(n):
    return RNG.integers(3, N_VOCAB, n).tolist()


def assert_row(row, expected):
    assert row.dtype == np.float32
    np.testing.assert_allclose(row, expected, rtol=0, atol=TOLERANCE)


# One chain


def test_one_by_one_at_once_and_with_all_rows(backend, sequence, truth):
    """R12: how a history is divided into decodes does not show."""
    ids = some_ids(60)
    for i in ids:
        sequence.decode([i])
    assert_row(sequence.logits(), truth(ids))
    many = backend.open()
    many.decode_many(ids)
    for i in range(len(ids)):
        assert_row(many.logits(i), truth(ids[: i + 1]))
    assert sequence.position == many.position == 60
    many.close()


def test_rows_are_far_apart(truth):
    """The comparisons above would fail if a token were missing, doubled or moved."""
    ids = some_ids(20)
    for other in (ids[1:], [*ids, ids[-1]], [ids[1], ids[0], *ids[2:]], [4, *ids[1:]]):
        assert np.abs(truth(ids) - truth(other)).max() > 0.05


@pytest.mark.parametrize("n_batch", [8, 512])
@pytest.mark.parametrize("n", [513, 600, 5000])
def test_fc122_more_ids_than_fit_into_one_batch(path, n, n_batch):
    ids = np.random.default_rng(n).integers(3, N_VOCAB, n)
    rows = []
    for size in (n_batch, 128):
        with LlamaBackend(path, n_ctx=5200, n_batch=size, **EXACT) as backend:
            sequence = backend.open()
            sequence.decode(ids)
            assert sequence.position == n
            rows.append(sequence.logits())
    assert_row(rows[0], rows[1])


def test_truncate_and_go_on(sequence, truth):
    ids = some_ids(40)
    sequence.decode(ids)
    for keep in (39, 20, 20, 1, 0):
        sequence.truncate(keep)
        assert sequence.position == keep
        with pytest.raises(InvalidArgument, match="no logits"):
            sequence.logits_window()
        other = some_ids(7)
        sequence.decode(other)
        assert_row(sequence.logits(), truth(ids[:keep] + other))
        sequence.truncate(keep)
    with pytest.raises(InvalidArgument, match=r"n is 1; it lies in \[0, 0\]"):
        sequence.truncate(1)
    with pytest.raises(InvalidArgument, match="n is -1"):
        sequence.truncate(-1)


def test_fc043_sequences_side_by_side(backend, truth):
    """R6: stepped in turn, each sees only its own history, and its rows stay."""
    histories = [some_ids(12) for _ in range(3)]
    sequences = [backend.open() for _ in histories]
    for step in range(12):
        rows = [truth(ids[: step + 1]) for ids in histories]
        for sequence, ids in zip(sequences, histories, strict=True):
            sequence.decode([ids[step]])
        for sequence, row in zip(sequences, rows, strict=True):
            assert_row(sequence.logits_window(), row)
    sequences[0].truncate(6)
    sequences[1].close()
    sequences[2].decode([5])
    assert_row(sequences[2].logits(), truth([*histories[2], 5]))
    sequences[0].decode([9])
    assert_row(sequences[0].logits(), truth([*histories[0][:6], 9]))
    for sequence in sequences:
        sequence.close()


# Rows


def test_a_window_shows_the_last_decode_and_a_copy_stays(sequence, truth):
    sequence.decode([5, 6])
    window, copy = sequence.logits_window(), sequence.logits()
    np.testing.assert_array_equal(window, copy)
    sequence.decode([7])
    assert_row(copy, truth([5, 6]))
    assert not np.shares_memory(window, copy)


def test_fc053_rows_that_were_not_asked_for(sequence):
    with pytest.raises(InvalidArgument, match="no logits"):
        sequence.logits_window()
    sequence.decode([5, 6, 7])
    for i in (1, -1, 2**31):
        with pytest.raises(InvalidArgument, match=r"no logits for row"):
            sequence.logits_window(i)
    sequence.decode_many([5, 6, 7])
    sequence.logits(2)
    with pytest.raises(InvalidArgument, match=r"rows are \[0, 3\)"):
        sequence.logits(3)


def test_more_rows_than_can_be_had(sequence):
    assert sequence.max_rows == 128
    with pytest.raises(InvalidArgument, match=r"129 rows .* at most 128"):
        sequence.decode_many([5] * 129)
    with pytest.raises(InvalidArgument, match=r"129 rows .* at most 128"):
        sequence.decode_tree([5] * 129, [-1] * 129)
    assert sequence.position == 0
    sequence.decode_many([5] * 128)
    assert sequence.position == 128


# Refusals


BAD_IDS = [[-1], [N_VOCAB], [2**31 - 1], [2**40], [2**64], [5, -1], [], [[1, 2]], [1.0]]
BAD_IDS += [["7"], [None], [True], np.array([2**64 - 1], np.uint64), [[1], [2, 3]]]


@pytest.mark.parametrize("ids", BAD_IDS, ids=repr)
def test_fc037_bad_ids(sequence, truth, ids):
    """Refused before the runtime sees them; nothing changes, not even the rows."""
    sequence.decode([5, 6])
    for call in (sequence.decode, sequence.decode_many):
        with pytest.raises(ValueError):
            call(ids)
    with pytest.raises(ValueError):
        sequence.decode_tree(ids, [-1] * len(ids))
    assert sequence.position == 2
    assert_row(sequence.logits(), truth([5, 6]))
    sequence.decode([7])
    assert_row(sequence.logits(), truth([5, 6, 7]))


def test_a_bad_id_is_named(sequence):
    with pytest.raises(InvalidArgument, match=r"ids\[2\] is 372; .* \[0, 372\)"):
        sequence.decode([1, 2, N_VOCAB, -1])


@pytest.mark.parametrize("parents", [[0, -1], [-1, 1], [-2, -1], [-1], [-1, 2**40]])
def test_bad_parents(sequence, parents):
    with pytest.raises(InvalidArgument, match="parent"):
        sequence.decode_tree([5, 6], parents)
    assert sequence.tree_room() == TreeRoom(nodes=128, branches=255)


def test_numpy_ids_of_any_width(sequence, truth):
    for dtype in (np.uint8, np.int32, np.uint64):
        sequence.truncate(0)
        sequence.decode(np.array([5, 6], dtype))
        assert_row(sequence.logits(), truth([5, 6]))


def test_overflow_leaves_everything_as_it_was(path, truth):
    with LlamaBackend(path, n_ctx=40, n_batch=16, **EXACT) as backend:
        one, two = backend.open(), backend.open()
        ids = some_ids(30)
        one.decode(ids)
        with pytest.raises(ContextOverflow, match=r"11 ids .* 30 of 40 cells"):
            one.decode(some_ids(11))
        with pytest.raises(ContextOverflow, match="in 2 sequences"):
            two.decode_many(some_ids(11))
        two.decode(some_ids(8))
        assert (one.position, two.position) == (30, 8)
        assert one.tree_room().nodes == two.tree_room().nodes == 2
        with pytest.raises(ContextOverflow):
            one.decode_tree([5, 6, 7], [-1, -1, -1])
        one.decode_tree([5, 6], [-1, -1])
        assert_row(one.logits(1), truth([*ids, 6]))
        with pytest.raises(ContextOverflow):
            two.decode([5])
        one.decode([7, 8])  # in place of the tree
        assert_row(one.logits(), truth([*ids, 7, 8]))
        two.close()
        one.decode(some_ids(8))
        assert one.position == 40


# Trees


@st.composite
def growing_trees(draw):
    """Batches of (ids, parents); a parent may be of any earlier batch."""
    batches, n = [], 0
    for _ in range(draw(st.integers(1, 4))):
        size = draw(st.integers(1, 9))
        ids = draw(st.lists(st.integers(3, N_VOCAB - 1), min_size=size, max_size=size))
        parents = [draw(st.integers(-1, n + i - 1)) for i in range(size)]
        batches.append((ids, parents))
        n += size
    return batches


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    prompt=st.lists(st.integers(3, N_VOCAB - 1), max_size=5),
    batches=growing_trees(),
    again=growing_trees(),
)
def test_a_tree_is_its_chains(backend, truth, prompt, batches, again):
    """R4: each node's row is that of the path to it; again after a clearing."""
    sequence = backend.open()
    if prompt:
        sequence.decode(prompt)
    for tree in (batches, again):
        paths = []
        for ids, parents in tree:
            sequence.decode_tree(ids, parents)
            for i, (token, parent) in enumerate(zip(ids, parents, strict=True)):
                paths.append([*(paths[parent] if parent >= 0 else []), token])
                # A copy: a window would show the row that `truth` decodes.
                assert_row(sequence.logits(i), truth(prompt + paths[-1]))
        assert sequence.position == len(prompt)
        sequence.clear_tree()
    sequence.decode([9])
    assert_row(sequence.logits(), truth([*prompt, 9]))
    sequence.close()
    assert len(backend._context.free_ids) == 256


def test_any_change_of_the_timeline_forgets_the_tree(sequence, truth):
    changes = [
        lambda: sequence.decode([9]),
        lambda: sequence.decode_many([9]),
        lambda: sequence.truncate(sequence.position),
        sequence.clear_tree,
    ]
    sequence.decode([5])
    for change in changes:
        sequence.decode_tree([6, 7], [-1, 0])
        change()
        assert sequence.tree_room() == TreeRoom(nodes=128, branches=255)
        with pytest.raises(InvalidArgument, match="parents"):
            sequence.decode_tree([8], [0])
    assert sequence.position == 3
    sequence.decode_tree([8], [-1])
    assert_row(sequence.logits(), truth([5, 9, 9, 8]))


def test_clearing_no_tree_leaves_the_row(sequence, truth):
    sequence.decode([5, 6])
    sequence.clear_tree()
    assert_row(sequence.logits(), truth([5, 6]))


def test_branches_run_out_before_the_runtime_does(path):
    with LlamaBackend(path, n_batch=200, **EXACT) as backend:
        first, sequence = backend.open(), backend.open()
        assert sequence.tree_room() == TreeRoom(nodes=200, branches=254)
        sequence.decode_tree([5] * 200, [-1] * 200)
        assert sequence.tree_room() == TreeRoom(nodes=200, branches=54)
        with pytest.raises(InvalidArgument, match="more than 54 new branches"):
            sequence.decode_tree([5] * 55, [-1] * 55)
        sequence.decode_tree([6] * 200, range(200))  # each takes its parent's id over
        sequence.decode_tree([5] * 54, [-1] * 54)
        assert sequence.tree_room().branches == first.tree_room().branches == 0
        sequence.clear_tree()
        assert sequence.tree_room().branches == 254


def test_all_sequences_in_use(path):
    with LlamaBackend(path, **EXACT) as backend:
        sequences = [backend.open() for _ in range(256)]
        with pytest.raises(BackendError, match="all 256 sequences"):
            backend.open()
        sequences[-1].decode([5])
        sequences[0].close()
        backend.open().decode([5])


# Cancelling and failures


def stop_at(n, error):
    """Return an on_piece that raises at its n-th call, and its count."""
    count = []

    def on_piece():
        count.append(None)
        if len(count) == n:
            raise error

    return on_piece, count


@pytest.mark.parametrize("n", [1, 2, 4])
def test_fc083_cancel_between_the_pieces_of_a_decode(sequence, truth, n):
    ids = some_ids(10)
    sequence.decode(ids)
    sequence.on_piece, count = stop_at(n, Cancelled("stop"))
    with pytest.raises(Cancelled):
        sequence.decode(some_ids(128 * 4))
    assert (len(count), sequence.position) == (n, 10)
    sequence.on_piece, _ = stop_at(1, Cancelled("stop"))
    with pytest.raises(Cancelled):
        sequence.decode_tree([5], [-1])
    sequence.on_piece = None
    sequence.decode([9])
    assert_row(sequence.logits(), truth([*ids, 9]))


def test_pieces_are_even(sequence):
    """No remainder of one id: single ids are computed on another path."""
    sizes = []
    run = sequence._context.run

    def spy(owner, tokens, *rest):
        sizes.append(len(tokens))
        run(owner, tokens, *rest)

    sequence._context.run = spy
    try:
        sequence.decode([5] * 129)
        sequence.decode([5] * 257)
    finally:
        del sequence._context.run
    assert sizes == [64, 65, 85, 86, 86]


def test_ctrl_c_between_pieces(sequence, truth):
    sequence.decode([5])
    sequence.on_piece = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        sequence.decode(some_ids(300))
    assert sequence.position == 1
    sequence.on_piece = None
    sequence.decode([6])
    assert_row(sequence.logits(), truth([5, 6]))


class FailingBatch:
    """A batch that is computed, and then reports a failure."""

    def __init__(self, batch, code, after=1):
        self.batch, self.code, self.left = batch, code, after

    def __getattr__(self, name):
        return getattr(self.batch, name)

    def decode(self, context):
        result = self.batch.decode(context)
        self.left -= 1
        return self.code if self.left == 0 else result


class Uncuttable:
    """The library, if it refuses to cut a sequence."""

    def __init__(self, lib, cut):
        self.lib, self.cut = lib, cut

    def __getattr__(self, name):
        return getattr(self.lib, name)

    def llama_memory_seq_rm(self, memory, id_, p0, p1):
        if not self.cut and p0 > 0:
            return False
        return self.lib.llama_memory_seq_rm(memory, id_, p0, p1)


@pytest.fixture
def failing(sequence):
    context = sequence._context
    lib, batch = context.lib, context._batch

    def fail(code, after=1, cut=True):
        context._batch = FailingBatch(batch, code, after)
        context.lib = Uncuttable(lib, cut)

    yield fail
    context.lib, context._batch = lib, batch


@pytest.mark.parametrize(
    ("code", "error"),
    [(1, ContextOverflow), (2, BackendError), (-1, BackendError), (-3, BackendError)],
)
def test_a_failed_decode_is_undone(sequence, truth, failing, code, error):
    """R7: what the runtime had computed of it is removed again."""
    ids = some_ids(20)
    sequence.decode(ids)
    for call in (
        lambda: sequence.decode(some_ids(300)),
        lambda: sequence.decode_many(some_ids(5)),
    ):
        failing(code)
        with pytest.raises(error):
            call()
        assert sequence.position == 20
    failing(code, after=2)
    with pytest.raises(error):
        sequence.decode(some_ids(300))
    assert (sequence.position, sequence.cells) == (20, 20)
    sequence.decode([9])
    assert_row(sequence.logits(), truth([*ids, 9]))


def test_a_failed_batch_leaves_the_tree(sequence, truth, failing):
    sequence.decode([5])
    sequence.decode_tree([6, 7, 8], [-1, 0, -1])
    room = sequence.tree_room()
    failing(-3)
    with pytest.raises(BackendError, match="returned -3"):
        sequence.decode_tree([11, 12, 13, 14], [1, 0, 2, -1])
    assert sequence.tree_room() == room
    sequence.decode_tree([11, 12, 13, 14], [1, 0, 2, -1])
    for i, path in enumerate([[6, 7, 11], [6, 12], [8, 13], [14]]):
        assert_row(sequence.logits(i), truth([5, *path]))


def test_a_sequence_that_cannot_be_cut_back_is_empty_and_says_so(
    sequence, truth, failing
):
    sequence.decode([5, 6])
    failing(2, cut=False)
    with pytest.raises(BackendError) as caught:
        sequence.decode([7])
    assert "empty" in caught.value.__notes__[0]
    assert sequence.position == 0
    sequence.decode([8, 9])
    with pytest.raises(BackendError, match="it is empty now"):
        sequence.truncate(1)
    assert sequence.position == 0
    sequence.decode([8])
    assert_row(sequence.logits(), truth([8]))


# A model that keeps no past states


def test_recurrent_models_cannot_be_cut(recurrent):
    assert not recurrent.capabilities.truncate
    assert not recurrent.capabilities.tree
    sequence, other = recurrent.open(), recurrent.open()
    ids = some_ids(40)
    sequence.decode(ids)
    row = sequence.logits()
    for n, i in enumerate(ids):
        other.decode([i])
        if n % 7 == 0:
            sequence.decode([i])  # a neighbour that goes on does not disturb
    assert_row(other.logits(), row)
    with pytest.raises(NotSupported, match="keeps no past states"):
        other.truncate(39)
    with pytest.raises(NotSupported, match="keeps no past states"):
        other.decode_tree([5], [-1])
    other.truncate(40)
    other.decode([5])
    assert other.position == 41
    other.truncate(0)
    other.decode(ids)
    assert_row(other.logits(), row)


def test_a_recurrent_model_is_empty_after_a_cancel(recurrent):
    sequence = recurrent.open()
    sequence.decode(some_ids(10))
    sequence.on_piece, _ = stop_at(1, Cancelled("stop"))
    with pytest.raises(Cancelled):
        sequence.decode(some_ids(40))
    assert sequence.position == 10  # nothing was computed yet
    sequence.on_piece, _ = stop_at(3, Cancelled("stop"))
    with pytest.raises(Cancelled) as caught:
        sequence.decode(some_ids(40))
    assert sequence.position == 0
    assert "empty" in caught.value.__notes__[0]


# The end


def test_use_after_close(path):
    """R8: closed in any order, any number of times."""
    backend = LlamaBackend(path, **EXACT)
    one, two = backend.open(), backend.open()
    one.decode([5])
    two.decode([6])
    one.close()
    one.close()
    backend.close()
    backend.close()
    two.close()
    two.close()
    three = backend
    for use in (
        three.open,
        lambda: three.vocab,
        lambda: one.decode([5]),
        lambda: one.logits(),
        lambda: two.decode_tree([5], [-1]),
        lambda: two.logits_window(),
        two.clear_tree,
        two.tree_room,
        lambda: two.truncate(0),
    ):
        with pytest.raises(Closed):
            use()


def test_a_sequence_of_a_closed_backend(path):
    backend = LlamaBackend(path, **EXACT)
    sequence = backend.open()
    sequence.decode([5])
    backend.close()
    for use in (lambda: sequence.decode([5]), sequence.logits, sequence.logits_window):
        with pytest.raises(Closed, match="load the model again"):
            use()


def test_closed_while_it_decodes(path):
    """From on_piece, that is in the middle: Closed, and no use of freed memory."""
    backend = LlamaBackend(path, n_batch=8, **EXACT)
    sequence = backend.open()
    sequence.decode([5])
    sequence.on_piece = backend.close
    with pytest.raises(Closed):
        sequence.decode(some_ids(30))
    backend = LlamaBackend(path, n_batch=8, **EXACT)
    sequence = backend.open()
    sequence.on_piece = sequence.close
    with pytest.raises(Closed):
        sequence.decode_tree([5, 6], [-1, -1])
    backend.open().decode([5])
    backend.close()


def test_close_from_another_thread_waits(path):
    backend = LlamaBackend(path, n_batch=8, **EXACT)
    sequence = backend.open()
    pieces = []
    closer = threading.Thread(target=backend.close)

    def on_piece():
        pieces.append(None)
        if len(pieces) == 2:
            closer.start()

    sequence.on_piece = on_piece
    sequence.decode(some_ids(200))
    assert (sequence.position, len(pieces)) == (200, 25)
    closer.join(10)
    with pytest.raises(Closed):
        sequence.decode([5])


def test_fc080_threads_with_a_sequence_each(backend, truth):
    """Calls queue, and a row that is copied out is that of one's own decode."""
    histories = [some_ids(25) for _ in range(8)]
    expected = [[truth(ids[: n + 1]) for n in range(25)] for ids in histories]
    wrong = []

    def work(ids, rows):
        sequence = backend.open()
        for i, row in zip(ids, rows, strict=True):
            sequence.decode([i])
            if np.abs(sequence.logits() - row).max() > TOLERANCE:
                wrong.append(i)
        sequence.close()

    threads = [
        threading.Thread(target=work, args=case)
        for case in zip(histories, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_forgotten_sequences_give_their_cells_back(path):
    with LlamaBackend(path, n_ctx=64, **EXACT) as backend:
        for _ in range(300):
            sequence = backend.open()
            sequence.decode([5] * 20)
            sequence.decode_tree([6, 7], [-1, -1])
            del sequence
            gc.collect(0)
        assert backend.open().tree_room() == TreeRoom(nodes=64, branches=255)


@pytest.mark.parametrize("n_ctx", [100, 60])
def test_a_restored_state_is_counted_once(path, n_ctx):
    """Whether or not there is room for both while it is put in."""
    with LlamaBackend(path, n_ctx=n_ctx, **EXACT) as backend:
        sequence = backend.open()
        sequence.decode(some_ids(40))
        state = sequence.save()
        for _ in range(5):
            sequence.restore(state, 40)
            assert backend._context.room() == n_ctx - 40
            assert sequence.tree_room().nodes == n_ctx - 40
            sequence.decode([5])
            assert backend._context.room() == n_ctx - 41
        sequence.close()
        assert backend._context.room() == n_ctx
        assert backend.open().tree_room() == TreeRoom(nodes=n_ctx, branches=255)


FORK = """
import os, sys
from eliza.backends.llama_cpp import LlamaBackend
from eliza.errors import BackendError
backend = LlamaBackend(sys.argv[1])
sequence = backend.open()
sequence.decode([5, 6])
if (child := os.fork()) == 0:
    try:
        sequence.decode([7])
    except BackendError as error:
        os._exit(17 if "another process" in str(error) else 1)
    os._exit(0)
sequence.decode([7])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told(path):
    """K30: the threads that compute are not there; it must not hang."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", FORK, path], timeout=60, check=False
    )
    assert done.returncode == 17
