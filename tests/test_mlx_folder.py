"""Folders of MLX weights: written whole or not at all; read, or refused with a reason;
and the backend without mlx."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eliza
import eliza.backends
from eliza.convert import mlx_folder
from eliza.convert.mlx_folder import write_mlx
from eliza.convert.source import GgufSource
from eliza.errors import BundleError, InvalidArgument, InvalidType, NotSupported
from eliza.files.bundle import Bundle
from tiny import tiny_gguf

(FACTORY,) = (f for f in eliza.backends.builtins() if f.name == "mlx-coreml")


needs_mlx = pytest.mark.skipif(
    not FACTORY.available(), reason="mlx or mlx-lm is not installed"
)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def source(gguf):
    with GgufSource(gguf) as source:
        yield source


@pytest.fixture
def folder(tmp_path, source):
    write_mlx(source, tmp_path / "out")
    return tmp_path / "out"


# -- writing ---------------------------------------------------------------------------


def tensors(path: Path) -> dict:
    """Read a file of the format safetensors in the plainest way."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    kinds = {"F32": "<f4", "F16": "<f2", "U32": "<u4"}
    found = {}
    end = 0
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        assert start == end
        end = stop
        values = np.frombuffer(
            data[8 + size + start : 8 + size + stop], kinds[entry["dtype"]]
        )
        found[name] = values.reshape(entry["shape"])
    assert 8 + size + end == len(data)
    return found


def test_f32_is_what_the_source_has(folder, source):
    found = tensors(folder / "model.safetensors")
    assert found.keys() == source.shapes.keys()
    for name, values in found.items():
        np.testing.assert_array_equal(values, source.tensor(name))


def test_int8_is_within_half_a_step(tmp_path, source):
    write_mlx(source, tmp_path / "out", "int8")
    found = tensors(tmp_path / "out" / "model.safetensors")
    quantization = json.loads((tmp_path / "out" / "config.json").read_bytes())[
        "quantization"
    ]
    assert quantization == {"group_size": 64, "bits": 8}
    for name, shape in source.shapes.items():
        stem = name.removesuffix("weight")
        if len(shape) == 1:
            assert f"{stem}scales" not in found
            continue
        scales, biases = found[f"{stem}scales"], found[f"{stem}biases"]
        steps = found[name].view(np.uint8).reshape(*scales.shape, 64)
        values = steps * scales[..., None] + biases[..., None]
        wanted = source.tensor(name).reshape(values.shape)
        assert np.abs(values - wanted).max() <= 0.501 * scales.max()


@needs_mlx
def test_int8_is_what_mlx_dequantizes():
    import mlx.core as mx

    values = np.random.default_rng(0).standard_normal((6, 128)).astype(np.float32)
    values[2] = 3.0  # a group without a range
    for group in (32, 64):
        parts = mlx_folder.quantised(values, group)
        back = mx.dequantize(*map(mx.array, parts), group_size=group, bits=8)
        assert np.abs(np.array(back) - values).max() <= 0.501 * parts[1].max()


def test_large_tensors_are_divided(tmp_path, source, folder, monkeypatch):
    monkeypatch.setattr(mlx_folder, "_SLICE", 1000)
    write_mlx(source, tmp_path / "pieces")
    for name in os.listdir(folder):
        assert (tmp_path / "pieces" / name).read_bytes() == (folder / name).read_bytes()


def test_progress(tmp_path, source):
    seen = []
    write_mlx(source, tmp_path / "out", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert len(seen) > 5


class Stop(Exception):
    pass


@pytest.mark.parametrize("after", [0.0, 0.5, 1.0])
def test_nothing_is_left_of_a_write_that_stops(tmp_path, source, after):
    def progress(fraction):
        if fraction >= after:
            raise Stop

    with pytest.raises(Stop):
        write_mlx(source, tmp_path / "out", progress=progress)
    assert os.listdir(tmp_path) == []


def test_what_is_there_stays(tmp_path, source, folder):
    before = sorted(os.listdir(folder))
    with pytest.raises(BundleError, match="is there already"):
        write_mlx(source, folder)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BundleError, match="is there already"):
        write_mlx(source, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(folder)) == before
    (tmp_path / "empty").mkdir()
    write_mlx(source, tmp_path / "empty")
    assert sorted(os.listdir(tmp_path / "empty")) == before


