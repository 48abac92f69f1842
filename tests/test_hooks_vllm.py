"""The logits processor for vLLM, in a batch that is kept as vLLM keeps it.

Rows are removed, replaced, moved into gaps and swapped. Which classes of its interface
are used, `vllm_stand_in` says.
"""

import sys
from collections import UserList
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from eliza.errors import (
    BackendError,
    InvalidArgument,
    NoCandidateError,
    OffPathError,
)
from support import END, hashed
from vllm_stand_in import INTERFACE, imported

torch = pytest.importorskip("torch")

V = 64
LEAVES = {"a": [10, 11, 12], "b": [10, 11], "c": [20, 21], "d": [20, 22, 23]}


@pytest.fixture(scope="module")
def hook():
    with imported() as module:
        yield module


@pytest.fixture(scope="module")
def trie():
    return eliza.Trie.from_tokens(LEAVES, n_vocab=V)


@dataclass
class Request:
    args: dict | None
    prompt: list
    logits: object
    output: list = field(default_factory=list)
    cursor: object = None  # the oracle
    over: bool = False

    @property
    def params(self):
        return SimpleNamespace(extra_args=self.args)


class Batch:
    """A batch as vLLM keeps it: gaps are filled from the end, rows may be swapped."""

    def __init__(self, hook):
        self.hook = hook
        self.processor = hook.TrieLogitsProcessor(None, torch.device("cpu"), False)
        self.rows: list[Request] = []

    def update(self, removed=(), added=(), swap=None):
        move = self.hook.MoveDirectionality
        gaps = sorted(removed)
        rows: dict[int, Request] = dict(enumerate(self.rows))
        for i in gaps:
            del rows[i]
        out_added, moved = [], []
        for request in added:
            at = gaps.pop(0) if gaps else max(rows, default=-1) + 1
            rows[at] = request
            out_added.append((at, request.params, request.prompt, request.output))
        while gaps and gaps[0] < max(rows, default=-1):
            last, gap = max(rows), gaps.pop(0)
            rows[gap] = rows.pop(last)
            moved.append((last, gap, move.UNIDIRECTIONAL))
        if swap is not None and max(swap) < len(rows):
            a, b = swap
            rows[a], rows[b] = rows[b], rows[a]
            moved.append((a, b, move.SWAP))
        self.rows = [rows[i] for i in sorted(rows)]
        removed = sorted(removed, reverse=True)
        update = sys.modules[INTERFACE].BatchUpdate
        self.processor.update_state(
            update(len(self.rows), removed, out_added, moved)
            if removed or out_added or moved
            else None
        )

    def step(self):
        logits = np.stack([r.logits((*r.prompt, *r.output)) for r in self.rows])
        out = self.processor.apply(torch.tensor(logits))
        for row, request in zip(out, self.rows, strict=True):
            request.output.append(int(row.argmax()))


def expected(request):
    """Return what a request must have put out so far."""
    if request.args is None:
        cursor = None
    else:
        cursor = eliza.Trie.from_tokens(LEAVES, n_vocab=V).cursor(exits=[END])
    out = []
    for _ in request.output:
        row = request.logits((*request.prompt, *out))
        if cursor is None:
            out.append(int(row.argmax()))
        elif cursor.done:
            out.append(END)
        else:
            out.append(cursor.argmax(row))
            cursor.accept(out[-1])
    return out


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_fc_045_constraints_stay_with_their_requests(hook, data):
    """Rows added, removed, moved and swapped; some are free; some are resumed."""
    trie = eliza.Trie.from_tokens(LEAVES, n_vocab=V)
    args = hook.extra_args(trie, eog=[END])
    batch = Batch(hook)
    serial, resting = 0, []
    for _ in range(10):
        n = len(batch.rows)
        removed = data.draw(st.sets(st.integers(0, n - 1))) if n else set()
        gone = [batch.rows[i] for i in removed]
        added = []
        for _ in range(data.draw(st.integers(0 if n > len(removed) else 1, 3))):
            if resting and data.draw(st.booleans()):
                added.append(resting.pop())  # preempted, and now resumed
                continue
            serial += 1
            mine = args if data.draw(st.booleans()) else None
            added.append(Request(mine, [1, serial], hashed(serial, V)))
        resting += gone
        total = n - len(removed) + len(added)
        swap = None
        if total > 1 and data.draw(st.booleans()):
            places = st.integers(0, total - 1)
            swap = data.draw(st.tuples(places, places).filter(lambda s: s[0] != s[1]))
        batch.update(removed, added, swap)
        batch.step()
        for request in batch.rows:
            assert request.output == expected(request)


