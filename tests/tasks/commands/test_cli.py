"""The command line, called in this process; what it writes, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from vecenv.learn import run_files
from vecenv.market import fetch
from vecenv.system.preset_files import as_values
from vecenv.system.write_lock import WriteLock
from vecenv.tasks.commands import cli
from vecenv.tasks.commands import train as train_command
from vecenv.tasks.commands.data import FetchSettings
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.train import TrainSettings

DAYS = 160
# Each rollout has 64 x 8 steps, so these are two updates.
TINY = """
end: 2021-12-31
num_envs: 64
compile: false
episodes: 200
env: {episode_length: 12, features: [rsi_30], hmax: 10}
ppo: {num_steps: 8, total_frames: 1024, epochs: 1, minibatches: 2, hidden: [8]}
"""
RUN_FILES = {
    "checkpoint.pt",
    "drawdown.png",
    "equity.png",
    "holdings.png",
    "learning_curve.png",
    "metrics.csv",
    "metrics.json",
    "settings.yaml",
}


def echo(settings: TrainSettings) -> dict:
    """A command that returns its settings."""
    return as_values(settings)


def bars(num_symbols: int, num_days: int) -> pd.DataFrame:
    """A long table of random walks."""
    random, tables = np.random.default_rng(5), []
    for k in range(num_symbols):
        close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, num_days)))
        dates = pd.bdate_range("2020-01-01", periods=num_days)
        table = pd.DataFrame({"date": dates, "symbol": f"S{k}", "open": close, "high": close * 1.01})
        tables.append(table.assign(low=close * 0.99, close=close, volume=1e6))
    return pd.concat(tables)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a market, a preset and a run of two updates."""
    folder = tmp_path_factory.mktemp("cli")
    bars(3, DAYS).to_parquet(folder / "market.parquet")
    bars(2, 60).to_parquet(folder / "short.parquet")
    (folder / "tiny.yaml").write_text(TINY)
    args = ["train", "--preset", str(folder / "tiny.yaml"), "--market", str(folder / "market.parquet")]
    assert cli.main([*args, "--folder", str(folder / "run"), "--json", str(folder / "train.json")]) == 0
    return folder


def train_args(place, *more: str) -> list[str]:
    return ["train", "--preset", str(place / "tiny.yaml"), "--market", str(place / "market.parquet"), *more]


def settings_of(args: list[str], tmp_path, monkeypatch) -> dict:
    """The settings that a command line gives to ``vecenv train``."""
    monkeypatch.setattr(cli, "COMMANDS", [EntryPoint("train", f"{__name__}:echo", cli.GROUP)])
    monkeypatch.setattr(cli, "entry_points", lambda group: [])
    assert cli.main(["train", *args, "--json", str(tmp_path / "settings.json")]) == 0
    return json.loads((tmp_path / "settings.json").read_text())


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


def test_train_writes_the_run_folder(place):
    folder, result = place / "run", json.loads((place / "train.json").read_text())
    assert {path.name for path in folder.iterdir()} == RUN_FILES
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics == {key: value for key, value in result.items() if key != "folder"}
    assert list(metrics["evaluation"]["agents"]) == ["trained", "hold", "random", "buy_and_hold", "oracle"]
    assert metrics["evaluation"]["num_episodes"] == 200
    assert metrics["settings"]["ppo"]["total_frames"] == 1024
    assert metrics["training_market"]["last_day"] < metrics["evaluation"]["market"]["first_day"]
    assert pd.read_csv(folder / "metrics.csv")["frames"].tolist() == [512, 1024]


def test_evaluation_of_a_checkpoint_repeats_the_table_of_its_training(place):
    for number, checkpoint in enumerate((place / "run", place / "run" / "checkpoint.pt")):
        target = place / f"evaluation{number}.json"
        args = ["evaluate", "--checkpoint", str(checkpoint), "--episodes", "200", "--agents"]
        agents = ["hold", "random", "buy_and_hold", "oracle"] if number == 0 else ["hold", "buy_and_hold"]
        assert cli.main([*args, *agents, "--json", str(target)]) == 0
        before = json.loads((place / "run" / "metrics.json").read_text())["evaluation"]["agents"]
        after = json.loads(target.read_text())["agents"]
        assert list(after) == ["trained", *agents]
        if number == 1:
            # The deflation depends on how many agents there are to choose among.
            _ = [agent.pop("deflated_sharpe") for agent in (*before.values(), *after.values())]
        assert after == {name: before[name] for name in after}


