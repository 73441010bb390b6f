"""The command line, called in this process: its commands, help, progress, errors and ends."""

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
import torch
from rich.console import Console

import vecenv
from tests.tasks.commands.small_runs import SHARES, settings_on
from vecenv.learn.checkpoints import RunStoppedError
from vecenv.market import generators
from vecenv.registry import task_names
from vecenv.system.files import WriteLock
from vecenv.system.preset_files import as_values
from vecenv.tasks.commands import cli, collect, evaluate, sft, train
from vecenv.tasks.commands.evaluate import EvaluateSettings
from vecenv.tasks.experiment import markets
from vecenv.tasks.experiment.progress import StepBar, TextBar, TrainingBar, working
from vecenv.tasks.experiment.settings import TrainSettings
from vecenv.tasks.tiers.config import TierConfig


@dataclass(frozen=True)
class Echoed:
    seed: int = 0
    fails: bool = False


ERROR: list[BaseException] = []


def echo(settings: Echoed) -> dict:
    """A command that returns its settings, or raises what there is to raise."""
    if settings.fails:
        raise ERROR.pop()
    return as_values(settings)


def echo_of_training(settings: TrainSettings) -> dict:
    return as_values(settings)


def test_the_version_and_a_file_are_told_without_torch_and_other_packages_add_commands(tmp_path, monkeypatch, capsys):
    file = tmp_path / "bars.csv"
    file.write_text("date,symbol,open,high,low,close,volume\n2020-01-02,A,1,2,1,2,9\n2020-01-03,A,2,4,2,4,9\n")
    code = (
        "import sys; from vecenv.tasks.commands.cli import main; "
        f"assert main(['--help']) == main(['data', 'inspect', {str(file)!r}]) == 0; assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "usage: vecenv" in result.stdout and "A +100.0% on 2020-01-03" in result.stdout
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"vecenv {vecenv.__version__}\n"
    monkeypatch.setattr(cli, "entry_points", lambda group: [EntryPoint("echo", f"{__name__}:echo", group)])
    assert cli.main(["--help"]) == 0
    assert "The command line, called in this process" in capsys.readouterr().out
    assert cli.main(["echo", "--seed", "7", "--json", str(tmp_path / "echo.json")]) == 0
    assert json.loads((tmp_path / "echo.json").read_text())["seed"] == 7


def test_what_stops_the_work_is_told_in_a_line_and_a_second_interruption_ends_at_once(monkeypatch, capsys):
    monkeypatch.setattr(cli, "COMMANDS", [EntryPoint("echo", f"{__name__}:echo", cli.GROUP)])
    for error, words in (
        (MemoryError(), "there is not enough memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore"), "Tried to allocate 2 GiB."),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "can't allocate memory"),
        (FloatingPointError("update 3: losses are not finite"), "error: update 3: losses are not finite"),
        (RunStoppedError("run: the disk is full; nothing is kept"), "error: run: the disk is full; nothing is kept"),
    ):
        ERROR[:] = [error]
        assert cli.main(["echo", "--fails"]) == cli.BAD_INPUT
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("vecenv echo: error: ") and words in line
    # While Python cleans up, nobody would catch a second interruption.
    ERROR[:] = [KeyboardInterrupt(), KeyboardInterrupt()]
    before = signal.getsignal(signal.SIGINT)
    try:
        assert cli.main(["echo", "--fails"]) == cli.INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is before
        monkeypatch.setattr(sys, "argv", ["vecenv", "echo", "--fails"])
        assert cli.main() == cli.INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ""


