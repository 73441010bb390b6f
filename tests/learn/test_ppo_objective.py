"""PPO's losses and gradients are the published ones, of the right values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import Tensor
from torchrl.objectives import ClipPPOLoss

from tests.learn.guess_task import guess_env
from tests.learn.planted_env import SMALL, planted_env
from vecenv.core.random import episode_key
from vecenv.learn.heads import GaussianHead
from vecenv.learn.networks import Network
from vecenv.learn.ppo import LOSS_METRICS, PPO, PPOConfig, train


def torchrl_policy(network: Network, actor: list[Tensor]) -> ProbabilisticTensorDictSequential:
    """Return TorchRL's policy over the same actor."""

    class Actor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensor.clone() for tensor in actor)

        def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
            outputs, own = network.outputs(list(self.weights), observation)
            return (outputs, own[0].exp().expand_as(outputs)) if own else (outputs,)

    gaussian = isinstance(network.head, GaussianHead)
    keys = ["loc", "scale"] if gaussian else ["logits"]

    def normal(loc: Tensor, scale: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1)

    return ProbabilisticTensorDictSequential(
        TensorDictModule(Actor(), ["observation"], keys),
        ProbabilisticTensorDictModule(
            keys,
            ["action"],
            distribution_class=normal if gaussian else torch.distributions.Categorical,
            return_log_prob=True,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )


def torchrl_loss(network: Network, config: PPOConfig, actor: list[Tensor], critic: list[Tensor]) -> ClipPPOLoss:
    """Return TorchRL's loss over the same networks."""

    class Critic(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensor.clone() for tensor in critic)

        def forward(self, observation: Tensor) -> Tensor:
            return network.value(list(self.weights), observation).unsqueeze(-1)

    return ClipPPOLoss(
        torchrl_policy(network, actor),
        TensorDictModule(Critic(), ["observation"], ["state_value"]),
        clip_epsilon=config.clip,
        entropy_coeff=config.entropy_coef,
        critic_coeff=config.value_coef,
        loss_critic_type="l2",
        normalize_advantage=False,
    )


@pytest.mark.parametrize("head", ["gaussian", "categorical"])
def test_losses_and_gradients_equal_torchrls(head: str) -> None:
    generator = torch.Generator().manual_seed(0)
    config = replace(SMALL, entropy_coef=0.01)
    env = planted_env(num_symbols=3) if head == "gaussian" else guess_env(16, choices=(4,))
    learner, rows = PPO(env, config), 256
    network = learner.network
    actor = [tensor + 0.2 * torch.randn(tensor.shape, generator=generator) for tensor in learner.actor]
    observation = torch.randn(rows, network.moments_size, generator=generator)
    outputs, own = network.outputs(actor, observation)
    action = network.head.sample(
        outputs, own, episode_key(7, torch.arange(rows), 0), torch.zeros(rows, dtype=torch.int64)
    )
    old_log_prob = network.head.evaluate(outputs, own, action)[0] + 0.3 * torch.randn(rows, generator=generator)
    advantage, target = (torch.randn(rows, generator=generator) for _ in range(2))

    batch = (observation, None, action, old_log_prob, advantage, target)
    function = torch.func.grad_and_value(learner.objective, has_aux=True)
    gradients, (loss, metrics) = function([*actor, *learner.critic], *batch)
    assert 0.2 < metrics[LOSS_METRICS.index("clip_fraction")] < 0.8

    module = torchrl_loss(network, config, actor, learner.critic)
    entries = {
        "observation": observation,
        "action": action,
        "action_log_prob": old_log_prob,
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


def test_next_values_see_the_observation_before_the_reset() -> None:
    learner = PPO(planted_env(4, episode_length=3, seed=2), replace(SMALL, normalise_rewards=False, gae_lambda=0.0))
    learner.update()
    collector = learner.collector
    values, _, targets = learner.advantages()
    rows = collector.rows()
    for step in range(8):
        after = learner.env.observe_rows(rows[step], torch.arange(4))
        expected = collector.reward[step] + learner.config.gamma * learner._values(after)
        torch.testing.assert_close(targets[step], expected, rtol=0, atol=1e-5)
    # With the values of the next episodes' first observations they would not.
    cut = collector.truncated[:-1]
    assert 0 < cut.sum() < cut.numel()
    wrong = collector.reward[:-1] + learner.config.gamma * values[1:]
    assert not torch.isclose(targets[:-1][cut], wrong[cut], rtol=0, atol=1e-5).any()


@pytest.mark.assembly
def test_first_ratios_are_one() -> None:
    for bf16 in (False, True):
        config = replace(SMALL, epochs=1, minibatches=1, bf16=bf16, target_kl=1.0)
        for metrics in train(planted_env(), config).metrics:
            assert metrics["approx_kl"] < 1e-6
            assert metrics["clip_fraction"] == 0.0
