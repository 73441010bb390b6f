"""The README's Python runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
SERVER = "http://127.0.0.1:8000"
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_block(number, tmp_path):
    if "runs/start" in BLOCKS[number]:
        pytest.importorskip("trl", reason="the door to TRL needs vecenv[trl]")
        from tests.language.tiny import talking_model
        from vecenv.language.models import save_model

        save_model(*talking_model(), tmp_path / "runs" / "start")
    with ExitStack() as running:
        # Fewer rows compute the same things sooner.
        text = BLOCKS[number].replace("2048", "64")
        if SERVER in text:
            pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")
            from tests.adapters.served_market import served

            text = text.replace(SERVER, running.enter_context(served()).url)
        script = tmp_path / f"readme_block_{number}.py"
        script.write_text(text)
        subprocess.run([sys.executable, script], check=True, cwd=tmp_path)


def test_a_new_task_takes_under_forty_lines():
    task = next(block for block in BLOCKS if "Scenario[" in block)
    body = task[task.index("class") :].strip().splitlines()
    assert len([line for line in body if line.strip()]) < 40


def test_pictures_exist():
    for path in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (Path(__file__).parent.parent / path).exists(), path
