"""Action heads: Gaussian and categorical distributions over the actions of a spec, from the actor's outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.core.random import EpisodeKey, EpisodeStream, box_muller, open_uniform, step_bits

FORBIDDEN = -1e9
"""Logit of a masked choice: its probability is 0, the others are exact, and gradients stay finite."""


def open_uniforms(key: EpisodeKey, elapsed: Tensor, count: int) -> tuple[Tensor, ...]:
    """Draw numbers in (0, 1) for one step: four tensors, the words of Philox. Shape: (N, ceil(count / 4))."""
    words = step_bits(key, EpisodeStream.POLICY, elapsed, -(-count // 4))
    return tuple(open_uniform(word, torch.float32) for word in words)


def standard_normals(key: EpisodeKey, elapsed: Tensor, count: int) -> Tensor:
    """Draw standard normal numbers for one step; see `open_uniforms`. Shape: (N, count), float32."""
    first, second, third, fourth = open_uniforms(key, elapsed, count)
    return torch.cat([*box_muller(first, second), *box_muller(third, fourth)], dim=-1)[:, :count]


class Head(Protocol):
    """Distribution of actions, parametrised by the actor's ``size`` outputs."""

    size: int

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return the bias of the last layer, shape (size,), and the head's own parameters."""
        ...

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the most probable actions. Shape: (B, *spec.shape)."""
        ...

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        """Draw actions. Shape: (B, *spec.shape)."""
        ...

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy. Shape of each: (B,)."""
        ...

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return the KL divergence KL(this | other) of two distributions of the head, in nats. Shape: (B,)."""
        ...


class GaussianHead:
    """Independent normal distributions with a state-independent standard deviation.

    Samples are unbounded; the environment clamps them. The initial mean is the centre of the bounds, the initial
    deviation ``initial_std`` times half their width. With ``shared_std`` there is one deviation for all components, so
    that the parameters do not depend on their number.
    """

    def __init__(self, spec: Bounded, initial_std: float, shared_std: bool = False) -> None:
        self.shape, self.size = spec.shape, spec.shape.numel()
        self.low, self.high = spec.space.low.flatten(), spec.space.high.flatten()
        self.initial_std, self.shared_std = initial_std, shared_std

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return the centre of the bounds and the logarithm of the deviation. Shapes: (size,), (size,) or (1,)."""
        centre, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        log_std = torch.log(self.initial_std * half)
        return centre.to(device), [(log_std[:1] if self.shared_std else log_std).to(device)]

    def mode(self, outputs: Tensor) -> Tensor:
        return outputs.reshape(-1, *self.shape)

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        noise = standard_normals(key, elapsed, self.size)
        return (outputs + own[0].exp() * noise).reshape(-1, *self.shape)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        log_std = own[0].expand(self.size)
        scaled = (action.flatten(1) - outputs) * torch.exp(-log_std)
        constant = log_std.sum() + 0.5 * self.size * math.log(2 * math.pi)
        entropy = constant + 0.5 * self.size
        return -0.5 * scaled.square().sum(-1) - constant, entropy.expand(len(outputs))

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return log(s' / s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2, summed over the components."""
        log_ratio = (others_own[0] - own[0]).expand(self.size)
        distance = (outputs - others) * torch.exp(-others_own[0])
        return (log_ratio + 0.5 * (torch.exp(-2.0 * log_ratio) + distance.square() - 1.0)).sum(-1)

    def divergence_from_centre(self, outputs: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Return half the squared distance of the means from the centre of the bounds, in deviations."""
        centre = ((self.high + self.low) / 2).to(outputs.device)
        return 0.5 * ((outputs - centre) * torch.exp(-own[0])).square().sum(-1)


class CategoricalHead:
    """One categorical distribution per component of the action.

    Choices whose logit is `FORBIDDEN` have probability 0: they are never drawn and add nothing to the entropy.
    """

    def __init__(self, spec: Categorical | MultiCategorical) -> None:
        self.shape, self.dtype = spec.shape, spec.dtype
        choices = spec.nvec.flatten().tolist() if isinstance(spec, MultiCategorical) else [spec.n] * spec.shape.numel()
        self.choices = [int(count) for count in choices]
        self.size = sum(self.choices)
        # Components in a repeating pattern, such as symbol and size of every order, are computed in one batch.
        self.pattern = shortest_pattern(self.choices)

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        return torch.zeros(self.size, device=device), []

    def _logits(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of each component of the pattern. Shape of each: (B, repetitions, choices)."""
        return outputs.unflatten(-1, (-1, sum(self.pattern))).split(self.pattern, dim=-1)

    def _stack(self, components: list[Tensor]) -> Tensor:
        return torch.stack(components, dim=-1).to(self.dtype).reshape(-1, *self.shape)

    def mode(self, outputs: Tensor) -> Tensor:
        return self._stack([logits.argmax(-1) for logits in self._logits(outputs)])

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        count = len(self.choices)
        uniforms = torch.cat(open_uniforms(key, elapsed, count), dim=-1)[:, :count]
        drawn = []
        for logits, uniform in zip(
            self._logits(outputs), uniforms.unflatten(-1, (-1, len(self.pattern))).unbind(-1), strict=True
        ):
            probability = logits.softmax(-1)
            before = probability.cumsum(-1) - probability
            # The last choice of non-zero probability whose cumulative sum before it is below the uniform number:
            # a rounded sum never selects a masked choice.
            reached = (before < uniform.unsqueeze(-1)) & (probability > 0)
            index = torch.arange(logits.shape[-1], device=logits.device)
            drawn.append(torch.where(reached, index, 0).amax(-1))
        return self._stack(drawn)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, summed over the components."""
        chosen = action.reshape(len(outputs), -1, len(self.pattern)).to(torch.int64).unbind(-1)
        log_prob, entropy = outputs.new_zeros(len(outputs)), outputs.new_zeros(len(outputs))
        for logits, choice in zip(self._logits(outputs), chosen, strict=True):
            log_probability = logits.log_softmax(-1)
            log_prob = log_prob + log_probability.gather(-1, choice.unsqueeze(-1)).sum((-2, -1))
            entropy = entropy - (log_probability.exp() * log_probability).sum((-2, -1))
        return log_prob, entropy

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return sum p log(p / p'), summed over the components; forbidden choices add nothing."""
        total = outputs.new_zeros(len(outputs))
        for logits, other in zip(self._logits(outputs), self._logits(others), strict=True):
            log_probability = logits.log_softmax(-1)
            difference = log_probability - other.log_softmax(-1)
            total = total + (log_probability.exp() * difference).sum((-2, -1))
        return total


def shortest_pattern(counts: Sequence[int]) -> list[int]:
    """Return the shortest prefix of which a sequence is a repetition."""
    for length in range(1, len(counts) + 1):
        pattern = list(counts[:length])
        if pattern * (len(counts) // length) == list(counts):
            return pattern
    raise ValueError("an action needs at least one component")


def make_head(spec: TensorSpec, initial_std: float, shared_std: bool = False) -> Head:
    """Return the head for an action spec, with the settings of `GaussianHead`; TypeError of an unknown kind."""
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        return GaussianHead(spec, initial_std, shared_std)
    if isinstance(spec, Categorical | MultiCategorical):
        return CategoricalHead(spec)
    raise TypeError(f"no head for actions of {type(spec).__name__} with dtype {spec.dtype}")
