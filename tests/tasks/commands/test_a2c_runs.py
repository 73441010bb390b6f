"""A2C by the command line: a run, its start from one of PPO, and what is refused before work."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from vecenv.tasks.commands import cli

SMALL = (
    "--preset", "planted", "--no-compile", "--num-paths", "8", "--num-days", "60", "--num-envs", "16",
    "--episodes", "8", "--validation-episodes", "4", "--evaluations", "2", "--env.episode-length", "20",
)  # fmt: skip
A2C = ("--algorithm", "a2c", "--a2c.total-frames", "1024", "--a2c.num-steps", "16")


@pytest.mark.nightly
def test_a_run_leaves_what_one_of_ppo_leaves_and_may_start_from_it(tmp_path):
    ppo, a2c = tmp_path / "ppo", tmp_path / "a2c"
    words = ["--ppo.total-frames", "512", "--ppo.minibatches", "2", "--folder", str(ppo)]
    assert cli.main(["train", *SMALL, *words]) == 0
    words = ["--initial", str(ppo), "--beside", str(ppo), "--folder", str(a2c)]
    assert cli.main(["train", *SMALL, *A2C, *words]) == 0
    log = pd.read_csv(a2c / "metrics.csv")
    assert log["frames"].tolist() == [256, 512, 768, 1024] and log["policy_loss"].notna().all()
    agents = json.loads((a2c / "metrics.json").read_text())["evaluation"]["agents"]
    assert list(agents)[:4] == ["trained", "untrained", "initial", "ppo"] and "best_rule" in agents
    assert {file.name for file in ppo.iterdir()} | {"initial.pt"} == {file.name for file in a2c.iterdir()}
    assert cli.main(["train", "--resume", str(a2c), "--a2c.total-frames", "1280"]) == 0
    assert len(pd.read_csv(a2c / "metrics.csv")) == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--a2c.epochs", "2"), "--a2c.epochs belongs to a learner that reuses its batch"),
        (("--ppo.clip", "0.1"), "--ppo.clip belongs to --algorithm ppo"),
        (("--a2c.by-reference",), "no observations by reference"),
        (("--a2c.num-steps", "1000000000"), "need"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(tmp_path, capsys, words, told):
    folder = tmp_path / "run"
    assert cli.main(["train", *SMALL, *A2C, *words, "--folder", str(folder)]) == cli.BAD_INPUT
    captured = capsys.readouterr()
    assert told in captured.err and captured.out == "" and not folder.exists()
