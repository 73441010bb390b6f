"""What a policy has learned, drawn against the features of a symbol."""

from __future__ import annotations

import pytest
import torch

from tests.learn.test_item_network import FEATURES, market_env
from vecenv.learn.actor_policy import ActorPolicy, make_network
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.partial_dependence import GRID, dependence_figure, partial_dependence


def policy_of(env, policy="symbol"):
    network = make_network(env, NetworkConfig(policy=policy, hidden=(8,)))
    actor, _ = network.initial_parameters(torch.Generator().manual_seed(0), env.device)
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


def test_the_figure_has_a_panel_for_each_feature(tmp_path):
    env = market_env(3)
    figure = dependence_figure({"trained": policy_of(env)}, env, env.scenario.item_features)
    shown = [axis.get_xlabel() for axis in figure.axes if axis.get_visible()]
    assert shown == [f"{name}, standard deviations" for name in (*FEATURES, "weight")]


def test_a_flat_policy_has_no_items_to_vary():
    env = market_env(3)
    with pytest.raises(ValueError, match="needs a policy of two items or more"):
        partial_dependence(policy_of(env, "flat"), env.observations())
