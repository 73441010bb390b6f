"""Policies of items: one scorer for all symbols, whatever their order and number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import vecenv
from tests.reach_zero import REACH_ZERO
from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import make_network
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.heads import GaussianHead
from vecenv.learn.item_network import ItemNetwork
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.networks import tanh
from vecenv.learn.ppo import PPO, PPOConfig, load_policy, train

FEATURES = ("daily_change", "macd", "close_30_sma")
POLICIES = pytest.mark.parametrize("policy", ["symbol", "attention"])


def market_env(num_symbols: int, num_envs: int = 6, action: str = "tilt", **config) -> VecEnv:
    names = [f"SYN{number:02d}" for number in range(num_symbols)]
    market = {"num_paths": 2, "num_days": 120, "symbols": names, "seed": 4}
    return vecenv.make(
        "stock_trading",
        num_envs,
        market="synthetic",
        market_options=market,
        compile=False,
        action=action,
        features=FEATURES,
        episode_length=20,
        **config,
    )


def network_and_actor(env: VecEnv, policy: str) -> tuple[ItemNetwork, list[Tensor], list[Tensor]]:
    network = make_network(env, NetworkConfig(policy=policy, hidden=(8,)))
    actor, critic = network.initial_parameters(torch.Generator().manual_seed(1), env.device)
    # Large enough weights that symbols differ.
    return network, [tensor + 0.3 * torch.ones_like(tensor) for tensor in actor], critic


def permuted(observation: Tensor, order: Tensor) -> Tensor:
    """Reorder the symbols of an observation [b, p, h, f]."""
    count = len(order)
    cash, prices, holdings, features = observation.split([1, count, count, count * len(FEATURES)], dim=-1)
    features = features.unflatten(-1, (count, -1))[:, order].flatten(1)
    return torch.cat([cash, prices[:, order], holdings[:, order], features], dim=-1)


@POLICIES
def test_permuted_symbols_permute_the_actions(policy):
    env = market_env(5)
    for _ in range(3):
        env.advance(torch.rand(6, 6) - 0.5)
    network, actor, critic = network_and_actor(env, policy)
    order = torch.tensor([3, 0, 4, 1, 2])
    mean, deviation = torch.zeros(network.moments_size), torch.ones(network.moments_size)
    plain, moved = (
        network.normalised(seen, mean, deviation) for seen in (env.observations(), permuted(env.observations(), order))
    )
    scores, moved_scores = network.actor_outputs(actor, plain), network.actor_outputs(actor, moved)
    assert scores.shape == (6, 6) and float(scores[:, :-1].std(1).min()) > 1e-3
    torch.testing.assert_close(moved_scores[:, :-1], scores[:, :-1][:, order])
    torch.testing.assert_close(moved_scores[:, -1], scores[:, -1])
    torch.testing.assert_close(network.value(critic, moved), network.value(critic, plain))


def test_scores_are_those_of_one_symbol_after_the_other():
    """The definition in plain Python: each symbol's features and the context through one layer, and the mean of all."""
    env = market_env(3, num_envs=2)
    network, actor, _ = network_and_actor(env, "symbol")
    generator = torch.Generator().manual_seed(2)
    actor = [0.5 * torch.randn(tensor.shape, generator=generator) for tensor in actor]
    inputs = torch.randn(2, 3 * network.num_features + 1, generator=generator)
    weight, bias, score, centre, whole, whole_centre, _ = actor
    for row, found in zip(inputs, network.actor_outputs(actor, inputs), strict=True):
        features, shared = row[:-1].view(3, -1), row[-1:]
        context = torch.cat([features.mean(0), shared])
        hidden = [torch.tanh(weight @ torch.cat([one, context]) + bias) for one in features]
        expected = [score[0] @ one + centre[0] for one in hidden]
        expected.append(whole[0] @ torch.stack(hidden).mean(0) + whole_centre[0])
        torch.testing.assert_close(found, torch.stack(expected))


@POLICIES
@pytest.mark.assembly
def test_a_policy_plays_another_number_of_symbols(policy, tmp_path):
    config = PPOConfig(num_steps=4, total_frames=24, minibatches=1, epochs=1, policy=policy, hidden=(8,))
    train(market_env(5), config, tmp_path)
    wider = market_env(9)
    action = PolicyAgent(load_policy(tmp_path / "checkpoint.pt", wider)).act(wider)
    assert action.shape == (6, 10) and bool(action.isfinite().all())


def test_samples_are_those_of_every_symbol():
    env = market_env(5)
    network = make_network(env, NetworkConfig(policy="symbol"))
    observation = env.observations()
    features, shared = env.scenario.items(observation)
    samples = network.samples(observation)
    assert samples.shape == (6 * 5, len(FEATURES) + 2)
    assert torch.equal(samples[7], torch.cat([features[1, 2], shared[1]]))


def test_tasks_without_symbols_and_other_actions_are_refused():
    with pytest.raises(ValueError, match="policy 'symbol' needs a task with items"):
        PPO(vecenv.make(REACH_ZERO, 4, compile=False), PPOConfig(policy="symbol", minibatches=1))
    with pytest.raises(ValueError, match=r"one action per item, 4, or one more; there are 6"):
        env = market_env(5)
        head = GaussianHead(env.scenario.action_spec, 0.5, shared_std=True)
        items = env.scenario.items(env.observations())
        assert head.size == 6
        ItemNetwork(env.scenario.items, items._replace(features=items.features[:, :4]), head, (8,), False, False, None)


def test_the_tanh_of_networks_is_the_librarys_with_its_gradient():
    values = torch.linspace(-30.0, 30.0, 6_001).requires_grad_()
    own, library = tanh(values), torch.tanh(values)
    assert float((own - library).detach().abs().max()) < 3e-7
    (gradient,), (expected,) = (torch.autograd.grad(result.sum(), values) for result in (own, library))
    assert float((gradient - expected).abs().max()) < 1e-6
    of_each = torch.vmap(torch.func.grad(tanh))(values.detach())
    assert torch.equal(of_each, gradient)
