"""Policies of items: one scorer for all symbols, whatever their order and number, and what it depends on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import vecenv
from tests.reach_zero import REACH_ZERO
from vecenv.core.env import VecEnv
from vecenv.learn.actor_policy import ActorPolicy, make_network
from vecenv.learn.heads import GaussianHead
from vecenv.learn.item_network import ItemNetwork
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.networks import tanh
from vecenv.learn.partial_dependence import GRID, dependence_figure, partial_dependence
from vecenv.learn.ppo import PPO, PPOConfig

FEATURES = ("daily_change", "macd", "close_30_sma")


def market_env(num_symbols: int, num_envs: int = 6, action: str = "tilt", **config) -> VecEnv:
    names = [f"SYN{number:02d}" for number in range(num_symbols)]
    market = {"num_paths": 2, "num_days": 120, "symbols": names, "seed": 4}
    rules = {"action": action, "features": FEATURES, "episode_length": 20, "compile": False} | config
    return vecenv.make("stock_trading", num_envs, market="synthetic", market_options=market, **rules)


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


@pytest.mark.parametrize("policy", ["symbol", "attention"])
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
    features, shared = env.scenario.items(env.observations())
    samples = network.samples(env.observations())
    assert samples.shape == (2 * 3, len(FEATURES) + 2)
    assert torch.equal(samples[5], torch.cat([features[1, 2], shared[1]]))


def test_tasks_without_symbols_and_other_actions_are_refused():
    with pytest.raises(ValueError, match="policy 'symbol' needs a task with items"):
        PPO(vecenv.make(REACH_ZERO, 4, compile=False), PPOConfig(policy="symbol", minibatches=1))
    env = market_env(5)
    head, items = GaussianHead(env.scenario.action_spec, 0.5, shared_std=True), env.scenario.items(env.observations())
    with pytest.raises(ValueError, match=r"one action per item, 4, or one more; there are 6"):
        ItemNetwork(env.scenario.items, items._replace(features=items.features[:, :4]), head, (8,), False, False, None)


def test_the_tanh_of_networks_is_the_librarys_with_its_gradient():
    values = torch.linspace(-30.0, 30.0, 6_001).requires_grad_()
    own, library = tanh(values), torch.tanh(values)
    assert float((own - library).detach().abs().max()) < 3e-7
    (gradient,), (expected,) = (torch.autograd.grad(result.sum(), values) for result in (own, library))
    assert float((gradient - expected).abs().max()) < 1e-6
    of_each = torch.vmap(torch.func.grad(tanh))(values.detach())
    assert torch.equal(of_each, gradient)


def policy_of(env, policy="symbol"):
    network, actor, _ = network_and_actor(env, policy)
    moments = [torch.zeros(network.moments_size), torch.ones(network.moments_size)]
    return ActorPolicy(network, moments, actor, deterministic=True)


def test_a_policy_that_reads_one_feature_depends_on_it_alone():
    env = market_env(4)
    policy = policy_of(env)
    # The hidden layer sees the second feature only, and scores it with weight 1.
    weight, _, score, *_ = policy.parameters[2:]
    weight.zero_()
    weight[0, 1] = 0.5
    score.zero_()
    score[0, 0] = 1.0
    curves = partial_dependence(policy, env.observations())
    assert curves.shape == (len(FEATURES) + 1, len(GRID))
    rise = curves[1] - curves[1, len(GRID) // 2]
    torch.testing.assert_close(rise, torch.tanh(0.5 * GRID), rtol=1e-3, atol=1e-3)
    assert float((curves[[0, 2, 3]] - curves[[0, 2, 3], :1]).abs().max()) < 1e-6
    figure = dependence_figure({"trained": policy}, env, env.scenario.item_features)
    shown = [axis.get_xlabel() for axis in figure.axes if axis.get_visible()]
    assert shown == [f"{name}, standard deviations" for name in (*FEATURES, "weight")]
    with pytest.raises(ValueError, match="needs a policy of two items or more"):
        partial_dependence(policy_of(env, "flat"), env.observations())
