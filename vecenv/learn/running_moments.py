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


def batch_moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sum of squared distances from the mean of a batch, float64. Shapes: (B, ...) -> (...) each."""
    # Sums relative to the first sample: exactly 0 for a constant, no loss of precision for a large mean.
    origin = samples[0]
    total, squares = (torch.zeros_like(origin, dtype=torch.float64) for _ in range(2))
    for part in samples.split(CHUNK):
        shifted = part - origin
        total += shifted.sum(0)
        squares += shifted.square_().sum(0)
    squares -= total.square() / len(samples)
    return origin + total / len(samples), squares


def table_moments(table: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return `batch_moments` of rows (B,) of a table (R, M), each perhaps many times, without copying them."""
    # Exact in any order, and unlike bincount without a meeting of host and device.
    times = table.new_zeros(len(table), dtype=torch.float64).index_add_(0, rows, torch.ones_like(rows).double())
    origin = table[rows[:1]].squeeze(0)
    total, squares = (torch.zeros_like(origin, dtype=torch.float64) for _ in range(2))
    for part, often in zip(table.split(CHUNK), times.split(CHUNK), strict=True):
        shifted = (part - origin).double()
        total += often @ shifted
        squares += often @ shifted.square_()
    squares -= total.square() / len(rows)
    return origin + total / len(rows), squares


class RunningMoments:
    """Merges the moments of batches: Chan, Golub and LeVeque, "Updating formulae ... for sample variances", 1979."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.count = torch.zeros((), dtype=torch.float64, device=device)
        self.mean = torch.zeros(shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros(shape, dtype=torch.float64, device=device)

    def update(self, samples: Tensor) -> None:
        """Add a batch. Shape: (B, *shape)."""
        self.merge(len(samples), *batch_moments(samples))

    def merge(self, number: int, mean: Tensor, squares: Tensor) -> None:
        """Add a batch given by its number, mean and sum of squared distances from the mean, float64."""
        count, difference = self.count + number, mean - self.mean
        self.squares += squares.clamp(min=0.0) + difference.square() * (self.count * number / count)
        self.mean += difference * (number / count)
        self.count.copy_(count)

    def deviation(self) -> Tensor:
        """Return the standard deviation, 1 where samples are constant or absent. Shape: ``shape``, float64."""
        deviation = (self.squares / self.count.clamp(min=1.0)).sqrt()
        varies = deviation > RELATIVE_FLOOR * self.mean.abs() + ABSOLUTE_FLOOR
        return torch.where(varies, deviation, 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in ("count", "mean", "squares")}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        for name, value in state_dict.items():
            getattr(self, name).copy_(value)
