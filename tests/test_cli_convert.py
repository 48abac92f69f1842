"""What `eliza convert` shows on a terminal while it writes."""

from __future__ import annotations

import io
import re
import sys

import pytest

from eliza.cli import EXIT_MODEL, main
from eliza.cli import convert as verb
from tiny import tiny_gguf

pytest.importorskip("tokenizers")
pytest.importorskip("flatbuffers")

KINDS = ("m.tflite", "m.litertlm", "mlx")


class Terminal(io.StringIO):
    """A standard error that someone looks at."""

    def isatty(self):
        return True


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return str(tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def shown(source, out, monkeypatch, *, rich, code=0):
    """Return what someone sees who looks at a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(verb, "find_spec", lambda name: rich or None)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Terminal())
        assert main(["convert", source, str(out)]) == code
        return sys.stderr.getvalue()


@pytest.mark.parametrize("name", KINDS)
def test_a_line_without_rich(source, tmp_path, monkeypatch, name):
    text = shown(source, tmp_path / name, monkeypatch, rich=False)
    assert text.endswith("\r\x1b[K")  # nothing is left of it
    assert "\n" not in text
    found = re.findall(rf"\rwriting {re.escape(name)}: +(\d+)%", text)
    parts = [int(part) for part in found]
    assert len({*parts}) > 2
    assert parts == sorted(parts)
    assert parts[-1] == 100


@pytest.mark.parametrize("name", KINDS)
def test_a_bar_with_rich(source, tmp_path, monkeypatch, name):
    pytest.importorskip("rich")
    text = shown(source, tmp_path / name, monkeypatch, rich=True)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert f"writing {name}" in plain
    assert "100%" in plain
    assert text.endswith(("\x1b[2K", "\x1b[K"))  # the last line is taken away


def test_a_line_that_fails_is_taken_away(source, tmp_path, monkeypatch):
    out = tmp_path / "m.tflite"
    out.mkdir()
    text = shown(source, out, monkeypatch, rich=False, code=EXIT_MODEL)
    *lines, message = text.split("\r\x1b[K")
    assert lines
    assert message.startswith("eliza")
    assert "m.tflite" in message


@pytest.mark.parametrize("name", KINDS)
def test_nothing_where_nobody_looks(source, tmp_path, capsys, name):
    assert main(["convert", source, str(tmp_path / name)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.count("\n") == 1
