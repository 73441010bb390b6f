"""What a policy reaches on its training days beside the test."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.tasks.commands.small_runs import train_args
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.evaluation import evaluate
from vecenv.market.load import MarketOptions, load_market
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.comparison import config_of, held_out_environment, trained_agent
from vecenv.tasks.commands.generalisation import evaluate_on_training, generalisation, generalisation_line
from vecenv.tasks.commands.run_folder import checkpoint_path

# Whole runs of the command.
pytestmark = pytest.mark.nightly

TASK = "stock_trading"


@pytest.fixture(scope="module")
def folder(place, tmp_path_factory):
    """The folder of a small run of tilts."""
    folder = tmp_path_factory.mktemp("generalisation") / "run"
    assert cli.main(train_args(place, "--env.action", "tilt", "--episodes", "20", "--folder", str(folder))) == 0
    return folder


def test_a_run_tells_of_its_policies_and_the_reference_on_training_days(folder):
    document = json.loads((folder / "metrics.json").read_text())
    result, agents = document["generalisation"], document["evaluation"]["agents"]
    assert list(result) == ["trained", "untrained", "buy_and_hold"]
    for name, entry in result.items():
        assert entry["test"]["mean"] == agents[name][entry["grader"]]["mean"]
        assert entry["gap"] == entry["training"]["mean"] - entry["test"]["mean"]
        if name != "buy_and_hold":
            assert entry["excess_log_return"]["test"] == agents[name]["excess_log_return"]
    assert result["trained"]["training"]["mean"] != result["trained"]["test"]["mean"]


def test_the_same_days_leave_no_gap(place, folder):
    options = MarketOptions(features=("rsi_30",))
    tape = load_market(str(place / "market.parquet"), options)
    config = replace(config_of(TASK), episode_length=12, features=("rsi_30",), hmax=10, action="tilt")
    env, _ = held_out_environment(TASK, tape, config, 20)
    kept = {"trained": checkpoint_path(folder), "untrained": folder / "untrained.pt"}
    agents = {name: trained_agent(path, env) for name, path in kept.items()}
    assert all(isinstance(agent, PolicyAgent) for agent in agents.values())
    test = evaluate(env, agents | {"buy_and_hold": env.scenario.task.agents["buy_and_hold"]()}, seed=3)
    result = generalisation(evaluate_on_training(TASK, tape, config, kept, test), test)
    assert [entry["gap"] for entry in result.values()] == [0.0] * 3
    assert [entry["excess_log_return"]["gap"] for entry in list(result.values())[:2]] == [0.0] * 2
    grade, excess = test.grades["trained"], 100 * test.excess_log_returns["trained"].mean
    mean = next(iter(grade.values())).mean
    assert f"trained {mean:.3f} and {mean:.3f} (excess {excess:.2f}% and {excess:.2f}%)" in generalisation_line(result)
