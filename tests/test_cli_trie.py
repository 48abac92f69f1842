"""`eliza trie`, as a shell would call it."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys

import pytest

import eliza
from eliza import TokenTreePayload, Trie
from eliza.cli import main
from eliza.cli.tree import MAX_LINES, tree_of
from payloads import GOOD, payload_of
from tiny import tiny_gguf

COMMAND = (sys.executable, "-P", "-m", "eliza.cli", "trie")

ACTIONS = {
    "SEND_EMAIL": [10, 11, 12],
    "SEND_MESSAGE": [10, 11, 13, 14],
    "SEND": [10, 11],
    "REPLY": [20],
    "IGNORE": [30, 31, 32],
}


@pytest.fixture
def show(capsys, tmp_path):
    """Write what is given to a file, and return what the command prints of it."""

    def show(content, *arguments, code=0):
        path = tmp_path / "tree"
        if isinstance(content, TokenTreePayload):
            content = content.to_json()
        path.write_bytes(content)
        got = main(["trie", str(path), *arguments])
        out, err = capsys.readouterr()
        assert got == code, err
        assert (code == 0) == (err == "")
        return err if code else out

    return show


def test_a_small_tree(show):
    assert show(payload_of(ACTIONS)) == (
        "action: 5 choices for model m; some go on where others end\n"
        "13 tokens, 4 in the longest choice; 46.2% are forced\n"
        "6 nodes, 2 branching points; "
        f"{payload_of(ACTIONS).trie(n_vocab=33).nbytes} bytes\n"
        "ids lie below 33 (the largest id + 1)\n"
        "\n"
        "3 ways, 5 choices\n"
        "├── 10 (11)  SEND  3 ways, 3 choices\n"
        "│   ├── 12  SEND_EMAIL\n"
        "│   └── 13 (14)  SEND_MESSAGE\n"
        "├── 20  REPLY\n"
        "└── 30 (31 32)  IGNORE\n"
    )


def test_a_single_choice_is_all_forced(show):
    out = show(payload_of({"only": [7, 8, 9]}))
    assert "3 tokens, 3 in the longest choice; 100.0% are forced\n" in out
    assert out.endswith("\n\n1 way, 1 choice\n└── (7 8 9)  only\n")


def test_rtkt_is_told_from_json(show):
    out = show(payload_of(ACTIONS).to_rtkt())
    assert out.startswith("action: 5 choices; some go on")
    assert "├── 20  20\n" in out
    assert "│   └── 13 (14)  10,11,13,14\n" in out


def test_from_stdin(monkeypatch, capsys):
    class Stdin:
        buffer = io.BytesIO(GOOD.encode())

    monkeypatch.setattr("sys.stdin", Stdin)
    assert main(["trie", "-"]) == 0
    assert "THINK" in capsys.readouterr().out


def test_paths(show):
    one, two = payload_of(ACTIONS), payload_of({"a": [1], "b": [2]}, "contexts[]")
    both = TokenTreePayload("m", one.descriptors + two.descriptors)
    out = show(both)
    assert out.index("action: 5") < out.index("contexts[]: 2")
    assert out.count("ids lie below 33 (the largest id + 1)") == 2
    out = show(both, "--path", "contexts[]")
    assert "action" not in out
    assert "ids lie below 3 (the largest id + 1)" in out
    message = show(both, "--path", "x", code=2)
    assert message == "eliza: there is no path 'x'; there is 'action', 'contexts[]'\n"


def test_n_vocab(show):
    assert "ids lie below 32,000 (--n-vocab)\n" in show(
        payload_of(ACTIONS), "--n-vocab", "32000"
    )
    for bad in ("32", "0", "-5", str(2**31)):
        message = show(payload_of(ACTIONS), "--n-vocab", bad, code=2)
        assert message.startswith("eliza: descriptors[0] ('action'): ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON: it is empty"),
        (b"# notes", "not JSON: "),
        (b"RTKT", "not RTKT: it is cut short"),
        (GOOD.encode()[:-1], "not JSON: input data was truncated"),
        (GOOD.replace("[200]", "[]").encode(), "leaves[1].tokens: 'EXECUTE' has no"),
        (GOOD.replace("[200]", "[100,101]").encode(), "have the same ids"),
    ],
)
def test_bad_files(show, content, message):
    err = show(content, code=3)
    assert re.match("eliza: .*tree: ", err)
    assert message in err


def test_no_file(capsys, tmp_path):
    for path in (tmp_path / "none", tmp_path):
        assert main(["trie", str(path)]) == 3
        assert str(path) in capsys.readouterr().err


def test_json(show):
    document = json.loads(show(payload_of(ACTIONS), "--json"))
    assert document["model_id"] == "m"
    (tree,) = document["trees"]
    nodes = tree.pop("nodes")
    assert tree.pop("bytes") > 0
    assert tree.pop("forced_share") == pytest.approx(6 / 13)
    assert tree == {
        "path": "action",
        "n_vocab": 33,
        "choices": 5,
        "tokens": 13,
        "longest": 4,
        "branching_points": 2,
        "needs_exits": True,
    }
    assert nodes == [
        {"ids": [], "choices": 5, "children": [1, 4, 5]},
        {"ids": [10, 11], "choices": 3, "children": [2, 3], **leaf(0, "SEND")},
        {"ids": [12], "choices": 1, "children": [], **leaf(1, "SEND_EMAIL")},
        {"ids": [13, 14], "choices": 1, "children": [], **leaf(2, "SEND_MESSAGE")},
        {"ids": [20], "choices": 1, "children": [], **leaf(3, "REPLY")},
        {"ids": [30, 31, 32], "choices": 1, "children": [], **leaf(4, "IGNORE")},
    ]


def leaf(number, name):
    return {"leaf": number, "name": name}


def test_a_saved_trie(show):
    trie = Trie.from_tokens(ACTIONS, n_vocab=500, exits=[2])
    out = show(trie.to_bytes())
    assert out.startswith("5 choices; some go on where others end\n")
    assert "ids lie below 500 (the trie's own)\n" in out
    assert "├── 20  REPLY\n" in out
    assert '[label="trie", shape=plaintext]' in show(trie.to_bytes(), "--dot")
    document = json.loads(show(trie.to_bytes(), "--json"))
    assert document["model_id"] == ""
    assert document["trees"][0]["path"] is None
    unnamed = Trie.from_arrays([5, 7, 6], [0, 1, 3], n_vocab=8)
    assert show(unnamed.to_bytes()).endswith("├── 5  leaf 0\n└── 7 (6)  leaf 1\n")
    for option in (("--path", "action"), ("--n-vocab", "500")):
        assert "is a saved trie" in show(trie.to_bytes(), *option, code=2)
    for broken in (trie.to_bytes()[:-1], trie.to_bytes()[:20]):
        err = show(broken, code=3)
        assert re.match("eliza: .*tree: .*(cut|short|bytes|size)", err)


def test_dot(show):
    out = show(payload_of(ACTIONS, path='a"b\\c'), "--dot")
    assert out.startswith("digraph trie {\n")
    assert out.endswith("}\n")
    assert '  t0n0 [label="a\\"b\\\\c", shape=plaintext];\n' in out
    assert '  t0n1 [label="SEND"];\n  t0n0 -> t0n1 [label="10 (11)"];\n' in out
    nodes = set(re.findall(r"^  (t\w+) \[", out, re.MULTILINE))
    edges = re.findall(r"^  (t\w+) -> (t\w+) \[", out, re.MULTILINE)
    assert len(nodes) == 6
    assert {node for edge in edges for node in edge} == nodes
    with pytest.raises(SystemExit, match="2"):
        show(payload_of(ACTIONS), "--dot", "--json")


def test_names_cannot_disturb_the_terminal(show):
    names = ["a\nb", "\x1b[31mred", " x", "", "y" * 500, "\u202eabc", "\t", '"', "é"]
    leaves = {name or "z": [i] for i, name in enumerate(names)}
    payload = payload_of(leaves, path="p\x1b\n", model_id="m\r")
    out = show(payload) + show(payload, "--dot")
    assert not {c for c in out if not c.isprintable()} - {"\n"}
    assert max(map(len, out.splitlines())) < 120
    for shown in ("'a\\nb'", "'\\x1b[31mred'", "' x'", "y" * 59 + "…", "  é\n"):
        assert shown in out


def test_long_runs_are_cut(show):
    out = show(payload_of({"long": range(1000), "longer": [*range(500), 7]}))
    assert "└── (0 1 2 3 4 5 6 7 8 9 10 11 … 488 more)  2 ways, 2 choices\n" in out
    assert "500 (501" in out


@pytest.mark.parametrize(
    "leaves",
    [
        {f"N{i}": [i] for i in range(100_000)},
        {f"N{i}": [i // 1000, i // 30 % 90, i, i, i] for i in range(30_000)},
        {f"N{i}": [1] * (i + 1) for i in range(1000)},
    ],
    ids=["wide", "bushy", "a chain"],
)
def test_fc111_large_trees_are_cut_and_counted(show, leaves):
    payload = payload_of(leaves)
    out = show(payload)
    head, drawn = out.split("\n\n")
    assert f"{len(leaves):,} choices" in head
    lines = drawn.splitlines()
    assert 20 < len(lines) <= MAX_LINES + 1
    # What is cut is counted: whole choices, the ends of lines, and the rest.
    named = len(re.findall(r"  N\d+", drawn))
    hidden = sum(
        int(n.replace(",", ""))
        for n in re.findall(r"… [\d,]+ more, with ([\d,]+)|([\d,]+) choices? …", drawn)
        for n in n
        if n
    )
    twice = len(re.findall(r"  N\d+  .* choices? …", drawn))
    assert named + hidden - twice == len(leaves)
    if len(leaves) == 100_000:
        return  # the other forms take seconds
    dot = show(payload, "--dot")
    assert dot.count(" -> ") <= MAX_LINES
    assert len(json.loads(show(payload, "--json"))["trees"][0]["nodes"]) > len(leaves)


def test_exactly_the_limit(show):
    whole = {f"N{i}": [i] for i in range(MAX_LINES - 1)}
    assert "…" not in show(payload_of(whole))
    whole["one more"] = [MAX_LINES]
    assert "… 180 more, with 180 choices" in show(payload_of(whole))


def test_the_layout_agrees_with_the_trie():
    """On trees of all shapes: the nodes are the trie's, the leaves all there."""
    for seed in range(200):
        rng = random.Random(seed)
        leaves = {
            tuple(rng.randrange(3) for _ in range(rng.randint(1, 6)))
            for _ in range(rng.randint(1, 20))
        }
        trie = Trie.from_tokens([(str(ids), ids) for ids in leaves], n_vocab=3)
        tree = tree_of(trie)
        assert len(tree.nodes) == trie.n_nodes
        assert tree.n_tokens == sum(map(len, leaves))
        forced = 0
        for ids in leaves:
            for i in range(len(ids)):
                ways = {a[i : i + 1] for a in leaves if a[:i] == ids[:i]}
                forced += len(ways) == 1  # to end here is the way ()
        assert tree.forced_share == pytest.approx(forced / tree.n_tokens)
        stack = [(tree.nodes[0], ())]
        found = []
        while stack:
            node, path = stack.pop()
            path += node.ids
            if node.leaf is not None:
                found.append((node.leaf, path))
            stack.extend((child, path) for child in reversed(node.children))
        assert found == [(i, trie.tokens(i)) for i in range(len(trie))]


