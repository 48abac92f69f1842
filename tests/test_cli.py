"""The command, as a shell would call it, on a small model file."""

import io
import json
import os
import subprocess
import sys

import pytest

import eliza
from eliza.cli import main
from tiny import tiny_gguf

pytest.importorskip("llama_cpp")

COMMAND = (sys.executable, "-P", "-m", "eliza.cli")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def choose(capsys, *arguments):
    code = main(["choose", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_answer_is_one_of_the_choices(capsys, path):
    code, out, err = choose(
        capsys, "--model", path, "--choice", "Yes", "--choice", "No", "an action"
    )
    assert (code, err) == (0, "")
    assert out in ("Yes\n", "No\n")


def test_ranking_lists_all(capsys, path, tmp_path):
    file = tmp_path / "choices.txt"
    file.write_text("Maybe\n\nNONE\n", encoding="utf-8")
    code, out, _ = choose(
        capsys,
        *("--model", path, "--choice", "Yes", "--choices", str(file)),
        *("--ranking", "--score", "masked", "an action"),
    )
    assert code == 0
    rows = [line.split(None, 1) for line in out.splitlines()]
    assert {name for _, name in rows} == {"Yes", "Maybe", "NONE"}
    shares = [float(share) for share, _ in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-3)


def test_json_is_strict_json(capsys, path):
    code, out, _ = choose(
        capsys,
        *("--model", path, "--choice", "Yes", "--suffix", '"', "--ranking"),
        *("--method", "greedy", "--json", "an action"),
    )

    def refuse(constant):
        raise AssertionError(constant)

    answer = json.loads(out, parse_constant=refuse)
    assert code == 0
    assert answer["value"] == "Yes"
    assert answer["margin"] is None
    assert answer["ranking"][0]["probability"] == 1
    assert answer["stats"]["forward_passes"] >= 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["an action"], 2, "no choices"),
        (["--choice", "", "an action"], 2, "empty"),
        (["--choice", "Yes", ""], 2, "empty prompt"),
        (["--choices", "nowhere.txt", "an action"], 3, "nowhere.txt"),
        (["--choice", "Yes", "--n-ctx", "8", "an action " * 50], 3, "context of 8"),
    ],
)
def test_exit_codes(capsys, path, arguments, code, message):
    got, out, err = choose(capsys, "--model", path, *arguments)
    assert (got, out) == (code, "")
    assert message in err
    assert err.startswith("eliza: ")


def test_abstaining_is_exit_code_1(capsys, path):
    options = ("--choice", "Yes", "--choice", "No", "--threshold", "0.999999")
    code, out, err = choose(capsys, "--model", path, *options, "an action")
    assert (code, out, err) == (1, "", "")
    code, out, _ = choose(
        capsys, "--model", path, *options, "--default", "unsure", "an action"
    )
    assert (code, out) == (1, "unsure\n")


def test_explain_and_plot(capsys, path, tmp_path):
    picture = tmp_path / "ranking.png"
    code, out, _ = choose(
        capsys,
        *("--model", path, "--choice", "Yes", "--choice", "No", "--choice", "Maybe"),
        *("--ranking", "--explain", "--plot", str(picture), "an action"),
    )
    assert code == 0
    assert "whole ranking" in out
    assert "decided" in out
    assert max(map(len, out.splitlines())) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_seed_repeats_a_draw(capsys, path):
    options = ("--choice", "Yes", "--choice", "No", "--method", "sample", "--seed")
    runs = {
        seed: choose(capsys, "--model", path, *options, seed, "an action")[1]
        for seed in ("1", "2", "3", "1")
    }
    assert set(runs.values()) <= {"Yes\n", "No\n"}


def test_model_errors(capsys, tmp_path):
    missing = str(tmp_path / "none.gguf")
    code, _, err = choose(capsys, "--model", missing, "--choice", "a", "b")
    assert code == 3
    assert "none.gguf" in err
    text = tmp_path / "text.gguf"
    text.write_text("this is no model", encoding="utf-8")
    code, _, err = choose(capsys, "--model", str(text), "--choice", "a", "b")
    assert code == 3
    assert "GGUF" in err


def test_usage_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["choose", "--choice", "a"])
    assert raised.value.code == 2
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 2
    assert "VERB" in capsys.readouterr().err


def test_interrupt_is_130(monkeypatch, capsys, path):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("eliza.cli.choose.load_model", interrupted)
    code, _, err = choose(capsys, "--model", path, "--choice", "Yes", "x")
    assert (code, err) == (130, "eliza: interrupted\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_is_shown_how_far_loading_is(monkeypatch, capsys, path):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    code = main(["choose", "--model", path, "--choice", "Yes", "an action"])
    shown = terminal.getvalue()
    assert (code, capsys.readouterr().out) == (0, "Yes\n")
    assert "\rloading tiny.gguf: 100%" in shown
    assert shown.endswith("\r\x1b[K")  # the line is gone before the answer comes
    assert "\n" not in shown


INTERRUPT = """
import os, signal, sys
from eliza.backends.llama_context import NativeContext
from eliza.cli import main
plain, seen = NativeContext.run, []
def run(self, *rest):
    seen.append(1)
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return plain(self, *rest)
NativeContext.run = run
code = main(sys.argv[1:])
print(len(seen), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_ctrl_c_in_the_middle_of_a_prompt_is_130(path):
    command = [sys.executable, "-P", "-c", INTERRUPT, "choose", "--model", path]
    done = subprocess.run(
        [*command, "--choice", "Yes", "--choice", "No", "an action " * 300],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "eliza: interrupted\n3\n"


def test_it_is_installed_and_quiet(path):
    done = subprocess.run(
        [*COMMAND, "choose", "--model", path, "--choice", "Yes", "an action"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Yes\n", "")


def test_version_and_options_for_something_else(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"eliza {eliza.__version__}\n"
    options = ["choose", "--model", "nowhere.gguf", "--choice", "a", "--seed", "4", "x"]
    assert main(options) == 2
    assert "--seed is for --method sample" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", "model.gguf", "out.tflite", "--prefill", "x"])
    assert "'x' is no list of whole numbers" in capsys.readouterr().err


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lines_of_a_file_are_choices_as_they_stand(newline, tmp_path):
    """Only line feeds end a line, and a byte order mark is part of none."""
    from eliza.cli.choose import _read_choices

    choices = ["Yes", "No\u2028not", "a\x0cb", "\x85", " x "]
    text = newline.join([*choices, ""])
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert _read_choices(str(tmp_path / "c.txt")) == choices


def test_what_the_terminal_cannot_show_is_no_answer(path):
    command = [sys.executable, "-P", "-m", "eliza", "choose", "--model", path]
    done = subprocess.run(
        [*command, "--choice", "e\u0301", "an action"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "cannot be written in ascii" in done.stderr
    assert "Traceback" not in done.stderr
