"""Losses that `check_learner` compares learners with: TorchRL's over the same networks, and finite differences.

Each takes a learner before its first update, a step's parameters, and what its `objective` was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.data import Bounded, Categorical

from vecenv.core.collector import FusedCollector
from vecenv.learn.heads import GaussianHead
from vecenv.learn.policies import ActorPolicy
from vecenv.learn.sac import SAC
from vecenv.learn.td3 import TD3Config

Loss = tuple[float, list[Tensor]]


class _Weights(torch.nn.Module):
    """A function of parameters and of tensors as a module."""

    def __init__(self, parameters: list[Tensor], function: Callable[..., Any]) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(tensor.clone() for tensor in parameters)
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(list(self.weights), *inputs)


def _actor(learner: Any, actor: list[Tensor], allowed: Tensor | None) -> ProbabilisticTensorDictSequential:
    network = learner.network
    gaussian = isinstance(network.head, GaussianHead)
    keys = ["loc", "scale"] if gaussian else ["logits"]

    def outputs(weights: list[Tensor], observation: Tensor) -> tuple[Tensor, ...]:
        found, own = network.outputs(weights, observation, allowed)
        return (found, own[0].exp().expand_as(found)) if gaussian else (found,)

    def normal(loc: Tensor, scale: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Independent(torch.distributions.Normal(loc, scale), 1)

    kind = normal if gaussian else torch.distributions.Categorical
    return ProbabilisticTensorDictSequential(
        TensorDictModule(_Weights(actor, outputs), ["observation"], keys),
        ProbabilisticTensorDictModule(keys, ["action"], distribution_class=kind, return_log_prob=True),
    )


def _summed(terms: TensorDict) -> Tensor:
    return sum(term for name, term in terms.items() if name.startswith("loss_"))


def _on_policy(
    learner: Any, parameters: list[Tensor], allowed: Tensor | None, kind: Any, batch: Mapping[str, Tensor], **more: Any
) -> Loss:
    count, config = len(learner.actor), learner.config
    value = _Weights(parameters[count:], lambda weights, seen: learner.network.value(weights, seen).unsqueeze(-1))
    module = kind(
        _actor(learner, parameters[:count], allowed),
        TensorDictModule(value, ["observation"], ["state_value"]),
        entropy_coeff=config.entropy_coef,
        critic_coeff=config.value_coef,
        loss_critic_type="l2",
        **more,
    )
    action = batch["action"]
    if not isinstance(learner.network.head, GaussianHead):
        action = action.flatten()
    wide = {name: batch[name].unsqueeze(-1) for name in ("advantage", "value_target")}
    total = _summed(module(TensorDict({**batch, **wide, "action": action}, batch_size=[len(action)])))
    total.backward()
    return total.item(), [parameter.grad for parameter in module.parameters()]


def ppo_loss(
    learner: Any,
    parameters: list[Tensor],
    observation: Tensor,
    allowed: Tensor | None,
    action: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    target: Tensor,
) -> Loss:
    """Return `torchrl.objectives.ClipPPOLoss`."""
    from torchrl.objectives import ClipPPOLoss

    batch = {"observation": observation, "action": action, "advantage": advantage, "value_target": target}
    batch["action_log_prob"] = old_log_prob
    more = {"clip_epsilon": learner.config.clip, "normalize_advantage": False}
    return _on_policy(learner, parameters, allowed, ClipPPOLoss, batch, **more)


def a2c_loss(
    learner: Any,
    parameters: list[Tensor],
    observation: Tensor,
    allowed: Tensor | None,
    action: Tensor,
    advantage: Tensor,
    target: Tensor,
) -> Loss:
    """Return `torchrl.objectives.A2CLoss`."""
    from torchrl.objectives import A2CLoss

    batch = {"observation": observation, "action": action, "advantage": advantage, "value_target": target}
    return _on_policy(learner, parameters, allowed, A2CLoss, batch)


def _replayed(
    observation: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, following: Tensor, **masks: Tensor
) -> TensorDict:
    """Return steps of a replay buffer as TorchRL's; that some were truncated too must change nothing."""
    after = {"observation": following, "reward": reward.unsqueeze(-1), "terminated": terminated.unsqueeze(-1)}
    after["done"] = (terminated | (reward > reward.median())).unsqueeze(-1)
    here = {"observation": observation, "action": action}
    if masks:
        here["allowed"], after["allowed"] = masks["allowed"], masks["allowed_after"]
    return TensorDict(here | {"next": after}, batch_size=[len(action)])


