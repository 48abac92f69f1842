"""MLX's models taken apart: a head by itself, and what their caches can do."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest

import eliza
from eliza.errors import BackendError, Cancelled, InvalidArgument, NotSupported

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
if importlib.util.find_spec("mlx_lm") is None:
    pytest.skip("mlx-lm is not installed", allow_module_level=True)

from eliza.backends.mlx import MlxBackend  # noqa: E402
from eliza.backends.mlx_load import model_module  # noqa: E402
from eliza.backends.mlx_model import MlxModel  # noqa: E402
from eliza.tokenizers import read_vocab  # noqa: E402
from mlx_models import (  # noqa: E402
    N_VOCAB,
    RNG,
    converted,
    make_chunked,
    make_mamba,
    make_model,
    make_windowed,
    near,
    some_ids,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def vocab(folder):
    return read_vocab(folder)


# -- head rows -------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int8"])
def test_single_logits_are_those_of_the_row(vocab, kind, tied):
    model = make_model(tie_word_embeddings=tied)
    if kind == "int8":
        importlib.import_module("mlx.nn").quantize(model, group_size=32, bits=8)
    else:
        model.set_dtype(getattr(mx, kind))
    backend = MlxBackend.from_model(model, vocab)
    assert backend.capabilities.head_rows
    few, whole = backend.open(), backend.open()
    few.decode_many([5, 6, 7])
    whole.decode_many([5, 6, 7])
    for n in (1, 2, 7, 40, N_VOCAB):
        ids = RNG.choice(N_VOCAB, n, replace=False).tolist()
        for i in range(3):
            found = few.logits_of(ids, i)
            assert found.dtype == np.float32
            np.testing.assert_array_equal(found, whole.logits(i)[ids])
            np.testing.assert_array_equal(found, whole.logits_of(ids, i))
    with pytest.raises(InvalidArgument, match="row 3"):
        few.logits_of([5], 3)
    few.truncate(1)
    with pytest.raises(InvalidArgument, match="no logits"):
        few.logits_of([5])


def test_a_head_with_something_after_it_is_left_whole(vocab):
    class Bent(type(make_model())):
        def __call__(self, inputs, cache=None):
            return mx.tanh(super().__call__(inputs, cache) / 30) * 30

    model = make_model()
    model.__class__ = Bent
    backend = MlxBackend.from_model(model, vocab)
    assert not backend.capabilities.head_rows
    sequence = backend.open()
    sequence.decode([5, 6])
    expected = np.array(model(mx.array([[5, 6]]))[0, -1])
    np.testing.assert_allclose(sequence.logits(), expected, atol=1e-6)
    np.testing.assert_array_equal(sequence.logits_of([9, 3]), sequence.logits()[[9, 3]])


def test_a_head_is_not_judged_by_rows_of_zeros(vocab):
    """The first id of many a model fills up batches, and its row is 0."""

    class Bent(type(make_model())):
        def __call__(self, inputs, cache=None):
            return mx.tanh(super().__call__(inputs, cache) / 30) * 30

    for bent in (False, True):
        model = make_model(tie_word_embeddings=True)
        weight = model.model.embed_tokens.weight
        model.model.embed_tokens.weight = mx.where(
            mx.arange(N_VOCAB)[:, None] == 0, 0.0, weight
        )
        if bent:
            model.__class__ = Bent
        backend = MlxBackend.from_model(model, vocab)
        assert backend.capabilities.head_rows == (not bent)
    model = make_model()
    model.lm_head.weight = mx.zeros_like(model.lm_head.weight)
    model.__class__ = Bent
    assert not MlxBackend.from_model(model, vocab).capabilities.head_rows


def test_single_logits_are_tried_too(vocab, monkeypatch):
    real = MlxModel.logits_of
    for factor in (1.0, 1.1):
        monkeypatch.setattr(MlxModel, "logits_of", lambda *a, f=factor: real(*a) * f)
        backend = MlxBackend.from_model(make_model(), vocab)
        assert backend.capabilities.head_rows == (factor == 1)


def test_a_model_whose_layers_cannot_be_called_is_computed_whole(vocab):
    """What is called `model` inside may need more than ids and a cache."""
    model = make_model()
    inner = type(model.model)
    expected = np.array(model(mx.array([[5, 6]]))[0, -1])

    class Inner(inner):
        def __call__(self, inputs, cache=None, *, more):
            return super().__call__(inputs, cache)

    class Outer(type(model)):
        def __call__(self, inputs, cache=None):
            return self.lm_head(self.model(inputs, cache, more=1))

    model.__class__, model.model.__class__ = Outer, Inner
    backend = MlxBackend.from_model(model, vocab)
    assert not backend.capabilities.head_rows
    sequence = backend.open()
    sequence.decode([5, 6])
    np.testing.assert_array_equal(sequence.logits(), expected)


@pytest.mark.parametrize("ranking", [None, "masked"])
def test_a_greedy_choice_computes_no_whole_row(folder, monkeypatch, ranking):
    with eliza.load(folder, n_ctx=128) as model:
        apart = model.backend._shared.model
        whole, single = [], []
        all_rows, logits_of = apart._all_rows, apart.logits_of
        monkeypatch.setattr(
            apart, "_all_rows", lambda states: whole.append(1) or all_rows(states)
        )
        monkeypatch.setattr(
            apart,
            "logits_of",
            lambda state, ids: single.append(len(ids)) or logits_of(state, ids),
        )
        choices = ["REPLY", "REPLACE", "SEND", "SEARCH", "MUTE"]
        answer = model.choose("an action", choices, method="greedy", ranking=ranking)
        assert answer.value in choices
        assert whole == []
        assert 0 < max(single) <= len(choices)
        with model.open(max_tokens=8) as session:
            session.prefill("an action")
            session.set_constraint(model.vocab.trie(choices).cursor())
            assert [step.ids for step in session]
        assert whole == []
        model.choose("an action", choices, method="exact")  # it reads whole rows
        assert whole != []


# -- caches that cannot be cut ---------------------------------------------------------


@pytest.fixture
def recurrent(vocab):
    with MlxBackend.from_model(
        make_mamba(), vocab, fingerprint=b"mamba", n_batch=2
    ) as backend:
        yield backend


def test_whether_a_cache_can_be_cut_is_asked(recurrent):
    can = recurrent.capabilities
    assert not can.truncate
    assert not can.tree
    sequence = recurrent.open()
    sequence.decode([5, 6, 7])
    with pytest.raises(NotSupported, match="cannot be cut"):
        sequence.truncate(2)
    with pytest.raises(NotSupported, match="cannot branch"):
        sequence.decode_tree([5], [-1])
    assert sequence.position == 3
    row = sequence.logits()
    sequence.truncate(3)
    sequence.truncate(0)
    sequence.decode([5, 6, 7])
    near(sequence.logits(), row)
    assert can.save
    state = sequence.save()
    sequence.decode([8])
    after = sequence.logits()
    sequence.restore(state, 3)
    sequence.decode([8])
    near(sequence.logits(), after)


def test_a_cache_that_cannot_be_cut_is_emptied_by_a_failure(recurrent):
    sequence = recurrent.open()
    sequence.decode([5, 6])

    calls = []

    def stop():
        calls.append(1)
        if len(calls) == 2:
            raise Cancelled("stop")

    sequence.on_piece = stop
    with pytest.raises(Cancelled) as raised:
        sequence.decode([7, 8, 9])
    assert sequence.position == 0
    assert "empty now" in raised.value.__notes__[0]
    sequence.on_piece = None
    sequence.decode([5])
    assert sequence.position == 1


def test_a_failure_between_two_layers_is_undone(vocab):
    model = make_model()
    backend = MlxBackend.from_model(model, vocab)
    sequence, plain = backend.open(), backend.open()
    sequence.decode([5, 6])
    good = model.model.layers[1].mlp.up_proj.weight
    model.model.layers[1].mlp.up_proj.weight = mx.ones((3, 3))
    with pytest.raises(BackendError):
        sequence.decode([7])
    model.model.layers[1].mlp.up_proj.weight = good
    assert sequence.position == 2
    sequence.decode([7])
    plain.decode([5, 6, 7])
    near(sequence.logits(), plain.logits())


def test_choices_of_a_model_that_keeps_no_past(recurrent):
    model = eliza.Model(recurrent)
    choices = ["SEND", "SEARCH", "MUTE", "REPLY"]
    exact = model.choose("an action", choices, suffix='"', ranking="whole")
    again = model.choose("an action", choices, suffix='"')
    assert exact.value == again.value
    assert exact.logprob == pytest.approx(again.logprob, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "size", "most"),
    [(make_windowed, 33, 32), (make_chunked, 32, 32)],
    ids=["window", "chunks"],
)
def test_a_window_can_be_cut_only_if_it_holds_the_context(vocab, make, size, most):
    """R3: also one that says itself that it can be cut, as Llama 4's does."""
    model = make(size)
    small = MlxBackend.from_model(model, vocab, n_ctx=most)
    assert small.capabilities.truncate
    assert small.capabilities.tree
    sequence, whole = small.open(), small.open()
    ids = some_ids(most)
    sequence.decode(ids)
    sequence.truncate(5)
    sequence.decode([7])
    whole.decode([*ids[:5], 7])
    near(sequence.logits(), whole.logits())
    large = MlxBackend.from_model(model, vocab, n_ctx=most + 1)
    assert not large.capabilities.truncate
    assert not large.capabilities.tree
    sequence = large.open()
    sequence.decode(some_ids(most + 1))
    with pytest.raises(NotSupported):
        sequence.truncate(5)


