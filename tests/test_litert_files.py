"""Files for LiteRT: others' forms of them, their tokenizers, and those that are bad."""

import json
import multiprocessing

import numpy as np
import pytest

import children
from eliza.backends.litert import LitertBackend
from eliza.convert.flatbuffer import Number, Table, Tables, Text, pack
from eliza.convert.source import GgufSource
from eliza.convert.tflite_buffers import Buffers
from eliza.convert.tflite_graph import ModelTables
from eliza.convert.tflite_llama import add_weights, ending_at
from eliza.errors import BundleError, NotSupported
from eliza.files.tables import TableView
from eliza.tokenizers import from_gguf
from litert_files import IDS, TOLERANCE, variant, write_files
from llama_reference import forward
from tiny import tiny_gguf

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def source(gguf_path):
    with GgufSource(gguf_path) as source:
        yield source


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


def test_other_names(source, wanted, tmp_path):
    names = {"tokens": "token_ids", "input_pos": "positions", "mask": "attn_mask"}
    variant(source, tmp_path / "m.tflite", rename=names)
    write_tokenizer(source, tmp_path)
    with LitertBackend(tmp_path / "m.tflite") as backend:
        sequence = backend.open()
        sequence.decode(IDS)
        assert np.abs(sequence.logits() - wanted[-1]).max() < TOLERANCE


# Tokenizers


def write_tokenizer(source, folder):
    (folder / "tokenizer.json").write_bytes(from_gguf(source.raw_tokenizer))


def test_a_tokenizer_beside_the_file(source, tmp_path):
    variant(source, tmp_path / "m.tflite")
    with pytest.raises(BundleError, match="has no tokenizer in it"):
        LitertBackend(tmp_path / "m.tflite")
    write_tokenizer(source, tmp_path)
    with LitertBackend(tmp_path / "m.tflite") as backend:
        assert backend.vocab.encode("REPLY the") == [352, 344]
    given = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").unlink()
    for tokenizer in (given, str(tmp_path / "t" / "tokenizer.json"), tmp_path / "t"):
        (tmp_path / "t").mkdir(exist_ok=True)
        (tmp_path / "t" / "tokenizer.json").write_bytes(given)
        LitertBackend(tmp_path / "m.tflite", tokenizer=tokenizer).close()
    (tmp_path / "a.model").write_bytes(b"x")
    (tmp_path / "b.model").write_bytes(b"x")
    with pytest.raises(BundleError, match=r"a\.model, b\.model"):
        LitertBackend(tmp_path / "m.tflite")


def test_the_tokenizer_in_a_file_comes_before_one_beside_it(files, tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes((files / "m.tflite").read_bytes())
    for name in ("tokenizer.json", "a.model", "b.model"):
        (tmp_path / name).write_bytes(b"of some other model")
    with LitertBackend(path) as backend:
        assert backend.vocab.encode("REPLY the") == [352, 344]
    with pytest.raises(BundleError):  # unless it is asked for
        LitertBackend(path, tokenizer=tmp_path / "tokenizer.json")


def test_another_models_tokenizer(source, tmp_path):
    variant(source, tmp_path / "m.tflite")
    document = json.loads(from_gguf(source.raw_tokenizer))
    document["model"]["vocab"]["zzz"] = 500
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(BundleError, match="belong together"):
        LitertBackend(tmp_path / "m.tflite")


# Files that are bad


def test_foreign_and_missing_files(tmp_path):
    for name in ("m.tflite", "m.litertlm"):
        file = tmp_path / name
        with pytest.raises(BundleError, match="cannot be read"):
            LitertBackend(file)
        for data in (b"", b"GGUF", b"PK\x03\x04" * 100):
            file.write_bytes(data)
            with pytest.raises(BundleError, match="is not a"):
                LitertBackend(file)
    with pytest.raises(BundleError, match="is a folder"):
        LitertBackend(tmp_path)


@pytest.mark.parametrize("name", ["m.tflite", "m.litertlm"])
def test_a_file_cut_anywhere(files, tmp_path, name):
    """The runtime maps weights: behind the end of the file it would be killed."""
    data = (files / name).read_bytes()
    cut = tmp_path / name
    for size in [8, 100, *range(1000, len(data), len(data) // 25), len(data) - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(BundleError):
            LitertBackend(cut)


def test_a_signature_of_a_graph_that_is_not_there(source, tmp_path):
    """A flipped bit that ended the process."""
    data = bytearray(variant(source, tmp_path / "m.tflite").read_bytes())
    signature = TableView.root(bytes(data)).tables(7)[0]
    data[signature._place(4)] = 77
    (tmp_path / "m.tflite").write_bytes(data)
    with pytest.raises(BundleError, match="graph 77 of"):
        LitertBackend(tmp_path / "m.tflite")


@pytest.mark.parametrize("groups", [["weights.bin", "more.bin"], []], ids=str)
def test_weights_in_other_files(source, tmp_path, groups):
    """Those of the schema's external buffers, which no section or file goes with."""
    path = tmp_path / "m.tflite"
    buffers = Buffers()
    add_weights(buffers, source, "f32", 64)
    model = ModelTables(buffers)
    ending_at("logits", "decode", 1, model, source, 64)
    root = model.table()
    external = Table({0: Number("u32", 1), 3: Number("u64", 4096)})
    fields = {**root.fields, 9: Tables([external])}
    if groups:
        fields[8] = Tables([Table({0: Text(name)}) for name in groups])
    with open(path, "w+b") as file:
        buffers.write(file, pack(Table(fields), b"TFL3"), lambda _: None)
    said = "'weights.bin', 'more.bin'" if groups else "files that it does not name"
    with pytest.raises(NotSupported, match=f"outside of itself, in {said}"):
        LitertBackend(path)


def test_flipped_bits_end_no_process(files, tmp_path):
    """One of the runtime's interfaces does not check what it reads."""
    data = (files / "m.tflite").read_bytes()
    weights = [buffer.number(1, "<Q") for buffer in TableView.root(data).tables(4)]
    tables = min(offset for offset in weights if offset)
    rng = np.random.default_rng(11)
    for i in range(60):
        other = bytearray(data)
        at = int(rng.integers(8, tables))
        other[at] ^= 1 << int(rng.integers(8))
        (tmp_path / f"{i}.tflite").write_bytes(other)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=children.run_all, args=(str(tmp_path), queue))
    child.start()
    loaded, refused = queue.get(timeout=120)
    child.join(20)
    assert child.exitcode == 0
    # Only where a bit has no meaning, or the file no longer says that we wrote it.
    assert loaded + refused == 60
    assert loaded < 5
