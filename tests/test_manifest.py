"""The manifest of a bundle, and those from strangers."""

from __future__ import annotations

import hashlib
import json
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from bundles import SHA, make, state, text_of
from eliza import Bundle
from eliza.errors import BundleError
from eliza.files import manifest as manifests

FULL = {
    "id": "eliza-1-2b",
    "tier": "2b",
    "version": "1.0.0",
    "lineage": {"text": {"base": "x", "license": "MIT"}},
    "files": {
        "text": [{"path": "text/a.gguf", "sha256": SHA, "ctx": 4096, "sizeBytes": 4}],
        "voice": [{"path": "tts/v.gguf", "sha256": SHA}],
        "vision": [],
    },
    "ramBudgetMb": {"min": 1, "recommended": 2},
    "defaultEligible": False,
}


def test_a_full_manifest(tmp_path):
    bundle = make(tmp_path, "text/a.gguf", "tts/v.gguf")
    assert bundle.manifest() is None
    with pytest.raises(BundleError, match="no manifest to verify it by"):
        bundle.verify()
    state(tmp_path, FULL)
    found = bundle.manifest()
    assert (found.id, found.tier, found.version) == ("eliza-1-2b", "2b", "1.0.0")
    assert list(found.files) == ["text", "voice", "vision"]
    (file,) = found.files["text"]
    assert (file.path, file.sha256, file.ctx, file.size_bytes) == (
        "text/a.gguf",
        SHA,
        4096,
        4,
    )
    assert found.files["voice"][0].size_bytes == -1
    assert bundle.verify() == found


def test_verify_lists_all_that_is_wrong(tmp_path):
    bundle = make(tmp_path, "text/a.gguf", "tts/v.gguf")
    state(tmp_path, FULL)
    make(tmp_path, "text/a.gguf", content=b"GGUG")  # of the same size
    (tmp_path / "tts" / "v.gguf").unlink()
    assert bundle.gguf() == tmp_path / "text" / "a.gguf"  # not read for that
    with pytest.raises(BundleError) as caught:
        bundle.verify()
    message = str(caught.value)
    assert f"'text/a.gguf' has the SHA-256 {hashlib.sha256(b'GGUG').hexdigest()}" in (
        message
    )
    assert "'tts/v.gguf' is missing" in message


def test_files_of_the_text_model_are_checked_when_it_is_opened(tmp_path):
    bundle = make(tmp_path, "text/a.gguf")
    state(tmp_path, FULL)
    bundle.gguf()  # the voice is not needed for that
    make(tmp_path, "text/a.gguf", content=b"GGUF5")
    with pytest.raises(BundleError, match="has 5 bytes; the manifest says 4"):
        bundle.gguf()
    (tmp_path / "text" / "a.gguf").unlink()
    with pytest.raises(BundleError, match=r"'text/a\.gguf' is missing"):
        eliza.load(tmp_path)


def test_other_runtimes_check_the_text_model_too(tmp_path):
    bundle = make(tmp_path, "text/a.litertlm", content=b"LITERTLM")
    listed = {"path": "text/a.litertlm", "sizeBytes": 4}
    state(tmp_path, {"id": "m", "files": {"text": [listed]}})
    with pytest.raises(BundleError, match="has 8 bytes; the manifest says 4"):
        bundle.only("litertlm", "tflite")
    state(tmp_path, {"id": "m", "files": {"text": [{**listed, "sizeBytes": 8}]}})
    assert bundle.only("litertlm").name == "a.litertlm"
    make(tmp_path, "text/b.litertlm", content=b"LITERTLM")
    assert bundle.only("litertlm").name == "a.litertlm"  # the one that is listed
    state(tmp_path, {"id": "m", "files": {"voice": [listed]}})
    with pytest.raises(BundleError, match=r"2 times.*a\.litertlm, b\.litertlm"):
        bundle.only("litertlm")


