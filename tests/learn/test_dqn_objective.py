"""Targets and losses of DQN are those worked out by hand, and TorchRL's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import Tensor
from torchrl.data import Categorical
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss, ValueEstimators

from tests.learn.chain_task import GAMMA, PLACES, SMALL, chain_env
from vecenv.learn.dqn import DQN
from vecenv.learn.dqn_objective import dqn_losses, duelling_values, one_step_targets


def test_targets_by_hand() -> None:
    """A mask, a termination and, in the last row, a step whose episode goes on or was truncated, which is the same."""
    reward, terminated = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([False, True, False])
    following = torch.tensor([[1.0, 5.0, 2.0], [9.0, 9.0, 9.0], [-1.0, -2.0, -3.0]])
    learned = torch.tensor([[7.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-9.0, -8.0, -7.0]])
    allowed = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    for judged, mask, expected in (
        (following, None, [1 + 2.5, 2.0, 3 - 0.5]),
        (learned, None, [1 + 0.5, 2.0, 3 - 1.5]),
        (following, allowed, [1 + 1.0, 2.0, 3 - 1.0]),
        (learned, allowed, [1 + 0.5, 2.0, 3 - 1.5]),
    ):
        assert one_step_targets(reward, terminated, following, judged, mask, 0.5).tolist() == expected


def test_the_loss_by_hand() -> None:
    values = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    losses = dqn_losses(values, torch.tensor([[1], [0]]), torch.tensor([1.5, 0.0]))
    # Huber: half the square of 0.5, and 3 - 0.5.
    assert [float(term) for term in losses] == [(0.125 + 2.5) / 2, (0.5 + 3) / 2, 2.5, 0.75]


def test_duelling_subtracts_the_mean_of_the_advantages() -> None:
    value, advantages = torch.tensor([10.0, -1.0]), torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    values = duelling_values(value, advantages)
    assert values.tolist() == [[8.0, 9.0, 13.0], [-2.0, -2.0, 1.0]]
    assert torch.equal(values.mean(-1), value)
    # Of value and advantages neither can take a constant from the other.
    torch.testing.assert_close(duelling_values(value, advantages + 5), values)


def torchrl_loss(learner: DQN, parameters: list[Tensor]) -> DQNLoss:
    """Return TorchRL's loss over the same networks."""

    class Values(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(tensor.clone() for tensor in parameters)

        def forward(self, observation: Tensor) -> Tensor:
            return learner.values(list(self.weights), observation)

    actor = QValueActor(
        TensorDictModule(Values(), ["observation"], ["action_value"]),
        spec=Categorical(3),
        action_space="categorical",
        action_mask_key="allowed",
    )
    loss = DQNLoss(actor, loss_function="smooth_l1", double_dqn=learner.config.double, action_space="categorical")
    loss.make_value_estimator(ValueEstimators.TD0, gamma=GAMMA)
    return loss


@pytest.mark.filterwarnings("ignore:No target network updater")
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("duelling", [False, True])
def test_losses_and_gradients_equal_torchrls(double: bool, duelling: bool) -> None:
    """With masks, terminations, and target networks that choose otherwise than the learned ones."""
    learner = DQN(chain_env(forbid=True), replace(SMALL, double=double, duelling=duelling))
    generator, rows = torch.Generator().manual_seed(3), 256
    for tensor in [*learner.parameters, *learner.target]:
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    mean, deviation = torch.zeros(PLACES), torch.ones(PLACES)
    observation, following = (torch.randn(rows, PLACES, generator=generator) for _ in range(2))
    action = torch.randint(3, (rows, 1), generator=generator)
    reward, terminated = torch.randn(rows, generator=generator), torch.rand(rows, generator=generator) < 0.3

    def objective(parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
        batch = (observation, None, action, reward, terminated, following, mean, deviation)
        return learner.objective(parameters, *batch, *learner.target)

    gradients, (loss, metrics) = torch.func.grad_and_value(objective, has_aux=True)(learner.parameters)
    assert float(metrics[0]) == float(loss) and metrics[1] > 0.5

    module = torchrl_loss(learner, learner.parameters)
    for own, target in zip(module.target_value_network_params.flatten_keys().values(), learner.target, strict=True):
        own.data.copy_(target)
    allowed = torch.tensor([True, False, True]).expand(rows, 3)
    entries = {
        "observation": observation,
        "action": action.squeeze(-1),
        "allowed": torch.ones(rows, 3, dtype=torch.bool),
        "next": {
            "observation": following,
            "allowed": allowed,
            "reward": reward.unsqueeze(-1),
            "terminated": terminated.unsqueeze(-1),
            # Truncations among them, which change nothing.
            "done": (terminated | (reward > 1)).unsqueeze(-1),
        },
    }
    theirs = module(TensorDict(entries, batch_size=[rows]))["loss"]
    theirs.backward()
    assert float(loss) == pytest.approx(float(theirs.detach()), rel=1e-5)
    pairs = zip(gradients, module.value_network_params.flatten_keys().values(), strict=True)
    for own_gradient, parameter in pairs:
        torch.testing.assert_close(own_gradient, parameter.grad, rtol=0, atol=1e-5)