def test_bad_input_is_refused_before_any_work(place, monkeypatch, capsys):
    for args, told in (
        ("train --market market.parquet --symbols S0 S9", ["market.parquet", "S9", "S1"]),
        ("train --preset finrl --market market.parquet", ["market.parquet", "episode of 250 days"]),
        (
            "train --grpo.refills 2",
            ["error: --grpo.refills: the settings of the learner are given as --learner.refills"],
        ),
        ("train --group-size 2", ["error: --group-size belongs to a learner that compares groups, such as --alg"]),
        ("train --resume tilts --folder new", ["error: --folder belongs to a new run: no effect with these settings"]),
        ("train --folder tilts", ["already holds a run", "--resume tilts"]),
        ("train --env.comission 0.1", ["--env.comission", "--env.commission"]),
        ("train --json nowhere/result.json", ["nowhere/result.json: there is no folder nowhere"]),
        (
            "evaluate --checkpoint tilts --env.action weights",
            ["error: tilts/checkpoint.pt: the checkpoint was trained on act"],
        ),
        ("sft --data nowhere.jsonl", ["vecenv sft: error: ", "nowhere.jsonl"]),
        ("data convert market.parquet market.xls", ["market.xls", ".parquet"]),
        ("replay nofile.jsonl", ["vecenv replay: error: ", "nofile.jsonl"]),
        ("nothing", ["nothing", "train"]),
    ):
        monkeypatch.chdir(place)
        before = sorted(place.rglob("*"))
        assert cli.main(args.split()) == cli.BAD_INPUT == 2
        captured = capsys.readouterr()
        assert all(word in captured.err for word in told), captured.err
        assert "Traceback" not in captured.err and captured.out == ""
        assert sorted(place.rglob("*")) == before


def test_a_second_writer_of_a_folder_is_refused_at_once(place, tmp_path):
    folder, data, out = tmp_path / "busy", tmp_path / "data.jsonl", tmp_path / "out.jsonl"
    data.write_text("{}")
    with WriteLock(folder), WriteLock.beside(out):
        for command, settings in (
            (train, settings_on(place, folder=folder)),
            (evaluate, EvaluateSettings(folder=folder, env=SHARES)),
            (sft, sft.SftSettings(data=(data,), folder=folder)),
            (collect, collect.CollectSettings(task="single_stock", out=out, env=TierConfig())),
        ):
            with pytest.raises(BlockingIOError, match=f" is already being written, by process {os.getpid()} on "):
                command.main(settings)
    assert not folder.exists()


