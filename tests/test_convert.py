"""Reading GGUF files of the llama architecture, and writing them for LiteRT."""

import struct
from contextlib import suppress

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from eliza.cli import EXIT_MODEL, EXIT_USAGE, main
from eliza.convert.flatbuffer import Array, Number, Table, Tables, Text, pack
from eliza.convert.litertlm import write_litertlm
from eliza.convert.source import GgufSource
from eliza.convert.tflite import write_tflite
from eliza.convert.tflite_buffers import Buffers, quantise
from eliza.errors import BackendError, BundleError, InvalidArgument, NotSupported
from eliza.files.gguf import KINDS, GgufFile
from eliza.files.litertlm import LitertlmFile
from eliza.files.tables import TableView
from eliza.files.tflite import TfliteFile
from llama_reference import forward
from tiny import tiny_gguf

pytest.importorskip("tokenizers")

IDS = [300, 310, 5, 77, 300, 12, 260, 9]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def source(path):
    with GgufSource(path) as source:
        yield source


def changed(path, out, values=None, tensors=None, without=()):
    """Copy a GGUF file with other values and tensors."""
    old = gguf.GGUFReader(path)
    name = (values or {}).get("general.architecture", "llama")
    writer = gguf.GGUFWriter(out, name)
    for key, entry in old.fields.items():
        if key.startswith("GGUF.") or key in (values or {}) or key in without:
            continue
        if key == "general.architecture":
            continue
        kind, *rest = entry.types
        sub = rest[-1] if rest else None
        writer.add_key_value(key, entry.contents(), kind, sub)
    for key, value in (values or {}).items():
        if key != "general.architecture":
            kind = gguf.GGUFValueType.get_type(value)
            writer.add_key_value(key, value, kind)
    given = tensors or {}
    for tensor in old.tensors:
        if tensor.name not in without and tensor.name not in given:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    for key, (data, kind) in given.items():
        writer.add_tensor(key, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


# The source


def test_the_shape_of_the_model(source):
    c = source.config
    assert (c.n_layers, c.n_embd, c.n_heads, c.n_kv_heads) == (2, 64, 2, 1)
    assert (c.head_dim, c.n_ff, c.n_vocab, c.n_ctx_train) == (32, 128, 372, 8192)
    assert (c.rope_theta, c.tied, c.name) == (10000.0, False, "tiny-llama-bpe-0")
    assert c.norm_eps == pytest.approx(1e-5)
    assert next(iter(source.shapes)) == "model.embed_tokens.weight"
    assert list(source.shapes)[-1] == "lm_head.weight"
    assert source.raw_tokenizer["tokenizer.ggml.model"] == "gpt2"
    assert len(source.raw_tokenizer["tokenizer.ggml.tokens"]) == 372


def test_rows_are_those_of_the_whole(source):
    for name, shape in source.shapes.items():
        whole = source.tensor(name)
        assert whole.shape == shape
        assert whole.dtype == np.float32
        assert np.array_equal(source.tensor(name, 3, 9), whole[3:9])
        assert np.array_equal(source.tensor(name, shape[0] - 1), whole[-1:])


def test_what_it_computes_is_what_llama_cpp_does(path, source):
    """The order of rows in queries and keys, the epsilon, the rotation."""
    pytest.importorskip("llama_cpp")
    from eliza.backends.llama_cpp import LlamaBackend

    with LlamaBackend(path, n_threads=1, kv_type="f32", flash_attn=False) as backend:
        sequence = backend.open()
        sequence.decode_many(IDS)
        theirs = [sequence.logits(i) for i in range(len(IDS))]
    assert np.abs(forward(source, IDS) - theirs).max() < 1e-3


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16", "BF16", "Q5_0"])
def test_quantised_weights(path, source, tmp_path, kind):
    name = "blk.1.ffn_gate.weight"
    number = gguf.GGMLQuantizationType[kind]
    data = quantize(source.tensor("model.layers.1.mlp.gate_proj.weight"), number)
    wanted = dequantize(data, number)
    new = changed(path, tmp_path / "q.gguf", tensors={name: (data, number)})
    with GgufSource(new) as other:
        got = other.tensor("model.layers.1.mlp.gate_proj.weight")
        assert np.array_equal(got, wanted)
        part = other.tensor("model.layers.1.mlp.gate_proj.weight", 5, 7)
        assert np.array_equal(part, wanted[5:7])


def test_kinds_are_those_of_gguf():
    for number, (name, values, size) in KINDS.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (values, size)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"general.architecture": "qwen2"}, "architecture 'qwen2'; eliza converts"),
        ({"llama.rope.scaling.type": "yarn"}, r"llama\.rope\.scaling\.type = 'yarn'"),
        ({"llama.rope.scaling.factor": 8.0}, r"llama\.rope\.scaling\.factor"),
        ({"llama.expert_count": 8}, r"llama\.expert_count = '8'"),
        ({"llama.rope.dimension_count": 16}, "16 of them rotated"),
        ({"llama.attention.sliding_window": 64}, "sliding_window"),
        ({"split.count": 3}, "one of 3 parts"),
    ],
)
def test_what_would_be_lost_is_refused(path, tmp_path, values, message):
    new = changed(path, tmp_path / "other.gguf", values)
    with pytest.raises(NotSupported, match=message):
        GgufSource(new)


