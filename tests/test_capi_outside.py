"""Other people's compiled code: a Cython module built against the installed package.

The .pxd files and headers are found in the installed package, as an outside project
would find them. (The C program that is compiled against it is in test_abi_hosts.)
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eliza
from eliza.reference import Reference
from support import END, V, choice_sets

HERE = Path(__file__).parent


def compile_module(source: Path, folder: Path, include: str | Path | None = None):
    """Build a module, with the installed headers or others, and import it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    if importlib.util.find_spec("Cython") is None:
        pytest.skip("Cython is not installed")
    package = Path(eliza.get_include()).parent
    name = source.stem
    c_file = folder / f"{name}.c"
    built = folder / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    python = sysconfig.get_path("include")
    cython = [sys.executable, "-P", "-m", "cython", "-3"]
    subprocess.run(
        [*cython, "-I", package.parent, source, "-o", c_file],
        check=True, cwd=folder, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    flags = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", *flags, f"-I{python}",
         f"-I{include or eliza.get_include()}", c_file, "-o", built],
        check=True,
    )  # fmt: skip
    spec = importlib.util.spec_from_file_location(name, built)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    source = folder / "outside.pyx"
    shutil.copy(HERE / "outside.pyx", source)
    return compile_module(source, folder)


@settings(max_examples=60, deadline=None)
@given(choice_sets(), st.integers(0, 2**32))
def test_a_loop_without_the_gil_takes_what_the_reference_takes(outside, leaves, seed):
    rows = np.random.default_rng(seed).standard_normal((20, V)).astype(np.float32)
    reference = Reference(leaves, exits=[END])
    cursor = eliza.Trie.from_tokens(leaves, n_vocab=V).cursor(exits=[END])
    start = cursor.copy()
    leaf = outside.greedy(cursor, rows)
    path = reference.greedy(lambda path: rows[len(path)].tolist())
    assert cursor.path == path
    assert cursor.name == reference.leaf(path)
    assert leaf == cursor.leaf
    assert start.path == ()  # a copy that shares the bound is where it was
    assert outside.allowed(start) == sorted(reference.allowed(()))


def test_it_says_where_nothing_is_left(outside):
    cursor = eliza.Trie.from_tokens({"a": [4], "b": [5]}, n_vocab=V).cursor()
    rows = np.full((3, V), np.nan, np.float32)
    with pytest.raises(eliza.NoCandidateError):
        outside.greedy(cursor, rows)
    assert cursor.path == ()


def test_masks_and_rollback(outside):
    trie = eliza.Trie.from_tokens({"a": [4, 9], "b": [4, 8], "c": [5]}, n_vocab=V)
    cursor = trie.cursor()
    cursor.accept(4)
    row = np.arange(V, dtype=np.float32)
    outside.mask(cursor, row)
    assert np.flatnonzero(row > -np.inf).tolist() == [8, 9]
    outside.back(cursor, 1)
    assert cursor.path == ()


def test_the_struct_by_capsule(outside):
    """`eliza_import` of the header, from an extension module."""
    assert outside.api_version() == eliza.c_api().version
    assert outside.api_size() == eliza.c_api().size


OTHER = """
cdef extern from "eliza.h":
    ctypedef struct eliza_api:
        unsigned version
    const eliza_api* eliza_import() except NULL

def version():
    return eliza_import().version
"""


@pytest.mark.parametrize("version", [0, 2, 999])
def test_fc_114_a_module_of_another_version_is_refused(version, tmp_path, outside):
    """`eliza_import` raises before anything is called; others go on."""
    text = (Path(eliza.get_include()) / "eliza.h").read_text()
    defined = "#define ELIZA_API_VERSION 1u"
    assert defined in text
    include = tmp_path / "include"
    include.mkdir()
    (include / "eliza.h").write_text(
        text.replace(defined, defined[:-2] + f"{version}u")
    )
    source = tmp_path / f"other{version}.pyx"
    source.write_text(OTHER)
    other = compile_module(source, tmp_path, include)
    for _ in range(2):
        with pytest.raises(ImportError, match=f"version 1 of its C API, not {version}"):
            other.version()
    assert outside.api_version() == 1


def test_fc_114_a_missing_struct_is_an_exception(tmp_path, monkeypatch):
    source = tmp_path / "lost.pyx"
    source.write_text(OTHER)
    lost = compile_module(source, tmp_path)
    with monkeypatch.context() as without:
        without.delattr("eliza._capi._API")
        with pytest.raises(AttributeError, match="_API"):
            lost.version()
    assert lost.version() == 1
