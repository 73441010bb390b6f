"""Actor and critic MLPs as pure functions of a list of parameters, and the actor as the collector's policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from vecenv.core.env import VecEnv
from vecenv.core.random import EpisodeKey
from vecenv.learn.heads import FORBIDDEN, Head, make_head

OBSERVATION_CLIP = 10.0
"""Clipping bound of normalised observations in standard deviations."""


class ActorCritic:
    """Two separate tanh MLPs. Holds shapes only; every method is a pure function of the parameters.

    Parameters are a weight and a bias per layer; for the actor, then those of the head.

    Args:
        observation_size: D.
        head: of the actor.
        hidden: widths of the hidden layers.
        bf16: multiply in bfloat16 in the hidden layers; weights, last layers and all later operations are float32.
        mask: action mask of categorical actions as a function of the raw observation, such as
            `vecenv.core.scenario.Scenario.action_mask`.
    """

    def __init__(
        self,
        observation_size: int,
        head: Head,
        hidden: Sequence[int],
        bf16: bool,
        mask: Callable[[Tensor], Tensor | None],
    ) -> None:
        self.observation_size, self.head, self.hidden, self.bf16 = observation_size, head, tuple(hidden), bf16
        self.mask = mask
        self.layers = len(self.hidden) + 1

    def initial_parameters(self, generator: torch.Generator, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
        """Return parameters of actor and critic: orthogonal, the actor's last gain 0.01, biases zero or of the head."""
        bias, own = self.head.initial_parameters(device)
        actor = [*self._orthogonal(self.head.size, 0.01, generator, device)[:-1], bias, *own]
        return actor, self._orthogonal(1, 1.0, generator, device)

    def _orthogonal(
        self, outputs: int, last_gain: float, generator: torch.Generator, device: torch.device
    ) -> list[Tensor]:
        sizes = [self.observation_size, *self.hidden, outputs]
        gains = [math.sqrt(2.0)] * len(self.hidden) + [last_gain]
        parameters = []
        for inputs, width, gain in zip(sizes[:-1], sizes[1:], gains, strict=True):
            weight = torch.empty(width, inputs)
            torch.nn.init.orthogonal_(weight, gain, generator=generator)
            parameters += [weight.to(device), torch.zeros(width, device=device)]
        return parameters

    def _network(self, parameters: Sequence[Tensor], observation: Tensor) -> Tensor:
        kind = torch.bfloat16 if self.bf16 else torch.float32
        values = observation
        for layer in range(self.layers - 1):
            weight, bias = parameters[2 * layer : 2 * layer + 2]
            values = torch.tanh(linear(values.to(kind), weight.to(kind), bias.to(kind)).float())
        return linear(values, *parameters[2 * self.layers - 2 : 2 * self.layers])

    def outputs(
        self, actor: Sequence[Tensor], observation: Tensor, allowed: Tensor | None = None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the inputs of the head, shape (B, size), and the head's parameters.

        Args:
            actor: parameters of the actor.
            observation: normalised. Shape: (B, D).
            allowed: result of ``mask``; None allows all. Shape: (B, size), bool.

        Raises:
            ValueError: the mask has another shape.
        """
        outputs = self._network(actor, observation)
        if allowed is not None:
            if allowed.shape != outputs.shape:
                raise ValueError(f"an action mask must have shape {tuple(outputs.shape)}, got {tuple(allowed.shape)}")
            outputs = torch.where(allowed, outputs, FORBIDDEN)
        return outputs, actor[2 * self.layers :]

    def value(self, critic: Sequence[Tensor], observation: Tensor) -> Tensor:
        """Return values. Shapes: (B, D) -> (B,)."""
        return self._network(critic, observation).squeeze(-1)


def make_network(env: VecEnv, hidden: Sequence[int], initial_std: float, bf16: bool) -> ActorCritic:
    """Return the actor and critic architecture for an environment.

    Args:
        env: determines sizes, head and action mask.
        hidden: widths of the hidden layers.
        initial_std: of continuous actions, see `vecenv.learn.heads.GaussianHead`.
        bf16: multiply in bfloat16 in the hidden layers.

    Raises:
        TypeError: there is no head for the environment's actions.
    """
    head = make_head(env.scenario.action_spec, initial_std)
    return ActorCritic(sum(env.block_widths), head, hidden, bf16, env.scenario.action_mask)


def normalised(observation: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return observations in standard deviations from the mean, clipped. Shape: (B, D)."""
    return ((observation - mean) / deviation).clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP)


class ActorPolicy:
    """The actor as the collector's policy; its parameters include the observations' moments.

    Args:
        network: architecture.
        moments: mean and standard deviation of observations. Shape of each: (D,).
        actor: parameters of the actor.
        deterministic: return the most probable action instead of a sample, without log-probability.
    """

    def __init__(
        self, network: ActorCritic, moments: list[Tensor], actor: list[Tensor], deterministic: bool = False
    ) -> None:
        self.network, self.deterministic = network, deterministic
        self.parameters = [*moments, *actor]
        self.extras: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        if not deterministic:
            self.extras = {"log_prob": ((), torch.float32)}

    def act(
        self, parameters: list[Tensor], observation: Tensor, key: EpisodeKey, elapsed: Tensor
    ) -> tuple[Tensor, ...]:
        """Return actions and, if sampled, log-probabilities. Shapes: (N, *spec.shape), (N,)."""
        mean, deviation, *actor = parameters
        head = self.network.head
        allowed = self.network.mask(observation)
        outputs, own = self.network.outputs(actor, normalised(observation, mean, deviation), allowed)
        if self.deterministic:
            return (head.mode(outputs),)
        action = head.sample(outputs, own, key, elapsed)
        return action, head.evaluate(outputs, own, action)[0]