def test_evaluation_of_baselines_needs_no_checkpoint(place, capsys):
    args = ["evaluate", "--market", str(place / "market.parquet"), "--env.features", "rsi_30", "--agents", "hold"]
    options = ["--test-start", "2020-04-01", "--episodes", "3", "--folder", str(place / "baselines")]
    assert cli.main([*args, *options]) == 0
    out = capsys.readouterr().out
    assert "hold" in out and "trained" not in out
    days = DAYS - len(pd.bdate_range("2020-01-01", "2020-03-31"))
    assert f"Test episodes have {days - 1} days instead of 250" in out
    assert (place / "baselines" / "equity.png").exists()


def test_resume_goes_on_under_the_settings_of_the_run(place, tmp_path):
    folder, target = tmp_path / "run", tmp_path / "resumed.json"
    assert cli.main(train_args(place, "--folder", str(folder), "--seed", "3")) == 0
    before = pd.read_csv(folder / "metrics.csv")
    assert cli.main(["train", "--resume", str(folder), "--ppo.total-frames", "2048", "--json", str(target)]) == 0
    after = pd.read_csv(folder / "metrics.csv")
    assert after["update"].tolist() == [1, 2, 3, 4]
    assert after[:2].equals(before)
    assert json.loads(target.read_text())["seed"] == 3
    assert yaml.safe_load((folder / "settings.yaml").read_text())["ppo"]["total_frames"] == 2048


GROUPS = ("--algorithm", "grpo", "--num-groups", "16", "--group-size", "4", "--grpo.minibatches", "2")


def test_groups_are_trained_by_the_same_command_and_go_on(place, tmp_path):
    """Episodes have 12 days: 768 steps of 64 sub-environments an update."""
    folder, target = tmp_path / "run", tmp_path / "resumed.json"
    words = (*GROUPS, "--grpo.variant", "dapo", "--grpo.reward.steps", "0.5", "--grpo.total-frames", "1536")
    assert cli.main(train_args(place, "--folder", str(folder), *words)) == 0
    assert {path.name for path in folder.iterdir()} == RUN_FILES
    log = pd.read_csv(folder / "metrics.csv")
    assert log["frames"].tolist() == [768, 1536]
    shares = [name for name in log if name.startswith("share/")]
    assert shares == ["share/steps", "share/grade", "share/return", "share/invalid"]
    assert log[shares].sum(axis=1).tolist() == pytest.approx([1.0, 1.0]) and (log["share/steps"] > 0).all()
    assert cli.main(["train", "--resume", str(folder), "--grpo.total-frames", "2304", "--json", str(target)]) == 0
    assert pd.read_csv(folder / "metrics.csv")["frames"].tolist() == [768, 1536, 2304]
    settings = json.loads(target.read_text())["settings"]
    assert settings["algorithm"] == "grpo" and settings["grpo"]["reward"]["steps"] == 0.5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--num-envs", "64"), "--num-envs belongs to --algorithm ppo"),
        (("--num-groups", "64", "--group-size", "1"), "group_size must be at least 2"),
        (("--grpo.minibatches", "3"), "64 episodes cannot be split into 3 equal minibatches"),
        (("--grpo.reward.grade", "0"), "there is nothing to learn"),
    ],
)
def test_groups_that_do_not_fit_are_refused_before_any_work(place, tmp_path, capsys, words, told):
    assert cli.main(train_args(place, "--folder", str(tmp_path / "run"), *GROUPS, *words)) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and "Making the market" not in captured.err
    assert not (tmp_path / "run").exists()