def dqn_loss(
    learner: Any,
    parameters: list[Tensor],
    observation: Tensor,
    allowed: Tensor | None,
    action: Tensor,
    reward: Tensor,
    terminated: Tensor,
    next_observation: Tensor,
    mean: Tensor,
    deviation: Tensor,
    *target: Tensor,
) -> Loss:
    """Return `torchrl.objectives.DQNLoss`, plain or double, on values that may be duelling."""
    from torchrl.modules import QValueActor
    from torchrl.objectives import DQNLoss, ValueEstimators

    config, choices = learner.config, learner.network.head.size
    values = _Weights(parameters, learner.values)
    actor = QValueActor(
        TensorDictModule(values, ["observation"], ["action_value"]),
        spec=Categorical(choices),
        action_space="categorical",
        action_mask_key="allowed",
    )
    module = DQNLoss(actor, loss_function="smooth_l1", double_dqn=config.double, action_space="categorical")
    module.make_value_estimator(ValueEstimators.TD0, gamma=config.gamma)
    _fill(module.target_value_network_params, list(target), 1)
    everything = torch.ones(len(action), choices, dtype=torch.bool)
    after = learner.network.mask(next_observation)
    batch = _replayed(
        observation,
        action.squeeze(-1),
        reward,
        terminated,
        learner.network.normalised(next_observation, mean, deviation),
        allowed=everything,
        allowed_after=everything if after is None else after,
    )
    total = module(batch)["loss"]
    total.backward()
    return total.item(), _gradients(module.value_network_params, 1)


