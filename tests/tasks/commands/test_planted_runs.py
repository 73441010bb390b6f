"""PPO on planted markets by the command line: the best rule beside it, and how much of that it reaches."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from vecenv.tasks.commands import cli

SMALL = (
    "--preset", "planted", "--no-compile", "--num-paths", "96", "--num-days", "120", "--env.episode-length", "60",
    "--num-envs", "512", "--ppo.minibatches", "4", "--evaluations", "2", "--validation-episodes", "16",
    "--episodes", "128",
)  # fmt: skip


@pytest.mark.nightly
def test_ppo_reaches_most_of_what_can_be_attained(tmp_path):
    """A sixth of the preset's steps; untrained it is worth equal weights."""
    folder = tmp_path / "run"
    assert cli.main(["train", *SMALL, "--ppo.total-frames", "200_000", "--folder", str(folder)]) == 0
    agents = json.loads((folder / "metrics.json").read_text())["evaluation"]["agents"]
    assert 0.8 < agents["trained"]["share_of_best"]["mean"] < 1.2
    assert abs(agents["untrained"]["share_of_best"]["mean"]) < 0.1
    attainable = pd.read_csv(folder / "metrics.csv")["validation_attainable_percent"].dropna()
    assert attainable.nunique() == 1 and 5 < attainable.iloc[0] < 13
    assert (
        cli.main(["evaluate", "--checkpoint", str(folder), "--episodes", "16", "--json", str(folder / "e.json")]) == 0
    )
    assert {"trained", "best_rule"} <= set(json.loads((folder / "e.json").read_text())["agents"])
