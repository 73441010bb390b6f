"""CVaR-PPO by the command line: a run, what it starts from and is compared with, resuming, and what is refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

from vecenv.tasks.commands import cli
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.train_settings import TrainSettings

SMALL = (
    "--task", "crypto_lob", "--no-compile", "--num-envs", "16", "--episodes", "4", "--validation-episodes", "4",
    "--evaluations", "2", "--env.synthetic-hours", "2", "--env.episode-steps", "60", "--env.embargo", "60",
)  # fmt: skip
SIZES = ("total-frames", "1024"), ("num-steps", "16"), ("minibatches", "2"), ("hidden", "8")


def words(algorithm: str, *more: str) -> list[str]:
    """The command line of a small run of PPO or CVaR-PPO."""
    sized = [word for name, value in SIZES for word in (f"--{algorithm}.{name}", value)]
    return ["train", *SMALL, "--algorithm", algorithm, *sized, *more]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder of a run with validation."""
    folder = tmp_path_factory.mktemp("cppo") / "run"
    assert cli.main(words("cppo", "--cppo.beta", "10", "--folder", str(folder))) == 0
    return folder


@pytest.mark.assembly
def test_a_run_leaves_what_others_leave(run):
    log = pd.read_csv(run / "metrics.csv")
    assert log["frames"].tolist() == [256, 512, 768, 1024]
    for name in ("policy_loss", "trajectory_return", "cvar_nu", "cvar_lambda", "penalised_fraction"):
        assert log[name].notna().all()
    assert log["cvar_nu"].iloc[1:].tolist() == pytest.approx(0.75 * log["trajectory_return"].iloc[:-1], rel=1e-5)
    state = read_checkpoint(run)
    assert state["config"]["beta"] == 10 and "best" in state and state["multiplier"] > 0
    assert (run / "learning_curve.png").is_file()


@pytest.mark.assembly
def test_its_policy_is_evaluated_as_one_of_ppo(run, tmp_path):
    target = tmp_path / "told.json"
    told = ["evaluate", "--checkpoint", str(run), "--episodes", "4", "--agents", "hold", "--json", str(target)]
    assert cli.main(told) == 0
    assert len(json.loads(target.read_text())["agents"]) == 2


@pytest.mark.nightly
def test_it_starts_from_a_run_of_ppo_and_is_resumed(tmp_path):
    before, parted, whole = (tmp_path / name for name in ("before", "parted", "whole"))
    assert cli.main(words("ppo", "--folder", str(before))) == 0
    start = ("--initial", str(before), "--cppo.no-anneal", "--folder")
    assert cli.main(words("cppo", *start, str(whole))) == 0
    assert cli.main(words("cppo", *start, str(parted), "--cppo.total-frames", "512")) == 0
    assert cli.main(["train", "--resume", str(parted), "--cppo.total-frames", "1024"]) == 0
    first, second = read_checkpoint(whole), read_checkpoint(parted)
    pairs = [(first["nu"], second["nu"]), *zip(first["actor"], second["actor"], strict=True)]
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not torch.equal(first["actor"][0], read_checkpoint(before)["actor"][0])


@pytest.mark.nightly
def test_seeds_are_trained_and_compared(tmp_path):
    folder = tmp_path / "seeds"
    assert cli.main(words("cppo", "--seeds", "2", "--folder", str(folder))) == 0
    assert "ensemble" in json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--cppo.alpha", "1"), "alpha must be in [0, 1), got 1.0"),
        (("--cppo.weigh-risk",), "weigh_risk needs the risk level of what is held, which task 'crypto_lob' does not"),
        (("--ppo.gamma", "0.9"), "--ppo.gamma belongs to --algorithm ppo"),
        (("--group-size", "2"), "--group-size belongs to --algorithm grpo"),
        (("--cppo.by-reference", "--cppo.policy", "symbol"), "set --cppo.policy flat"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, capsys, more, told):
    folder = tmp_path / "run"
    assert cli.main(words("cppo", *more, "--folder", str(folder))) == cli.BAD_INPUT
    assert told in capsys.readouterr().err and not (folder / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--algorithm", "cppo", "--cppo.weigh-risk"), "--cppo.weigh-risk belongs to --env.risk-strength above 0 and"),
        (
            ("--algorithm", "cppo", "--cppo.weigh-risk", "--env.risk-strength", "0.1"),
            "--cppo.weigh-risk belongs to --env.risk-strength above 0 and --env.risk-form trajectory",
        ),
        (
            ("--env.risk-strength", "0.1", "--env.risk-form", "trajectory"),
            "--env.risk-form belongs to --algorithm cppo with --cppo.weigh-risk where it is trajectory",
        ),
    ],
)
def test_risk_in_trajectories_needs_the_task_and_the_learner(tmp_path, capsys, more, told):
    assert cli.main(["train", "--task", "signals", *more, "--folder", str(tmp_path / "run")]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and "Making the market" not in captured.out and not (tmp_path / "run").exists()


def test_settings_of_cppo_belong_to_it(tmp_path, capsys):
    assert cli.main(words("ppo", "--cppo.beta", "1", "--folder", str(tmp_path / "run"))) == cli.BAD_INPUT
    assert "--cppo.beta belongs to --algorithm cppo" in capsys.readouterr().err


def test_what_a_preset_sets_for_ppo_holds_unless_it_sets_it_here(tmp_path):
    preset = tmp_path / "both.yaml"
    preset.write_text("ppo: {gamma: 0.5, hidden: [4]}\ncppo: {hidden: [5], beta: 7}\n")
    settings = TrainSettings.defaults(["--preset", str(preset)])
    assert (settings.cppo.gamma, settings.cppo.hidden, settings.cppo.beta) == (0.5, (5,), 7.0)
    assert settings.ppo.hidden == (4,)
    shipped = TrainSettings.defaults([])
    assert shipped.cppo.policy == shipped.ppo.policy == "symbol"
    assert shipped.cppo.total_frames == shipped.ppo.total_frames == 2_500_000


def test_the_help_lists_the_settings(capsys):
    assert cli.main(["train", "--algorithm", "cppo", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--cppo.beta" in told and "--cppo.cvar-clip-of" in told and "of --algorithm ppo: --ppo.*" in told