def test_texts_of_ids(show, tmp_path):
    pytest.importorskip("llama_cpp")
    path = str(tiny_gguf(tmp_path / "tiny.gguf"))
    with eliza.load(path, n_ctx=32) as model:
        vocab = model.vocab
        n_vocab = vocab.n_vocab
        leaves = {name: vocab.encode(name) for name in ("SEND", "Yes", "é", "SEARCH")}
    out = show(payload_of(leaves), "--model", path)
    assert f"ids lie below {n_vocab:,} (the model's vocabulary)" in out
    assert "'SEND'  SEND\n" in out
    assert "'\\\\xc3' ('\\\\xa9')  é\n" in out
    nodes = json.loads(show(payload_of(leaves), "--model", path, "--json"))["trees"][0]
    texts = {node.get("name"): node["text"] for node in nodes["nodes"]}
    assert texts["Yes"] == "Yes"
    for fingerprint, code in ((vocab.fingerprint, 0), (b"", 0), (b"other", 2)):
        trie = Trie.from_tokens(leaves, n_vocab=n_vocab, fingerprint=fingerprint)
        out = show(trie.to_bytes(), "--model", path, code=code)
        assert ("another tokenizer" if code else "'SEND'  SEND\n") in out
    high = payload_of({"x": [n_vocab]})
    assert "outside" in show(high, "--model", path, code=2)
    assert "cannot be read" in show(high, "--model", str(tmp_path / "x"), code=3)


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        timeout=120,
        check=False,
        **options,
    )


def test_a_terminal_without_unicode(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(payload_of({**ACTIONS, "é\U0001f408": range(40, 60)}).to_json())
    done = run(str(path), env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    out = done.stdout.decode("ascii")
    assert "|-- 10 (11)  SEND  3 ways, 3 choices\n|   |-- 12  SEND_EMAIL\n" in out
    assert "`-- 40 (41 42 43" in out
    assert "... 7 more)  \\xe9\\U0001f408\n" in out


@pytest.mark.skipif(os.name == "nt", reason="needs a pipe as POSIX has it")
def test_a_reader_that_has_enough(tmp_path):
    path = tmp_path / "p.json"
    path.write_bytes(payload_of({f"N{i}": [i] for i in range(20_000)}).to_json())
    with subprocess.Popen(
        [*COMMAND, str(path), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.read(10) == b'{"model_id'
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