def test_an_empty_folder_stays_if_the_work_fails(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    before = out.stat()

    def progress(fraction):
        assert list(out.iterdir()) == []
        if fraction == 1:
            raise Stop

    with pytest.raises(Stop):
        write_mlx(source, out, progress=progress)
    assert os.listdir(tmp_path) == ["out"]
    after = out.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_what_comes_into_the_folder_meanwhile_stays(tmp_path, source):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(BundleError, match="cannot be written"):
        write_mlx(source, out, progress=lambda _: (out / "file").write_text("mine"))
    assert os.listdir(tmp_path) == ["out"]
    assert (out / "file").read_text() == "mine"


def test_the_folder_has_a_name_of_its_own(tmp_path, source, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty")
    for out in (".", tmp_path / "link"):
        with pytest.raises(BundleError, match="give the name of a new folder"):
            write_mlx(source, out)
    assert os.listdir(tmp_path / "empty") == []
    assert (tmp_path / "link").is_symlink()


def test_where_it_cannot_be_written(tmp_path, source):
    with pytest.raises(BundleError, match="cannot be written: No such file"):
        write_mlx(source, tmp_path / "missing" / "out")


def test_types(tmp_path, source):
    with pytest.raises(InvalidArgument, match="f32, f16, int8"):
        write_mlx(source, tmp_path / "out", "q4")
    assert os.listdir(tmp_path) == []


def test_f16_overflows_with_a_word(tmp_path, source, monkeypatch):
    original = source.tensor
    monkeypatch.setattr(source, "tensor", lambda *args: original(*args) * 1e6)
    with pytest.raises(NotSupported, match="beyond what f16 can hold"):
        write_mlx(source, tmp_path / "out", "f16")
    assert os.listdir(tmp_path) == []


# -- reading ---------------------------------------------------------------------------


@needs_mlx
def test_load_and_choose(folder):
    with eliza.load(folder) as model:
        assert model.backend.name == "mlx"
        assert model.model_id == "tiny-llama-bpe-0"
        assert model.choose("an action", ["Yes", "No"]).value in {"Yes", "No"}


@needs_mlx
def test_loading_does_not_import_transformers(folder):
    """It takes 4 seconds, and other tests of this process may have done so."""
    code = "import sys, eliza; eliza.load(sys.argv[1]).close(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "mlx.core" in done.stdout.split()
    assert "transformers" not in done.stdout.split()


@needs_mlx
def test_options(folder, caplog):
    seen = []
    with eliza.load(folder, n_ctx=32, progress=seen.append) as model:
        assert model.backend.n_ctx == 32
    assert seen[-1] == 1
    with pytest.raises(NotSupported, match="n_threads"):
        eliza.load(folder, n_threads=2)
    for options in ({"n_ctx": 0}, {"n_batch": -1}):
        with pytest.raises(InvalidArgument, match="lies in"):
            eliza.load(folder, backend_options=options)
    with pytest.raises(InvalidType, match=r"no option 'flash_attn'.*n_batch"):
        eliza.load(folder, backend_options={"flash_attn": True})
    with eliza.load(folder, n_ctx=10_000):
        assert "trained with 8192" in caplog.text


@needs_mlx
@pytest.mark.parametrize("error", [Stop(), ValueError("stop"), RuntimeError("stop")])
def test_a_failing_progress_stops_the_load(folder, error):
    def progress(fraction):
        raise error

    with pytest.raises(type(error)) as raised:
        eliza.load(folder, progress=progress)
    assert raised.value is error


@needs_mlx
@pytest.mark.parametrize("trained", [-5, 0, True, "many", None, 2.5])
def test_a_length_that_is_none_is_not_believed(folder, trained):
    edit(folder / "config.json", max_position_embeddings=trained)
    with eliza.load(folder) as model:
        assert model.backend.n_ctx == (1 if trained is True else 4096)


def edit(path: Path, **change):
    content = json.loads(path.read_bytes())
    content.update(change)
    path.write_text(json.dumps(content))


@needs_mlx
@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"model_type": None}, BundleError, "no model_type"),
        ({"model_type": "nonesuch"}, NotSupported, "no model 'nonesuch'"),
        ({"model_type": "../x"}, NotSupported, "no model"),
        ({"model_file": "evil.py"}, NotSupported, "runs no code of a model"),
        ({"hidden_size": 32}, BundleError, "cannot be loaded"),
        ({"num_hidden_layers": 3}, BundleError, "cannot be loaded"),
        ({"num_hidden_layers": 1}, BundleError, "cannot be loaded"),
        ({"hidden_size": "many"}, BundleError, "cannot be loaded"),
        ({"vocab_size": 100}, BundleError, "do not belong together"),
        ({"rope_theta": "x"}, BundleError, "out cannot be loaded"),
        ({"rms_norm_eps": "x"}, BundleError, "cannot be loaded"),
        ({"rope_scaling": {"rope_type": 3}}, BundleError, "cannot be loaded"),
        ({"num_attention_heads": 0}, BundleError, "loaded: ZeroDivisionError"),
        ({"num_attention_heads": "two"}, BundleError, "cannot be loaded"),
        ({"num_key_value_heads": 0}, BundleError, "cannot be loaded"),
        ({"num_hidden_layers": -1}, BundleError, "cannot be loaded"),
        ({"head_dim": 7}, BundleError, "cannot be loaded"),
        ({"quantization": 5}, BundleError, "cannot be loaded"),
    ],
)
def test_configs_that_do_not_fit(folder, change, error, match):
    (folder / "evil.py").write_text("raise SystemExit('this was run')")
    edit(folder / "config.json", **change)
    with pytest.raises(error, match=match):
        eliza.load(folder)