def test_values_on_the_command_line_win_over_those_of_a_preset_which_the_help_shows(tmp_path, monkeypatch, capsys):
    preset, target = tmp_path / "train.yaml", tmp_path / "settings.json"
    preset.write_text("seed: 4\nnum_envs: 8\nnum_groups: 3\nenv: {action: shares, hmax: 7}\n")
    monkeypatch.setattr(cli, "COMMANDS", [EntryPoint("train", f"{__name__}:echo_of_training", cli.GROUP)])
    words = ["train", "--preset", str(preset), "--num-envs", "16"]
    assert cli.main([*words, "--env.hmax", "0.5", "--json", str(target)]) == 0
    told = json.loads(target.read_text())
    assert (told["seed"], told["num_envs"], told["env"]["hmax"]) == (4, 16, 0.5) and "num_groups" not in told
    assert told["preset"] == str(preset)
    capsys.readouterr()
    assert cli.main([*words, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--env.hmax FLOAT 7.0 Largest order in shares per symbol and day" in text
    assert "--learner.clip FLOAT" in text and "--learner.variant" not in text and "--num-groups" not in text


def test_help_shows_the_learner_of_a_preset_of_language_models_and_what_must_be_given(capsys):
    assert cli.main(["train", "--preset", "planted_language", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--model TEXT FOLDER" in text and "--learner.lora-rank INT 0" in text
    assert "--learner.total-frames INT 15360" in text and "--learner.hidden" not in text
    assert cli.main(["sft", "--help"]) == 0
    assert "--data PATH … (needed)" in " ".join(capsys.readouterr().out.split())


METRICS = {"frames": 50, "samples_per_second": 1234.5} | dict.fromkeys(("return_percent", "grade"), float("nan"))


def written(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, force_interactive=terminal, width=150)


def test_work_is_announced_on_a_terminal_by_what_goes_on_and_in_a_log_by_lines(capsys):
    for terminal in (True, False):
        console = written(terminal)
        with working(console, "Making the market …"):
            pass
        assert ("Making the market …" in console.file.getvalue()) == terminal
        assert capsys.readouterr().err == ("" if terminal else "Making the market …\n")
        with TrainingBar(console, 100, "compiling …") as bar:
            bar.show(METRICS | {"validation_excess_percent": 2.5})
            bar.refresh()
        shown = console.file.getvalue()
        assert "50%" in shown and ("after" in shown) != terminal
        assert "1,234 samples/s · validation excess +2.50 points" in shown
    for bar, last, told in (
        (StepBar(written(False), "loss"), (20, 20, 0.125), "100% loss 0.125"),
        (TextBar(written(False)), (4000, 4000), "100% 4,000 of 4,000 texts"),
    ):
        with bar:
            bar.show(*last)
        assert told in bar.console.file.getvalue()
    # A log gets a line after the first update and after every tenth.
    console = written(False)
    with TrainingBar(console, 100, "compiling …") as bar:
        for frames in range(2, 102, 2):
            if frames % 8 == 0:
                bar.say("drawing new paths …")
            ended = {"return_percent": 3.0, "grade": 0.5} if frames > 10 else {}
            bar.show(METRICS | {"frames": frames} | ended)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "Training  compiling …" and lines[2] == "Training  drawing new paths …"
    assert lines[1] == "Training    2% 1,234 samples/s · after 0 s"
    assert lines[3] == "Training   10% 1,234 samples/s · after 0 s, 0 s left"
    shares = [int(line.split()[1][:-1]) for line in lines if "samples/s" in line]
    assert shares == [2, *range(10, 101, 10)] and len(lines) == 2 + len(shares)
    assert lines[-1] == "Training  100% 1,234 samples/s · training return +3.0% · grade 0.50 · after 0 s"
    # The time left is that at the speed of the last ten updates: 100 s each after nine of a second, and a compilation.
    clock = [0.0]
    console = Console(file=io.StringIO(), width=150, get_time=lambda: clock[0])
    with TrainingBar(console, 100, "compiling …") as bar:
        for update in range(1, 51):
            clock[0] += 500 if update == 1 else 1 if update < 11 else 100
            bar.show(METRICS | {"frames": 2 * update})
    left = {line.split()[1]: line.split(", ")[-1] for line in console.file.getvalue().splitlines() if "left" in line}
    assert (left["10%"], left["20%"], left["50%"]) == ("45 s left", "40 s left", "2,500 s left")


def test_the_time_left_is_that_of_the_steps_after_the_first():
    """The first of four steps compiles for 90 s, the others take 5 s each; a resumed run begins at the second."""
    for first, lines in (
        (25, [" 25% loss 0.000 · after 90 s", " 50% loss 0.000 · after 95 s, 10 s left",
              " 75% loss 0.000 · after 100 s, 5 s left", "100% loss 0.000 · after 105 s"]),
        (50, [" 50% loss 0.000 · after 90 s", " 75% loss 0.000 · after 95 s, 5 s left",
              "100% loss 0.000 · after 100 s"]),
    ):  # fmt: skip
        now, console = [0.0], written(False)
        bar = StepBar(console, "loss")
        bar.get_time = bar.tasks[0]._get_time = lambda now=now: now[0]
        bar.tasks[0].start_time = 0.0
        for number, step in enumerate(range(first, 101, 25)):
            now[0] = 90.0 + 5.0 * number
            bar.show(step, 100, 0.0)
        assert console.file.getvalue().splitlines() == [f"Training  {line}" for line in lines]


HELPED = """
import contextlib, io, sys
from vecenv.tasks.commands.cli import main

for words in {words!r}:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        code = main(words)
    # Whose defaults are those of a run.
    by_run = words[0] in ("orders", "backtest", "evaluate", "compare")
    assert ("Where a run is given" in shown.getvalue()) == by_run, words
    assert code == 0 and "usage: vecenv" in shown.getvalue(), words
    loaded = {{"torch", "torchrl", "tensordict", "transformers", "pandas"}} & set(sys.modules)
    assert not loaded, (words, loaded)
"""


def test_help_of_no_command_loads_torch():
    """Of all that are installed, with their sub-commands, and of a training of every task."""
    nested = {
        "data": "inspect fetch convert news", "models": "fetch list", "program": "check explain run export",
        "sandbox": "doctor run", "factors": "train apply", "worldmodel": "train fit generate validate describe",
    }  # fmt: skip
    names = [point.name for point in (*cli.COMMANDS, *cli.entry_points(cli.GROUP))]
    words = [[name, *part, "--help"] for name in names for part in [(), *zip(nested.get(name, "").split())]]
    words += [["train", "--task", task, "--help"] for task in task_names()]
    code = HELPED.format(words=words)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_kinds_of_shipped_generators_are_those_of_their_arguments():
    assert all(markets._by_signature(name) is kind for name, kind in markets.SHIPPED.items())
    assert {*generators.GENERATORS} <= {*markets.SHIPPED} and markets._by_signature("bars.csv") is None
