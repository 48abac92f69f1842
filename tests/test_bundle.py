"""Bundles: what is found in a folder, and which file of it is meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import eliza
from bundles import kinds, make, state, text_of
from eliza import Bundle
from eliza.backends import builtins
from eliza.errors import BundleError, InvalidArgument, InvalidType
from eliza.files import manifest as manifests

# What is there


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["text/a.gguf"], [("gguf", "text/a.gguf")]),
        (["text/A.GGUF"], [("gguf", "text/A.GGUF")]),
        (["a.gguf"], [("gguf", "a.gguf")]),
        (["text/b.gguf", "a.gguf"], [("gguf", "text/b.gguf")]),
        (["text/a.litertlm"], [("litertlm", "text/a.litertlm")]),
        (["text/a.tflite"], [("tflite", "text/a.tflite")]),
        (["text/mlx/model.safetensors"], [("mlx", "text/mlx")]),
        (["text/w/config.json", "text/w/a.safetensors"], [("mlx", "text/w")]),
        (["text/config.json", "text/a.safetensors"], [("mlx", "text")]),
        (["model.safetensors"], [("mlx", ".")]),
        (["text/a.mlpackage/"], [("coreml", "text/a.mlpackage")]),
        (["text/a.mlmodelc/"], [("coreml", "text/a.mlmodelc")]),
        # and what is none of these
        (["text/a.mlpackage"], []),  # which is a folder
        (["text/a.gguf/"], []),
        (["text/.a.gguf", "text/._b.gguf"], []),
        (["text/w/a.safetensors"], []),  # of what model?
        (["text/mlx/"], []),
        (["text/", "a.gguf"], []),
        (["text/deep/a.gguf"], []),
        (["readme.md", "agguf"], []),
    ],
)
def test_probes(tmp_path, names, found):
    assert kinds(make(tmp_path, *names)) == found


def test_all_at_once_in_the_order_of_names(tmp_path):
    bundle = make(tmp_path, "text/c.gguf", "text/a.litertlm", "text/b.mlpackage/")
    assert [kind for kind, _ in kinds(bundle)] == ["litertlm", "coreml", "gguf"]
    assert bundle.has("gguf")
    assert bundle.has("mlx", "coreml")
    assert not bundle.has("mlx")


def test_coreml_is_recognised_and_said_not_to_be_available(tmp_path):
    bundle = make(tmp_path, "text/m.mlpackage/")
    mlx = next(f for f in builtins() if f.name == "mlx-coreml")
    assert not mlx.can_serve(bundle)
    expected = r"text/m\.mlpackage \(CoreML: not available on this host\)"
    with pytest.raises(BundleError, match=expected):
        bundle.gguf()
    with pytest.raises(BundleError, match=r"CoreML: not available on this host"):
        eliza.load(tmp_path)
    with pytest.raises(BundleError, match=r"CoreML: not available on this host"):
        eliza.load(tmp_path / "text" / "m.mlpackage")


def test_a_file_for_another_runtime(tmp_path):
    make(tmp_path, "m.litertlm")
    with pytest.raises(
        BundleError, match=r"loads \.gguf files; this is .*LiteRT-LM.*eliza\[litert\]"
    ):
        eliza.load(tmp_path / "m.litertlm", backend="llama.cpp")


def test_a_bundle_keeps_nothing(tmp_path):
    bundle = make(tmp_path, "text/a.gguf")
    assert bundle.gguf() == tmp_path / "text" / "a.gguf"
    (tmp_path / "text" / "a.gguf").rename(tmp_path / "text" / "b.gguf")
    assert bundle.gguf() == tmp_path / "text" / "b.gguf"
    (tmp_path / "text" / "b.gguf").unlink()
    assert bundle.artefacts() == ()
    assert bundle == Bundle.of(str(tmp_path))
    assert str(bundle) == str(tmp_path)


@pytest.mark.parametrize(
    ("path", "error", "reason"),
    [
        ("missing.gguf", BundleError, "No such file"),
        ("missing", BundleError, "No such file"),
        ("~/missing", BundleError, "No such file"),
        ("x" * 5000, BundleError, "File name too long"),
        ("a\0b", InvalidArgument, "NUL"),
        ("", InvalidArgument, "empty"),
        (b"bytes", InvalidType, "bytes"),
    ],
)
def test_paths_that_are_no_model(path, error, reason):
    """FC-115: the path and the reason are in the message."""
    with pytest.raises(error) as caught:
        eliza.load(path)
    message = str(caught.value)
    assert len(message) < 6000
    assert reason in message
    if isinstance(path, str) and "missing" in path:
        assert os.path.expanduser(path) in message or path in message


@pytest.mark.parametrize("name", ["empty", "model.gguf", "with spaces and ü.gguf"])
def test_files_that_are_no_model(tmp_path, name):
    """FC-115: the path and the reason are in the message."""
    make(tmp_path, name, content=b"")
    with pytest.raises(BundleError, match="is not a GGUF file") as caught:
        eliza.load(tmp_path / name)
    assert name in str(caught.value)
    with pytest.raises(BundleError, match=r"no \.gguf|is not a GGUF"):
        eliza.load(tmp_path)


def test_a_folder_that_cannot_be_read(tmp_path, monkeypatch):
    def scandir(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(BundleError, match="cannot be read: Permission denied"):
        Bundle.of(tmp_path).artefacts()


# Which gguf file


PARTS = [f"text/m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


def test_parts_of_one_model(tmp_path):
    assert make(tmp_path, *PARTS).gguf() == tmp_path / PARTS[0]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part(tmp_path, missing):
    bundle = make(tmp_path, *(p for i, p in enumerate(PARTS) if i != missing))
    with pytest.raises(BundleError, match=rf"2 of the 3 parts.*number {missing + 1}"):
        bundle.gguf()


@pytest.mark.parametrize("more", ["text/a.gguf", "text/n-00001-of-00003.gguf"])
def test_several_files_are_an_error_that_lists_them(tmp_path, more):
    bundle = make(tmp_path, *PARTS, more)
    with pytest.raises(BundleError, match=r"4 \.gguf files: .*manifest\.json") as got:
        bundle.gguf()
    assert all(Path(name).name in str(got.value) for name in (*PARTS, more))
    with pytest.raises(BundleError, match=r"4 \.gguf files"):
        eliza.load(tmp_path)


@pytest.mark.parametrize("name", manifests.NAMES)
def test_the_manifest_decides(tmp_path, name):
    bundle = make(tmp_path, "text/a.gguf", "text/b.gguf", "text/c.gguf")
    state(tmp_path, text_of({"path": "text/b.gguf"}), name)
    assert bundle.gguf() == tmp_path / "text" / "b.gguf"
    state(tmp_path, text_of({"path": "text/README"}), name)
    make(tmp_path, "text/README")
    with pytest.raises(BundleError, match=r"3 \.gguf files"):
        bundle.gguf()  # it says nothing of them
    files = [{"path": p} for p in reversed(PARTS)]
    state(tmp_path, text_of(*files), name)
    make(tmp_path, *PARTS)
    assert bundle.gguf() == tmp_path / PARTS[0]


def test_context_lengths_tell_files_apart(tmp_path):
    names = ["text/a-64k.gguf", "text/a-32k.gguf", "text/a-128k.gguf"]
    bundle = make(tmp_path, *names)
    sizes = dict(zip(names, (65536, 32768, 131072), strict=True))
    state(tmp_path, text_of(*({"path": p, "ctx": n} for p, n in sizes.items())))
    for n_ctx, name in [(None, 1), (1, 1), (32768, 1), (32769, 0), (131072, 2)]:
        assert bundle.gguf(n_ctx) == tmp_path / names[name]
    with pytest.raises(BundleError, match=r"n_ctx=131073; the most is 131072"):
        bundle.gguf(131073)
    for ctx in (0, 65536):
        files = [{"path": p, "ctx": ctx} for p in names]
        state(tmp_path, text_of(*files))
        with pytest.raises(
            BundleError, match="no ctx that tells them apart: text/a-64"
        ):
            bundle.gguf()


def test_two_manifests_are_an_error(tmp_path):
    bundle = make(tmp_path, "text/a.gguf")
    for name in manifests.NAMES:
        state(tmp_path, text_of({"path": "text/a.gguf"}), name)
    with pytest.raises(BundleError, match=r"both manifest\.json and eliza-1"):
        bundle.gguf()
