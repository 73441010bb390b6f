"""Notebooks run as they stand, and the outputs that they show are those of their code."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

FOLDER = Path("tasks/recipes").absolute()
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_CELLS, MOST_BYTES = 12, 200_000


def words(texts):
    """Return the words of texts: numbers are another processor's."""
    return set(re.findall(r"[^\W\d_]{2,}", " ".join(texts)))


@pytest.mark.assembly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_its_code_prints(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    cells = json.loads(path.read_text())["cells"]
    codes = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(cells) <= MOST_CELLS and path.stat().st_size <= MOST_BYTES
    assert [cell["execution_count"] for cell in codes] == list(range(1, len(codes) + 1))
    printed = []
    names = {"print": lambda *texts, sep=" ": printed.append(sep.join(map(str, texts)))}
    for cell in codes:
        source = "".join(cell["source"])
        exec(compile(source, path.name, "exec"), names)
        shown = [text for output in cell["outputs"] for text in output.get("text", ())]
        assert words(shown) == words(printed) and cell["outputs"], source
        pictures = ["image/png" in output.get("data", {}) for output in cell["outputs"]]
        assert sum(pictures) == len(plt.get_fignums()), source
        printed.clear()
        plt.close("all")


def test_the_page_lists_every_notebook():
    listed = re.findall(r"\]\((\w+\.ipynb)\)", (FOLDER / "README.md").read_text())
    assert sorted(listed) == [path.name for path in NOTEBOOKS] != []