def test_a_window_among_others_is_found(vocab):
    """Some models have several caches for a layer."""
    cache = model_module("cache")

    def make_cache(_):
        parts = (cache.KVCache(), cache.RotatingKVCache(33, keep=0))
        return [cache.CacheList(*parts), cache.KVCache()]

    model = make_model()
    apart = MlxModel(mx, model, cache)
    model.__class__ = type("Grouped", (type(model),), {"make_cache": make_cache})
    assert apart.can_trim(apart.new_cache(), 32)
    assert not apart.can_trim(apart.new_cache(), 33)


@pytest.mark.parametrize("before", [3, 9, 12, 13, 16, 30])
def test_a_cancelled_decode_of_chunks_is_undone_or_all_is(vocab, before):
    """R7: what was lost of the front cannot be had back by cutting off the end."""
    model = make_chunked(8)
    backend = MlxBackend.from_model(model, vocab, n_ctx=128, n_batch=2)
    ids = some_ids(before)
    for pieces in (1, 2, 4, 7):
        sequence, whole = backend.open(), backend.open()
        sequence.decode(ids)
        asked = []

        def pause(asked=asked, pieces=pieces):
            asked.append(1)
            if len(asked) > pieces:
                raise Cancelled("stop")

        sequence.on_piece = pause
        with pytest.raises(Cancelled):
            sequence.decode(some_ids(16))
        sequence.on_piece = None
        assert sequence.position in (0, before)
        more = some_ids(3)
        sequence.decode(more)
        whole.decode([*ids[: sequence.position - 3], *more])
        near(sequence.logits(), whole.logits())