@pytest.mark.parametrize("name", ["voice_cache", "v" * 70])
def test_a_file_may_be_in_two_lists_but_not_twice_in_one(tmp_path, name):
    bundle = make(tmp_path, "text/a.gguf")
    state(tmp_path, {"id": "m", "files": {name: [{"path": "x"}], "v": [{"path": "x"}]}})
    assert set(bundle.manifest().files) == {name, "v"}
    state(tmp_path, {"id": "m", "files": {name: [{"path": "x"}, {"path": "x"}]}})
    with pytest.raises(BundleError, match=r"'x' is at files\.v.*\[0\] already"):
        bundle.manifest()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "not JSON: it is empty"),
        (b"{", "not JSON"),
        (b"[]", "expected"),
        (b"\xff", "not UTF-8"),
        (b"{}", "missing required field id"),
        ({"id": "m"}, "missing required field files"),
        ({"id": 3, "files": {}}, "id: expected str, got int"),
        ({"id": "", "files": {}}, "id: it is empty"),
        ({"id": " m", "files": {}}, "id: ' m' is no name"),
        ({"id": "m\n", "files": {}}, "is no name"),
        ({"id": "m" * 257, "files": {}}, "is no name"),
        ({"id": "m", "files": []}, "files: expected object, got array"),
        ({"id": "m", "files": {"text": {}}}, "files.text: expected array, got object"),
        (text_of("a.gguf"), "files.text[0]: expected object, got str"),
        (text_of({}), "files.text[0]: object missing required field path"),
        (text_of({"path": "a"}, {"path": 3}), "files.text[1].path: expected str"),
        (text_of({"path": "a", "sizeBytes": None}), "files.text[0].sizeBytes: expect"),
        (text_of({"path": "a", "sizeBytes": 1.5}), "files.text[0].sizeBytes: expect"),
        (text_of({"path": "a", "sizeBytes": -2}), "sizeBytes: -2 is out of range"),
        (text_of({"path": "a", "sizeBytes": 10**30}), "sizeBytes: "),
        (text_of({"path": "a", "ctx": -1}), "ctx: -1 is out of range"),
        (text_of({"path": "a", "sha256": "00"}), "is not 64 hexadecimal digits"),
        (text_of({"path": "a", "sha256": SHA.upper()}), "is not 64 hexadecimal digits"),
        (text_of({"path": "a"}, {"path": "a"}), "[1].path: 'a' is at files.text[0]"),
        (
            {
                "id": "m",
                "files": {"a": [{"path": "x"}], "b": [{"path": "x", "ctx": 1}]},
            },
            "files.b[0].path: 'x' is at files.a[0]",
        ),
        (b'{"id": "m", "id": "n", "files": {}}', "the key 'id' comes twice"),
        (b'{"id": "m", "files": {"text": [], "te\\u0078t": []}}', "comes twice"),
        (b'{"id": "m", "files": {}, "x": {"a": 1, "a": 2}}', "x: the key 'a' comes"),
        (b'{"id": "m", "files": {}, "x": ' + b"[" * 99 + b"]" * 99 + b"}", "nested"),
        (b'{"id": "m", "files": {}} x', "not JSON"),
        (b" " * (manifests.MAX_BYTES + 1), "is longer than 1048576 bytes"),
    ],
)
def test_manifests_that_are_none(tmp_path, document, message):
    bundle = make(tmp_path, "text/a.gguf")
    state(tmp_path, document)
    for call in (bundle.manifest, bundle.gguf, bundle.verify):
        with pytest.raises(BundleError) as caught:
            call()
        assert message in str(caught.value)
        assert str(tmp_path / "manifest.json") in str(caught.value)