def test_an_interruption_leaves_a_checkpoint_and_says_how_to_go_on(place, tmp_path, monkeypatch, capsys):
    show = train_command.TrainingBar.show

    def interrupted(bar, metrics):
        show(bar, metrics)
        os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "a run"
    # A shell that starts the tests in the background makes them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(train_command.TrainingBar, "show", interrupted)
            assert cli.main(train_args(place, "--folder", str(folder))) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert f"vecenv train --resume '{folder}'" in capsys.readouterr().out
    assert read_checkpoint(folder)["update"] == 1
    assert cli.main(["train", "--resume", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == RUN_FILES


def copy_of_the_run(place, tmp_path):
    """A run of two updates that a test may damage."""
    return Path(shutil.copytree(place / "run", tmp_path / "run"))


def test_what_is_damaged_in_a_run_is_refused_before_the_market_is_made(place, tmp_path, capsys):
    folder = copy_of_the_run(place, tmp_path)
    log, checkpoint = folder / "metrics.csv", folder / "checkpoint.pt"
    rows, whole = log.read_text(), checkpoint.read_bytes()
    log.write_text(rows.replace("\n2,", "\n2,x", 1))
    checkpoint_words = f"{checkpoint}: not a checkpoint, or a damaged one"
    for damage, words in (
        (None, f"{log}, line 3: 'x1024' is not a number"),
        (whole[:-900], checkpoint_words),
        (b"not a checkpoint", checkpoint_words),
    ):
        if damage is not None:
            checkpoint.write_bytes(damage)
        assert cli.main(["train", "--resume", str(folder)]) == cli.BAD_INPUT
        captured = capsys.readouterr()
        assert captured.err == f"vecenv train: error: {words}\n" and captured.out == ""
    assert {path.name for path in folder.iterdir()} == RUN_FILES


def test_a_run_whose_last_row_was_cut_off_goes_on_with_a_note(place, tmp_path, capsys):
    folder = copy_of_the_run(place, tmp_path)
    log = folder / "metrics.csv"
    log.write_bytes(log.read_bytes()[:-9])
    assert cli.main(["train", "--resume", str(folder), "--ppo.total-frames", "1536", "--episodes", "3"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert notes == [f"warning: {log}, line 3: cut off in the middle of writing, and left out"]
    assert pd.read_csv(log)["update"].tolist() == [1, 3]


def test_a_checkpoint_with_other_tensors_is_told_in_a_sentence(place, tmp_path, capsys):
    folder = copy_of_the_run(place, tmp_path)
    state = read_checkpoint(folder)
    state["actor"][0] = state["actor"][0].double()
    torch.save(state, folder / "checkpoint.pt")
    assert cli.main(["train", "--resume", str(folder)]) == cli.BAD_INPUT
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"vecenv train: error: {folder / 'checkpoint.pt'}: its state.actor.0 is float64 of shape")


def test_a_second_command_into_a_folder_is_refused_at_once(place, tmp_path, capsys):
    folder = tmp_path / "busy"
    conversations = tmp_path / "conversations.jsonl"
    conversations.write_text("{}")
    market = ["--market", str(place / "market.parquet")]
    with WriteLock(folder), WriteLock.beside(tmp_path / "model.safetensors"), WriteLock.beside(tmp_path / "out.jsonl"):
        for words in (
            train_args(place, "--folder", str(folder)),
            ["train", "--resume", str(folder)],
            train_args(place, "--folder", str(folder), *GROUPS),
            ["evaluate", *market, "--agents", "hold", "--folder", str(folder)],
            ["sft", "--data", str(conversations), "--folder", str(folder)],
            ["collect", "--out", str(tmp_path / "out.jsonl")],
            ["worldmodel", "train", *market, "--out", str(tmp_path / "model.safetensors")],
            ["worldmodel", "generate", "--out", str(folder)],
            ["worldmodel", "validate", "--history", market[1], "--discriminator-seeds", "0", "--out", str(folder)],
        ):
            if "--resume" in words:
                shutil.copy(place / "run" / "settings.yaml", folder)
            assert cli.main(words) == cli.BAD_INPUT, words
            captured = capsys.readouterr()
            assert f" is already being written, by process {os.getpid()} on " in captured.err, words
            assert len(captured.err.splitlines()) == 1 and captured.out == ""
            (folder / "settings.yaml").unlink(missing_ok=True)
    assert not folder.exists()


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


def test_a_full_disk_ends_the_command_in_a_sentence(place, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    save = run_files.save_checkpoint

    def full(state, path):
        if state["update"] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, path)

    monkeypatch.setattr(run_files, "save_checkpoint", full)
    words = ("--folder", str(folder), "--ppo.checkpoint-every", "1")
    assert cli.main(train_args(place, *words)) == cli.BAD_INPUT
    told = capsys.readouterr().err.splitlines()[-1]
    kept = f"the checkpoint of update 1, {folder / 'checkpoint.pt'}, is kept"
    assert told == f"vecenv train: error: {folder}: the disk is full; {kept}"
    monkeypatch.undo()
    assert cli.main(["train", "--resume", str(folder), "--episodes", "3"]) == 0
    assert {path.name for path in folder.iterdir()} == RUN_FILES


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["train", "--market", "nofile.csv"], ["nofile.csv"]),
        (["train", "--market", "market.parquet", "--symbols", "S0", "S9"], ["market.parquet", "S9", "S1"]),
        (["train", "--market", "short.parquet"], ["short.parquet", "warm-up of 59 days", "market of 60"]),
        (["train", "--market", "market.parquet"], ["market.parquet", "warm-up", "episode of 250 days"]),
        (["train", "--market", "market.parquet", "--env.features", "nothing"], ["unknown features", "nothing"]),
        (["train", "--market", "market.parquet", "--end", "2010-01-01"], ["2010-01-01", "2020-01-01"]),
        (["train", "--preset", "nothing"], ["'nothing'", "quick"]),
        (["train", "--preset", "unknown.yaml"], ["unknown.yaml", "env: unknown settings comission", "commission"]),
        (["train", "--preset", "wrong.yaml"], ["wrong.yaml", "num_envs", "'many'", "int"]),
        (["train", "--preset", "resuming.yaml"], ["resuming.yaml", "unknown settings resume"]),
        (["train", "--task", "nothing"], ["unknown task 'nothing'", "stock_trading"]),
        (["train", "--device", "abacus"], ["abacus"]),
        (["train", "--resume", "nowhere"], ["nowhere"]),
        (["train", "--folder", "run"], ["already holds a run", "--resume run"]),
        (["train", "--train-end", "2021-01-01", "--test-start", "2020-01-01"], ["train_end", "2021-01-01"]),
        (["train", "--env.commission", "2"], ["commission must be in [0, 1), got 2.0"]),
        (["train", "--env.hmax", "much"], ["much", "--env.hmax"]),
        (["train", "--env.comission", "0.1"], ["--env.comission", "--env.commission"]),
        (["train", "--json", "nowhere/result.json"], ["nowhere"]),
        (["evaluate", "--agents", "hold", "nobody"], ["nobody", "buy_and_hold"]),
        (["evaluate", "--checkpoint", "nowhere"], ["nowhere"]),
        (["evaluate", "--checkpoint", "market.parquet"], ["market.parquet", "not a checkpoint"]),
        (["evaluate", "--checkpoint", "run", "--symbols", "S0", "S1"], ["3 symbols", "2 are chosen"]),
        (["evaluate", "--checkpoint", "run", "--env.features", "macd"], ["rsi_30", "macd"]),
        (["evaluate", "--checkpoint", "run", "--env.action", "weights"], ["'shares'", "'weights'"]),
        (["data", "inspect", "nofile.csv"], ["nofile.csv"]),
        (["data", "convert", "market.parquet", "market.xls"], ["market.xls", ".parquet"]),
        (["nothing"], ["nothing", "train"]),
    ],
)
def test_bad_input_is_refused_before_any_work(place, monkeypatch, capsys, args, words):
    monkeypatch.chdir(place)
    (place / "unknown.yaml").write_text("env: {comission: 0.1}")
    (place / "wrong.yaml").write_text("num_envs: many")
    (place / "resuming.yaml").write_text("resume: run")
    before = sorted(place.rglob("*"))
    assert cli.main(args) == 2
    captured = capsys.readouterr()
    assert all(word in captured.err for word in words), captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert sorted(place.rglob("*")) == before


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


