"""The Python of every page runs as it stands, and what the pages point at is there."""

import os
import re
import runpy
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pages import PAGES, page_name
from vecenv import registry

TRAINER = "GRPOTrainer"
"""Of TRL: a training of its own, by the night."""

SERVER = "http://127.0.0.1:8000"
SMALLER = {"2048": "64", 'market="synthetic", seed=0)': 'market="synthetic", seed=0, compile=False)', "256 * 5": "256"}
"""Fewer rows compute the same things sooner, and other tests compile."""

BLOCKS = [
    pytest.param(text, id=f"{page_name(page)}-{number}", marks=[pytest.mark.nightly] * (TRAINER in text))
    for page in PAGES
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.assembly
@pytest.mark.parametrize("block", BLOCKS)
def test_python_block(block, tmp_path, monkeypatch):
    """In this process, which has imported most of it."""
    for old, new in SMALLER.items():
        block = block.replace(old, new)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    if TRAINER in block:
        pytest.importorskip("trl", reason="the door to TRL needs vecenv[trl]")
        from tests.language.tiny import talking_model
        from vecenv.language.models import save_model

        save_model(*talking_model(), tmp_path / "runs" / "start")
    with ExitStack() as running:
        if SERVER in block:
            pytest.importorskip("openenv", reason="the server needs vecenv[openenv]")
            from tests.adapters.served_market import served

            block = block.replace(SERVER, running.enter_context(served()).url)
        (tmp_path / "block.py").write_text(block)
        runpy.run_path("block.py")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_what_a_page_points_at_exists(page):
    text = page.read_text()
    for module in re.findall(r"python -m (vecenv(?:\.[a-z_]+)+)(?![\w.]*[A-Z])", text):
        assert page.name == "CHANGELOG.md" or find_spec(module) is not None, module
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"https?:", target):
            file, _, heading = target.partition("#")
            found = Path(os.path.normpath(page.parent / file)) if file else page
            assert found.exists(), target
            if heading:
                headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                assert heading in {re.sub(r"[^\w -]", "", name).lower().replace(" ", "-") for name in headings}, target
