"""A sweep of trainings that take a second, of the task of a stranger, which its processes import."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
FILE = {
    "task": "reach_zero", "num_envs": 16, "episodes": 16, "compile": False, "device": "cpu",
    "validation_fraction": 0.1, "validation_episodes": 16, "evaluations": 4,
    "learner": {"num_steps": 8, "total_frames": 4096, "minibatches": 2, "hidden": [8], "checkpoint_every": 2},
    "varies": {
        "learner.learning_rate": {"low": "1e-5", "high": "1e-1", "log": True},
        "learner.epochs": {"low": 1, "high": 2},
        "learner.hidden": {"choices": [[8], [4, 4]]},
    },
}  # fmt: skip
COMMAND = "import sys; from vecenv.tasks.commands import cli; sys.exit(cli.main(sys.argv[1:]))"


def write_files(folder: Path, more: str = "", **changes: object) -> None:
    """Write the sweep and its task, with ``more`` at the end of the latter's file."""
    (folder / "walk.yaml").write_text(yaml.safe_dump(FILE | changes))
    task = (ROOT / "tests" / "reach_zero.py").read_text()
    (folder / "walk_task.py").write_text(f"{task}\nimport vecenv\nvecenv.register(REACH_ZERO)\n{more}")


def words(folder: str, trials: int, processes: int, *more: str) -> list[str]:
    small = ("--random-trials", "4", "--pruned-after", "1", "--delay", "3")
    sizes = ("--trials", str(trials), "--processes", str(processes))
    return ["sweep", "walk.yaml", "--import", "walk_task.py", "--folder", folder, *sizes, *small, *more]


def started(place: Path, command: list[str]) -> subprocess.Popen:
    """Start a command as the first process of a session of its own."""
    options = {"cwd": place, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}

    def interruptible() -> None:
        # What a shell starts in the background ignores Ctrl+C, and so does what that starts.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    command = [sys.executable, "-c", COMMAND, *command]
    return subprocess.Popen(command, start_new_session=True, preexec_fn=interruptible, **options)


def members(session: int) -> dict[int, str]:
    """Return the processes of a session that have not ended, by number, with their command lines."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, own = (place / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
        except (OSError, ValueError):
            continue
    return found


def workers(session: int) -> list[int]:
    return [number for number, line in members(session).items() if "spawn_main" in line]


def wait_until(true, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def ended(folder: Path) -> int:
    """Return the number of trials that are complete or pruned in the journal of a sweep."""
    journal = folder / "journal.log"
    lines = journal.read_text().splitlines() if journal.is_file() else []
    return sum('"op_code":6' in line and ('"state":1' in line or '"state":2' in line) for line in lines)


def result(folder: Path) -> dict:
    """Return a report without what tells of interruptions."""
    told = json.loads((folder / "sweep.json").read_text())
    for trial in told["trials"]:
        del trial["interrupted"]
    return {name: value for name, value in told.items() if name != "folder"}
