"""The folder for packed weights and models out of containers: whole files, and few."""

from __future__ import annotations

import importlib.metadata
import os
import time
from pathlib import Path

import pytest

from eliza.backends import litert_weights
from eliza.backends.litert import LitertBackend
from eliza.backends.litert_weights import packed_weights
from eliza.convert.litertlm import write_litertlm
from eliza.convert.source import GgufSource
from eliza.convert.tflite import write_tflite
from eliza.files import caching
from eliza.files.litertlm import LitertlmFile
from tiny import tiny_gguf

pytest.importorskip("ai_edge_litert", reason="needs ai-edge-litert")
pytest.importorskip("tokenizers")
pytest.importorskip("filelock")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the cache's folder; small models have packed weights too."""
    monkeypatch.setenv("ELIZA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(litert_weights, "_SMALLEST", 1)
    return tmp_path / "cache" / "litert"


def write(path, seed=0, form=write_tflite):
    with GgufSource(tiny_gguf(path.with_name("tiny.gguf"), seed=seed)) as source:
        form(source, path, "f32", n_ctx=64)
    return path


def names(folder, suffix):
    return {path.name for path in folder.iterdir() if path.suffix == suffix}


def test_packed_weights_are_synced_before_they_have_their_name(
    folder, tmp_path, monkeypatch
):
    """DESIGN 12.5: after a crash a file is whole, or is not there."""
    path = write(tmp_path / "m.tflite")
    done = []
    fsync, replace = os.fsync, os.replace

    def noted(handle):
        done.append(("sync", os.fstat(handle).st_ino))
        fsync(handle)

    def renamed(old, new):
        done.append(("rename", os.stat(old).st_ino))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", renamed)
    LitertBackend(path).close()
    monkeypatch.undo()
    (packed,) = (tmp_path / "cache" / "litert").glob("*.xnnpack")
    inode = packed.stat().st_ino
    assert done[:2] == [("sync", inode), ("rename", inode)]
    assert done[2] == ("sync", packed.parent.stat().st_ino)


def test_a_load_that_fails_leaves_nothing(folder, tmp_path):
    path = write(tmp_path / "m.tflite")

    def load():
        with packed_weights(str(path)) as packed:
            Path(packed).write_bytes(b"half of it")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        load()
    assert not names(folder, ".xnnpack") | names(folder, ".tmp")


def test_only_the_weights_used_last_are_kept(folder, tmp_path):
    """R11: a file that is written anew has packed weights of its own each time."""
    path = write(tmp_path / "m.tflite")
    used = []
    for i in range(caching.KEPT + 4):
        os.utime(path, (i, i))
        LitertBackend(path).close()
        if i == 0:
            (first,) = folder.glob("*.xnnpack")
        else:  # the first one is used again and again
            caching.mark_used(first)
        used.append(names(folder, ".xnnpack"))
    assert len(used[-1]) == caching.KEPT
    assert first.name in used[-1]
    assert used[-2] - used[-1]
    assert len(names(folder, ".lock")) <= caching.KEPT
    LitertBackend(path).close()
    assert names(folder, ".xnnpack") == used[-1]


def test_only_the_models_used_last_are_kept(folder, tmp_path):
    """R11; and a model that is open is not disturbed."""
    path = write(tmp_path / "m0.litertlm", form=write_litertlm)
    with LitertBackend(path) as backend:
        sequence = backend.open()
        sequence.decode([5, 6, 7])
        row = sequence.logits()
        for seed in range(1, caching.KEPT + 3):
            other = write(tmp_path / "m.litertlm", seed, write_litertlm)
            with LitertlmFile(other) as file:
                file.extract(file.model())
        assert len(names(folder, ".tflite")) == caching.KEPT
        sequence.truncate(0)
        sequence.decode([5, 6, 7])
        assert (sequence.logits() == row).all()
        assert backend.fingerprint
    with LitertBackend(path) as backend:  # it is put there again
        assert backend.open()


def test_a_model_that_is_used_is_kept_as_it_is(folder, tmp_path):
    path = write(tmp_path / "m.litertlm", form=write_litertlm)
    with LitertlmFile(path) as file:
        found = file.extract(file.model())
        os.utime(found, (5, 5))
        assert file.extract(file.model()) == found
    status = found.stat()
    assert status.st_mtime == 5  # the name of its packed weights depends on it
    assert time.time() - status.st_atime < 60


def test_what_was_left_behind_goes_after_a_day(folder):
    folder.mkdir(parents=True)
    for name, age in ((".old.tmp", 2 * 86400), (".new.tmp", 60), ("other", 9 * 86400)):
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (time.time() - age,) * 2)
    caching.tidy(folder, ".xnnpack")
    assert {path.name for path in folder.iterdir()} == {".new.tmp", "other"}


def test_a_package_of_another_name(folder, tmp_path, monkeypatch):
    """Such as a nightly one: its version is not to be had under the usual name."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(litert_weights, "version", missing)
    LitertBackend(write(tmp_path / "m.tflite")).close()
    assert len(names(folder, ".xnnpack")) == 1


def test_a_model_that_is_refused_is_closed(folder, tmp_path, monkeypatch):
    from eliza.backends import litert_compiled
    from eliza.errors import NotSupported

    path = write(tmp_path / "m.tflite")
    closed = []
    close = litert_compiled.CompiledRuntime.close

    def refuse(signatures, where):
        raise NotSupported(f"{where} is refused")

    monkeypatch.setattr(litert_compiled, "discover", refuse)
    monkeypatch.setattr(
        litert_compiled.CompiledRuntime,
        "close",
        lambda self: (closed.append(1), close(self)),
    )
    with pytest.raises(NotSupported, match="is refused"):
        LitertBackend(path, interface="compiled")
    assert closed == [1]
