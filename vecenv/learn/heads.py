"""What turns an actor's outputs into actions: a head for each kind of action spec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical, TensorSpec

from vecenv.engine import ACTION_STREAM
from vecenv.random import EpisodeKey, box_muller, open_uniform, random_bits

POLICY_STREAM = ACTION_STREAM + 1
"""Random stream of a policy's draws."""


def open_uniforms(key: EpisodeKey, elapsed: Tensor, count: int) -> tuple[Tensor, ...]:
    """Draw uniform numbers for one step, every word of ceil(count / 4) blocks of Philox.

    Args:
        key: of the episodes. Shape of each word: (N,).
        elapsed: steps taken in the episode. Shape: (N,).
        count: numbers wanted per row.

    Returns:
        Four tensors in (0, 1), float32. Shape of each: (N, ceil(count / 4)).
    """
    blocks = -(-count // 4)
    wide = EpisodeKey(*(word.unsqueeze(-1) for word in key))
    index = elapsed.unsqueeze(-1) * blocks + torch.arange(blocks, device=elapsed.device)
    return tuple(open_uniform(word, torch.float32) for word in random_bits(wide, POLICY_STREAM, index))


class Head(Protocol):
    """Turns the actor's outputs into actions.

    Attributes:
        size: number of outputs.
    """

    size: int

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return the bias of the last layer, shape (size,), and the head's own parameters."""
        ...

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the likeliest actions. Shape: (B, *spec.shape)."""
        ...

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        """Draw actions. Shape: (B, *spec.shape)."""
        ...

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy. Shape of each: (B,)."""
        ...


class GaussianHead:
    """Independent normal distributions with a standard deviation that does not depend on the observation.

    Samples are not bounded: the environment clamps them. Mean and deviation start at the centre of the bounds and
    at ``initial_std`` times half their width.

    Args:
        spec: of one agent's action.
        initial_std: initial standard deviation relative to half the width of the bounds.
    """

    def __init__(self, spec: Bounded, initial_std: float) -> None:
        self.shape, self.size = spec.shape, spec.shape.numel()
        self.low, self.high = spec.space.low.flatten(), spec.space.high.flatten()
        self.initial_std = initial_std

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return the centre of the bounds and the logarithm of the deviation. Shape of each: (size,)."""
        centre, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        return centre.to(device), [torch.log(self.initial_std * half).to(device)]

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the means."""
        return outputs.reshape(-1, *self.shape)

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        """Draw actions."""
        first, second, third, fourth = open_uniforms(key, elapsed, self.size)
        noise = torch.cat([*box_muller(first, second), *box_muller(third, fourth)], dim=-1)[:, : self.size]
        return (outputs + own[0].exp() * noise).reshape(-1, *self.shape)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density and entropy."""
        log_std = own[0]
        scaled = (action.flatten(1) - outputs) * torch.exp(-log_std)
        constant = log_std.sum() + 0.5 * self.size * math.log(2 * math.pi)
        entropy = constant + 0.5 * self.size
        return -0.5 * scaled.square().sum(-1) - constant, entropy.expand(len(outputs))


class CategoricalHead:
    """One categorical distribution per component of the action.

    Args:
        spec: of one agent's action.
    """

    def __init__(self, spec: Categorical | MultiCategorical) -> None:
        self.shape, self.dtype = spec.shape, spec.dtype
        choices = spec.nvec.flatten().tolist() if isinstance(spec, MultiCategorical) else [spec.n] * spec.shape.numel()
        self.choices = [int(count) for count in choices]
        self.size = sum(self.choices)

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return zero logits; there are no parameters of its own."""
        return torch.zeros(self.size, device=device), []

    def _log_probabilities(self, outputs: Tensor) -> list[Tensor]:
        return [logits.log_softmax(-1) for logits in outputs.split(self.choices, dim=-1)]

    def _stack(self, components: list[Tensor]) -> Tensor:
        return torch.stack(components, dim=-1).to(self.dtype).reshape(-1, *self.shape)

    def mode(self, outputs: Tensor) -> Tensor:
        """Return the likeliest choices."""
        return self._stack([logits.argmax(-1) for logits in outputs.split(self.choices, dim=-1)])

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        """Draw choices by inverting the distribution functions."""
        uniforms = torch.cat(open_uniforms(key, elapsed, len(self.choices)), dim=-1)
        drawn = []
        for component, log_probability in enumerate(self._log_probabilities(outputs)):
            # Without the last entry, which rounding may leave below 1.
            distribution = log_probability.exp().cumsum(-1)[:, :-1]
            drawn.append((uniforms[:, component : component + 1] > distribution).sum(-1))
        return self._stack(drawn)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy, summed over the components."""
        chosen = action.reshape(len(outputs), -1, 1).to(torch.int64)
        log_prob, entropy = outputs.new_zeros(len(outputs)), outputs.new_zeros(len(outputs))
        for component, log_probability in enumerate(self._log_probabilities(outputs)):
            log_prob = log_prob + log_probability.gather(-1, chosen[:, component]).squeeze(-1)
            entropy = entropy - (log_probability.exp() * log_probability).sum(-1)
        return log_prob, entropy


def make_head(spec: TensorSpec, initial_std: float) -> Head:
    """Return the head for an action spec.

    Raises:
        TypeError: there is none for this kind of spec.
    """
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        return GaussianHead(spec, initial_std)
    if isinstance(spec, Categorical | MultiCategorical):
        return CategoricalHead(spec)
    raise TypeError(f"no head for actions of {type(spec).__name__} with dtype {spec.dtype}")
