"""Diversity of policies: by hand, on the episodes that they play."""

from __future__ import annotations

import math

import pytest
import torch
from torchrl.data import Bounded, Categorical

import vecenv
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.checkpoints import save_checkpoint
from vecenv.learn.diversity import Diversity, diversity, diversity_line, draws_actions, held_out_observations
from vecenv.learn.ppo import PPO, PPOConfig


def market_env(task="stock_trading", num_envs=4, **rules):
    made = (
        {"market": "synthetic", "market_options": {"num_paths": 2, "num_days": 150}} if task == "stock_trading" else {}
    )
    return vecenv.make(task, num_envs, compile=False, **made, **rules)


def policies_of(env, biases):
    """Policies of constant outputs: all weights are zero but the last biases."""
    learner = PPO(env, PPOConfig(num_steps=2, minibatches=1, hidden=(4,), by_reference=False))
    policies = []
    for bias in biases:
        actor = [torch.zeros_like(tensor) for tensor in learner.actor]
        place = 2 * learner.network.layers - 1
        actor[place] = torch.tensor(bias).expand(learner.network.head.size).clone()
        policies.append(ActorPolicy(learner.network, learner.moments, actor, deterministic=True))
    return policies


def test_numbers_differ_by_sign_distance_and_divergence():
    env = market_env(action="tilt", episode_length=5, min_episode_length=5)
    policies = policies_of(env, (0.5, -0.5, 3.0))
    told = diversity(policies, policies[0], env, 0, 3)
    size = policies[0].network.head.size
    assert isinstance(env.scenario.action_spec, Bounded)
    # Signs of two of three pairs are opposite; 3 is taken as 1.
    assert told.disagreement == pytest.approx(2 / 3)
    assert told.distance == pytest.approx(math.sqrt((1.0 + 0.5**2 + 1.5**2) / 3))
    # The deviations are exp(0): half the squared distance for each component.
    assert told.divergence[0] == pytest.approx([0.0, size * 0.5, size * 2.5**2 / 2])
    assert told.mean_divergence == pytest.approx(size * (1.0 + 2.5**2 + 3.5**2) / 6)
    line = diversity_line(told)
    assert "signs are opposite at 66.7%" in line and "RMS distance of actions 1.08" in line and "nats" in line
    assert Diversity.from_json(told.to_json()) == told


def test_nothing_is_no_opposite_of_something():
    env = market_env(action="tilt", episode_length=5, min_episode_length=5)
    policies = policies_of(env, (0.5, 0.0))
    assert diversity(policies, policies[0], env, 0, 2).disagreement == 0.0


def test_choices_differ_by_their_share():
    env = market_env("crypto_lob", synthetic_hours=1.0, episode_steps=5)
    assert isinstance(env.scenario.action_spec, Categorical)
    learner = PPO(env, PPOConfig(num_steps=2, minibatches=1, hidden=(4,)))
    size, policies = learner.network.head.size, []
    for choice in (0, 0, 1):
        actor = [torch.zeros_like(tensor) for tensor in learner.actor]
        actor[-1] = 2.0 * torch.nn.functional.one_hot(torch.tensor(choice), size).float()
        policies.append(ActorPolicy(learner.network, learner.moments, actor, deterministic=True))
    told = diversity(policies, policies[0], env, 0, 3)
    assert told.disagreement == pytest.approx(2 / 3) and told.distance is None
    apart = 2.0 * (math.e**2 - 1) / (math.e**2 + size - 1)
    assert told.divergence[0] == pytest.approx([0.0, 0.0, apart], abs=1e-6)
    assert "choices differ at 66.7%" in diversity_line(told)
    assert diversity(policies, policies[0], env, 0, 3, random=False).divergence is None


def test_observations_are_those_of_the_episodes_that_are_played():
    env, other = (market_env(action="tilt", episode_length=6, min_episode_length=3) for _ in range(2))
    (policy,) = policies_of(env, (0.3,))
    seen = held_out_observations(policy, env, 5, 8)
    other.reset_groups(4, 1, 5)
    expected, agent = [], PolicyAgent(policy)
    while not bool(other.rows.done.all()):
        expected.append(other.observations()[~other.rows.done])
        other.advance(agent.act(other))
    assert torch.equal(seen, torch.cat(expected)) and len(seen) < 8 * 4
    with pytest.raises(ValueError, match="diversity needs at least two policies, got 1"):
        diversity([policy], policy, env, 0)


def test_learners_of_entropy_draw_their_actions(tmp_path):
    configs = ({"entropy_coef": 0.0}, {"target_entropy": -1.0}, {"gamma": 0.9}, None)
    told = []
    for config in configs:
        save_checkpoint({"config": config}, tmp_path / "checkpoint.pt")
        told.append(draws_actions(tmp_path / "checkpoint.pt"))
    assert told == [True, True, False, False]
