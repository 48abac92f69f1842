"""`eliza.load` on what a model may come in, with a real file of half a megabyte."""

import hashlib
import json

import pytest

import eliza
from eliza import backends
from eliza.errors import BundleError, InvalidType, NotSupported
from tiny import tiny_gguf

llama_cpp = pytest.importorskip("llama_cpp")

ENV = "ELIZA_LLM_BACKEND"
OPTIONS = {"n_ctx": 256, "n_threads": 1}
CHOICES = ["Yes", "No", "Maybe"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def bundle(path, tmp_path):
    text = tmp_path / "text"
    text.mkdir()
    (text / "tiny.gguf").write_bytes(path.read_bytes())
    return tmp_path


def answer(model):
    return model.choose("an action", CHOICES).value


@pytest.mark.parametrize("name", [None, "llama.cpp", "LLAMA"])
def test_file_folder_bundle_and_live_llama_are_the_same_model(path, bundle, name):
    options = {**OPTIONS, "backend": name}
    with eliza.load(path, **options) as model:
        expected = answer(model)
        assert model.model_id == model.backend.model_id == "tiny-llama-bpe-0"
    for source in (str(bundle), bundle / "text", eliza.Bundle.of(bundle)):
        with eliza.load(source, **options) as model:
            assert answer(model) == expected
            assert model.model_id == "tiny-llama-bpe-0"
    llama = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False)
    # Nothing is loaded any more: `progress` has nothing to say, and is no error.
    with eliza.load(llama, model_id="mine", progress=print, **options) as model:
        assert answer(model) == expected
        assert model.model_id == "mine"
    llama.close()


def test_a_model_says_what_it_is(path):
    with eliza.load(path, **OPTIONS) as model:
        assert repr(model) == "<Model 'tiny-llama-bpe-0' on LlamaBackend: 372 ids>"
    assert repr(model) == "<Model on LlamaBackend, closed>"


def test_the_manifest_names_the_model(bundle):
    raw = (bundle / "text" / "tiny.gguf").read_bytes()
    file = {"path": "text/tiny.gguf", "sizeBytes": len(raw)}
    file["sha256"] = hashlib.sha256(raw).hexdigest()
    document = {"id": "eliza-1-tiny", "files": {"text": [file]}}
    (bundle / "manifest.json").write_text(json.dumps(document))
    assert eliza.Bundle.of(bundle).verify().id == "eliza-1-tiny"
    with eliza.load(bundle, **OPTIONS) as model:
        assert model.model_id == "eliza-1-tiny"
        assert answer(model) in CHOICES
    with eliza.load(bundle, model_id="", **OPTIONS) as model:
        assert model.model_id == ""
    (bundle / "text" / "tiny.gguf").write_bytes(raw[:-1])
    with pytest.raises(BundleError, match="the manifest says"):
        eliza.load(bundle)


def test_the_environment_holds_for_all_of_them(path, bundle, monkeypatch):
    monkeypatch.setenv(ENV, "llamacpp")
    monkeypatch.setattr(backends._MlxFactory, "available", lambda self: False)
    with eliza.load(path, **OPTIONS) as model:
        assert model.backend.name == "llama.cpp"
        monkeypatch.setenv(ENV, "mlx-coreml")
        for source in (path, bundle):
            with pytest.raises(NotSupported, match=f"{ENV}=mlx-coreml is not avail"):
                eliza.load(source)
        assert answer(model) in CHOICES  # which was loaded before


def test_the_options_of_the_backend(path):
    with pytest.raises(InvalidType, match="flash_attn"):
        eliza.load(path, backend_options={"flash_attn": 3})
    with pytest.raises(InvalidType, match=r"llama\.cpp has no option 'speed'.*n_batch"):
        eliza.load(path, backend_options={"speed": 3})

    def stop(fraction):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        eliza.load(path, progress=stop)
    with eliza.load(path, **OPTIONS, progress=lambda fraction: None) as model:
        assert model.backend.n_ctx == 256
