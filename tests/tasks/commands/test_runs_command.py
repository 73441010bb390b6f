"""The list of runs: their folders, what differs among them, how far they are, and what they were found to be worth."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tasks.commands.small_runs import SHARES, settings_of, settings_on
from vecenv.learn.runs import MetricsLog
from vecenv.learn.verdict import Verdict
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands import cli
from vecenv.tasks.experiment.checkpoints import write_settings
from vecenv.tasks.experiment.settings import NOT_IN_FILES

FRAMES = 256
WORSE = Verdict("trained", "buy_and_hold", "test", 6, "excess_log_return", (-0.01, -0.02, -0.005), 2)  # type: ignore[arg-type]


def folder_of(folder: Path, settings, *frames: int, verdict: Verdict | None = None) -> Path:
    """A folder as a training of so many logged steps leaves it; with a verdict it was compared."""
    folder.mkdir(parents=True)
    write_settings(folder, settings, NOT_IN_FILES)
    for number, count in enumerate(frames):
        place = folder if len(frames) == 1 else folder / f"seed_{number}"
        place.mkdir(exist_ok=True)
        if place != folder:
            write_settings(place, settings, NOT_IN_FILES)
        log = MetricsLog(place)
        for update in range(1, count // 128 + 1):
            log.write({"update": update, "frames": 128 * update, "loss": 0.5})
        log.close()
    if verdict is not None:
        results = {"settings": as_values(settings, NOT_IN_FILES), "verdicts": [told(verdict)]}
        (folder / "metrics.json").write_text(json.dumps(results))
    return folder


def told(verdict: Verdict) -> dict:
    return {"agent": verdict.agent, "part": verdict.part, "word": verdict.word, "told": verdict.clause()}


def listed(folder: Path, target: Path) -> dict[str, dict]:
    assert cli.main(["runs", str(folder), "--json", str(target)]) == 0
    runs = json.loads(target.read_text())["runs"]
    return {str(Path(run["folder"]).relative_to(folder)): run for run in runs}


def test_runs_are_listed_with_what_differs_and_how_far_they_are(place, tmp_path, capsys):
    folder, target = tmp_path / "runs", tmp_path / "told.json"
    folder_of(folder / "a", settings_on(place, seed=1), FRAMES, verdict=WORSE)
    folder_of(folder / "inner" / "b", settings_on(place, env=SHARES), 128)
    folder_of(folder / "exact", settings_on(place, algorithm="exact"), 128)
    folder_of(folder / "seeds", settings_on(place, seeds=2), FRAMES, 128)
    folder_of(folder / "other", settings_of(task="frozen_lake"), 0)
    # Compared, and then resumed for more.
    longer = folder_of(folder / "longer", settings_on(place), FRAMES, verdict=WORSE)
    more = as_values(settings_on(place), NOT_IN_FILES)
    more["learner"]["total_frames"] = 2 * FRAMES
    (longer / "settings.yaml").write_text(json.dumps(more))
    with WriteLock(folder / "c"):
        found = listed(folder, target)
        assert found.pop("c") == {
            "folder": str(folder / "c"), "task": None, "market": None, "algorithm": None, "model": None,
            "state": "running", "done": None, "reason": None, "differing": {}, "verdict": None,
        }  # fmt: skip
    assert {name: (run["state"], run["done"]) for name, run in found.items()} == {
        "a": ("finished", 1.0), "exact": ("stopped", 0.5), "inner/b": ("stopped", 0.5), "longer": ("stopped", 0.5),
        "other": ("stopped", 0.0), "seeds": ("stopped", 0.75),
    }  # fmt: skip
    # Learners are compared among runs of the same one, rules among those of the same task.
    own = {"seed": 1, "seeds": 1, "env.action": "tilt", "learner.total_frames": FRAMES}
    assert found["a"]["differing"] == own and found["longer"]["differing"]["learner.total_frames"] == 2 * FRAMES
    assert found["inner/b"]["differing"] == own | {"seed": 0, "env.action": "shares"}
    assert found["exact"]["differing"] == {"seed": 0, "seeds": 1, "env.action": "tilt"}
    assert found["seeds"]["differing"]["seeds"] == 2 and found["other"]["differing"] == {}
    assert found["a"]["verdict"] == told(WORSE) and found["longer"]["verdict"] is None
    shown = " ".join(capsys.readouterr().out.split())
    assert "7 runs in" in shown and "worse than" in shown
    # The folder of a run is a list of one, of which nothing differs.
    assert list(listed(folder / "a", target)) == ["."] and listed(folder / "a", target)["."]["differing"] == {}


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("settings.yaml", "[", "not YAML"),
        ("metrics.json", '{"settings"', "Expecting"),
        ("metrics.json", "[]", "not the results of a run"),
        ("metrics.csv", "update,loss\n1,2\n", "'frames' is not in list"),
    ],
)
def test_a_damaged_run_is_told_and_the_others_are_listed(place, tmp_path, file, text, reason):
    folder = tmp_path / "runs"
    folder_of(folder / "damaged", settings_on(place), 128)
    folder_of(folder / "whole", settings_on(place), 128)
    (folder / "damaged" / file).write_text(text)
    found = listed(folder, tmp_path / "told.json")
    assert found["damaged"]["state"] == "unreadable" and reason in found["damaged"]["reason"]
    assert found["whole"]["state"] == "stopped"


def test_a_list_needs_no_torch_and_a_folder(place, tmp_path, capsys):
    folder_of(tmp_path / "runs" / "a", settings_on(place), FRAMES, verdict=WORSE)
    code = (
        "import sys; from vecenv.tasks.commands.cli import main; "
        f"code = main(['runs', {str(tmp_path / 'runs')!r}]); "
        "assert not {'torch', 'pandas', 'transformers'} & set(sys.modules); sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "worse than" in " ".join(result.stdout.split()), result.stderr
    assert cli.main(["runs", str(tmp_path / "none")]) == cli.BAD_INPUT
    assert "none: there is no such folder" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "empty").mkdir()
    assert listed(tmp_path / "empty", tmp_path / "told.json") == {}
    assert "holds no run" in " ".join(capsys.readouterr().out.split())
