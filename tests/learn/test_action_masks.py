"""PPO takes only what a scenario's mask allows, from the first draw to a policy loaded from a checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import vecenv
from vecenv import FusedCollector, VecEnv
from vecenv.learn.ppo import CHECKPOINT, PPO, PPOConfig, load_policy, train

ONE_UPDATE = PPOConfig(num_steps=8, total_frames=64 * 8, epochs=1, minibatches=1, hidden=(16,), entropy_coef=0.01)


def tier_env(seed: int = 0, compile: bool = False) -> VecEnv:
    market = {"num_paths": 2, "num_days": 400}
    return vecenv.make("multi_stock_3", 64, action="discrete", market_options=market, seed=seed, compile=compile)


def all_allowed(collector: FusedCollector) -> bool:
    """Whether every action of a rollout is one that the mask of its observation allows; also that some are not."""
    assert collector.observation is not None
    scenario = collector.env.scenario
    observation, action = collector.observation.flatten(0, 1), collector.actions.flatten(0, 1).flatten(1)
    allowed = scenario.action_mask(observation)
    assert allowed is not None
    assert not allowed.all()
    parts = allowed.split(scenario.action_spec.nvec.flatten().tolist(), dim=-1)
    taken = [part.gather(1, choice[:, None]) for part, choice in zip(parts, action.unbind(-1), strict=True)]
    return bool(torch.cat(taken, dim=-1).all())


def check_first_update(learner: PPO) -> None:
    """Learn once: ratios are 1 before the first step, losses finite, actions allowed."""
    metrics = learner.update()
    assert metrics["approx_kl"] < 1e-6
    assert metrics["clip_fraction"] == 0.0
    assert all(math.isfinite(metrics[name]) for name in ("policy_loss", "value_loss", "entropy"))
    assert all(parameter.isfinite().all() for parameter in learner.parameters)
    assert all_allowed(learner.collector)


def test_ppo_takes_allowed_actions_with_ratios_of_one() -> None:
    check_first_update(PPO(tier_env(), ONE_UPDATE))


def test_entropy_counts_allowed_choices_alone() -> None:
    learner = PPO(tier_env(), ONE_UPDATE)
    learner.collector.rollout()
    assert learner.collector.observation is not None
    observation = learner.collector.observation.flatten(0, 1)
    allowed = learner.network.mask(observation)
    assert allowed is not None
    head = learner.network.head
    outputs, own = learner.network.outputs([torch.zeros_like(tensor) for tensor in learner.actor], observation, allowed)
    _, entropy = head.evaluate(outputs, own, learner.collector.actions.flatten(0, 1))
    counts = [part.sum(-1).log() for part in allowed.split(head.choices, dim=-1)]
    torch.testing.assert_close(entropy, torch.stack(counts).sum(0), rtol=0, atol=1e-4)


@pytest.mark.nightly
def test_compiled_gradients_equal_eager_ones() -> None:
    eager, compiled = (PPO(tier_env(), ONE_UPDATE) for _ in range(2))
    # The collectors are made: from here on this concerns the gradients alone.
    compiled.env.compiled = True
    eager.update(), compiled.update()
    for one, other in zip(eager.parameters, compiled.parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)


@pytest.mark.nightly
def test_compiled_ppo_takes_allowed_actions_with_ratios_of_one() -> None:
    check_first_update(PPO(tier_env(compile=True), ONE_UPDATE))


@pytest.mark.assembly
def test_a_loaded_policy_takes_allowed_actions(tmp_path: Path) -> None:
    trained = train(tier_env(), ONE_UPDATE, tmp_path)
    for deterministic in (True, False):
        loaded = load_policy(tmp_path / CHECKPOINT, tier_env(seed=1), deterministic)
        collectors = [FusedCollector(tier_env(seed=1), policy, 8) for policy in (trained.policy(deterministic), loaded)]
        for collector in collectors:
            collector.rollout()
            assert all_allowed(collector)
        assert torch.equal(collectors[0].actions, collectors[1].actions)


def test_a_mask_of_another_shape_is_refused() -> None:
    learner = PPO(tier_env(), ONE_UPDATE)
    observation = torch.zeros(5, learner.network.moments_size)
    with pytest.raises(ValueError, match=r"an action mask must have shape \(5, "):
        learner.network.outputs(learner.actor, observation, torch.ones(5, 1, dtype=torch.bool))


def test_scenarios_allow_everything_unless_they_say_otherwise() -> None:
    env = vecenv.make("stock_trading", 2, market="planted", compile=False)
    assert PPO(env, PPOConfig(num_steps=8, minibatches=1)).network.mask(torch.zeros(2, 4)) is None