def continuous_loss(
    learner: Any,
    parameters: list[Tensor],
    observation: Tensor,
    allowed: Tensor | None,
    action: Tensor,
    reward: Tensor,
    terminated: Tensor,
    next_observation: Tensor,
    *more: Tensor,
) -> Loss:
    """Return `torchrl.objectives.DDPGLoss`, `TD3Loss` or `SACLoss`; ``more`` is noise, moments and target networks."""
    count = len(learner.noise())
    noise, (mean, deviation), target = list(more[:count]), more[count : count + 2], list(more[count + 2 :])
    following = learner.network.normalised(next_observation, mean, deviation)
    module, copies = _continuous_module(learner, parameters), learner.critics.count
    name = "qvalue_network_params" if copies > 1 else "value_network_params"
    own, aimed = getattr(module, name), getattr(module, f"target_{name}")
    critics = parameters[len(learner.actor) :][: -1 if isinstance(learner, SAC) else None]
    _fill(own, critics, copies)
    _fill(aimed, target[-len(critics) :], copies)
    if not isinstance(learner, SAC):
        _fill(module.target_actor_network_params, target[: len(learner.actor)], 1)
    with _drawn(learner, noise):
        total = _summed(module(_replayed(observation, action, reward, terminated, following)))
    total.backward()
    found = [*_gradients(module.actor_network_params, 1), *_gradients(own, copies)]
    found += [module.log_alpha.grad] if isinstance(learner, SAC) else []
    return total.item(), [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def _continuous_module(learner: Any, parameters: list[Tensor]) -> Any:
    from torchrl.modules import TanhNormal
    from torchrl.objectives import DDPGLoss, SACLoss, TD3Loss, ValueEstimators

    actor, critics = learner.actor_and_critic(parameters)
    config, actions, network = learner.config, learner.bounds.size, learner.network
    head: Any = network.head

    def value(critic: list[Tensor], observation: Tensor, action: Tensor) -> Tensor:
        return learner.critics.each.value(critic, torch.cat([observation, action], dim=-1)).unsqueeze(-1)

    one = critics[: len(critics) // learner.critics.count]
    critic = TensorDictModule(_Weights(one, value), ["observation", "action"], ["state_action_value"])
    common = {"loss_function": "l2", "delay_actor": True}
    if isinstance(learner, SAC):

        def parts(weights: list[Tensor], observation: Tensor) -> tuple[Tensor, Tensor]:
            return head.parts(network.actor_outputs(weights, observation))

        policy = ProbabilisticTensorDictSequential(
            TensorDictModule(_Weights(actor, parts), ["observation"], ["loc", "scale"]),
            ProbabilisticTensorDictModule(
                ["loc", "scale"], ["action"], distribution_class=partial(TanhNormal, upscale=1e6), return_log_prob=True
            ),
        )
        module: Any = SACLoss(
            policy,
            critic,
            num_qvalue_nets=2,
            action_spec=Bounded(-1, 1, (actions,)),
            loss_function="l2",
            alpha_init=float(critics[-1].exp()),
            target_entropy=config.target_entropy * actions,
        )
    else:
        policy = TensorDictModule(_Weights(actor, learner.acted), ["observation"], ["action"])
        if isinstance(config, TD3Config):
            bounds = {"policy_noise": config.target_std, "noise_clip": config.target_noise_clip}
            module = TD3Loss(policy, critic, bounds=(-1.0, 1.0), **bounds, **common)
        else:
            module = DDPGLoss(policy, critic, delay_value=True, **common)
    module.make_value_estimator(ValueEstimators.TD0, gamma=config.gamma)
    return module


@contextmanager
def _drawn(learner: Any, noise: list[Tensor]) -> Iterator[None]:
    """Have TorchRL draw given noise: TD3 that of the next actions, SAC that of the next before that of the present."""
    # TorchRL scales and clips what it draws; it is clipped already.
    scaled = [part / learner.config.target_std for part in noise] if isinstance(learner.config, TD3Config) else noise
    draws = iter(reversed(scaled))
    normal = torch.distributions.normal
    with (
        patch.object(torch, "randn_like", lambda _: next(draws)),
        patch.object(normal, "_standard_normal", lambda *_, **__: next(draws)),
    ):
        yield


def _fill(stacked: Any, parameters: list[Tensor], copies: int) -> None:
    """Write the parameters of one network, or of equal ones, one after the other, into TorchRL's."""
    own = list(stacked.flatten_keys().values())
    for place, tensor in enumerate(own):
        each = [parameters[place + copy * len(own)] for copy in range(copies)]
        tensor.data.copy_(torch.stack(each) if copies > 1 else each[0])


def _gradients(stacked: Any, copies: int) -> list[Tensor]:
    """Return the gradients of what `_fill` wrote, in its order."""
    own = [tensor.grad for tensor in stacked.flatten_keys().values()]
    return own if copies == 1 else [gradient[copy] for copy in range(copies) for gradient in own]


def grpo_loss(
    learner: Any,
    parameters: list[Tensor],
    observation: Tensor,
    allowed: Tensor | None,
    action: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    mask: Tensor,
    *reference_log_prob: Tensor,
) -> Loss:
    """Return `torchrl.objectives.llm.GRPOLoss` of ``grpo`` or ``dapo``, with the divergence and the entropy by hand."""
    from torchrl.objectives.llm import GRPOLoss

    class Given(GRPOLoss):
        """Theirs, of given log-probabilities instead of an actor's."""

        def _get_cur_log_prob(self, tensordict: TensorDict) -> tuple[Tensor, Any, bool]:
            return tensordict["own"], SimpleNamespace(mask=tensordict["mask"]), False

    config, weights = learner.config, [tensor.clone().requires_grad_() for tensor in parameters]
    outputs, own = learner.network.outputs(weights, observation, allowed)
    log_prob, entropy = (
        part.view(mask.shape).T for part in learner.network.head.evaluate(outputs, own, action.flatten(0, 1))
    )
    rules = config.rules.objective
    averaged = {"sequence_mean": "prompt_mean", "token_mean": "token_mean"}[rules.aggregation]
    batch = {
        "own": log_prob, "mask": mask.T, "advantage": advantage.T.unsqueeze(-1),
        ("tokens", "full"): torch.zeros(mask.T.shape), ("log_probs", "full"): old_log_prob.T,
    }  # fmt: skip
    module = Given(clip_epsilon=(rules.clip_low, rules.clip_high), aggregation=averaged, entropy_bonus=False)
    total = module(TensorDict(batch, batch_size=[mask.shape[1]])).loss_objective.squeeze()
    total = total - config.entropy_coef * entropy[mask.T].mean()
    if config.kl_coef:
        ratio = reference_log_prob[0].T - log_prob
        divergence = (ratio.exp() - 1 - ratio) * mask.T
        by_sequence = divergence.sum(1) / mask.T.sum(1)
        mean = by_sequence.mean() if averaged == "prompt_mean" else divergence.sum() / mask.sum()
        total = total + config.kl_coef * mean
    return total.item(), list(torch.autograd.grad(total, weights))


STEP = 5e-3
"""Of finite differences."""


def exact_loss(learner: Any, parameters: list[Tensor]) -> Loss:
    """Return the negative mean reward of the most probable actions, or of the worst rows, by finite differences."""
    env, config, weights = learner.env, learner.config, [tensor.clone() for tensor in parameters]
    start = env.state_dict()
    policy = ActorPolicy(learner.network, learner.moments, weights, deterministic=True)
    collector = FusedCollector(env, policy, config.num_steps)
    worst = max(1, round(config.worst * env.num_envs))

    def loss() -> float:
        env.load_state_dict(start)
        collector.rollout()
        return -float(collector.reward.double().mean(0).sort().values[:worst].mean())

    gradients = []
    for tensor in weights:
        gradient = torch.zeros_like(tensor)
        flat = tensor.view(-1)
        for place, value in enumerate(flat.tolist()):
            ends = []
            for moved in (value + STEP, value - STEP):
                flat[place] = moved
                ends.append(loss())
            flat[place] = value
            gradient.view(-1)[place] = (ends[0] - ends[1]) / (2 * STEP)
        gradients.append(gradient)
    return loss(), gradients
