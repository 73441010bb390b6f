"""Runs of ``vecenv train``: what they write, how they go on, and their evaluation."""

from __future__ import annotations

import json
import os
import signal

import pandas as pd
import pytest
import yaml

from tests.tasks.commands.small_runs import DAYS, GROUPS, RUN_FILES, train_args
from vecenv.tasks.commands import cli
from vecenv.tasks.commands import train as train_command
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.stock_trading.agents import BASELINES


def test_train_writes_the_run_folder(place):
    folder, result = place / "run", json.loads((place / "train.json").read_text())
    assert {path.name for path in folder.iterdir()} == RUN_FILES
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics == {key: value for key, value in result.items() if key != "folder"}
    assert list(metrics["evaluation"]["agents"]) == ["trained", "untrained", *BASELINES]
    assert metrics["evaluation"]["num_episodes"] == 200
    assert metrics["settings"]["ppo"]["total_frames"] == 1024
    assert metrics["training_market"]["last_day"] < metrics["evaluation"]["market"]["first_day"]
    assert pd.read_csv(folder / "metrics.csv")["frames"].tolist() == [512, 1024]


@pytest.mark.assembly
def test_evaluation_of_a_checkpoint_repeats_the_table_of_its_training(place):
    for number, checkpoint in enumerate((place / "run", place / "run" / "checkpoint.pt")):
        target = place / f"evaluation{number}.json"
        args = ["evaluate", "--checkpoint", str(checkpoint), "--episodes", "200", "--agents"]
        agents = list(BASELINES) if number == 0 else ["hold", "buy_and_hold"]
        assert cli.main([*args, *agents, "--json", str(target)]) == 0
        before = json.loads((place / "run" / "metrics.json").read_text())["evaluation"]["agents"]
        after = json.loads(target.read_text())["agents"]
        assert list(after) == ["trained", *agents]
        # The deflation depends on how many agents there are to choose among.
        _ = [agent.pop("deflated_sharpe") for agent in (*before.values(), *after.values())]
        assert after == {name: before[name] for name in after}


@pytest.mark.assembly
def test_evaluation_of_baselines_needs_no_checkpoint(place, capsys):
    args = ["evaluate", "--market", str(place / "market.parquet"), "--env.features", "rsi_30", "--agents", "hold"]
    options = ["--test-start", "2020-04-01", "--episodes", "3", "--folder", str(place / "baselines")]
    assert cli.main([*args, *options]) == 0
    out = capsys.readouterr().out
    assert "hold" in out and "trained" not in out
    days = DAYS - len(pd.bdate_range("2020-01-01", "2020-03-31"))
    assert f"Test episodes have {days - 1} days instead of 250" in out
    assert (place / "baselines" / "equity.png").exists()


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.assembly
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
