"""tflite-runtime 2.14, which has the older interface only, and not all operators.

With it installed in place of ai-edge-litert (it needs NumPy 1) these tests use it; else
they use a package of its name that passes everything on to ai-edge-litert.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

import eliza
from eliza.backends import litert_base
from eliza.backends.litert import LitertBackend
from eliza.convert.source import GgufSource
from eliza.errors import NotSupported
from litert_files import IDS, TOLERANCE, write_files
from llama_reference import forward
from tiny import tiny_gguf

pytest.importorskip("tokenizers")

REAL = find_spec("tflite_runtime") is not None
if not REAL:
    pytest.importorskip("ai_edge_litert", reason="needs a LiteRT of some kind")

STUB = """
import sys

_real = sys.modules["the_real_litert"].Interpreter
missing = ""


class Interpreter:
    def __init__(
        self, model_path=None, model_content=None, experimental_delegates=None,
        num_threads=None,
    ):
        if missing == "op":
            raise ValueError("Op builtin_code out of range: 206. Are you using old ...")
        self._real = _real(model_path=model_path, num_threads=num_threads)

    def get_signature_list(self):
        return self._real.get_signature_list()

    def get_signature_runner(self, signature_key=None):
        return Runner(self._real.get_signature_runner(signature_key))


class Runner:
    def __init__(self, real):
        self._real = real

    def get_input_details(self):
        return self._real.get_input_details()

    def get_output_details(self):
        return self._real.get_output_details()

    def __call__(self, **inputs):
        if missing == "version":
            raise RuntimeError("Didn't find op for builtin opcode 'ADD' version '9'.")
        return self._real(**inputs)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    with GgufSource(tiny_gguf(folder / "tiny.gguf")) as source:
        write_files(source, folder)
        np.save(folder / "wanted.npy", forward(source, IDS))
    return folder


@pytest.fixture(autouse=True)
def old(tmp_path, monkeypatch):
    """Let tflite_runtime be there and ai_edge_litert not; return the former."""
    monkeypatch.setenv("ELIZA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ELIZA_LLM_BACKEND", raising=False)
    if REAL:
        yield None
        return
    import ai_edge_litert.interpreter as real

    package = tmp_path / "tflite_runtime"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "interpreter.py").write_text(STUB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "the_real_litert", real)
    for name in [name for name in sys.modules if name.startswith("ai_edge_litert")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(litert_base.np, "__version__", "1.26.4")
    import tflite_runtime.interpreter as stub

    yield stub
    for name in ("tflite_runtime", "tflite_runtime.interpreter"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["m.tflite", "m.litertlm"])
def test_it_runs_what_it_can(files, name):
    assert eliza.select(files / name).unwrap().name == "litert-lm"
    with eliza.load(files / name) as model:
        sequence = model.backend.open()
        sequence.decode(IDS)
        wanted = np.load(files / "wanted.npy")
        assert np.abs(sequence.logits() - wanted[-1]).max() < TOLERANCE
        answer = model.choose("an action", ["REPLY", "SEND", "MUTE"])
        assert answer.value in ("REPLY", "SEND", "MUTE")


@pytest.mark.parametrize("missing", ["op", "version"])
def test_what_it_cannot_run_says_what_to_install(files, old, missing):
    name = "m8.tflite"  # which the real one cannot
    if old is not None:
        old.missing = missing
    says = r"cannot be run by tflite-runtime.*pip install 'eliza\[litert\]'; .*[Oo]p"
    with pytest.raises(NotSupported, match=says):
        LitertBackend(files / name)


def test_the_newer_interface_is_not_there(files):
    with pytest.raises(NotSupported, match=r"of ai-edge-litert: pip install"):
        LitertBackend(files / "m.tflite", interface="compiled")


@pytest.mark.skipif(REAL, reason="NumPy is what it is")
def test_under_numpy_2_it_is_not_available(files, monkeypatch):
    monkeypatch.setattr(litert_base.np, "__version__", "2.4.6")
    assert eliza.select(files / "m.tflite").unwrap().name == "llama.cpp"
    with pytest.raises(NotSupported, match=r"is not for NumPy 2"):
        LitertBackend(files / "m.tflite")
