"""The command line, called in this process: its commands, presets, help and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

from tests.tasks.commands.small_runs import train_args
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.train import TrainSettings


def echo(settings: TrainSettings) -> dict:
    """A command that returns its settings."""
    return as_values(settings)


def settings_of(args: list[str], tmp_path, monkeypatch) -> dict:
    """The settings that a command line gives to ``vecenv train``."""
    monkeypatch.setattr(cli, "COMMANDS", [EntryPoint("train", f"{__name__}:echo", cli.GROUP)])
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    assert cli.main(["train", *args, "--json", str(tmp_path / "settings.json")]) == 0
    return json.loads((tmp_path / "settings.json").read_text())


@pytest.mark.assembly
def test_overview_and_data_help_do_not_import_torch():
    code = (
        "import sys; from vecenv.tasks.commands.cli import main; "
        "assert main(sys.argv[1:]) == 0; assert 'torch' not in sys.modules"
    )
    for args in (["--help"], ["data", "--help"]):
        result = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        assert "usage: vecenv" in result.stdout
        assert "convert" in result.stdout


def test_other_packages_add_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cli, "entry_points", lambda group: [EntryPoint("echo", f"{__name__}:echo", group)])
    assert cli.main(["--help"]) == 0
    assert "The command line, called in this process" in capsys.readouterr().out
    assert cli.main(["echo", "--seed", "7", "--json", str(tmp_path / "echo.json")]) == 0
    assert json.loads((tmp_path / "echo.json").read_text())["seed"] == 7


@pytest.mark.assembly
def test_a_second_interruption_ends_the_program_at_once(monkeypatch, capsys):
    """While Python cleans up, nobody would catch it."""

    def interrupted(settings: TrainSettings) -> dict:
        raise KeyboardInterrupt

    monkeypatch.setitem(globals(), "echo", interrupted)
    monkeypatch.setattr(cli, "COMMANDS", [EntryPoint("echo", f"{__name__}:echo", cli.GROUP)])
    before = signal.getsignal(signal.SIGINT)
    try:
        assert cli.main(["echo"]) == cli.INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is before
        monkeypatch.setattr(sys, "argv", ["vecenv", "echo"])
        assert cli.main() == cli.INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "there is not enough memory"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore"),
            "Tried to allocate 2.00 GiB.",
        ),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "can't allocate memory"),
        (FloatingPointError("update 3: losses are not finite"), "error: update 3: losses are not finite"),
    ],
)
def test_what_stops_the_work_is_told_in_a_line(monkeypatch, capsys, error, words):
    def stopped(settings: TrainSettings) -> dict:
        raise error

    monkeypatch.setitem(globals(), "echo", stopped)
    monkeypatch.setattr(cli, "COMMANDS", [EntryPoint("echo", f"{__name__}:echo", cli.GROUP)])
    assert cli.main(["echo"]) == cli.BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vecenv echo: error: ") and words in line


def test_presets_win_over_defaults_and_the_command_line_over_presets(tmp_path, monkeypatch):
    train, task = tmp_path / "train.yaml", tmp_path / "task.yaml"
    train.write_text("seed: 4\nnum_envs: 8\nenv: {hmax: 7, commission: 1e-3, reward_scale: 1}\n")
    task.write_text("hmax: 5\nreward_scale: 1e-2\n")
    args = ["--preset", str(train), "--task-preset", str(task), "--num-envs", "16", "--env.reward-scale", "0.5"]
    settings = settings_of(args, tmp_path, monkeypatch)
    assert settings["seed"] == 4 and settings["num_envs"] == 16
    assert settings["env"]["hmax"] == 5 and settings["env"]["commission"] == 1e-3
    assert settings["env"]["reward_scale"] == 0.5
    assert settings["episodes"] == TrainSettings.episodes


def test_help_shows_docstrings_and_the_values_of_the_preset(market_place, capsys):
    assert cli.main(train_args(market_place, "--help")) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--env.hmax FLOAT Largest order in shares per symbol and day. (default: 10.0)" in text
