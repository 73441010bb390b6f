"""Validation during training: the same held-out episodes, the best policy kept, early stopping, and resuming."""

from __future__ import annotations

import math

import pytest
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.evaluation import evaluate
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import run
from vecenv.learn.validated_ensemble import ValidatedEnsemble
from vecenv.learn.validation import METRICS, ValidatedLearner, Validation
from vecenv.registry import task_of
from vecenv.tasks.stock_trading.agents import BestRule
from vecenv.testing import learner_case

CONFIG = PPOConfig(num_steps=4, total_frames=8 * 4 * 6, minibatches=1, epochs=1, hidden=(8,), checkpoint_every=1)


def market_env(seed: int, num_envs: int = 8) -> VecEnv:
    options = {"num_paths": 4, "num_days": 120, "symbols": ["SYN00", "SYN01"], "seed": seed}
    return vecenv.make(
        "stock_trading", num_envs, market="synthetic", market_options=options, compile=False, action="tilt",
        features=("daily_change",), episode_length=20,
    )  # fmt: skip


class Scripted(Validation):
    """A validation with given mean rewards."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = list(scores)

    def __call__(self, policy: ActorPolicy) -> dict[str, float]:
        return dict.fromkeys(METRICS, 0.0) | {"validation_reward": self.scores.pop(0)}


def validated(scores: list[float], patience: int | None = None) -> ValidatedLearner:
    return ValidatedLearner(PPO(market_env(1), CONFIG), Scripted(scores), evaluations=6, patience=patience)


def test_the_best_policy_is_kept_and_loaded(tmp_path):
    learner, actors = validated([0.1, 0.4, 0.2, 0.5, 0.3, 0.0]), []
    history = run(learner, tmp_path, on_update=lambda _: actors.append([p.clone() for p in learner.learner.actor]))
    assert len(history) == 6 and learner.best["update"] == 4 and learner.best["score"] == 0.5
    policy = load_policy(tmp_path / "checkpoint.pt", market_env(2))
    kept = policy.parameters[2:]
    assert all(torch.equal(a, b) for a, b in zip(kept, actors[3], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(kept, actors[5], strict=True))


def test_training_stops_when_the_patience_is_at_its_end():
    learner = validated([0.1, 0.5, 0.4, 0.3, 0.6, 0.7], patience=2)
    assert [row["validation_reward"] for row in run(learner)] == [0.1, 0.5, 0.4, 0.3]
    assert learner.best["update"] == 2 and learner.num_updates == 4


def test_an_equal_policy_is_no_better_one():
    learner = validated([0.5, 0.5, 0.5, 0.6], patience=2)
    assert len(run(learner)) == 3 and learner.best["update"] == 1


def test_a_resumed_run_knows_its_best_policy():
    first = validated([0.1, 0.9, 0.2])
    first.update(), first.update(), first.update()
    again = validated([])
    again.load_state_dict(first.state_dict())
    assert again.update_number == 3 and again.best["update"] == 2 and again.failures == 1
    assert all(torch.equal(a, b) for a, b in zip(again.best["actor"], first.best["actor"], strict=True))
    with pytest.raises(ValueError, match="trained without validation"):
        again.load_state_dict(again.learner.state_dict())


def test_between_validations_there_are_no_figures():
    learner = ValidatedLearner(PPO(market_env(1), CONFIG), Scripted([1.0, 2.0, 3.0]), evaluations=2, patience=None)
    rows = run(learner)
    told = [math.isnan(row["validation_reward"]) for row in rows]
    assert learner.every == 3 and told == [False, True, False, True, True, False]
    assert all(set(METRICS) <= row.keys() for row in rows)


@pytest.mark.assembly
def test_a_validation_is_an_evaluation_of_the_same_episodes():
    learner, held_out = PPO(market_env(1), CONFIG), market_env(7, num_envs=16)
    policy = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
    validation = Validation(held_out, 5)
    first, again = validation(policy), validation(policy)
    assert first == pytest.approx(again, abs=0.0, rel=0.0, nan_ok=True)
    agents = {"policy": PolicyAgent(policy), "buy_and_hold": task_of(held_out).agents["buy_and_hold"]()}
    evaluation = evaluate(held_out, agents, 5)
    record = evaluation.records["policy"]
    assert first["validation_reward"] == float(record.reward.mean())
    assert first["validation_excess_percent"] == 100 * evaluation.excess_log_returns["policy"].mean
    assert first["validation_excess_low"] == 100 * evaluation.excess_log_returns["policy"].low
    assert first["validation_grade"] == pytest.approx(evaluation.grades["policy"]["grade"].mean)


@pytest.mark.parametrize("commission", [0.0, 0.001])
@pytest.mark.assembly
def test_the_best_rule_plays_the_same_episodes_where_it_is_known(commission):
    options = {"num_paths": 3, "num_days": 40, "symbols": ["A", "B"], "generator": {"kind": "momentum"}}
    held_out = vecenv.make(
        "stock_trading", 8, market="planted", market_options=options, compile=False, action="tilt",
        features=("daily_change",), episode_length=20, commission=commission,
    )  # fmt: skip
    learner = PPO(held_out, CONFIG)
    told = Validation(held_out, 5)(ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True))
    if commission:
        assert math.isnan(told["validation_attainable_percent"])
        return
    agents = {"best_rule": BestRule(), "buy_and_hold": task_of(held_out).agents["buy_and_hold"]()}
    expected = 100 * evaluate(held_out, agents, 5).excess_log_returns["best_rule"].mean
    assert told["validation_attainable_percent"] == expected != 0


@pytest.mark.parametrize(("name", "values"), [("evaluations", (0, None)), ("patience", (1, 0))])
def test_wrong_numbers_are_refused(name, values):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        ValidatedLearner(PPO(market_env(1), CONFIG), Scripted([]), *values)


def test_each_member_of_an_ensemble_keeps_its_best_policy_and_its_patience():
    """Scores of the two members in turn: the first is best at once and done after two more, the second at its last."""
    scores = [0.5, 0.1, 0.4, 0.2, 0.5, 0.1, 0.9, 0.3]
    case = learner_case("ppo", ensemble=True, total_frames=5 * 24)
    learner = ValidatedEnsemble(case.new(), Scripted(scores), evaluations=5, patience=2)
    seeds, rows = learner.learner.seeds, []
    for _ in range(4):
        rows.append(learner.update())
    assert [best["update"] for best in learner.bests] == [1, 4] and [best["score"] for best in learner.bests] == [
        0.5,
        0.3,
    ]
    assert learner.counts == [2, 0] and learner.num_updates == 5
    assert rows[0]["validation_reward"] == pytest.approx(0.3) and rows[3][f"validation_reward.seed_{seeds[1]}"] == 0.3
    assert set(learner.metric_names()) <= rows[0].keys() and len(learner.metric_names()) == 3 * len(METRICS)
    kept = learner.member_state(1)
    assert kept["best"]["update"] == 4 and kept["failures"] == 0
    assert torch.equal(kept["best"]["actor"][0], kept["actor"][0]) and not torch.equal(
        learner.bests[0]["actor"][0], learner.learner.actor[0][0]
    )
    again = ValidatedEnsemble(case.new(), Scripted([0.0, 0.0]), evaluations=5, patience=1)
    with pytest.raises(ValueError, match="trained without validation"):
        again.load_state_dict(learner.learner.state_dict())
    again.load_state_dict(learner.state_dict())
    assert again.counts == [2, 0] and again.bests[1]["score"] == 0.3 and again.num_updates == 5
    again.counts[1] = 1
    assert again.num_updates == again.update_number == 4
