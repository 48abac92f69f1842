"""The logits processor for vLLM.

vLLM itself is some gigabytes and is not installed here. The stand-in below has the
classes of its version-1 interface as it publishes them (`BatchUpdate`, its builder's
rules, `MoveDirectionality`, `LogitsProcessor`) and a batch that is kept as vLLM keeps
it: rows are removed, replaced, moved into gaps and swapped. Where vLLM is installed its
own classes are used; and those of the file `interface.py` of an unpacked wheel, which
needs nothing but torch, where the variable ELIZA_VLLM names its folder.
"""

import base64
import importlib.util
import json
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from eliza.errors import (
    BackendError,
    InvalidArgument,
    NoCandidateError,
    NotSupported,
    OffPathError,
)
from support import END, choice_sets, hashed

torch = pytest.importorskip("torch")

INSTALLED = importlib.util.find_spec("vllm") is not None
INTERFACE = "vllm.v1.sample.logits_processor"
V = 64
LEAVES = {"a": [10, 11, 12], "b": [10, 11], "c": [20, 21], "d": [20, 22, 23]}


def stand_in():
    class MoveDirectionality(Enum):
        UNIDIRECTIONAL = auto()
        SWAP = auto()

    class LogitsProcessor(ABC):
        @classmethod
        def validate_params(cls, sampling_params):
            return None

        @abstractmethod
        def __init__(self, vllm_config, device, is_pin_memory): ...

        @abstractmethod
        def apply(self, logits): ...

        @abstractmethod
        def is_argmax_invariant(self): ...

        @abstractmethod
        def update_state(self, batch_update): ...

    @dataclass(frozen=True)
    class BatchUpdate:
        batch_size: int
        removed: list
        added: list
        moved: list

    names = ["vllm", "vllm.v1", "vllm.v1.sample", INTERFACE]
    modules = {name: ModuleType(name) for name in names}
    for cls in (LogitsProcessor, MoveDirectionality, BatchUpdate):
        setattr(modules[names[-1]], cls.__name__, cls)
    return modules


def of_a_wheel(folder):
    """Put the classes of the real interface into the modules of the stand-in."""
    name = INTERFACE
    sys.modules["vllm"].SamplingParams = object
    path = Path(folder, *name.split("."), "interface.py")
    spec = importlib.util.spec_from_file_location(f"{name}.interface", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for cls in ("LogitsProcessor", "MoveDirectionality", "BatchUpdate"):
        setattr(sys.modules[name], cls, getattr(module, cls))


@pytest.fixture(scope="module")
def hook():
    if INSTALLED:
        import eliza.hooks.vllm as module

        yield module
        return
    before = dict(sys.modules)
    sys.modules.update(stand_in())
    try:
        if "ELIZA_VLLM" in os.environ:
            of_a_wheel(os.environ["ELIZA_VLLM"])
        import eliza.hooks.vllm as module

        yield module
    finally:
        for name in set(sys.modules) - set(before):
            if name.startswith(("vllm", "eliza.hooks.vllm")):
                del sys.modules[name]


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


def test_extra_args_go_over_the_wire(hook, trie):
    """They are JSON, and are checked when a request comes in."""
    args = hook.extra_args(trie, eog=[END], exits=[3], allow=["a", "b"], after="end")
    again = json.loads(json.dumps(args))
    assert again == args
    validate = hook.TrieLogitsProcessor.validate_params
    validate(SimpleNamespace(extra_args=again))
    validate(SimpleNamespace(extra_args=None))
    validate(SimpleNamespace(extra_args={"other": 1}))
    batch = Batch(hook)
    batch.update(added=[Request(again, [1], None, [10, 11])])
    out = batch.processor.apply(torch.zeros(1, V))
    assert torch.isfinite(out[0]).nonzero().flatten().tolist() == [3, 12]
    good = args["eliza"]
    damaged = base64.b64encode(trie.to_bytes()[:-3]).decode()
    for wrong, error in (
        ({}, InvalidArgument),
        (5, InvalidArgument),
        (good | {"trie": "?"}, InvalidArgument),
        (good | {"trie": 7}, InvalidArgument),
        (good | {"trie": damaged}, InvalidArgument),
        (good | {"eog": []}, InvalidArgument),
        (good | {"eog": [V]}, InvalidArgument),
        (good | {"eog": [True]}, InvalidArgument),
        (good | {"after": "never"}, InvalidArgument),
        (good | {"allow": ["x"]}, InvalidArgument),
        (good | {"exits": []}, InvalidArgument),
        (good | {"more": 1}, InvalidArgument),
    ):
        with pytest.raises(error):
            validate(SimpleNamespace(extra_args={"eliza": wrong}))
    with pytest.raises(InvalidArgument):
        hook.extra_args(trie)
    with pytest.raises(InvalidArgument):
        hook.extra_args(trie, eog=[END], exits=[12])


def test_it_is_loaded_by_name(hook):
    """As vLLM does it: module, colon, class, which must be of vLLM's own class."""
    name = f"{hook.TrieLogitsProcessor.__module__}:{hook.TrieLogitsProcessor.__name__}"
    assert name == "eliza.hooks.vllm:TrieLogitsProcessor"
    base = sys.modules[INTERFACE].LogitsProcessor
    assert issubclass(hook.TrieLogitsProcessor, base)


def test_without_vllm_the_error_says_so(monkeypatch):
    if INSTALLED:
        pytest.skip("vLLM is installed")
    monkeypatch.delitem(sys.modules, "eliza.hooks.vllm", raising=False)
    for name in stand_in():
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(NotSupported, match="needs vLLM"):
        importlib.import_module("eliza.hooks.vllm")


@given(choice_sets())
@settings(max_examples=20, deadline=None)
def test_tries_of_former_requests_are_bounded(hook, leaves):
    for k in range(3):
        trie = eliza.Trie.from_tokens(leaves, n_vocab=V + k)
        hook.extra_args(trie, eog=[END])
        assert len(hook._tries) <= 128
