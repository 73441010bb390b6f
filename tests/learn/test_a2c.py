"""A2C computes the published losses, finds a planted signal with every kind of action, and resumes bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.objectives import A2CLoss

from tests.learn.chain_task import same
from tests.learn.guess_task import guess_env
from tests.learn.planted_env import episode_returns, planted_env
from tests.learn.test_ppo_objective import torchrl_policy
from tests.learn.test_ppo_runs import parameters_of
from vecenv import FusedCollector
from vecenv.learn.a2c import A2C, A2CConfig, train
from vecenv.learn.a2c_objective import LOSS_METRICS, a2c_losses
from vecenv.learn.actor_policy import ActorPolicy
from vecenv.learn.initial_policy import start_from
from vecenv.learn.policies import load_policy
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.learn.runs import CHECKPOINT
from vecenv.market.planted import planted_optimal_growth

SMALL = A2CConfig(num_steps=8, total_frames=4 * 8 * 16, minibatches=2, hidden=(8, 8))


def test_losses_by_hand() -> None:
    log_prob, advantage = torch.tensor([-1.0, -2.0]), torch.tensor([3.0, -1.0])
    losses = a2c_losses(
        log_prob, torch.tensor([0.5, 1.5]), torch.tensor([1.0, 0.0]), advantage, torch.tensor([2.0, 3.0])
    )
    assert [float(term) for term in losses] == [(3.0 - 2.0) / 2, (1.0 + 9.0) / 2, 1.0]


@pytest.mark.parametrize("head", ["gaussian", "categorical"])
def test_losses_and_gradients_equal_torchrls(head: str) -> None:
    generator, rows = torch.Generator().manual_seed(0), 256
    config = replace(SMALL, entropy_coef=0.01)
    learner = A2C(planted_env(num_symbols=3) if head == "gaussian" else guess_env(16, choices=(4,)), config)
    network = learner.network
    actor = [tensor + 0.2 * torch.randn(tensor.shape, generator=generator) for tensor in learner.actor]
    observation = torch.randn(rows, network.moments_size, generator=generator)
    action = torch.randn(rows, 3, generator=generator)
    if head == "categorical":
        action = torch.randint(4, (rows,), generator=generator)
    advantage, target = (torch.randn(rows, generator=generator) for _ in range(2))
    function = torch.func.grad_and_value(learner.objective, has_aux=True)
    gradients, (loss, _) = function([*actor, *learner.critic], observation, None, action, advantage, target)

    class Critic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensor.clone() for tensor in learner.critic)

        def forward(self, observation: Tensor) -> Tensor:
            return network.value(list(self.weights), observation).unsqueeze(-1)

    module = A2CLoss(
        torchrl_policy(network, actor),
        TensorDictModule(Critic(), ["observation"], ["state_value"]),
        entropy_coeff=config.entropy_coef,
        critic_coeff=config.value_coef,
        loss_critic_type="l2",
    )
    entries = {
        "observation": observation,
        "action": action,
        "advantage": advantage.unsqueeze(-1),
        "value_target": target.unsqueeze(-1),
    }
    terms = module(TensorDict(entries, batch_size=[rows]))
    total = terms["loss_objective"] + terms["loss_critic"] + terms["loss_entropy"]
    total.backward()
    assert loss.item() == pytest.approx(total.item(), abs=1e-5)
    theirs = [parameter.grad for parameter in module.parameters()]
    for own_gradient, their_gradient in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(own_gradient, their_gradient, rtol=0, atol=1e-5)


def test_an_update_is_one_pass_over_its_own_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step once, in as many optimiser steps as there are minibatches."""
    learner, orders = A2C(planted_env(), replace(SMALL, minibatches=4)), []
    pick = A2C.pick
    monkeypatch.setattr(A2C, "pick", lambda self, tensor, index: orders.append(index) or pick(self, tensor, index))
    learner.update()
    seen = torch.cat(list({id(index): index for index in orders}.values()))
    assert torch.equal(seen.sort().values, torch.arange(8 * 16))
    assert int(learner.optimiser.state[learner.parameters[0]]["step"]) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
def test_reaches_the_optimum_of_the_planted_signal(seed: int) -> None:
    config = A2CConfig(total_frames=512 * 5 * 60, hidden=(16, 16), seed=seed)
    trained, untrained = train(planted_env(512, seed=seed), config), A2C(planted_env(16), config)
    optimum = planted_optimal_growth(20, 1, strength=0.01, flip=0.2) - 1
    start = ActorPolicy(untrained.network, untrained.moments, untrained.actor, deterministic=True)
    reached, before = (
        episode_returns(planted_env(2048, market_seed=1, seed=1), policy).mean().item() / optimum
        for policy in (trained.policy(), start)
    )
    assert reached >= 0.9 and before < 0.3


@pytest.mark.nightly
@pytest.mark.parametrize("choices", [(3, 4), (5,)])
def test_choices_are_learned(choices: tuple[int, ...]) -> None:
    config = A2CConfig(num_steps=5, total_frames=64 * 5 * 150, hidden=(16,), learning_rate=1e-2)
    trained = train(guess_env(64, choices=choices), config)
    greedy = FusedCollector(guess_env(64, 1, choices), trained.policy(), 8)
    greedy.rollout()
    assert greedy.reward.mean() > 0.99


@pytest.mark.parametrize(
    "changes", [{"policy": "symbol"}, {"policy": "symbol", "head": "dirichlet"}, {"head": "dirichlet"}]
)
def test_policies_and_heads_of_ppo_are_trained(changes: dict[str, str]) -> None:
    learner = A2C(planted_env(num_symbols=3, action="weights"), replace(SMALL, **changes))
    before = [tensor.clone() for tensor in learner.actor]
    metrics = learner.update()
    assert all(math.isfinite(metrics[name]) for name in LOSS_METRICS)
    assert not same(before, learner.actor)


@pytest.mark.assembly
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = train(planted_env(), SMALL, tmp_path / "whole")

    def interrupt(metrics: dict[str, float]) -> None:
        if metrics["update"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(planted_env(), SMALL, tmp_path / "parts", on_update=interrupt)
    resumed = train(planted_env(seed=9), SMALL, tmp_path / "parts", resume=True)
    assert [metrics["update"] for metrics in resumed.metrics] == [3, 4]
    assert same(parameters_of(tmp_path / "whole"), parameters_of(tmp_path / "parts"))
    assert resumed.metrics[-1]["policy_loss"] == whole.metrics[-1]["policy_loss"]
    loaded = load_policy(tmp_path / "whole" / CHECKPOINT, planted_env(market_seed=1))
    assert same(loaded.parameters, whole.policy().parameters) and loaded.deterministic


@pytest.mark.assembly
def test_runs_of_ppo_start_from_it_and_it_from_theirs(tmp_path: Path) -> None:
    source = train(planted_env(), SMALL, tmp_path).learner
    ppo = PPO(planted_env(), PPOConfig(num_steps=8, minibatches=2, hidden=(8, 8), seed=3))
    start_from(ppo, tmp_path / CHECKPOINT)
    assert same(ppo.parameters, source.parameters)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gamma": 1.5}, "gamma"),
        ({"gae_lambda": -0.1}, "gae_lambda"),
        ({"num_steps": 0}, "num_steps"),
    ],
)
def test_config_is_checked(change: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        replace(SMALL, **change)
