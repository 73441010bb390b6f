"""Recipes run as they stand, each in a folder of its own, and the page names all of them."""

import re
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

from vecenv import learn, registry
from vecenv.tasks.recipes.sample import sample_prices

FOLDER = Path("tasks/recipes")
RECIPES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "sample"))
MOST_LINES = 40
LONG = {"compare_runs", "export_policy", "language_trl", "own_world_model", "walk_forward"}
"""They start several commands, or load much."""
OF_MODELS = {"language_grpo", "language_trl", "own_grpo_loop"}
"""Their argument is a language model."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a tiny language model."""
    from tests.language.tiny import small_model

    folder = tmp_path_factory.mktemp("model")
    for part in small_model():
        part.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in LONG)) for name in RECIPES])
def test_a_recipe_runs(name, tmp_path, request, monkeypatch, capfd):
    given = [str(request.getfixturevalue("model"))] if name in OF_MODELS else []
    if name == "todays_orders":
        # A file of one's own, in another dress than the sample's.
        names = {"date": "Date", "symbol": "Ticker"}
        given = [str(tmp_path / "own.csv")]
        pd.read_csv(sample_prices(str(tmp_path / "sample.csv"))).rename(columns=names).to_csv(*given, index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *given])
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(learn, "_registered", {})
    # Not in processes of their own, whose imports take longer than most of them.
    runpy.run_module(f"vecenv.tasks.recipes.{name}", run_name="__main__")
    assert capfd.readouterr().out.strip(), "it says what came of it"


def test_the_page_lists_every_recipe_and_none_is_long():
    page = (FOLDER / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+)\.py\)", page)) == sorted([*RECIPES, "sample"])
    for name in RECIPES:
        lines = (FOLDER / f"{name}.py").read_text().splitlines()
        assert len([line for line in lines if line]) <= MOST_LINES, name
        assert lines[0].startswith('"""'), name
