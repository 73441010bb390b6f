"""Actor and critic as pure functions of a list of parameters, and the actor as the collector's policy."""

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
"""Standard deviations from the mean at which observations are cut off."""


class ActorCritic:
    """Two separate tanh networks. Holds shapes only; every method is a pure function of the parameters.

    The actor's parameters are a weight and a bias per layer, then the head's own; the critic's likewise.

    Args:
        observation_size: D.
        head: of the actor.
        hidden: widths of the hidden layers.
        bf16: multiply in bfloat16 in the hidden layers; weights, heads and everything after stay float32.
        mask: says which choices of a categorical action are allowed: a function of the observation as it is, before
            it is normalised, as `vecenv.core.scenario.Scenario.action_mask`.
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
        """Return parameters of actor and critic: orthogonal, the actor's last layer small, biases zero."""
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
        """Return the outputs that the head reads, shape (B, size), and the head's own parameters.

        Args:
            actor: its parameters.
            observation: normalised. Shape: (B, D).
            allowed: what ``mask`` returned; None allows all. Shape: (B, size), bool.

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
    """Return the architecture for an environment.

    Args:
        env: gives the sizes, the kind of head and the mask.
        hidden: widths of the hidden layers.
        initial_std: of continuous actions, as in `vecenv.learn.heads.GaussianHead`.
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
    """The actor as the collector sees it; the observations' moments are among its parameters.

    Args:
        network: architecture.
        moments: mean and standard deviation of observations. Shape of each: (D,).
        actor: parameters of the actor.
        deterministic: take the likeliest action instead of a sample, and return no log-probability.
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
        """Return actions and, of sampled ones, log-probabilities. Shapes: (N, *spec.shape), (N,)."""
        mean, deviation, *actor = parameters
        head = self.network.head
        allowed = self.network.mask(observation)
        outputs, own = self.network.outputs(actor, normalised(observation, mean, deviation), allowed)
        if self.deterministic:
            return (head.mode(outputs),)
        action = head.sample(outputs, own, key, elapsed)
        return action, head.evaluate(outputs, own, action)[0]
