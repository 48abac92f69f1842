"""Letting go of a model in MLX: its memory, in a forked child, and when Python ends."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed")
if importlib.util.find_spec("mlx_lm") is None:
    pytest.skip("mlx-lm is not installed", allow_module_level=True)

from eliza.backends.mlx import MlxBackend  # noqa: E402
from mlx_models import converted  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("model"))


@pytest.fixture
def backend(folder):
    with MlxBackend(folder, n_ctx=256, n_batch=4) as backend:
        yield backend


# -- the end of the process ------------------------------------------------------------


def test_a_state_is_read_without_a_file_of_python(backend, monkeypatch):
    """MLX would read it in a thread, which aborts the process if it is still there."""
    sequence = backend.open()
    sequence.decode([5, 6])
    state = sequence.save()
    monkeypatch.setattr(mx, "load", None)
    sequence.restore(state, 2)
    assert sequence.position == 2


def test_a_process_may_end_right_after_loading(folder):
    code = "import sys, eliza; eliza.load(sys.argv[1]).close()"
    command = [sys.executable, "-P", "-c", code, str(folder)]
    for _ in range(5):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