def test_tensors_that_have_no_place_are_refused(path, tmp_path):
    bias = {"blk.0.attn_q.bias": (np.ones(64, np.float32), None)}
    new = changed(path, tmp_path / "bias.gguf", tensors=bias)
    with pytest.raises(NotSupported, match=r"'blk\.0\.attn_q\.bias' of shape \(64,\)"):
        GgufSource(new)
    factors = {"rope_freqs.weight": (np.full(16, 2, np.float32), None)}
    new = changed(path, tmp_path / "factors.gguf", tensors=factors)
    with pytest.raises(NotSupported, match="rope_freqs"):
        GgufSource(new)
    ones = {"rope_freqs.weight": (np.ones(16, np.float32), None)}
    GgufSource(changed(path, tmp_path / "ones.gguf", tensors=ones)).close()


def test_missing_and_misshapen_tensors(path, tmp_path):
    new = changed(path, tmp_path / "a.gguf", without=["blk.1.ffn_up.weight"])
    with pytest.raises(BundleError, match=r"no tensor blk\.1\.ffn_up\.weight"):
        GgufSource(new)
    wrong = {"blk.1.ffn_up.weight": (np.ones((64, 64), np.float32), None)}
    new = changed(path, tmp_path / "b.gguf", tensors=wrong)
    with pytest.raises(BundleError, match=r"shape \(64, 64\), not \(128, 64\)"):
        GgufSource(new)
    new = changed(path, tmp_path / "c.gguf", without=["llama.block_count"])
    with pytest.raises(BundleError, match=r"does not say llama\.block_count"):
        GgufSource(new)


def test_a_tied_head_is_the_embedding(path, tmp_path):
    new = changed(path, tmp_path / "tied.gguf", without=["output.weight"])
    with GgufSource(new) as tied:
        assert tied.config.tied
        assert "lm_head.weight" not in tied.shapes


def test_values_that_are_not_finite(path, tmp_path):
    bad = np.ones((128, 64), np.float32)
    bad[7, 7] = np.inf
    new = changed(
        path, tmp_path / "inf.gguf", tensors={"blk.0.ffn_up.weight": (bad, None)}
    )
    with GgufSource(new) as other, pytest.raises(BundleError, match="not finite"):
        other.tensor("model.layers.0.mlp.up_proj.weight")


# Hostile files


def test_a_file_cut_anywhere(path, tmp_path):
    data = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    sizes = [*range(0, 600, 7), *range(600, len(data), len(data) // 60), len(data) - 1]
    for size in sizes:
        cut.write_bytes(data[:size])
        with pytest.raises(BundleError, match=r"cut short|not a GGUF|damaged"):
            GgufSource(cut)


def test_flipped_bits_of_the_header(path, tmp_path):
    data = path.read_bytes()
    with GgufFile(path) as file:
        end = min(t.offset for t in file.tensors.values())
    rng = np.random.default_rng(1)
    bad = tmp_path / "flip.gguf"
    for at in rng.integers(0, end, 400):
        other = bytearray(data)
        other[at] ^= 1 << int(rng.integers(8))
        bad.write_bytes(other)
        with suppress(BundleError, NotSupported):
            GgufSource(bad).close()


def test_lengths_that_cannot_be(tmp_path):
    """R5: a file of 60 bytes that claims 2**60 values ends at once."""
    bad = tmp_path / "long.gguf"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    key = struct.pack("<Q", 1) + b"k"
    claims = (
        struct.pack("<IIQ", 9, 0, 1 << 60),  # a list of bytes
        struct.pack("<IIQ", 9, 8, 1 << 60),  # a list of texts
        struct.pack("<IQ", 8, 1 << 60),  # a text
        struct.pack("<IIQ", 9, 9, 1),  # a list of lists
    )
    for claim in claims:
        bad.write_bytes(start + key + claim)
        with pytest.raises(BundleError, match=r"claims|lists of numbers"):
            GgufFile(bad)
    bad.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0))
    with pytest.raises(BundleError, match="claims"):
        GgufFile(bad)
    bad.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(BundleError, match="version 1"):
        GgufFile(bad)


def test_no_file(tmp_path):
    for name in (tmp_path / "none.gguf", tmp_path, "a\0b"):
        with pytest.raises(BundleError):
            GgufSource(name)


# Flatbuffers


