"""`.litertlm` files: ours, others', and those that are none."""

import struct
import zlib

import numpy as np
import pytest

import eliza
from eliza.convert.litertlm import write_litertlm
from eliza.convert.source import GgufSource
from eliza.errors import BundleError, Closed, NotSupported
from eliza.files import litertlm, protobuf
from eliza.files.litertlm import LitertlmFile, SectionKind
from eliza.tokenizers import from_gguf
from litert_files import container
from tiny import CHAT_TEMPLATE, tiny_gguf

pytest.importorskip("tokenizers")
pytest.importorskip("filelock")


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def path(gguf_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("model") / "tiny.litertlm"
    with GgufSource(gguf_path) as source:
        write_litertlm(source, out, n_ctx=64)
    return out


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("ELIZA_CACHE", str(folder))
    return folder


MODEL = (SectionKind.TFLITE_MODEL, b"a model", litertlm.PREFILL_DECODE)


def test_what_we_wrote(path, gguf_path):
    with LitertlmFile(path) as file:
        assert file.version == (1, 7, 0)
        kinds = [section.kind for section in file.sections]
        assert kinds == [5, 6, 3]
        assert all(section.begin % (16 << 10) == 0 for section in file.sections)
        about = file.llm_metadata()
        assert about.max_tokens == 64
        assert about.starts == ()
        assert about.stops == (2, 0)
        assert about.template.endswith(CHAT_TEMPLATE)
        with GgufSource(gguf_path) as source:
            assert file.tokenizer() == from_gguf(source.raw_tokenizer)


def test_a_model_is_found_again_by_its_content(path, tmp_path, cache):
    with LitertlmFile(path) as file:
        found = file.extract(file.model())
        section = file.model()
        raw = path.read_bytes()[section.begin : section.end]
        assert found.read_bytes() == raw
        stamp = found.stat().st_mtime_ns
        assert file.extract(section) == found
        assert found.stat().st_mtime_ns == stamp
    copy = tmp_path / "copy.litertlm"
    copy.write_bytes(path.read_bytes())
    with LitertlmFile(copy) as file:
        assert file.extract(file.model()) == found
    # What is there has another size: it was not written by us, or not to the end.
    found.write_bytes(b"short")
    with LitertlmFile(path) as file:
        assert file.extract(file.model()).read_bytes() == raw
    assert found.is_relative_to(cache)


def test_a_cache_that_cannot_be_written(path, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("ELIZA_CACHE", str(tmp_path / "file"))
    with LitertlmFile(path) as file, pytest.raises(BundleError, match="cache"):
        file.extract(file.model())


def test_use_after_close(path):
    file = LitertlmFile(path)
    file.close()
    file.close()
    with pytest.raises(Closed):
        file.tokenizer()


# Others' files


def test_gemma_style_bundles_are_refused(tmp_path):
    weights = container(
        tmp_path / "w.litertlm", [MODEL, (SectionKind.TFLITE_WEIGHTS, b"w", "")]
    )
    with LitertlmFile(weights) as file, pytest.raises(NotSupported, match="weights"):
        file.model()
    for kind in ("tf_lite_embedder", "tf_lite_per_layer_embedder"):
        other = (SectionKind.TFLITE_MODEL, b"e", kind)
        path = container(tmp_path / "e.litertlm", [other, MODEL])
        with LitertlmFile(path) as file, pytest.raises(NotSupported, match=kind):
            file.model()


def test_other_sections_do_no_harm(tmp_path):
    path = container(
        tmp_path / "m.litertlm",
        [
            (SectionKind.GENERIC, b"x", ""),
            (77, b"y", ""),
            (SectionKind.TFLITE_MODEL, b"v", "tf_lite_vision_encoder"),
            MODEL,
            (SectionKind.SENTENCEPIECE, b"pieces", ""),
        ],
        version=(1, 99, 3),
    )
    with LitertlmFile(path) as file:
        assert file.extract(file.model()).read_bytes() == b"a model"
        assert file.tokenizer() == b"pieces"
        assert file.llm_metadata() == litertlm.LlmMetadata()


def test_none_or_two_models(tmp_path):
    for sections in ([], [MODEL, MODEL]):
        path = container(tmp_path / "m.litertlm", sections)
        with LitertlmFile(path) as file:
            with pytest.raises(BundleError, match=f"has {len(sections)} models"):
                file.model()
            with pytest.raises(BundleError, match="no section with a tokenizer"):
                file.tokenizer()


def test_ids_of_the_metadata(tmp_path):
    one = protobuf.message(1, protobuf.message(1, protobuf.number(1, 300)))
    text = protobuf.message(2, protobuf.message(2, b"<end>"))
    packed = protobuf.message(2, protobuf.message(1, protobuf.message(1, b"\x05")))
    several = protobuf.message(2, protobuf.message(1, protobuf.message(1, b"\x05\x06")))
    data = one + text + packed + several + protobuf.number(5, 4096)
    path = container(tmp_path / "m.litertlm", [(SectionKind.LLM_METADATA, data, "")])
    with LitertlmFile(path) as file:
        found = file.llm_metadata()
    assert found == litertlm.LlmMetadata((300,), ("<end>", 5), 4096, None)


@pytest.mark.parametrize(
    "data",
    [b"\x0a\xff", b"\x80" * 20, b"\x07", b"\x3a\x02\xff\xff", b"\x12\x03\x0a\x05\x00"],
)
def test_damaged_metadata(tmp_path, data):
    path = container(tmp_path / "m.litertlm", [(SectionKind.LLM_METADATA, data, "")])
    with LitertlmFile(path) as file, pytest.raises(BundleError, match="metadata"):
        file.llm_metadata()


@pytest.mark.parametrize(
    "data",
    [
        b"short",
        struct.pack("<Q", 1 << 60) + zlib.compress(b"x"),
        struct.pack("<Q", 5) + zlib.compress(b"x" * 1_000_000),  # a bomb
        struct.pack("<Q", 9) + zlib.compress(b"x"),
        struct.pack("<Q", 5) + b"not zlib",
    ],
)
def test_damaged_tokenizers(tmp_path, data):
    section = (SectionKind.HUGGING_FACE_ZLIB, data, "")
    path = container(tmp_path / "m.litertlm", [section])
    with LitertlmFile(path) as file, pytest.raises(BundleError, match="tokenizer"):
        file.tokenizer()


# Files that are none


def test_foreign_files_and_versions(tmp_path):
    path = tmp_path / "m.litertlm"
    for data in (b"", b"GGUF" * 20, b"LITERTL", b"PK\x03\x04" * 10):
        path.write_bytes(data)
        with pytest.raises(BundleError, match="not a LiteRT-LM file"):
            LitertlmFile(path)
    container(path, [MODEL], version=(2, 0, 0))
    with pytest.raises(NotSupported, match=r"version 2\.0\.0 .*reads 1\.x"):
        LitertlmFile(path)
    for missing in (tmp_path / "none.litertlm", tmp_path, "a\0b"):
        with pytest.raises(BundleError, match="cannot be read"):
            LitertlmFile(missing)


def test_a_file_cut_anywhere(path, tmp_path):
    data = path.read_bytes()
    cut = tmp_path / "cut.litertlm"
    for size in [*range(0, 500, 5), *range(500, len(data), len(data) // 40)]:
        cut.write_bytes(data[:size])
        with pytest.raises(BundleError, match=r"cut short|not a LiteRT-LM|damaged"):
            LitertlmFile(cut)


def test_flipped_bits_of_the_header(path, tmp_path):
    data = path.read_bytes()
    (end,) = struct.unpack_from("<Q", data, 24)
    rng = np.random.default_rng(2)
    bad = tmp_path / "flip.litertlm"
    for _ in range(500):
        other = bytearray(data[: 80 << 10])
        other[rng.integers(0, end)] ^= 1 << int(rng.integers(8))
        bad.write_bytes(bytes(other) + data[80 << 10 :])
        try:
            with LitertlmFile(bad) as file:
                file.model()
                file.llm_metadata()
                file.tokenizer()
        except (BundleError, NotSupported):
            pass


def test_sections_that_lie_elsewhere(tmp_path):
    path = container(tmp_path / "m.litertlm", [MODEL])
    good = path.read_bytes()
    for begin, end in ((0, 8), (1 << 62, 8), (16384, 1 << 63), (16384 + 5, 16384)):
        bad = good.replace(struct.pack("<Q", 16384), struct.pack("<Q", begin)).replace(
            struct.pack("<Q", 16384 + 7), struct.pack("<Q", end)
        )
        assert bad != good
        path.write_bytes(bad)
        with pytest.raises(BundleError, match="lies from byte"):
            LitertlmFile(path)


# LiteRT-LM's own tools


def test_we_read_what_the_builder_wrote(gguf_path, path, tmp_path):
    builder = pytest.importorskip("litert_lm_builder")
    tokenizer = tmp_path / "tokenizer.json"
    with LitertlmFile(path) as file:
        section = file.model()
        model = path.read_bytes()[section.begin : section.end]
        tokenizer.write_bytes(file.tokenizer())
        about = next(s for s in file.sections if s.kind == SectionKind.LLM_METADATA)
        (tmp_path / "about.pb").write_bytes(path.read_bytes()[about.begin : about.end])
        wanted = file.llm_metadata(), file.tokenizer()
    (tmp_path / "model.tflite").write_bytes(model)
    theirs = tmp_path / "theirs.litertlm"
    build = builder.LitertLmFileBuilder()
    build.add_system_metadata(
        builder.Metadata(key="a", value="b", dtype=builder.DType.STRING)
    )
    build.add_llm_metadata(str(tmp_path / "about.pb"))
    build.add_hf_tokenizer(str(tokenizer))
    build.add_tflite_model(
        str(tmp_path / "model.tflite"), builder.TfLiteModelType.PREFILL_DECODE
    )
    with open(theirs, "wb") as out:
        build.build(out)
    with LitertlmFile(theirs) as file:
        assert (file.llm_metadata(), file.tokenizer()) == wanted
        assert file.extract(file.model()).read_bytes() == model


def test_their_engine_opens_what_we_wrote(path, tmp_path):
    engine = pytest.importorskip("litert_lm")
    engine.set_min_log_severity(engine.LogSeverity.ERROR)
    (tmp_path / "engine").mkdir()
    cpu = engine.Backend.CPU(thread_count=1)
    opened = engine.Engine(str(path), backend=cpu, cache_dir=str(tmp_path / "engine"))
    assert opened.tokenize("REPLY the user") == [352, 344, 35, 342]
    assert opened.eos_token_ids == [[2], [0]]
    with opened.create_conversation() as talk:
        wanted = "<|im_start|>user\nREPLY<|im_end|>\n<|im_start|>assistant\n"
        assert talk.render_message_to_string("REPLY") == wanted
    session = opened.create_session()
    session.run_prefill(["REPLY the user"])
    (score,) = session.run_text_scoring([" the"], True).scores
    session.close()
    assert np.isfinite(score)


def test_their_engine_writes_the_same_text(gguf_path, tmp_path):
    """Greedy, from the same prompts; it ends a text that is cut within a sign."""
    engine = pytest.importorskip("litert_lm")
    pytest.importorskip("ai_edge_litert")
    engine.set_min_log_severity(engine.LogSeverity.ERROR)
    path, n = tmp_path / "m.litertlm", 12
    with GgufSource(gguf_path) as source:
        write_litertlm(source, path, "f32", n_ctx=64)
    (tmp_path / "engine").mkdir()
    cpu = engine.Backend.CPU(thread_count=1)
    opened = engine.Engine(str(path), backend=cpu, cache_dir=str(tmp_path / "engine"))
    with eliza.load(path) as model:
        for prompt in ("REPLY the user", "FOLLOW", "UNMUTE", "an action", "MUTE"):
            theirs = opened.create_session(
                apply_prompt_template=False,
                sampler_config=engine.SamplerConfig(1, 1.0, 1.0, 1),
                max_output_tokens=n,
            )
            theirs.run_prefill([prompt])
            (text,) = theirs.run_decode().texts
            theirs.close()
            with model.open(max_tokens=n) as session:
                session.prefill(prompt)
                ours = "".join(step.text for step in session)
            assert len(ours.rstrip("\ufffd")) > 5
            assert text.rstrip("\ufffd") == ours.rstrip("\ufffd")
