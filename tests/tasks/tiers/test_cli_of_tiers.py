"""The trading tiers on the command line: training, the ladder of agents, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

import vecenv
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPOConfig, train
from vecenv.tasks.commands import cli
from vecenv.tasks.tiers.agents import AGENTS
from vecenv.tasks.tiers.config import TIERS
from vecenv.tasks.tiers.trained import TrainedOnTiers

# Whole runs of the command.
pytestmark = pytest.mark.nightly

MARKET = ("--market", "synthetic", "--num-paths", "2", "--num-days", "400", "--test-fraction", "0.4")
# Each rollout has 8 x 10 steps, so these are two updates.
TINY = """
task: multi_stock_3
num_envs: 8
compile: false
episodes: 40
env: {max_orders: 2}
ppo: {num_steps: 10, total_frames: 160, epochs: 1, minibatches: 2, hidden: [8]}
"""


@pytest.fixture(scope="module", autouse=True)
def _short_episodes():
    """Make episodes of 4, 4, 5, 6 and 8 days of the five tiers, with four orders a day."""
    with pytest.MonkeyPatch.context() as patch:
        for name, tier in list(TIERS.items()):
            patch.setitem(TIERS, name, replace(tier, days=tier.days // 5))
        patch.setattr("vecenv.tasks.tiers.tasks.MAX_ORDERS", 4)
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a preset and a run of two updates on each of two tasks."""
    folder = tmp_path_factory.mktemp("tiers")
    (folder / "tiny.yaml").write_text(TINY)
    args = ["train", "--preset", str(folder / "tiny.yaml"), *MARKET]
    assert cli.main([*args, "--folder", str(folder / "three")]) == 0
    assert cli.main([*args, "--task", "curriculum", "--episodes", "4", "--folder", str(folder / "curriculum")]) == 0
    return folder


def agents_of(path) -> dict:
    """What a result says of each agent."""
    result = json.loads(path.read_text())
    return result.get("evaluation", result)["agents"]


def evaluated(folder, *args: str) -> dict:
    """The result of ``vecenv evaluate`` on the small market."""
    target = folder / "evaluation.json"
    assert cli.main(["evaluate", *args, *MARKET, "--json", str(target)]) == 0
    return json.loads(target.read_text())


def test_training_is_compared_with_all_agents_under_both_graders(place):
    agents = agents_of(place / "three" / "metrics.json")
    assert list(agents) == ["trained", "untrained", *AGENTS]
    for agent in agents.values():
        for grader in ("calibrated", "seed"):
            low, high = agent[grader]["ci"]
            assert low <= agent[grader]["mean"] <= high
    means = {name: agent["calibrated"]["mean"] for name, agent in agents.items()}
    assert means["hold"] == means["invalid"] == 0.0
    assert means["buy_and_hold"] == pytest.approx(0.5, abs=0.05)
    assert means["random"] < means["buy_and_hold"] < means["oracle"]
    assert (place / "three" / "learning_curve.png").exists()


def test_a_checkpoint_stands_in_the_ladder_of_its_tier(place):
    result = evaluated(place, "--checkpoint", str(place / "three"), "--episodes", "40")
    assert result["task"] == "multi_stock_3"
    trained_beside = agents_of(place / "three" / "metrics.json")
    # The deflation depends on how many agents there are to choose among, and the run shows the untrained one too.
    del trained_beside["untrained"]
    _ = [agent.pop("deflated_sharpe") for agent in (*trained_beside.values(), *result["agents"].values())]
    assert result["agents"] == trained_beside
    # The agents beside it are not bound by the two orders a day that it was trained with.
    assert result["config"]["max_orders"] == 4
    alone = evaluated(place, "--task", "multi_stock_3", "--env.max-orders", "4", "--episodes", "40")
    assert list(alone["agents"]) == list(AGENTS)
    assert all(agent["seed"] == result["agents"][name]["seed"] for name, agent in alone["agents"].items())


@pytest.mark.parametrize("action", ["discrete", "weights", "limit_weights"])
def test_a_trained_agent_acts_as_in_its_own_space(tmp_path, action):
    """Its orders in a list do what its choices or weights do in its own environment."""
    options = {"market_options": {"num_paths": 2, "num_days": 330}, "compile": False}
    own = vecenv.make("multi_stock_3", 16, action=action, max_orders=3, **options)
    test = vecenv.make("multi_stock_3", 16, action="orders", max_orders=4, **options)
    train(own, PPOConfig(num_steps=2, total_frames=32, epochs=1, minibatches=1, hidden=(8,)), tmp_path)
    own.reset_groups(16, 1, seed=0)
    policy, translated = (
        PolicyAgent(load_policy(tmp_path / "checkpoint.pt", own)),
        TrainedOnTiers([tmp_path / "checkpoint.pt"], own),
    )
    for _ in range(5):
        listed, chosen = translated.act(test), policy.act(own)
        test.rows, own.rows = test.engine.bound().step(test.rows, listed).rows, own._outcome(chosen).rows
        assert torch.equal(test.state.portfolio_value, own.state.portfolio_value)
    assert float(own.state.num_trades.sum()) > 0


def test_a_run_resumes_without_naming_its_task(place):
    assert cli.main(["train", "--resume", str(place / "three"), "--ppo.total-frames", "240"]) == 0
    assert pd.read_csv(place / "three" / "metrics.csv")["update"].tolist() == [1, 2, 3]


