"""Running mean and variance over batches, on the device."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

RELATIVE_FLOOR = 1e-5
"""Standard deviations below this fraction of the mean count as rounding of a constant."""
ABSOLUTE_FLOOR = 1e-8
CHUNK = 8192
"""Samples per partial sum: few enough for the CPU cache, many enough for a GPU."""


class RunningMoments:
    """Merges the moments of batches: Chan, Golub and LeVeque, "Updating formulae ... for sample variances", 1979.

    Args:
        shape: of one sample.
        device: where the moments live.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device)

    def update(self, samples: Tensor) -> None:
        """Add a batch. Shape: (B, *shape)."""
        # Sums relative to the first sample: exactly 0 for a constant, no loss of precision for a large mean.
        origin = samples[0]
        total, squares = torch.zeros_like(self.mean), torch.zeros_like(self.mean)
        for part in samples.split(CHUNK):
            shifted = part - origin
            total += shifted.sum(0)
            squares += shifted.square_().sum(0)
        squares -= total.square() / len(samples)
        count = self.count + len(samples)
        difference = origin + total / len(samples) - self.mean
        self.squares += squares.clamp(min=0.0) + difference.square() * (self.count * len(samples) / count)
        self.mean += difference * (len(samples) / count)
        self.count.copy_(count)

    def deviation(self) -> Tensor:
        """Return the standard deviation, 1 where samples are constant or absent. Shape: ``shape``, float64."""
        deviation = (self.squares / self.count.clamp(min=1.0)).sqrt()
        varies = deviation > RELATIVE_FLOOR * self.mean.abs() + ABSOLUTE_FLOOR
        return torch.where(varies, deviation, 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the moments."""
        return {name: getattr(self, name).clone() for name in ("count", "mean", "squares")}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Resume from a `state_dict`."""
        for name, value in state_dict.items():
            getattr(self, name).copy_(value)
