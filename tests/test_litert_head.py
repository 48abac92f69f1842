"""LiteRT: single logits, and rows that are computed with the decode or after it."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

import eliza
from eliza.backends.litert import LitertBackend
from eliza.backends.litert_head import SingleLogits
from eliza.convert.source import GgufSource
from litert_files import IDS, rows_of, write_files
from tiny import tiny_gguf

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
pytest.importorskip("tokenizers")

OPTIONS = ({}, {"in_place": False}, {"interface": "interpreter"})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    with GgufSource(tiny_gguf(folder / "tiny.gguf")) as source:
        return write_files(source, folder)


@pytest.mark.parametrize("interface", ["compiled", "interpreter"])
@pytest.mark.parametrize("name", ["m.tflite", "m8.tflite"])
def test_single_logits_are_those_of_the_row(files, name, interface):
    """R4: also where the runtime quantises what it multiplies."""
    with LitertBackend(files / name, interface=interface) as backend:
        assert backend.capabilities.head_rows
        sequence = backend.open()
        ids = [371, 0, 17, 300, 17]
        for n in (1, 3, 8, 11):
            sequence.truncate(0)
            sequence.decode_many(IDS[:n])
            single = [sequence.logits_of(ids, i) for i in range(n)]
            assert np.abs(single - rows_of(sequence, n)[:, ids]).max() < 1e-5
        sequence.decode(IDS[n:])
        single = sequence.logits_of(ids)
        assert np.abs(single - sequence.logits()[ids]).max() < 1e-5


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_equal_rows_of_the_head_tie(kind):
    """R4: the lowest of ids whose weights are the same, wherever they are asked for."""
    rng = np.random.default_rng(5)
    for dim, n in itertools.product((64, 576, 2047), (3, 5, 7, 11, 41)):
        for _ in range(20):
            hidden = rng.standard_normal(dim).astype(np.float32)
            weights = rng.standard_normal((500, dim)).astype(np.float32)
            scales = None
            ids = np.sort(rng.permutation(500)[:n])
            same = np.sort(rng.permutation(n)[:3])
            weights[ids[same]] = hidden  # the highest logit by far
            if kind == "int8":
                scales = np.abs(weights).max(1) / np.float32(127)
                weights = np.rint(weights / scales[:, None]).astype(np.int8)
            found = SingleLogits(weights, scales).logits(hidden, ids)
            assert found.dtype == np.float32
            assert len({*found[same].tolist()}) == 1
            assert found.argmax() == same[0]


def test_a_head_that_computes_otherwise_is_not_used(files, monkeypatch):
    """R3: what a whole row would have is found out when the model is loaded."""
    real = SingleLogits.logits
    monkeypatch.setattr(SingleLogits, "logits", lambda *a: real(*a) * np.float32(1.001))
    with LitertBackend(files / "m8.tflite") as backend:
        assert not backend.capabilities.head_rows
        sequence = backend.open()
        sequence.decode(IDS)
        assert (sequence.logits_of([5, 9]) == sequence.logits()[[5, 9]]).all()


def test_a_greedy_choice_computes_no_whole_row(files, monkeypatch):
    with eliza.load(files / "m.tflite") as model:
        wanted = model.choose("an action", ["REPLY", "SEND", "MUTE"], method="exact")
        runtime = model.backend._shared.runtime
        monkeypatch.setattr(runtime, "apply", None)
        got = model.choose("an action", ["REPLY", "SEND", "MUTE"], method="greedy")
        assert got.value in ("REPLY", "SEND", "MUTE")
        assert wanted.value in ("REPLY", "SEND", "MUTE")


@pytest.mark.parametrize("interface", ["compiled", "interpreter"])
def test_an_id_of_free_text_takes_one_call(files, monkeypatch, interface):
    """A row that is read as a whole is computed with the decode."""
    options = {"interface": interface}
    with eliza.load(files / "m.tflite", backend_options=options) as model:
        runtime = model.backend._shared.runtime
        run, apply, calls = runtime.run, runtime.apply, []

        def counted(real, what, *args):
            calls.append(what.name)
            return real(what, *args)

        monkeypatch.setattr(runtime, "run", partial(counted, run))
        monkeypatch.setattr(runtime, "apply", partial(counted, apply))
        with model.open(max_tokens=6) as session:
            session.prefill(IDS[:5])
            ids = [token for step in session for token in step.ids]
            n_free = len(calls)
            assert calls[-len(ids) + 1 :] == ["decode"] * (len(ids) - 1)
            assert calls[: -len(ids) + 1] == ["hidden_4", "hidden_1", "head_1"]
            session.prefill(IDS[:1])
            session.set_constraint(model.vocab.trie(["REPLY", "SEND", "MUTE"]).cursor())
            list(session)
        assert not {"decode", "head_1"} & {*calls[n_free:]}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_whole_row_is_the_same_with_the_decode(files, options):
    for name in ("m.tflite", "m8.tflite"):
        with LitertBackend(files / name, **options) as backend:
            sequence, told = backend.open(), backend.open()
            for i, token in enumerate(IDS):
                told.whole_row = i % 3 > 0
                sequence.decode([token])
                told.decode([token])
                assert np.abs(told.logits() - sequence.logits()).max() < 1e-5
                single = told.logits_of([5, 9])
                assert np.abs(single - told.logits()[[5, 9]]).max() < 1e-5
            told.decode_many([7])
            assert told.position == len(IDS) + 1
