"""What `eliza.load` makes of a selection, with backends that need no runtime."""

from __future__ import annotations

import pytest

import eliza
import eliza.backends
from eliza import DEFAULT, ERROR, Bundle, Registry, backends, select
from eliza.backends import LLAMA
from eliza.errors import BackendError, BundleError, InvalidType, NotSupported
from eliza.testing import ScriptedBackend
from factories import ENV, Fake
from support import plain_vocab


@pytest.fixture
def registry(monkeypatch):
    """The registry of the process, for one test."""
    made = Registry(eliza.backends.builtins)
    monkeypatch.setattr(eliza.backends, "REGISTRY", made)
    monkeypatch.delenv(ENV, raising=False)
    return made


def scripted():
    return ScriptedBackend(plain_vocab(), lambda history: {7: 1.0})


def test_load_takes_what_is_selected(registry, tmp_path):
    backend = scripted()
    fake = Fake(rank=1, opened=backend)
    registry.register(fake)
    options = {"backend_options": {"speed": 9}, "n_ctx": 77}
    with eliza.load(tmp_path / "x", **options) as model:
        assert model.backend is backend
        assert model.model_id == "scripted"
        trie = eliza.Trie.from_tokens({"a": [7], "b": [8]}, n_vocab=64)
        assert model.choose([5], trie, method="greedy").value == "a"
    bundle = Bundle.of(tmp_path / "x")
    assert fake.asked[-1] == ("open", bundle, {"speed": 9, "n_ctx": 77})
    with eliza.load("x", model_id="mine") as model:
        assert model.model_id == "mine"
    with pytest.raises(InvalidType, match="model_id is 3"):
        eliza.load("x", model_id=3)
    with pytest.raises(InvalidType, match="backend_options is 5"):
        eliza.load("x", backend_options=5)
    with pytest.raises(InvalidType, match=r"'x' is a path, .*eliza\.load opens it"):
        eliza.Model("x")


def test_load_by_name(registry, monkeypatch):
    fake = Fake(rank=0, opened=scripted())
    registry.register(fake)
    assert eliza.load("x", backend="FAKE").backend is fake._opened
    with pytest.raises(NotSupported, match="backend='other' is not a registered"):
        eliza.load("x", backend="other")
    monkeypatch.setenv(ENV, "fake")
    assert eliza.load("x").backend is fake._opened
    monkeypatch.setenv(ENV, "litert-lm")
    monkeypatch.setattr(backends._LitertFactory, "available", lambda self: False)
    with pytest.raises(NotSupported, match="ELIZA_LLM_BACKEND=litert-lm is not avail"):
        eliza.load("x")


def test_load_refuses_a_backend_that_ignores_a_constraint(registry):
    """FC-118."""
    registry.register(Fake("deaf", rank=9, provides={"forced_run"}, opened=scripted()))
    with pytest.raises(NotSupported, match="deaf' does not provide mask"):
        eliza.load("x", backend="deaf")
    with pytest.raises(BundleError, match="No such file"):  # llama.cpp was selected
        eliza.load("no such file.gguf")


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit()])
def test_what_a_factory_raises_while_it_opens_passes_through(registry, error):
    """FC-116."""
    registry.register(Fake(opened=error))
    with pytest.raises(type(error)) as caught:
        eliza.load("x")
    assert caught.value is error


@pytest.mark.parametrize("opened", [None, "text", object()])
def test_what_a_factory_opens_is_a_backend(registry, opened):
    """FC-116."""
    registry.register(Fake(opened=opened))
    with pytest.raises(InvalidType, match=r"the factory fake opened .* lacks open"):
        eliza.load("x")


def test_a_backend_that_fails_at_once_is_closed(registry):
    class Failing(ScriptedBackend):
        closed = 0

        def close(self):
            self.closed += 1

        @property
        def chat_template(self):
            raise BackendError("its template is gone")

        @chat_template.setter
        def chat_template(self, value):
            pass

    backend = Failing(plain_vocab(), lambda history: {})
    registry.register(Fake(opened=backend))
    with pytest.raises(BackendError, match="gone"):
        eliza.load("x")
    assert backend.closed == 1


def test_a_live_llama_is_llama_cpps_alone(registry, monkeypatch):
    class Llama:
        pass

    Llama.__module__ = "llama_cpp.llama"

    class Mine(Llama):
        pass

    bundle = Bundle.of(Mine())
    assert bundle.live is not None
    assert select(bundle) == DEFAULT(LLAMA)
    monkeypatch.setenv(ENV, "mlx-coreml")
    assert isinstance(select(Llama()), ERROR)
    for wrong in (3, None, b"x", ["x"]):
        with pytest.raises(InvalidType):
            eliza.load(wrong)
