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


def market_env(seed: int, num_envs: int = 8, market: str = "synthetic", **rules: object) -> VecEnv:
    options = {"num_paths": 4, "num_days": 120, "symbols": ["SYN00", "SYN01"]}
    options |= {"seed": seed} if market == "synthetic" else {"generator": {"kind": "momentum"}, "num_days": 40}
    rules |= {"action": "tilt", "features": ("daily_change",), "episode_length": 20}
    return vecenv.make("stock_trading", num_envs, market=market, market_options=options, compile=False, **rules)


class Scripted(Validation):
    """A validation with given mean rewards."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = list(scores)

    def __call__(self, policy: ActorPolicy) -> dict[str, float]:
        return dict.fromkeys(METRICS, 0.0) | {"validation_reward": self.scores.pop(0)}


def validated(scores: list[float], patience: int | None = None, evaluations: int = 6) -> ValidatedLearner:
    return ValidatedLearner(PPO(market_env(1), CONFIG), Scripted(scores), evaluations, patience)


def same(left, right) -> bool:
    return all(map(torch.equal, left, right))


def test_the_best_policy_is_kept_and_loaded(tmp_path):
    learner, actors = validated([0.1, 0.4, 0.2, 0.5, 0.3, 0.0]), []
    history = run(learner, tmp_path, on_update=lambda _: actors.append([p.clone() for p in learner.learner.actor]))
    assert len(history) == 6 and learner.best["update"] == 4 and learner.best["score"] == 0.5
    kept = load_policy(tmp_path / "checkpoint.pt", market_env(2)).parameters[2:]
    assert same(kept, actors[3]) and not same(kept, actors[5])
    # A resumed run knows it.
    again = validated([])
    again.load_state_dict(learner.state_dict())
    assert again.update_number == 6 and again.best["update"] == 4 and again.failures == 2
    assert same(again.best["actor"], learner.best["actor"])
    with pytest.raises(ValueError, match="trained without validation"):
        again.load_state_dict(again.learner.state_dict())
    for name, values in (("evaluations", (0, None)), ("patience", (1, 0))):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            ValidatedLearner(learner.learner, Scripted([]), *values)


def test_training_stops_when_the_patience_is_at_its_end():
    """An equal policy is no better one; between validations there are no figures."""
    learner = validated([0.1, 0.5, 0.5, 0.3, 0.6, 0.7], patience=2)
    assert [row["validation_reward"] for row in run(learner)] == [0.1, 0.5, 0.5, 0.3]
    assert learner.best["update"] == 2 and learner.num_updates == 4
    learner = validated([1.0, 2.0, 3.0], evaluations=2)
    rows = run(learner)
    told = [math.isnan(row["validation_reward"]) for row in rows]
    assert learner.every == 3 and told == [False, True, False, True, True, False]
    assert all(set(METRICS) <= row.keys() for row in rows)


def test_a_validation_is_an_evaluation_of_the_same_episodes():
    """Beside the best rule, where it is known: without costs."""
    for commission in (0.0, 0.001):
        held_out = market_env(0, 8, "planted", commission=commission)
        learner = PPO(held_out, CONFIG)
        policy = ActorPolicy(learner.network, learner.moments, learner.actor, deterministic=True)
        validation = Validation(held_out, 5)
        first, again = validation(policy), validation(policy)
        assert first == pytest.approx(again, abs=0.0, rel=0.0, nan_ok=True)
        agents = {"policy": PolicyAgent(policy), "buy_and_hold": task_of(held_out).agents["buy_and_hold"]()}
        evaluation = evaluate(held_out, agents | {"best_rule": BestRule()}, 5)
        record, above = evaluation.records["policy"], evaluation.excess_log_returns
        assert first["validation_reward"] == float(record.reward.mean())
        assert first["validation_reference_reward"] == float(evaluation.records["buy_and_hold"].reward.mean())
        assert first["validation_grade"] == pytest.approx(evaluation.grades["policy"]["grade"].mean)
        assert first["validation_sharpe"] == pytest.approx(evaluation.summaries["policy"].mean["sharpe"])
        names = ("excess_percent", "excess_low", "excess_high")
        told = [first[f"validation_{name}"] for name in names]
        assert told == [100 * value for value in above["policy"]]
        if commission:
            assert math.isnan(first["validation_attainable_percent"])
        else:
            assert first["validation_attainable_percent"] == 100 * above["best_rule"].mean != 0


def test_each_member_of_an_ensemble_keeps_its_best_policy_and_its_patience():
    """Scores of the two members in turn: the first is best at once and done after two more, the second at its last."""
    scores = [0.5, 0.1, 0.4, 0.2, 0.5, 0.1, 0.9, 0.3]
    case = learner_case("ppo", ensemble=True, total_frames=5 * 24)
    learner = ValidatedEnsemble(case.new(), Scripted(scores), evaluations=5, patience=2)
    rows = [learner.update() for _ in range(4)]
    assert [(best["update"], best["score"]) for best in learner.bests] == [(1, 0.5), (4, 0.3)]
    assert learner.counts == [2, 0] and learner.num_updates == 5
    own = f"validation_reward.seed_{learner.learner.seeds[1]}"
    assert rows[0]["validation_reward"] == pytest.approx(0.3) and rows[3][own] == 0.3
    assert set(learner.metric_names()) <= rows[0].keys() and len(learner.metric_names()) == 3 * len(METRICS)
    kept = learner.member_state(1)
    assert kept["best"]["update"] == 4 and kept["failures"] == 0
    assert torch.equal(kept["best"]["actor"][0], kept["actor"][0])
    assert not torch.equal(learner.bests[0]["actor"][0], learner.learner.actor[0][0])
    again = ValidatedEnsemble(case.new(), Scripted([0.0, 0.0]), evaluations=5, patience=1)
    with pytest.raises(ValueError, match="trained without validation"):
        again.load_state_dict(learner.learner.state_dict())
    again.load_state_dict(learner.state_dict())
    assert again.counts == [2, 0] and again.bests[1]["score"] == 0.3 and again.num_updates == 5
    again.counts[1] = 1
    assert again.num_updates == again.update_number == 4
