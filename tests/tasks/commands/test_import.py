"""Files that commands import: a task of a stranger, trained and evaluated without a package, and files that fail."""

import json
import sys
from pathlib import Path

import pytest

import vecenv
from vecenv import learn, registry
from vecenv.tasks.commands import cli

RECIPE = Path("tasks/recipes/own_task.py")
SIZES = {"num-envs": 16, "learner.total-frames": 2048, "learner.hidden": 8, "episodes": 8}
SMALL = ("--no-compile", *(word for name, value in SIZES.items() for word in (f"--{name}", str(value))))
REINFORCE = Path("tests/learn/reinforce.py").absolute()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, after which nothing is left of what was imported and registered."""
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(learn, "_registered", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_task.py").write_text(RECIPE.read_text())
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_task", "beside", "reinforce"):
        sys.modules.pop(name, None)


@pytest.mark.assembly
@pytest.mark.parametrize("learner", [(), ("--import", str(REINFORCE), "--algorithm", "reinforce")], ids=["ppo", "own"])
def test_the_task_of_the_recipe_is_trained_and_evaluated_from_its_file(place, learner):
    train = ("train", "--import", "my_task.py", "--task", "walk_to_zero", "--folder", "run", *SMALL, *learner)
    assert cli.main(train) == 0
    del sys.modules["my_task"]
    registry._registered.clear()
    evaluate = ("evaluate", "--task", "walk_to_zero", "--checkpoint", "run", "--episodes", "8", "--json", "told.json")
    for _ in range(2):
        assert cli.main((*evaluate, "--import=my_task.py")) == 0
    told, trained = (json.loads(Path(file).read_text()) for file in ("told.json", "run/metrics.json"))
    assert told["agents"]["trained"] == trained["evaluation"]["agents"]["trained"]
    assert vecenv.task_names().count("walk_to_zero") == 1


def test_files_that_fail_are_told_with_their_line(place, capsys):
    (place / "beside.py").write_text("ONE = 1\n")
    (place / "fails.py").write_text("from beside import ONE\n\n\ndef half(x):\n    return x / 0\n\n\nhalf(ONE)\n")
    (place / "json.py").write_text("")
    for file, told in (
        ("fails.py", "--import fails.py, line 5: ZeroDivisionError: division by zero"),
        ("gone.py", "--import gone.py: there is no such Python file"),
        ("my_task", "--import my_task: there is no such Python file"),
        ("json.py", "--import json.py: there is a module 'json' already; give the file another name"),
    ):
        assert cli.main(["train", "--import", file]) == cli.BAD_INPUT
        assert capsys.readouterr().err == f"vecenv train: error: {told}\n"
    assert "fails" not in sys.modules
