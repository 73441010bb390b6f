"""The losses of DDPG, TD3 and SAC are those worked out by hand, and TorchRL's, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.data import Bounded
from torchrl.modules import TanhNormal
from torchrl.objectives import DDPGLoss, LossModule, SACLoss, TD3Loss, ValueEstimators

from tests.learn.test_continuous import SMALL, made
from vecenv.learn.continuous import ContinuousLearner, critic_losses
from vecenv.learn.off_policy_targets import bootstrapped
from vecenv.learn.sac import SAC
from vecenv.learn.tanh_normal import TanhNormalHead
from vecenv.learn.td3 import TD3

ROWS, ACTIONS = 256, 3


def test_targets_by_hand() -> None:
    told = bootstrapped(torch.tensor([1.0, 2.0]), torch.tensor([False, True]), torch.tensor([4.0, 9.0]), 0.5)
    assert told.tolist() == [3.0, 2.0]


def test_the_critics_loss_by_hand() -> None:
    losses = critic_losses([torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0])], torch.tensor([0.0, 3.0]))
    assert [float(term) for term in losses] == [(1 + 1) / 2 + (0 + 1) / 2, 3 / 4, 7 / 4, 1.5]


class Weights(torch.nn.Module):
    """A function of parameters and of tensors as a module."""

    def __init__(self, parameters: list[Tensor], function: Callable[..., Any]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(tensor.clone() for tensor in parameters)
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(list(self.weights), *inputs)


def critic_of(learner: ContinuousLearner[Any], parameters: list[Tensor]) -> TensorDictModule:
    """Return one critic of a learner as TorchRL's."""

    def value(critic: list[Tensor], observation: Tensor, action: Tensor) -> Tensor:
        return learner.critics.value(critic, torch.cat([observation, action], dim=-1)).unsqueeze(-1)

    return TensorDictModule(Weights(parameters, value), ["observation", "action"], ["state_action_value"])


def torchrl_loss(learner: ContinuousLearner[Any], parameters: list[Tensor]) -> LossModule:
    """Return TorchRL's loss over the same networks."""
    actor, critics = learner.parted(parameters)
    network, head = learner.network, learner.network.head
    count = len(learner.critics.initial_parameters(torch.Generator(), torch.device("cpu"))[1])
    critic, common = critic_of(learner, critics[:count]), {"loss_function": "l2", "delay_actor": True}
    if isinstance(learner, SAC):
        assert isinstance(head, TanhNormalHead)
        policy = ProbabilisticTensorDictSequential(
            TensorDictModule(
                Weights(actor, lambda own, observation: head.parts(network.actor_outputs(own, observation))),
                ["observation"],
                ["loc", "scale"],
            ),
            ProbabilisticTensorDictModule(
                ["loc", "scale"], ["action"], distribution_class=partial(TanhNormal, upscale=1e6), return_log_prob=True
            ),
        )
        common = {"loss_function": "l2", "alpha_init": float(critics[-1].exp()), "target_entropy": -float(ACTIONS)}
        loss: LossModule = SACLoss(policy, critic, num_qvalue_nets=2, action_spec=Bounded(-1, 1, (ACTIONS,)), **common)
    else:
        module = Weights(actor, lambda own, observation: learner.acted(own, observation))
        policy = TensorDictModule(module, ["observation"], ["action"])
        if isinstance(learner, TD3):
            loss = TD3Loss(policy, critic, bounds=(-1.0, 1.0), policy_noise=0.2, noise_clip=0.3, **common)
        else:
            loss = DDPGLoss(policy, critic, delay_value=True, **common)
    loss.make_value_estimator(ValueEstimators.TD0, gamma=SMALL["gamma"])
    return loss


def fill(stacked: Any, parameters: list[Tensor], copies: int) -> None:
    """Write the parameters of one network, or of equal ones, one after the other, into TorchRL's."""
    own = list(stacked.flatten_keys().values())
    count = len(own)
    for place, tensor in enumerate(own):
        each = [parameters[place + copy * count] for copy in range(copies)]
        tensor.data.copy_(torch.stack(each) if copies > 1 else each[0])


def gradients_of(stacked: Any, copies: int) -> list[Tensor]:
    """Return the gradients of what `fill` wrote, in its order."""
    own = [tensor.grad for tensor in stacked.flatten_keys().values()]
    return own if copies == 1 else [gradient[copy] for copy in range(copies) for gradient in own]


@pytest.mark.filterwarnings("ignore:No target network updater")
@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_losses_and_gradients_equal_torchrls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With terminations, truncations, and target networks of their own."""
    learner, generator = made(name, target_noise_clip=0.3) if name == "td3" else made(name), torch.Generator()
    for tensor in [*learner.parameters, *learner.target]:
        tensor.copy_(0.5 * torch.randn(tensor.shape, generator=generator.manual_seed(tensor.numel())) + 0.01)
    size = learner.network.moments_size
    observation, following = (torch.randn(ROWS, size, generator=generator) for _ in range(2))
    action = torch.rand(ROWS, ACTIONS, generator=generator) * 2 - 1
    reward, terminated = torch.randn(ROWS, generator=generator), torch.rand(ROWS, generator=generator) < 0.3
    normals = [torch.randn(ROWS, ACTIONS, generator=generator) for _ in range(2)]
    noise = {"ddpg": [], "td3": [(0.2 * normals[0]).clamp(-0.3, 0.3)], "sac": normals}[name]
    moments = [torch.zeros(size), torch.ones(size)]

    def objective(parameters: list[Tensor]) -> tuple[Tensor, Tensor]:
        batch = (observation, None, action, reward, terminated, following, *noise, *moments)
        return learner.objective(parameters, *batch, *learner.target)

    gradients, (loss, _) = torch.func.grad_and_value(objective, has_aux=True)(learner.parameters)

    module = torchrl_loss(learner, learner.parameters)
    copies = learner.num_critics
    own = module.value_network_params if name == "ddpg" else module.qvalue_network_params
    target = module.target_value_network_params if name == "ddpg" else module.target_qvalue_network_params
    critics = learner.followed() if name == "sac" else learner.critic
    fill(own, critics, copies)
    fill(target, learner.target[-len(critics) :], copies)
    if name != "sac":
        fill(module.target_actor_network_params, learner.target[: len(learner.actor)], 1)
    # TD3 draws its noise so, SAC that of the actions after the step first.
    monkeypatch.setattr(torch, "randn_like", lambda _: normals[0])
    draws = iter([normals[1], normals[0]])
    monkeypatch.setattr(torch.distributions.normal, "_standard_normal", lambda *_, **__: next(draws))
    entries = {
        "observation": observation,
        "action": action,
        "next": {
            "observation": following,
            "reward": reward.unsqueeze(-1),
            "terminated": terminated.unsqueeze(-1),
            "done": (terminated | (reward > 1)).unsqueeze(-1),
        },
    }
    terms = module(TensorDict(entries, batch_size=[ROWS]))
    total = sum(term for key, term in terms.items() if key.startswith("loss_"))
    total.backward()
    assert float(loss) == pytest.approx(float(total.detach()), rel=1e-5)
    theirs = [*gradients_of(module.actor_network_params, 1), *gradients_of(own, copies)]
    if name == "sac":
        theirs.append(module.log_alpha.grad)
    for own_gradient, their_gradient in zip(gradients, theirs, strict=True):
        known = torch.zeros_like(own_gradient) if their_gradient is None else their_gradient
        torch.testing.assert_close(own_gradient, known, rtol=1e-4, atol=1e-5)