@needs_mlx
def test_damaged_folders(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    for n in (0, 4, 100, len(whole) // 2, len(whole) - 4):
        weights.write_bytes(whole[:n])
        with pytest.raises(BundleError, match="cannot be loaded"):
            eliza.load(folder)
    weights.write_bytes(whole)
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BundleError, match="lacks model-00002"):
        eliza.load(folder)
    (folder / "model.safetensors.index.json").unlink()
    (folder / "config.json").write_text("{")
    with pytest.raises(BundleError, match="not JSON"):
        eliza.load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(BundleError, match=r"config\.json cannot be read"):
        eliza.load(folder)


@needs_mlx
def test_mlx_lm_reads_what_was_written(tmp_path, source):
    for kind in ("f32", "int8"):
        write_mlx(source, tmp_path / kind, kind)
    script = """
import sys, mlx.core as mx, numpy as np
from mlx_lm import load
import eliza
for kind in ("f32", "int8"):
    model, tokenizer = load(f"{sys.argv[1]}/{kind}")
    ids = tokenizer.encode("an action SEND", add_special_tokens=False)
    with eliza.load(f"{sys.argv[1]}/{kind}") as ours:
        assert ours.vocab.encode("an action SEND") == ids, ids
        assert tokenizer.eos_token_id == ours.vocab.eos
        assert set(tokenizer.eos_token_ids) == set(ours.vocab.eog)
        messages = [{"role": "user", "content": "SEND"}]
        theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        theirs = list(getattr(theirs, "input_ids", theirs))
        assert ours.chat.ids(messages) == theirs, theirs
        sequence = ours.backend.open()
        sequence.decode(ids)
        row = np.array(model(mx.array([ids]))[0, -1])
        np.testing.assert_array_equal(row, sequence.logits())
"""
    subprocess.run(
        [sys.executable, "-P", "-c", script, tmp_path], check=True, timeout=120
    )


# -- without mlx -----------------------------------------------------------------------


@pytest.fixture
def without_mlx(monkeypatch):
    real = importlib.util.find_spec

    def find_spec(name, package=None):
        if name == "mlx.core":
            raise ModuleNotFoundError("No module named 'mlx'")
        return None if name == "mlx" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    for name in [name for name in sys.modules if name.split(".")[0] == "mlx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mlx", None)


def test_without_mlx_it_is_never_selected(without_mlx, folder, gguf):  # K29
    assert not FACTORY.available()
    with pytest.raises(BundleError):
        eliza.select(folder).unwrap().open(Bundle.of(folder))
    both = folder / "tiny.gguf"
    both.write_bytes(gguf.read_bytes())
    assert eliza.select(folder).unwrap().name == "llama.cpp"


def test_without_mlx_who_asks_for_it_is_told(without_mlx, folder, monkeypatch):
    with pytest.raises(eliza.ElizaError, match=r"pip install 'eliza\[mlx\]'"):
        eliza.load(folder, backend="mlx")
    monkeypatch.setenv("ELIZA_LLM_BACKEND", "mlx-coreml")
    with pytest.raises(eliza.ElizaError, match=r"pip install 'eliza\[mlx\]'"):
        eliza.load(folder)
    with pytest.raises(NotSupported, match=r"pip install 'eliza\[mlx\]'"):
        FACTORY.open(Bundle.of(folder))


def test_mlx_cpu_by_itself_is_told_apart(monkeypatch, folder):
    # The package mlx-cpu brings a folder `mlx` without a module `core`.
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name == "mlx.core" else real(name, package),
    )
    for name in [name for name in sys.modules if name.split(".")[0] == "mlx"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    assert not FACTORY.available()
    if real("mlx") is not None:
        with pytest.raises(NotSupported, match=r"only mlx has mlx\.core"):
            FACTORY.open(Bundle.of(folder))


@needs_mlx
def test_it_serves_folders_of_weights_only(folder, gguf):
    assert eliza.select(folder).unwrap().name == "mlx-coreml"
    assert eliza.select(gguf).unwrap().name == "llama.cpp"
    message = r"mlx-coreml.*(serve|tiny\.gguf)"
    with pytest.raises(eliza.ElizaError, match=message):
        eliza.load(gguf, backend="mlx-coreml")


@needs_mlx
def test_several_folders_of_weights(tmp_path, folder):
    (tmp_path / "bundle").mkdir()
    for name in "ab":
        folder_of(tmp_path / "bundle" / name, folder)
    with pytest.raises(BundleError, match=r"2 times MLX weights: a, b"):
        eliza.load(tmp_path / "bundle")


def folder_of(path: Path, like: Path) -> None:
    path.mkdir()
    for file in like.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
