"""SentencePiece models in and beside files for LiteRT: the ids of other runtimes."""

from __future__ import annotations

import numpy as np
import pytest

import eliza
from eliza.convert.litertlm import write_litertlm
from eliza.convert.source import GgufSource
from eliza.convert.tflite import write_tflite
from eliza.errors import BundleError
from eliza.files.litertlm import PREFILL_DECODE, LitertlmFile, SectionKind
from litert_files import IDS, TOLERANCE, container, variant
from llama_reference import forward
from tiny import CHAT_TEMPLATE, tiny_gguf
from vocabularies import metadata, sentencepiece_model

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
pytest.importorskip("tokenizers")
pytest.importorskip("sentencepiece")

TEXTS = ("an action", "REPLY the user", "  two  spaces", "caf\u00e9 \U0001f408", "<s>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Write a model with `tokenizer.json` in it, and one without any."""
    folder = tmp_path_factory.mktemp("model")
    with GgufSource(tiny_gguf(folder / "m.gguf", kind="spm")) as source:
        write_tflite(source, folder / "json.tflite", "f32", n_ctx=64)
        write_litertlm(source, folder / "json.litertlm", "f32", n_ctx=64)
        variant(source, folder / "none.tflite")
        np.save(folder / "wanted.npy", forward(source, IDS)[-1])
    (folder / "pieces").write_bytes(sentencepiece_model(metadata(folder / "m.gguf")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELIZA_CACHE", str(folder / "cache"))
        yield folder


def check_same(model, folder):
    """Compare a model with the one whose tokenizer is a `tokenizer.json`."""
    with eliza.load(folder / "json.tflite") as other:
        for text in TEXTS:
            assert model.vocab.encode(text) == other.vocab.encode(text)
            ids = [list(m.vocab.prompt_ids(text)) for m in (model, other)]
            assert ids[0] == ids[1]
        assert model.vocab.eog == other.vocab.eog
        assert model.vocab.fingerprint == other.vocab.fingerprint
        for method in ("greedy", "exact"):
            request = ("an action", ["REPLY", "REPLY_ALL", "SEND", " the user"])
            ours, theirs = (m.choose(*request, method=method) for m in (model, other))
            assert ours.value == theirs.value
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
    sequence = model.backend.open()
    sequence.decode(IDS)
    wanted = np.load(folder / "wanted.npy")
    assert np.abs(sequence.logits() - wanted).max() < TOLERANCE


def test_a_section_of_pieces(folder, tmp_path):
    with LitertlmFile(folder / "json.litertlm") as file:
        (about,) = (s for s in file.sections if s.kind == SectionKind.LLM_METADATA)
        data = (folder / "json.litertlm").read_bytes()[about.begin : about.end]
    sections = [
        (SectionKind.LLM_METADATA, data, ""),
        (SectionKind.SENTENCEPIECE, (folder / "pieces").read_bytes(), ""),
        (
            SectionKind.TFLITE_MODEL,
            (folder / "none.tflite").read_bytes(),
            PREFILL_DECODE,
        ),
    ]
    path = container(tmp_path / "m.litertlm", sections)
    with eliza.load(path) as model:
        assert type(model.vocab).__name__ == "SentencePieceVocab"
        assert model.backend.chat_template == CHAT_TEMPLATE
        check_same(model, folder)
    sections[1] = (SectionKind.SENTENCEPIECE, b"\x0a\x04oops", "")
    with pytest.raises(BundleError):
        eliza.load(container(tmp_path / "bad.litertlm", sections))


def test_pieces_beside_the_file(folder, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes((folder / "none.tflite").read_bytes())
    pieces = tmp_path / "tokenizer.model"
    pieces.write_bytes((folder / "pieces").read_bytes())
    with eliza.load(path) as model:
        check_same(model, folder)
    pieces.write_bytes(b"\x0a\x04oops")
    with pytest.raises(BundleError):
        eliza.load(path)


def test_what_the_builder_made_of_pieces(folder, tmp_path):
    builder = pytest.importorskip("litert_lm_builder")
    with LitertlmFile(folder / "json.litertlm") as file:
        (about,) = (s for s in file.sections if s.kind == SectionKind.LLM_METADATA)
        data = (folder / "json.litertlm").read_bytes()[about.begin : about.end]
    (tmp_path / "about.pb").write_bytes(data)
    (tmp_path / "pieces.model").write_bytes((folder / "pieces").read_bytes())
    build = builder.LitertLmFileBuilder()
    build.add_system_metadata(
        builder.Metadata(key="a", value="b", dtype=builder.DType.STRING)
    )
    build.add_llm_metadata(str(tmp_path / "about.pb"))
    build.add_sentencepiece_tokenizer(str(tmp_path / "pieces.model"))
    build.add_tflite_model(
        str(folder / "none.tflite"), builder.TfLiteModelType.PREFILL_DECODE
    )
    with open(tmp_path / "m.litertlm", "wb") as out:
        build.build(out)
    with eliza.load(tmp_path / "m.litertlm") as model:
        check_same(model, folder)
