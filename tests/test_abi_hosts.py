"""Processes that start without Python, and host it: Node through koffi, and C.

What `eliza_abi_init` is for. The C program is compiled against the installed headers.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

import eliza
from eliza.abi import describe
from tiny import tiny_gguf

pytest.importorskip("llama_cpp")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_gguf(tmp_path_factory.mktemp("hosts") / "tiny.gguf")


@pytest.fixture(scope="module")
def payload(path):
    with eliza.load(path) as model:
        leaves = [
            {"name": name, "tokens": model.vocab.encode(name)}
            for name in ("REPLY", "IGNORE")
        ]
    descriptors = [{"path": "action", "leaves": leaves}]
    return json.dumps({"modelId": "", "descriptors": descriptors})


@pytest.fixture(scope="module")
def found():
    found = describe()
    if found["libpython"] is None:
        pytest.skip("this Python has no shared library, so nothing else can host it")
    return found


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_node_hosts_it_through_koffi(path, payload, found):
    """As the original consumers do."""
    probe = subprocess.run(
        ["node", "-e", "require('koffi')"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip("koffi is not found: npm install koffi, and set NODE_PATH")
    done = subprocess.run(
        [
            "node", HERE / "host.js", found["library"], found["libpython"],
            found["executable"], path, payload,
        ],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["text"] in ("REPLY", "IGNORE")
    assert result["after"] == -7


@pytest.fixture(scope="module")
def program(tmp_path_factory, found):
    """Compile host.c, linked with nothing but the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    out = tmp_path_factory.mktemp("program") / "host"
    library = Path(found["library"])
    subprocess.run(
        [
            compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic",
            f"-I{found['include']}", HERE / "host.c", library,
            f"-Wl,-rpath,{library.parent}", "-lpthread", "-lm", "-o", out,
        ],
        check=True,
    )  # fmt: skip
    return out


@pytest.mark.parametrize("name", ["eliza.h", "eliza_inference.h"])
def test_headers_are_c_plus_plus_too(name, tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source = tmp_path / "header.cc"
    source.write_text(f'#include "{name}"\nint main() {{ return ELIZA_OK; }}\n')
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]
    subprocess.run([compiler, *flags, f"-I{eliza.get_include()}", source], check=True)


def run(program, *arguments, **environment):
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_c_program_hosts_it(program, path, payload, found):
    done = run(program, found["libpython"], found["executable"], path, payload)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[:2] == ["trie: stop", "threads: 4 of 4"]
    assert lines[2] in ("stream: REPLY", "stream: IGNORE")


def test_it_says_why_python_does_not_start(program, path, payload, found, tmp_path):
    (tmp_path / "no.so").write_text("text")
    for libpython, executable, reason in (
        (tmp_path / "missing.so", found["executable"], "missing.so"),
        (tmp_path / "no.so", found["executable"], "no.so"),
        (found["library"], found["executable"], "is no libpython"),
        (found["libpython"], "/nowhere/python", "eliza cannot be imported"),
    ):
        done = run(program, libpython, executable, path, payload)
        assert done.returncode == 2, done.stdout + done.stderr
        assert reason in done.stdout


def test_it_starts_after_a_python_without_eliza(
    program, path, payload, found, tmp_path
):
    """FC-114: what is refused is left, and the right one is taken afterwards."""
    venv.create(tmp_path / "empty", symlinks=True)
    wrong = ["/nowhere/python", tmp_path / "empty" / "bin" / "python"]
    done = run(
        program, found["libpython"], found["executable"], path, payload, *wrong, *wrong
    )
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["trie: stop", "threads: 4 of 4"]
    assert lines[2] in ("stream: REPLY", "stream: IGNORE")


def test_the_paths_may_come_from_the_environment(program, path, payload, found):
    done = run(
        program, "", "", path, payload,
        ELIZA_LIBPYTHON=found["libpython"], ELIZA_PYTHON=found["executable"],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