def test_a_curriculum_is_logged_and_its_agent_graded_on_any_tier(place):
    log = pd.read_csv(place / "curriculum" / "metrics.csv")
    assert log["mean_tier"].tolist() == [0.0, 0.0]
    assert log["share_single_stock"].tolist() == [1.0, 1.0]
    assert next(iter(agents_of(place / "curriculum" / "metrics.json"))) == "trained"
    args = ["--checkpoint", str(place / "curriculum"), "--episodes", "4", "--agents", "buy_and_hold"]
    last, first = (evaluated(place, *args, *more) for more in ([], ["--env.tiers", "single_stock"]))
    assert list(first["agents"]) == ["trained", "buy_and_hold"]
    assert (first["curriculum"]["tiers"], len(last["curriculum"]["tiers"])) == (["single_stock"], 5)
    assert first["agents"]["trained"] != last["agents"]["trained"]


@pytest.mark.parametrize("task", ["multi_stock_3", "curriculum"])
def test_a_policy_of_symbols_is_trained_validated_and_compared(place, tmp_path, task):
    folder = tmp_path / "run"
    words = ["--env.action", "limit_weights", "--ppo.policy", "symbol", "--validation-fraction", "0.5"]
    words += ["--validation-episodes", "4", "--num-paths", "6", "--episodes", "4", "--folder", str(folder)]
    assert cli.main(["train", "--preset", str(place / "tiny.yaml"), *MARKET, "--task", task, *words]) == 0
    log = pd.read_csv(folder / "metrics.csv")
    assert log["validation_grade"].between(0, 1).all() and log["validation_excess_percent"].notna().all()
    document = json.loads((folder / "metrics.json").read_text())
    assert list(document["generalisation"]) == ["trained", "untrained", "buy_and_hold"]
    # Two orders a day do not fill the account with 25 symbols in the eight days of the last tier.
    least = 0.4 if task == "multi_stock_3" else 0.1
    assert least < document["evaluation"]["agents"]["untrained"]["calibrated"]["mean"] < 0.6
    assert (folder / "policy.png").exists()


def test_one_symbol_may_be_another_or_a_random_one(place):
    args = ["--task", "single_stock", "--agents", "hold", "--episodes", "4", "--symbols"]
    assert evaluated(place, *args, "TCS")["market"]["symbols"] == ["TCS"]
    drawn = evaluated(place, *args, "random")["market"]
    assert drawn["symbols"] == ["*"] and drawn["paths"] > 2


def test_recorded_episodes_replay(place):
    target = place / "episodes.jsonl"
    evaluated(place, "--task", "multi_stock_3", "--agents", "rule_based", "--episodes", "4", "--record", str(target))
    assert len(target.read_text().splitlines()) == 4
    assert cli.main(["replay", str(target)]) == 0
    table = place / "episodes.parquet"
    evaluated(place, "--task", "multi_stock_3", "--agents", "hold", "--episodes", "4", "--record", str(table))
    assert set(pd.read_parquet(table)["component/profit"]) == {0.0}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["evaluate", "--task", "single"], ["unknown task 'single'", "single_stock_costs", "curriculum"]),
        (["evaluate", "--task", "portfolio", "--agents", "nobody"], ["nobody", "random_any", "oracle"]),
        (["evaluate", "--task", "portfolio", "--env.grader", "no"], ["unknown grader 'no'", "calibrated", "seed"]),
        (["train", "--task", "portfolio", "--env.reward", "no"], ["unknown reward preset 'no'", "signal", "aligned"]),
        (["train", "--task", "portfolio", "--preset", "no"], ["unknown train preset 'no'", "nifty_tiers"]),
        (["train", "--task", "portfolio", "--env.tilt-gain", "2"], ["--env.tilt-gain belongs to action limit_weights"]),
        (["train", "--task", "curriculum", "--env.tiers", "no"], ["unknown tier 'no'", "full_autonomous"]),
        (["train", "--task", "single_stock", "--symbols", "no", "--market", "market.csv"], ["symbols no", "TCS"]),
        (["evaluate", "--task", "portfolio", "--env.action", "weights"], ["portfolio", "env.action", "'orders'"]),
        (["evaluate", "--checkpoint", "three", "--symbols", "TCS"], ["trained on 3 symbols", "1 are chosen"]),
        (["evaluate", "--checkpoint", "three", "--env.max-orders", "1"], ["trained with 2 orders", "more than 1"]),
        (["train", "--preset", "tiny.yaml", "--task", "stock_trading"], ["tiny.yaml", "unknown settings max_orders"]),
        (
            ["evaluate", "--record", "e.jsonl"],
            "episodes of 'stock_trading' are not recorded",
        ),
        (["evaluate", "--task", "portfolio", "--record", "e.txt"], ["e.txt", ".jsonl or .parquet"]),
    ],
)
def test_bad_input_is_refused_before_any_work(place, monkeypatch, capsys, args, words):
    monkeypatch.chdir(place)
    days = pd.bdate_range("2020-01-01", periods=30)
    prices = dict.fromkeys(("open", "high", "low", "close"), 10.0)
    pd.DataFrame({"date": days, "symbol": "TCS", **prices, "volume": 1e6}).to_csv("market.csv", index=False)
    command, *options = args
    assert cli.main([command, *(() if "--market" in options else MARKET), *options]) == 2
    captured = capsys.readouterr()
    told = " ".join(captured.err.replace("│", " ").split())
    assert all(word in told for word in words), told
    assert captured.out == ""
