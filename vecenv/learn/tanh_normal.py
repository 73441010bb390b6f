"""Action head of the normal distribution squashed into bounds by tanh."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torchrl.data import TensorSpec

from vecenv.core.random import EpisodeKey
from vecenv.learn.bounds import Bounds
from vecenv.learn.heads import standard_normals

LEAST_STD = 1e-3
"""Least standard deviation before squashing, so that densities stay finite."""

LARGEST = 1 - 1e-6
"""Largest magnitude of an action, in half widths of its bounds, whose density is evaluated."""


class TanhNormalHead:
    """Normal distributions with a deviation of their own in every state, squashed into finite bounds by tanh.

    Haarnoja et al., "Soft actor-critic", ICML 2018, appendix C. The outputs are means, then deviations before softplus.
    """

    def __init__(self, spec: TensorSpec, initial_std: float) -> None:
        self.bounds, self.initial_std = Bounds(spec), initial_std
        self.size = 2 * self.bounds.size

    def initial_parameters(self, device: torch.device) -> tuple[Tensor, list[Tensor]]:
        """Return zeros and what softplus takes to the deviation, and no further parameters. Shape: (size,)."""
        bias = torch.zeros(self.size, device=device)
        bias[self.bounds.size :] = math.log(math.expm1(self.initial_std))
        return bias, []

    def parts(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and deviation before squashing. Shape of each: (B, size / 2)."""
        mean, deviation = outputs.chunk(2, dim=-1)
        return mean, softplus(deviation) + LEAST_STD

    def mode(self, outputs: Tensor) -> Tensor:
        return self.bounds.action(torch.tanh(self.parts(outputs)[0]))

    def sample(self, outputs: Tensor, own: Sequence[Tensor], key: EpisodeKey, elapsed: Tensor) -> Tensor:
        noise = standard_normals(key, elapsed, self.bounds.size)
        return self.bounds.action(self.units(outputs, noise)[0])

    def units(self, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions in half widths, differentiable in the outputs, and their log-density in that unit.

        Shapes: (B, size), standard normal noise (B, size / 2) -> (B, size / 2), (B,).
        """
        mean, deviation = self.parts(outputs)
        raw = mean + deviation * noise
        return torch.tanh(raw), self._log_density(raw, noise, deviation)

    def evaluate(self, outputs: Tensor, own: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-density, and its negative as an estimate of the entropy, which has no closed form."""
        mean, deviation = self.parts(outputs)
        raw = torch.atanh(self.bounds.units(action).clamp(-LARGEST, LARGEST))
        log_prob = self._log_density(raw, (raw - mean) / deviation, deviation) - self.bounds.half.log().sum()
        return log_prob, -log_prob

    def divergence(
        self, outputs: Tensor, own: Sequence[Tensor], others: Tensor, others_own: Sequence[Tensor]
    ) -> Tensor:
        """Return that of the normal distributions, which squashing both alike does not change."""
        (mean, deviation), (other_mean, other_deviation) = self.parts(outputs), self.parts(others)
        ratio, distance = deviation / other_deviation, (mean - other_mean) / other_deviation
        return (0.5 * (ratio.square() + distance.square() - 1.0) - ratio.log()).sum(-1)

    def _log_density(self, raw: Tensor, noise: Tensor, deviation: Tensor) -> Tensor:
        """Return that of the squashed numbers, eq. 21 of the paper with the stable form of log(1 - tanh^2)."""
        normal = -0.5 * noise.square() - deviation.log() - 0.5 * math.log(2 * math.pi)
        return (normal - 2.0 * (math.log(2.0) - raw - softplus(-2.0 * raw))).sum(-1)
