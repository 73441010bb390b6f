"""Training with validation by the command line: its figures, the policy that is kept, and what is refused."""

from __future__ import annotations

import json
from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

import vecenv
from tests.tasks.commands.small_runs import train_args
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.train import tell_batch

TILTS = ("--env.action", "tilt", "--ppo.policy", "symbol", "--episodes", "6")
VALIDATED = ("--validation-fraction", "0.3", "--validation-episodes", "5", "--embargo", "2")


@pytest.mark.nightly
def test_a_run_keeps_the_best_policy_of_its_validation(place, tmp_path, capsys):
    folder = tmp_path / "run"
    words = (*TILTS, *VALIDATED, "--evaluations", "2", "--folder", str(folder), "--json", str(tmp_path / "run.json"))
    assert cli.main(train_args(place, *words)) == 0
    log = pd.read_csv(folder / "metrics.csv")
    assert log["validation_reward"].notna().all() and log["validation_excess_percent"].notna().all()
    best = read_checkpoint(folder)["best"]
    assert best["score"] == log["validation_reward"].max()
    assert best["update"] == log["update"][log["validation_reward"].idxmax()]
    told = f"Kept      the policy of update {best['update']} of 2, the best on the validation episodes\n"
    assert told in capsys.readouterr().out
    agents = json.loads((tmp_path / "run.json").read_text())["evaluation"]["agents"]
    assert list(agents)[:2] == ["trained", "untrained"]
    assert cli.main(["train", "--resume", str(folder), "--ppo.total-frames", "1536", "--episodes", "3"]) == 0
    assert pd.read_csv(folder / "metrics.csv")["update"].tolist() == [1, 2, 3]


@pytest.mark.nightly
def test_the_exact_gradient_trains_by_the_same_command(place, tmp_path):
    folder = tmp_path / "run"
    preset = tmp_path / "exact.yaml"
    preset.write_text(
        "end: 2021-12-31\nnum_envs: 16\ncompile: false\nalgorithm: exact\n"
        "env: {episode_length: 12, features: [rsi_30], action: tilt, reward: log_return}\n"
        "exact: {num_steps: 4, total_frames: 192, policy: symbol, hidden: [8]}\n"
    )
    market = ["--market", str(place / "market.parquet"), "--episodes", "6"]
    assert cli.main(["train", "--preset", str(preset), *market, "--folder", str(folder)]) == 0
    assert pd.read_csv(folder / "metrics.csv")["frames"].tolist() == [64, 128, 192]
    # Comparisons play the exact account.
    evaluated = json.loads((folder / "metrics.json").read_text())["evaluation"]
    assert evaluated["config"]["whole_shares"] and not read_checkpoint(folder)["scenario"]["config"]["whole_shares"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--validation-fraction", "1"), "validation_fraction must be in [0, 1), got 1.0"),
        ((*VALIDATED, "--validation-episodes", "0"), "validation_episodes must be at least 1, got 0"),
        ((*VALIDATED, "--evaluations", "0"), "evaluations must be at least 1, got 0"),
        ((*VALIDATED, "--patience", "0"), "patience must be at least 1, got 0"),
        (("--patience", "3"), "--patience belongs to a validation_fraction above 0"),
        (("--algorithm", "exact", "--ppo.clip", "0.1"), "--ppo.clip belongs to --algorithm ppo"),
    ],
)
@pytest.mark.assembly
def test_wrong_settings_are_refused(place, tmp_path, capsys, words, told):
    assert cli.main(train_args(place, *words, "--folder", str(tmp_path / "run"))) == cli.BAD_INPUT
    assert told in capsys.readouterr().err


def test_a_task_without_a_smooth_form_has_no_exact_gradient(tmp_path, capsys):
    words = ["train", "--task", "single_stock", "--algorithm", "exact", "--folder", str(tmp_path / "run")]
    assert cli.main(words) == cli.BAD_INPUT
    assert "task 'single_stock' has no smooth form" in capsys.readouterr().err


@pytest.mark.parametrize(("shortest", "warned"), [(0, True), (2, False)])
def test_rows_that_march_in_step_are_warned_of(shortest, warned):
    """Paths with one start day: episodes of full length stay on the same days, those of other lengths come apart."""
    options = {"num_paths": 8, "num_days": 60, "symbols": ["SYN00"]}
    env = vecenv.make(
        "stock_trading", 64, market="synthetic", market_options=options, compile=False, features=("daily_change",),
        episode_length=58, min_episode_length=shortest,
    )  # fmt: skip
    learner, out = PPO(env, PPOConfig(num_steps=8, minibatches=1, epochs=1, total_frames=512)), StringIO()
    for _ in range(3):
        learner.collect()
    metrics = learner.update()
    tell_batch(Console(file=out, width=400), learner, metrics)
    days = f"Batch     512 steps on {metrics['market_rows']:,.0f} different days of the market, of 464\n"
    assert out.getvalue().startswith(days)
    assert ("The rows march in step" in out.getvalue()) == warned
