"""Files as others write them, on the real runtime: layouts, masks, types and widths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import eliza
from eliza.backends.litert import LitertBackend
from eliza.backends.litert_compiled import CompiledRuntime
from eliza.convert.source import GgufSource
from eliza.errors import InvalidArgument, NoCandidateError, NotSupported
from eliza.tokenizers import from_gguf
from litert_files import IDS, LOGIT_SCALE, TOLERANCE, rows_of, variant, write_files
from llama_reference import forward
from tiny import tiny_gguf

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
pytest.importorskip("tokenizers")

OPTIONS = (
    {"interface": "compiled"},
    {"interface": "compiled", "in_place": True},
    {"interface": "interpreter"},
)

#: How a file differs from eliza's own, and how far its logits may lie from NumPy's.
FORMS = (
    ({"layout": "plain"}, TOLERANCE),
    ({"mask": None}, TOLERANCE),
    ({"mask": None, "layout": "plain"}, TOLERANCE),
    ({"mask": "float16"}, TOLERANCE),
    ({"mask": "bool"}, TOLERANCE),
    ({"kept": "float16"}, 1e-2),
    ({"kept": "float16", "layout": "plain", "mask": "bool"}, 1e-2),
    ({"logits": "float16"}, 4e-3),
    ({"logits": "bfloat16"}, 3e-2),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")
    with GgufSource(path) as source:
        yield source


@pytest.fixture(scope="module")
def tokenizer(source):
    return from_gguf(source.raw_tokenizer)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELIZA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def files(source, tmp_path_factory):
    return write_files(source, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def wanted(source):
    """Return the rows after each of IDS, by NumPy."""
    return forward(source, IDS)


@pytest.mark.parametrize(("form", "near"), FORMS, ids=str)
def test_forms(source, tokenizer, wanted, tmp_path, form, near):
    """K08, K09: the same model, whatever its file looks like."""
    path = variant(source, tmp_path / "m.tflite", **form)
    for options in OPTIONS:
        with LitertBackend(path, tokenizer=tokenizer, **options) as backend:
            layout = backend._shared.runtime.layout
            for name, info in layout.caches.items():
                lm = 2 if "_k_" in name else 3
                assert info.axis == (1 if form.get("layout") == "plain" else lm)
                assert info.dtype == form.get("kept", "float32")
            assert {step.mask_dtype for step in layout.steps} == {
                form.get("mask", "float32") or ""
            }
            assert layout.n_ctx == 64
            sequence = backend.open()
            sequence.decode_many(IDS)
            rows = rows_of(sequence, len(IDS))
            assert rows.dtype == np.float32
            assert np.abs(rows - wanted).max() < near
            state = sequence.save()
            sequence.truncate(0)
            sequence.decode([7] * 40)
            sequence.restore(state, len(IDS))
            sequence.truncate(12)
            sequence.decode(IDS[12:])
            assert np.abs(sequence.logits() - wanted[-1]).max() < near


@pytest.mark.parametrize("n_ctx", [16, 32, 48])
@pytest.mark.parametrize("mask", ["float32", None])
@pytest.mark.parametrize("layout", ["lm", "plain", "heads"])
def test_axes_that_shapes_do_not_tell(
    source, tokenizer, wanted, tmp_path, layout, mask, n_ctx
):
    """K09: a context as long as a head is wide, or shorter, and no mask that tells it.

    A wrong axis would show in a state that is saved, not in what is decoded.
    """
    form = {"layout": layout, "mask": mask, "n_ctx": n_ctx}
    path = variant(source, tmp_path / "m.tflite", **form)
    for options in OPTIONS:
        with LitertBackend(path, tokenizer=tokenizer, **options) as backend:
            found = backend._shared.runtime.layout
            assert found.n_ctx == backend.n_ctx == n_ctx
            for name, info in found.caches.items():
                lm = 2 if "_k_" in name else 3
                assert info.axis == {"lm": lm, "plain": 1, "heads": 2}[layout]
            sequence, other = backend.open(), backend.open()
            sequence.decode(IDS[:12])
            other.decode([7] * 16)
            other.restore(sequence.save(), 12)
            other.decode(IDS[12:15])
            assert np.abs(other.logits() - wanted[14]).max() < TOLERANCE


def test_an_axis_that_cannot_be_found_out(source, tokenizer, tmp_path, monkeypatch):
    path = variant(source, tmp_path / "m.tflite", mask=None)
    monkeypatch.setattr(CompiledRuntime, "read", lambda *a: np.ones((1, 64, 1, 32)))
    with pytest.raises(NotSupported, match="'kv_cache_k_0' has shape"):
        LitertBackend(path, tokenizer=tokenizer)


def test_logits_of_int8(source, tokenizer, wanted, tmp_path):
    """K08, FC-030: real values come out, whatever the runtime computed."""
    path = variant(source, tmp_path / "m.tflite", logits="int8")
    with LitertBackend(path, tokenizer=tokenizer) as backend:
        sequence = backend.open()
        sequence.decode_many(IDS)
        rows = rows_of(sequence, len(IDS))
        assert rows.dtype == np.float32
        assert np.abs(rows - wanted).max() < LOGIT_SCALE
    with pytest.raises(NotSupported, match="logits as int8"):
        LitertBackend(path, tokenizer=tokenizer, interface="compiled")


def picked(session, allowed):
    """Return the id that is generated where only some are allowed."""
    leaves = {str(i): [int(i)] for i in allowed}
    trie = eliza.Trie.from_tokens(leaves, n_vocab=372)
    session.set_constraint(trie.cursor())
    (step,) = session
    session.clear_constraint()
    session.reset_keep(len(session.history) - 1)
    return step.ids[0]


@pytest.mark.parametrize(
    "form",
    [{"logits": "int8", "scale": 1e-3}, {"logits": "float16", "gain": 8e3}],
    ids=["int8", "float16"],
)
def test_saturated_cells(source, tokenizer, tmp_path, form):
    """FC-030, FC-029: an allowed id in the lowest cell beats all that are forbidden."""
    path = variant(source, tmp_path / "m.tflite", **form)
    with eliza.load(path, backend_options={"tokenizer": tokenizer}) as model:
        for n in (1, 9, 20):
            with model.open() as session:
                session.prefill(IDS[:n])
                row = session.row()[: model.vocab.n_vocab].copy()
                low, high = (np.flatnonzero(row == f(row)) for f in (np.min, np.max))
                low, high = low[low > 2], high[high > 2]  # not those that end it
                between = int(np.argsort(row)[len(row) // 2])
                assert np.isfinite(row).all()
                if form["logits"] == "int8":
                    assert len(low) > 3
                    assert len(high) > 3
                    assert picked(session, low[[2, 0, 1]]) == low[0]
                    assert picked(session, high[[1, 2]]) == high[1]
                else:
                    assert np.abs(row).max() > 3e4
                assert picked(session, low[-1:]) == low[-1]
                assert picked(session, [low[0], high[-1]]) == high[-1]
                assert picked(session, [low[-1], between]) == (
                    between if row[between] > row[low[-1]] else min(between, low[-1])
                )


def test_logits_beyond_float16(source, tokenizer, tmp_path):
    """FC-029: what is too large for its cell is infinite, and still in order."""
    path = variant(source, tmp_path / "m.tflite", logits="float16", gain=1e7)
    options = {"tokenizer": tokenizer}
    with eliza.load(path, backend_options=options) as model, model.open() as session:
        session.prefill(IDS)
        row = session.row()[: model.vocab.n_vocab].copy()
        low, high = (np.flatnonzero(row == x) for x in (-np.inf, np.inf))
        assert picked(session, [low[0], high[2], high[1]]) == high[1]
        with pytest.raises(NoCandidateError):
            picked(session, low[:2])


# A tokenizer that has fewer ids than the model


@pytest.mark.parametrize("whole", [False, True], ids=["single", "whole"])
def test_a_tokenizer_narrower_than_the_rows(source, tokenizer, files, tmp_path, whole):
    """FC-031: what fills up the rows is never an answer, and cannot be asked for."""
    path = files / "m.tflite"
    if whole:
        path = variant(source, tmp_path / "m.tflite")
    with LitertBackend(path, tokenizer=tokenizer) as backend:
        pieces = [backend.vocab.piece(i) for i in range(200)]
    vocab = eliza.Vocab.from_tokens(pieces, control=[0, 1, 2], eog=[0, 2])
    with eliza.load(path, backend_options={"tokenizer": vocab}) as model:
        assert model.vocab.n_vocab == 200
        assert model.capabilities.head_rows != whole
        sequence = model.backend.open()
        beyond = 0
        for token in range(60, 90):
            sequence.decode([token])
            row = sequence.logits()
            assert len(row) == 372
            beyond += row.argmax() >= 200
            some = [199, 5, 5, 0]
            assert np.abs(sequence.logits_of(some) - row[some]).max() < 1e-5
            for wrong in ([200], [5, 371]):
                with pytest.raises(InvalidArgument, match=r"lies in \[0, 200\)"):
                    sequence.logits_of(wrong)
        assert beyond > 5
        sequence.close()
        with model.open(max_tokens=20) as session:
            session.prefill([77])
            ids = [token for step in session for token in step.ids]
        assert len(ids) > 3
        assert max(ids) < 200
        for prompt, method in itertools.product("abc", ("greedy", "exact", "sample")):
            more = {"rng": 3} if method == "sample" else {}
            answer = model.choose(prompt, ["x", "y", "zw"], method=method, **more)
            assert answer.value in ("x", "y", "zw")


def test_a_tokenizer_file_with_fewer_ids(source, tokenizer, tmp_path):
    """FC-031: rows that have no text belong to ids that are never generated."""
    import json

    document = json.loads(tokenizer)
    names = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    document["model"]["vocab"] = {name: i for i, name in enumerate(names[:260])}
    kept = {*names[:260]}
    document["model"]["merges"] = [
        pair
        for pair in document["model"]["merges"]
        if "".join(pair if isinstance(pair, list) else pair.split(" ")) in kept
    ]
    path = variant(source, tmp_path / "m.tflite")
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with eliza.load(path) as model:
        assert model.vocab.n_vocab == 372
        assert all(model.vocab.is_special(i) for i in range(260, 372))
        answer = model.choose("an action", ["REPLY", "SEND"], method="exact")
        assert answer.value in ("REPLY", "SEND")
