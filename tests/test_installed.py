"""The package as it is installed: one name, and no clash with files of the user's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[1]
OWN = ("tasks", "benchmarks", "worldmodel", "configs", "tests")
"""Names of files that a user may have, such as those of Celery and Invoke."""

COMMANDS = (
    "--help",
    "worldmodel generate --out paths --paths 1 --days 30",
    "data inspect paths/path_0000.parquet",
    "train --num-envs 16 --num-paths 4 --num-days 360 --episodes 8 --env.episode-length 20 --learner.num-steps 8 "
    "--learner.total-frames 256 --learner.minibatches 2 --no-compile --folder run",
    "evaluate --checkpoint run --episodes 8",
    "evaluate --task single_stock --agents hold --episodes 8 --num-paths 4",
    "backtest --checkpoint equal_weight --market paths/path_0000.parquet --env.features daily_change --out backtest",
    "play --task single_stock --num-paths 4 --record episode.jsonl",
    "replay episode.jsonl",
    "collect --task single_stock_costs --market planted --num-paths 4 --num-days 330 --episodes 4 --out chats.jsonl",
    "bench --num-envs 8 --num-steps 2 --repeats 5 --columns environment",
    "worldmodel validate --help",
    "sft --help",
    "serve --help",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    return folder


def test_one_name_is_installed(installed):
    found = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert found == {"vecenv", "bin"}
    assert (installed / "vecenv" / "py.typed").is_file()
    assert (installed / "vecenv" / "presets" / "train" / "quick.yaml").is_file()
    for weights in ("judged", "shipped"):
        assert (installed / "vecenv" / "worldmodel" / "weights" / f"{weights}.safetensors").is_file()
    market = installed / "vecenv" / "tasks" / "agent_market"
    assert (market / "tick.cpp").is_file() and (market / "book.hpp").is_file()


def test_every_package_is_installed(installed):
    """Packages are listed one by one in pyproject.toml, where one is easily forgotten."""
    apart = {"vecenv": "", "tasks": "tasks", "worldmodel": "worldmodel", "benchmarks": "benchmarks"}
    for room, name in apart.items():
        for file in (ROOT / room).rglob("*.py"):
            place = file.relative_to(ROOT / room)
            # A project of its own.
            if "verifiers" not in place.parts:
                assert (installed / "vecenv" / name / place).is_file(), file


def test_every_command_runs_beside_files_of_the_same_names(installed, tmp_path):
    for name in OWN:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the user is not to be imported')\n")
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    for command in COMMANDS:
        # The folder is first on the path, as it is for a script or a notebook in it.
        options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 600}
        words = [sys.executable, "-m", "vecenv.tasks.commands.cli", *command.split()]
        ran = subprocess.run(words, input="BUY 0.5\nHOLD\n", **options)
        assert ran.returncode == 0, (command, ran.stdout[-2000:], ran.stderr[-2000:])
    where = "import vecenv; print(vecenv.__file__); vecenv.make('stock_trading', 2, compile=False)"
    told = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert told.stdout.startswith(str(installed)), told
