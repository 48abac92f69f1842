"""The hook for mlx-lm: with mlx where it is installed, else with a stand-in for it."""

import sys
from types import ModuleType

import numpy as np
import pytest

import eliza
from eliza.errors import InvalidArgument, NoCandidateError, OffPathError
from eliza.hooks.mlx_lm import logits_processor
from support import END, hashed

V = 64
LEAVES = {"a": [10, 11, 12], "b": [10, 11], "c": [20, 21], "d": [20, 22, 23]}


class FakeArray(np.ndarray):
    """As much of `mx.array` as the hook uses."""

    def astype(self, dtype):
        return super().astype(np.float32 if dtype == "bfloat16" else dtype)


def fake_mlx():
    core = ModuleType("mlx.core")
    core.array = lambda x: np.asarray(x).view(FakeArray)
    core.full = lambda shape, x, dtype: np.full(shape, x, dtype).view(FakeArray)
    core.float32, core.inf = np.float32, np.inf
    package = ModuleType("mlx")
    package.core = core
    return {"mlx": package, "mlx.core": core}


@pytest.fixture(params=["mlx", "stand-in"])
def mx(request, monkeypatch):
    if request.param == "mlx":
        return pytest.importorskip("mlx.core")
    for name, module in fake_mlx().items():
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules["mlx.core"]


@pytest.fixture
def trie():
    return eliza.Trie.from_tokens(LEAVES, n_vocab=V)


def left(logits):
    return np.flatnonzero(np.isfinite(np.array(logits).reshape(-1))).tolist()


def generate(mx, keep, logits_of, prompt, limit=8):
    """The loop of mlx-lm: the step after the last id is begun before it is known."""
    tokens = list(prompt)
    for _ in range(limit):
        row = mx.array(logits_of(tuple(tokens))[np.newaxis])
        row = keep(mx.array(np.array(tokens)), row)
        tokens.append(int(np.array(row).argmax()))
        if tokens[-1] == END:
            keep(mx.array(np.array(tokens)), mx.array(np.zeros((1, V), np.float32)))
            break
    return tokens


def greedy(trie, logits_of, prompt):
    cursor = trie.cursor(exits=[END])
    tokens = list(prompt)
    while not cursor.done:
        tokens.append(cursor.argmax(logits_of(tuple(tokens))))
        cursor.accept(tokens[-1])
    return cursor.name


def test_generations_equal_the_oracle(mx, trie):
    """FC-042: one object for prompts of 3, 50 and 1 ids, and a chat that goes on."""
    keep = logits_processor(trie, eog=[END])
    prompt = [1]
    for seed, prompt in enumerate([[1, 5, 6], [1, 5, 6, *range(3, 50)], [7], [1, 5]]):
        logits_of = hashed(seed, V)
        for _ in range(3):
            tokens = generate(mx, keep, logits_of, prompt)
            assert keep.finish(tokens) == greedy(trie, logits_of, prompt)
            prompt = [*tokens, 40, 41]


def test_rows_and_shapes(mx, trie):
    keep = logits_processor(trie, eog=[END])
    tokens = mx.array(np.array([1, 5]))
    for shape in ((1, V), (V,), (1, V + 3)):
        before = mx.array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        out = keep(tokens, before)
        assert out.shape == shape
        assert left(out) == [10, 20]
        assert left(before) == list(range(shape[-1]))
    for shape in ((2, V), (1, V - 1)):
        with pytest.raises(InvalidArgument):
            keep(tokens, mx.array(np.zeros(shape, np.float32)))


def test_fc_019_no_candidate(mx, trie):
    keep = logits_processor(trie, eog=[END])
    tokens = mx.array(np.array([1, 5]))
    for bad in (-np.inf, np.nan):
        row = np.zeros((1, V), np.float32)
        row[0, [10, 20]] = bad
        with pytest.raises(NoCandidateError):
            keep(tokens, mx.array(row))
    row[0, 10] = 1.0
    assert left(keep(tokens, mx.array(row))) == [10]
    with pytest.raises(OffPathError):
        keep(mx.array(np.array([1, 5, 30])), mx.array(row))


def test_fc_048_a_lazy_history(mx, trie):
    """The array shows its last id only when it is computed."""

    class Lazy:
        def __init__(self, tokens, stale):
            self.tokens, self.shown = tokens, stale

        def __getitem__(self, at):
            return self.shown[at]

        def __array__(self, dtype=None, copy=None):
            self.shown = self.tokens  # computed
            return np.array(self.tokens, dtype)

    keep = logits_processor(trie, eog=[END])
    row = mx.array(np.zeros((1, V), np.float32))
    assert left(keep(Lazy([1, 5], [1, 3]), row)) == [10, 20]
    assert left(keep(Lazy([1, 5, 20], [1, 5, 5]), row)) == [21, 22]
    assert left(keep(Lazy([1, 5, 20, 22], [1, 5, 20, 20]), row)) == [23]


def test_half_precision_in_mlx(trie):
    mx = pytest.importorskip("mlx.core")
    keep = logits_processor(trie, eog=[END])
    for dtype in (mx.float16, mx.bfloat16, mx.float32):
        row = mx.arange(V).astype(dtype).reshape(1, V)
        out = keep(mx.array([1, 5]), row)
        assert out.dtype == dtype
        kept = np.array(out.astype(mx.float32)).reshape(-1)
        assert np.flatnonzero(np.isfinite(kept)).tolist() == [10, 20]
        assert kept[[10, 20]].tolist() == [10.0, 20.0]


def test_the_loop_of_mlx_lm(trie):
    """Its own `generate_step`, over a model that looks numbers up."""
    mx = pytest.importorskip("mlx.core")
    generate = pytest.importorskip("mlx_lm.generate")
    import mlx.nn as nn

    rows = mx.array(np.random.default_rng(3).standard_normal((V, V)).astype(np.float32))

    class Cache:
        offset, state = 0, []

        def is_trimmable(self):
            return True

    class Model(nn.Module):
        layers = ()

        def __call__(self, ids, cache=None, **_):
            return rows[ids]

    keep = logits_processor(trie, eog=[END])
    for prompt in ([1, 5, 6], [1, 5], list(range(3, 60))):
        steps = generate.generate_step(
            mx.array(prompt),
            Model(),
            max_tokens=8,
            logits_processors=[keep],
            prompt_cache=[Cache()],
            prefill_step_size=16,
        )
        tokens = list(prompt)
        for token, _ in steps:
            tokens.append(int(token))
            if tokens[-1] == END:
                break
        assert keep.finish(tokens) == greedy(
            trie, lambda ids: np.array(rows)[ids[-1]], prompt
        )