def test_rows_without_a_constraint_are_not_touched(hook, trie):
    batch = Batch(hook)
    batch.update(added=[Request(None, [1], hashed(1, V)), Request({}, [1], None)])
    logits = torch.arange(2.0 * V).reshape(2, V)
    assert batch.processor.apply(logits) is logits
    assert torch.equal(logits, torch.arange(2.0 * V).reshape(2, V))
    batch.update(added=[Request(hook.extra_args(trie, eog=[END]), [1], None)])
    logits = torch.zeros(3, V, dtype=torch.bfloat16)
    out = batch.processor.apply(logits)
    assert out is logits
    assert torch.isfinite(out[:2]).all()
    assert torch.isfinite(out[2]).nonzero().flatten().tolist() == [10, 20]
    assert batch.processor.is_argmax_invariant() is False
    assert batch.processor.needs_output_token_ids() is True


def test_a_request_that_takes_anothers_place(hook, trie):
    batch = Batch(hook)
    args = hook.extra_args(trie, eog=[END])
    batch.update(added=[Request(args, [1], None), Request(args, [1], None, [20])])
    update = sys.modules[INTERFACE].BatchUpdate
    batch.processor.update_state(
        update(2, [], [(0, SimpleNamespace(extra_args=None), [1], [])], [])
    )
    out = batch.processor.apply(torch.zeros(2, V))
    assert torch.isfinite(out[0]).all()
    assert torch.isfinite(out[1]).nonzero().flatten().tolist() == [21, 22]


def test_a_row_that_is_moved_over_another(hook, trie):
    batch = Batch(hook)
    args = hook.extra_args(trie, eog=[END])
    batch.update(added=[Request(args, [1], None), Request(args, [1], None, [20])])
    move = (1, 0, hook.MoveDirectionality.UNIDIRECTIONAL)
    update = sys.modules[INTERFACE].BatchUpdate
    batch.processor.update_state(update(2, [], [], [move]))
    out = batch.processor.apply(torch.zeros(2, V))
    assert torch.isfinite(out[0]).nonzero().flatten().tolist() == [21, 22]
    assert torch.isfinite(out[1]).all()


def test_errors(hook, trie):
    args = hook.extra_args(trie, eog=[END])
    batch = Batch(hook)
    request = Request(args, [1], None)
    batch.update(added=[request])
    for bad in (-np.inf, np.nan):
        logits = torch.zeros(1, V)
        logits[0, [10, 20]] = bad
        with pytest.raises(NoCandidateError, match="row 0"):
            batch.processor.apply(logits)
    with pytest.raises(InvalidArgument, match="64 ids"):
        batch.processor.apply(torch.zeros(1, V - 1))
    request.output.append(-1)  # asynchronous scheduling, not filled in
    with pytest.raises(BackendError, match="asynchronous"):
        batch.processor.apply(torch.zeros(1, V))
    request.output[:] = [11]
    with pytest.raises(OffPathError):
        batch.processor.apply(torch.zeros(1, V))


def test_what_travelled_is_kept(hook, trie):
    args = hook.extra_args(trie, eog=[END], exits=[3], allow=["a", "b"], after="end")
    batch = Batch(hook)
    batch.update(added=[Request(args, [1], None, [10, 11])])
    out = batch.processor.apply(torch.zeros(1, V))
    assert torch.isfinite(out[0]).nonzero().flatten().tolist() == [3, 12]


class Counted(UserList):
    """A list that counts how often it is looked at."""

    seen = 0

    def __getitem__(self, at):
        self.seen += len(range(*at.indices(len(self)))) if isinstance(at, slice) else 1
        return super().__getitem__(at)

    def __iter__(self):
        self.seen += len(self)
        return super().__iter__()


@pytest.mark.parametrize("after", ["end", "free"])
def test_fc_113_a_step_does_not_look_at_the_whole_output(hook, trie, after):
    """Also in free text after the choice, and long after it."""
    args = hook.extra_args(trie, eog=[END], exits=[END], after=after)
    batch = Batch(hook)
    request = Request(args, [1], None, Counted())
    batch.update(added=[request])
    for token in [20, 22, 23, *[END if after == "end" else 7] * 50]:
        batch.processor.apply(torch.zeros(1, V))
        request.output.append(token)
        request.output.seen = 0
        out = batch.processor.apply(torch.zeros(1, V))
        assert request.output.seen <= 6
    assert torch.isfinite(out).sum() == (1 if after == "end" else V)


def test_an_output_that_was_taken_back(hook, trie):
    args = hook.extra_args(trie, eog=[END])
    batch = Batch(hook)
    request = Request(args, [1], None)
    batch.update(added=[request])
    for output, ids in (
        ([], [10, 20]),
        ([20, 22], [23]),
        ([20], [21, 22]),
        ([10], [11]),  # another id in its place
        ([10, 11], [END, 12]),
        ([], [10, 20]),
        ([20, 21, END, END], [END]),
    ):
        request.output[:] = output
        for _ in range(2):
            out = batch.processor.apply(torch.zeros(1, V))
            assert torch.isfinite(out[0]).nonzero().flatten().tolist() == ids
    request.output[:] = [20, 21, 9]
    for _ in range(2):
        with pytest.raises(OffPathError):
            batch.processor.apply(torch.zeros(1, V))
