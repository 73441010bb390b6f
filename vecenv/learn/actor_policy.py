"""The actor as the collector's policy, and the choice of its network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.core.scenario import Scenario
from vecenv.learn.dirichlet import DirichletHead
from vecenv.learn.heads import Head, make_head
from vecenv.learn.item_network import ItemNetwork
from vecenv.learn.learner_config import NetworkConfig
from vecenv.learn.networks import FlatNetwork, Network
from vecenv.learn.tanh_normal import TanhNormalHead


def make_network(env: VecEnv, config: NetworkConfig) -> Network:
    """Return the actor and critic architecture for an environment.

    Raises:
        TypeError: there is no head for the environment's actions.
        ValueError: the policy of items or the head that the settings name does not fit the task's actions.
    """
    scenario = env.scenario
    size = sum(env.block_widths)
    head = _head(scenario, config, env.device)
    if config.policy == "flat":
        return FlatNetwork(size, head, config.hidden, config.bf16, scenario.action_mask)
    example = scenario.items(torch.zeros(1, size, device=env.device))
    if example is None:
        raise ValueError(f"policy {config.policy!r} needs a task with items, such as symbols; use policy flat")
    attention = config.policy == "attention"
    return ItemNetwork(scenario.items, example, head, config.hidden, attention, config.bf16, scenario.action_mask)


def _head(scenario: Scenario[Any], config: NetworkConfig, device: torch.device) -> Head:
    """Return the head that the settings name; policies of items share one deviation."""
    shared_std = config.policy != "flat"
    if config.head == "gaussian":
        return make_head(scenario.action_spec, config.initial_std, shared_std)
    if config.head == "tanh_normal":
        return TanhNormalHead(scenario.action_spec.to(device), config.initial_std)
    if not scenario.target_weights:
        spec = scenario.action_spec
        raise ValueError(
            f"head {config.head!r} needs actions that are target weights (`Scenario.target_weights`); "
            f"those of {scenario.name!r} here are {type(spec).__name__} of shape {tuple(spec.shape)}"
        )
    return DirichletHead(scenario.action_spec, config.initial_std)


class ActorPolicy:
    """The actor as the collector's policy; ``moments`` are mean and deviation of the inputs. Shape of each: (M,)."""

    def __init__(
        self, network: Network, moments: list[Tensor], actor: list[Tensor], deterministic: bool = False
    ) -> None:
        self.network, self.deterministic = network, deterministic
        self.parameters = [*moments, *actor]
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        if not deterministic:
            self.extras = {"log_prob": ((), torch.float32)}

    def with_network(self, network: Network) -> ActorPolicy:
        """Return the policy on a network for another number of items, with the same parameters."""
        mean, deviation, *actor = self.parameters
        return ActorPolicy(network, [mean, deviation], actor, self.deterministic)

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return actions and, if sampled, log-probabilities. Shapes: (N, *spec.shape), (N,)."""
        mean, deviation, *actor = parameters
        head = self.network.head
        allowed = self.network.mask(observation)
        outputs, own = self.network.outputs(actor, self.network.normalised(observation, mean, deviation), allowed)
        if self.deterministic:
            return (head.mode(outputs),)
        action = head.sample(outputs, own, key, elapsed)
        return action, head.evaluate(outputs, own, action)[0]