def test_help_shows_docstrings_and_the_values_of_the_preset(place, capsys):
    assert cli.main(train_args(place, "--help")) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--env.hmax FLOAT Largest order in shares per symbol and day. (default: 10.0)" in text


def test_a_large_move_is_told_in_one_line(tmp_path, capsys):
    table = bars(1, 30)
    table.loc[table.index >= 20, ["open", "high", "low", "close"]] /= 2
    table.to_csv(tmp_path / "split.csv", index=False)
    assert cli.main(["data", "inspect", str(tmp_path / "split.csv")]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: ") and "symbol S0, date 2020-01-29" in line


def test_data_inspect_and_convert(place):
    target, summary = place / "finrl.csv", place / "summary.json"
    assert cli.main(["data", "convert", str(place / "market.parquet"), str(target)]) == 0
    assert cli.main(["data", "inspect", str(target), "--json", str(summary)]) == 0
    result = json.loads(summary.read_text())
    assert (result["days"], result["symbols"], result["rows"]) == (DAYS, 3, 3 * DAYS)


def test_data_fetch(tmp_path, monkeypatch, capsys):
    asked = []

    def fetched(symbols, start, end, suffix):
        asked.append((tuple(symbols), start, end, suffix))
        return bars(2, 5)

    monkeypatch.setattr(fetch, "fetch_bars", fetched)
    span = ["--start", "2020-01-01", "--end", "2020-01-07", "--out", str(tmp_path / "bars.parquet")]
    assert cli.main(["data", "fetch", "--symbols", "S0", "S1", *span]) == 0
    assert cli.main(["data", "fetch", "--universe", "nifty25", *span]) == 0
    assert asked == [
        (("S0", "S1"), "2020-01-01", "2020-01-07", ""),
        (fetch.UNIVERSES["nifty25"].symbols, "2020-01-01", "2020-01-07", ".NS"),
    ]
    table = pd.read_parquet(tmp_path / "bars.parquet")
    assert len(table) == 10 and set(table["currency"]) == {"INR"}
    assert cli.main(["data", "fetch", *span]) == 2
    assert cli.main(["data", "fetch", "--universe", "dow30", *span[:-1], "bars.xls"]) == 2
    assert len(asked) == 2


def test_every_universe_can_be_fetched():
    (choices,) = (item.type for item in FetchSettings.__dataclass_fields__.values() if item.name == "universe")
    assert all(repr(name) in str(choices).replace('"', "'") for name in fetch.UNIVERSES)
