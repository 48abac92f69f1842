"""The batch that is filled in C, and the ids that it takes."""

import ctypes
from ctypes import POINTER

import numpy as np
import pytest

from eliza.backends.base import ids_array
from eliza.backends.llama_batch import LlamaBatch, read_ids


def test_chain():
    batch = LlamaBatch(4)
    batch.chain(np.array([7, 8, 9], np.int32), 20, 3, False)
    assert batch.contents() == [
        (7, 20, [3], False),
        (8, 21, [3], False),
        (9, 22, [3], True),
    ]
    batch.chain(np.array([5, 6], np.int32), 0, 1, True)
    assert batch.contents() == [(5, 0, [1], True), (6, 1, [1], True)]


def test_a_tree_and_a_chain_after_it():
    batch = LlamaBatch(4)
    ids = np.array([5, 6, 7, 8], np.int32)
    batch.tree(ids, [1, 2, 2, 1], 10, [[2, 4], [2], [4], [9]])
    assert batch.contents() == [
        (5, 10, [2, 4], True),
        (6, 11, [2], True),
        (7, 11, [4], True),
        (8, 10, [9], True),
    ]
    batch.chain(ids, 3, 1, False)
    assert [owners for _, _, owners, _ in batch.contents()] == [[1]] * 4


@pytest.mark.parametrize("n", [0, 5])
def test_what_does_not_fit_is_refused(n):
    batch = LlamaBatch(4)
    ids = np.zeros(n, np.int32)
    with pytest.raises(ValueError, match=f"{n} tokens for a batch of 4"):
        batch.chain(ids, 0, 0, False)
    with pytest.raises(ValueError, match=f"{n} tokens for a batch of 4"):
        batch.tree(ids, [1] * n, 0, [[0]] * n)
    with pytest.raises(ValueError, match="3 tokens"):
        batch.tree(np.zeros(2, np.int32), [1] * 3, 0, [[0]] * 3)


@pytest.mark.parametrize("ids", [[0], [63, 5, 0], list(range(64))])
def test_ids_as_the_plain_reader_has_them(ids):
    array = read_ids(ids, 64)
    assert array.dtype == np.int32
    assert array.tolist() == ids == ids_array(ids, 64).tolist()


@pytest.mark.parametrize(
    "ids",
    [[], (1, 2), [1, True], [64], [-1], [1 << 70], [-(1 << 70)], [1.0], ["1"], None],
)
def test_all_else_is_left_to_the_plain_reader(ids):
    assert read_ids(ids, 64) is None


def test_a_batch_is_given_to_the_functions_it_was_made_with():
    seen = []

    class Batch(ctypes.Structure):
        _fields_ = (("n_tokens", ctypes.c_int32), ("token", POINTER(ctypes.c_int32)))
        _fields_ += tuple((name, ctypes.c_void_p) for name in ("embd", "pos"))
        _fields_ += tuple((name, ctypes.c_void_p) for name in ("n", "seq", "logits"))

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, Batch)
    def decode(context, batch):
        seen.append((context, batch.token[: batch.n_tokens]))
        return 7

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    def row_at(context, i):
        return context + i if i < 2 else None

    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in (decode, row_at)]
    batch = LlamaBatch(4, *addresses)
    batch.chain(np.array([5, 6], np.int32), 0, 1, False)
    assert batch.decode(1 << 40) == 7
    assert seen == [(1 << 40, [5, 6])]
    assert [batch.row_at(1 << 40, i) for i in range(3)] == [1 << 40, (1 << 40) + 1, 0]


def test_without_a_context_or_a_library_nothing_is_called():
    batch = LlamaBatch(4)
    for call in (lambda: batch.decode(8), lambda: batch.row_at(8, 0)):
        with pytest.raises(ValueError, match=r"made without llama\.cpp"):
            call()
    with pytest.raises(ValueError, match="no context"):
        LlamaBatch(4, 8, 8).decode(0)
