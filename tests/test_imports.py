"""What `import eliza` brings along, and what it says where nobody set up logging."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest

import eliza
from support import hashed, model_of

HEAVY = ("asyncio", "dataclasses", "hashlib", "jinja2", "logging", "msgspec", "secrets")


def run(code):
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_design_12_6_nothing_heavy_is_imported():
    code = (
        "import sys, numpy; before = set(sys.modules); import eliza; "
        f"print([name for name in {HEAVY} if name in set(sys.modules) - before])"
    )
    assert run(code).stdout == "[]\n"


@pytest.mark.parametrize("first", ["logging", "eliza"])
def test_design_12_7_the_logger_is_silent_by_default(first):
    second = "eliza" if first == "logging" else "logging"
    done = run(
        f"import {first}, {second}; from eliza.logs import get_logger; "
        "get_logger('eliza.x'); get_logger('eliza.x').error('not to be seen'); "
        "print([type(h).__name__ for h in logging.getLogger('eliza').handlers])"
    )
    assert done.stdout == "['NullHandler']\n"
    assert done.stderr == ""


def test_names_are_there_for_tools():
    assert set(eliza.__all__) <= set(dir(eliza))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = eliza.nothing


def test_an_answer_does_not_change_and_can_be_copied():
    answer = model_of(hashed(1, 64)).choose([4, 5], ["<9>", "<12>"])
    with pytest.raises(AttributeError, match=r"Answer\.value cannot be set"):
        answer.value = "<12>"
    with pytest.raises(AttributeError, match=r"Answer\.value cannot be deleted"):
        del answer.value
    with pytest.raises(AttributeError):
        answer.stats.seconds = 0.0
    twin = copy.copy(answer)
    assert twin == answer
    assert twin is not answer
    assert hash(twin) == hash(answer)
    assert answer != model_of(hashed(2, 64)).choose([4, 5], ["<9>", "<12>"])
    assert repr(answer).startswith(f"Answer(value={answer.value!r}, index=")
    assert "_way" not in repr(answer)


def test_the_page_of_names_has_all_of_them():
    page = (Path(__file__).parent.parent / "docs" / "api.md").read_text("utf-8")
    told = set(re.findall(r"`(\w+)`", page))
    assert set(eliza.__all__) - told == set()
    codes = dict(re.findall(r"\| `(\w+)` \| (-\d+) \|", page))
    errors = {
        name: str(error.code)
        for name in eliza.__all__
        if isinstance(error := getattr(eliza, name), type)
        and issubclass(error, eliza.ElizaError)
        and error.code
    }
    assert codes == errors