BAD_PATHS = [
    "",
    "/etc/passwd",
    "//server/share",
    "..",
    "../a.gguf",
    "text/../../a.gguf",
    "text/./a.gguf",
    "./a.gguf",
    "text//a.gguf",
    "text/",
    "...",
    "text/ /a",
    "C:/a.gguf",
    "C:a.gguf",
    "..\\a.gguf",
    "text\\a.gguf",
    "a\0.gguf",
    "a\n.gguf",
    "a\u202egguf",
    "x" * 1025,
    "\ud800",
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_that_lead_elsewhere(tmp_path, path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    folder = tmp_path / "bundle"
    bundle = make(folder, "text/a.gguf")
    state(folder, text_of({"path": "text/a.gguf"}, {"path": path}))
    for call in (bundle.manifest, bundle.gguf, bundle.verify):
        with pytest.raises(BundleError):
            call()


@pytest.mark.parametrize("link", ["file", "folder", "both"])
def test_links_that_lead_elsewhere(tmp_path, link):
    outside = make(tmp_path / "outside", "text/a.gguf").path
    folder = tmp_path / "bundle"
    folder.mkdir()
    if link == "file":
        (folder / "text").mkdir()
        (folder / "text" / "a.gguf").symlink_to(outside / "text" / "a.gguf")
    elif link == "folder":
        (folder / "text").symlink_to(outside / "text")
    else:
        (folder / "text").symlink_to(tmp_path / "hop")
        (tmp_path / "hop").symlink_to(outside / "text")
    bundle = Bundle.of(folder)
    assert bundle.gguf()  # whose folder this is may link as they like
    state(folder, text_of({"path": "text/a.gguf"}))
    for call in (bundle.gguf, bundle.verify):
        with pytest.raises(BundleError, match="leads out of the bundle, by a link"):
            call()


def test_links_inside_are_followed(tmp_path):
    bundle = make(tmp_path / "real", "blobs/1")
    (tmp_path / "real" / "text").mkdir()
    (tmp_path / "real" / "text" / "a.gguf").symlink_to("../blobs/1")
    state(tmp_path / "real", text_of({"path": "text/a.gguf", "sha256": SHA}))
    assert bundle.verify()
    (tmp_path / "other").symlink_to("real")  # the bundle itself may be a link
    assert Bundle.of(tmp_path / "other").gguf().read_bytes() == b"GGUF"


def test_a_link_in_a_circle(tmp_path):
    bundle = make(tmp_path, "text/")
    (tmp_path / "text" / "a.gguf").symlink_to("a.gguf")
    state(tmp_path, text_of({"path": "text/a.gguf"}))
    assert bundle.artefacts() == ()
    with pytest.raises(BundleError, match="cannot be read"):
        bundle.gguf()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.timeout(20)
def test_pipes_are_not_waited_for(tmp_path):
    bundle = make(tmp_path, "text/")
    os.mkfifo(tmp_path / "text" / "a.gguf")
    assert bundle.artefacts() == ()
    state(tmp_path, text_of({"path": "text/a.gguf"}))
    with pytest.raises(BundleError, match="no ordinary file"):
        bundle.gguf()
    (tmp_path / "manifest.json").unlink()
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(BundleError, match="no ordinary file"):
        bundle.manifest()


# Hostile manifests


def refused(error, most=600):
    assert 0 < len(str(error)) < most


part = st.sampled_from(
    ["", ".", "..", "a", "text", "a.gguf", "link", "out", " ", "\\", "C:", "\0", "é"]
)
paths = st.lists(part, max_size=5).map("/".join) | st.text(max_size=20)


@pytest.fixture(scope="module")
def linked(tmp_path_factory):
    """Return a bundle with links in and out."""
    base = tmp_path_factory.mktemp("linked")
    make(base, "outside/a.gguf", "outside/a")
    make(base / "bundle", "a.gguf", "text/a.gguf", "text/text/a", "é/a.gguf")
    (base / "bundle" / "out").symlink_to(base / "outside")
    (base / "bundle" / "link").symlink_to("text")
    (base / "bundle" / "text" / "out").symlink_to("..")
    (base / "bundle" / "text" / "link").symlink_to("../../outside/a.gguf")
    return base / "bundle"


@given(paths)
def test_no_path_leads_out(linked, path):
    state(linked, text_of({"path": path}))
    try:
        (file,) = Bundle.of(linked).manifest().files["text"]
    except BundleError as error:
        refused(error)
        return
    assert file.path == path
    assert os.path.normpath(path) == path
    try:
        found = manifests.resolve(linked, file)
    except BundleError as error:
        refused(error)
        return
    real = os.path.realpath(found)
    assert os.path.commonpath([real, os.path.realpath(linked)]) == str(linked.resolve())
    assert os.path.isfile(real)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def documents(draw):
    """Draw a manifest in which a few values are replaced or removed."""
    document = json.loads(json.dumps(FULL))
    for _ in range(draw(st.integers(0, 3))):
        at = document
        while True:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            inner = at[key]
            if isinstance(inner, (dict, list)) and inner and draw(st.booleans()):
                at = inner
                continue
            if draw(st.booleans()):
                del at[key]
            else:
                at[key] = draw(values)
            break
    return json.dumps(document).encode()


def sound(found):
    """Check all that is promised of a manifest that was read."""
    assert found.id
    for files in found.files.values():
        for file in files:
            assert os.path.normpath(file.path) == file.path
            assert not os.path.isabs(file.path)
            assert file.sha256 == "" or len(bytes.fromhex(file.sha256)) == 32
            assert -1 <= file.size_bytes < 2**63
            assert 0 <= file.ctx < 2**63


def check(bundle, raw):
    state(bundle.path, raw)
    try:
        found = bundle.manifest()
    except BundleError as error:
        refused(error)
        return False
    sound(found)
    for call in (bundle.gguf, bundle.verify):
        try:
            call()
        except BundleError as error:
            refused(error, 2000)
    return True


@settings(max_examples=300)
@given(documents())
def test_damaged_values(tmp_path_factory, raw):
    folder = tmp_path_factory.getbasetemp() / "values"
    check(make(folder, "text/a.gguf", "tts/v.gguf"), raw)


def test_damaged_bytes(tmp_path):
    bundle = make(tmp_path, "text/a.gguf", "tts/v.gguf")
    rng = random.Random(1)
    original = json.dumps(FULL).encode()
    read = 0
    for _ in range(2000):
        raw = bytearray(original)
        for _ in range(rng.randint(1, 3)):
            i = rng.randrange(len(raw))
            kind = rng.randrange(3)
            if kind == 0:
                del raw[i : i + rng.randint(1, 9)]
            elif kind == 1:
                raw[i:i] = rng.choice(
                    [b'"', b"{", b"]", b",", b"..", b"/", b"\\u0000", b"\xff", b"9"]
                )
            else:
                raw[i] = rng.randrange(256)
        read += check(bundle, bytes(raw))
    assert 50 < read < 1900  # else the damage is too great or too small