def test_a_table_comes_back():
    late = Number("u64", 0)
    shared = Text("ä name")
    row = Array(np.arange(3, dtype=np.uint8))
    table = Table(
        {
            0: Number("i8", -3),
            2: Tables([Table({0: shared, 1: late}), Table({})]),
            3: row,
            5: shared,
        }
    )
    data = pack(table, b"TEST")
    late.value = 1 << 40
    late.patch(data)
    row.values = np.array([7, 8, 9], np.uint8)
    row.patch(data)
    root = TableView.root(bytes(data))
    first, second = root.tables(2)
    assert root.number(0, "<b") == -3
    assert root.number(1, "<i", 5) == 5
    assert first.text(0) == root.text(5) == "ä name"
    assert first.number(1, "<Q") == 1 << 40
    assert second.text(0) == ""
    assert root.bytes(3) == b"\x07\x08\x09"
    assert bytes(data).count("ä name".encode()) == 1


# Writing


def test_quantised_rows_are_within_half_a_step():
    values = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32)
    values[3] = 0
    quantised, scales = quantise(values)
    assert quantised.dtype == np.int8
    assert quantised.min() >= -127
    back = quantised * scales[:, None]
    assert (np.abs(back - values) <= scales[:, None] / 2 + 1e-7).all()


def test_weights_are_written_in_pieces(tmp_path):
    """R11: a weight of 60 MB is never in memory as a whole."""
    asked = []

    def produce(start, stop):
        asked.append(stop - start)
        return np.full((stop - start, 1000), start, np.float32)

    buffers = Buffers()
    buffers.weight("w", (15_000, 1000), produce)
    fractions = []
    tables = pack(Table({0: Tables(buffers.tables())}))
    with open(tmp_path / "w", "w+b") as file:
        buffers.write(file, tables, fractions.append)
        assert file.seek(0, 2) == -(-len(tables) // 64) * 64 + 4 * 15_000_000
    assert sum(asked) == 15_000
    assert max(asked) * 4000 <= 16 << 20
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


@pytest.mark.parametrize("write", [write_tflite, write_litertlm])
def test_written_whole_or_not_at_all(source, tmp_path, write, monkeypatch):
    """R9."""
    out = tmp_path / "out"
    out.write_bytes(b"before")

    def broken(name, start=0, stop=None, tensor=source.tensor):
        if name.endswith("layers.1.mlp.up_proj.weight"):
            raise BundleError("broken")
        return tensor(name, start, stop)

    monkeypatch.setattr(source, "tensor", broken)
    with pytest.raises(BundleError, match="broken"):
        write(source, out)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    assert out.read_bytes() == b"before"

    def stop(fraction):
        raise KeyboardInterrupt

    monkeypatch.undo()
    with pytest.raises(KeyboardInterrupt):
        write(source, out, progress=stop)
    assert [file.name for file in tmp_path.iterdir()] == ["out"]
    write(source, out)
    assert len(out.read_bytes()) > 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "int4"}, "type is 'int4'; it is one of f32, int8"),
        ({"n_ctx": 0}, r"n_ctx is 0; it lies in \[2, 8192\]"),
        ({"n_ctx": 9000}, "n_ctx is 9000"),
        ({"prefill": [1]}, "prefill has 1"),
        ({"rows": [-3]}, "rows has -3"),
    ],
)
def test_bad_options(source, tmp_path, options, message):
    for write in (write_tflite, write_litertlm):
        with pytest.raises(InvalidArgument, match=message):
            write(source, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(source, tmp_path):
    for write in (write_tflite, write_litertlm):
        with pytest.raises(BackendError, match="cannot be written"):
            write(source, tmp_path / "none" / "out")


def test_the_same_model_gives_the_same_file(source, tmp_path):
    for write in (write_tflite, write_litertlm):
        write(source, tmp_path / "a")
        write(source, tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# The command


def test_the_command(path, tmp_path, capsys):
    for name in ("m.tflite", "m.litertlm"):
        out = tmp_path / name
        assert main(["convert", str(path), str(out), "--n-ctx", "64"]) == 0
        assert f"{out}: 0." in capsys.readouterr().out
    with TfliteFile(tmp_path / "m.tflite") as file:
        assert set(file.metadata) == {"eliza", "eliza_tokenizer"}
    with LitertlmFile(tmp_path / "m.litertlm") as file:
        assert file.llm_metadata().max_tokens == 64


@pytest.mark.parametrize(
    ("out", "options", "code", "message"),
    [
        ("out.gguf", [], EXIT_USAGE, "ends with '.gguf'"),
        ("folder", ["--n-ctx", "64"], EXIT_USAGE, "--n-ctx is for .tflite"),
        ("out.tflite", ["--type", "q4"], EXIT_USAGE, "type is 'q4'"),
        ("none/out.tflite", [], EXIT_MODEL, "cannot be written"),
    ],
)
def test_the_command_refuses(path, tmp_path, capsys, out, options, code, message):
    assert main(["convert", str(path), str(tmp_path / out), *options]) == code
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_does_not_write_over_the_model(path, tmp_path, capsys):
    same = tmp_path / "same.tflite"
    same.symlink_to(path)
    assert main(["convert", str(path), str(same)]) == EXIT_USAGE
    assert "is the model itself" in capsys.readouterr().err
