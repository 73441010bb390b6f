"""Distributions of returns: volatility, shape and tails, and distances from the real ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vecenv.worldmodel.metrics.windows import Windows, deviation, present_values, standardise, stock_moments

TAIL_SHARE, WIDE_TAIL_SHARE = 0.01, 0.025
"""Tail shares of the tail indices."""


class VolatilityRatios(NamedTuple):
    """Standard deviations of generated returns over those of real ones.

    Pooled in units of each stock's scale, of the mean return of all stocks, and the median, 5% and 95% quantile of the
    stocks' own ratios.
    """

    pooled: float
    market: float
    stock_median: float
    stock_low: float
    stock_high: float


class Distances(NamedTuple):
    """Distances of two samples: Kolmogorov-Smirnov's, and Wasserstein's of order 1."""

    ks: float
    wasserstein: float


class ReturnShape(NamedTuple):
    """Medians over stocks of the excess kurtosis and the skew of daily returns."""

    excess_kurtosis: float
    skew: float


class TailIndices(NamedTuple):
    """Hill's index of standardised returns, lower if heavier: largest 1% and 2.5% in magnitude, and lowest 1%."""

    both: float
    both_wide: float
    left: float


def volatility_ratios(real: Windows, synthetic: Windows) -> VolatilityRatios:
    """Compare the volatility of generated and real returns."""
    ratios = stock_moments(synthetic.returns)[1] / stock_moments(real.returns)[1]
    quantiles = torch.tensor([0.5, 0.05, 0.95], dtype=ratios.dtype, device=ratios.device)
    return VolatilityRatios(
        deviation(synthetic.standardised) / deviation(real.standardised),
        deviation(synthetic.market) / deviation(real.market),
        *ratios.nanquantile(quantiles).tolist(),
    )


def sample_distances(real: Tensor, synthetic: Tensor) -> Distances:
    """Return the distances of two samples, both exact; NaN is left out.

    Raises:
        ValueError: there is no value, or the number of synthetic values is not a multiple of that of real ones.
    """
    generated, observed = _ascending(synthetic), _ascending(real.to(synthetic.dtype))
    count, total = len(observed), len(generated)
    if count == 0 or total == 0 or total % count:
        raise ValueError(f"distances need a multiple of the {count} real values, got {total} synthetic ones")
    # Between two real values the real distribution function is constant: the largest difference is at an end.
    ks = 0.0
    for right in (False, True):
        ranks = [torch.searchsorted(sample, observed, right=right).double() for sample in (generated, observed)]
        ks = max(ks, float((ranks[0] / total - ranks[1] / count).abs().max()))
    area = (generated.reshape(count, -1) - observed[:, None]).abs().mean(dtype=torch.float64)
    return Distances(ks, float(area))


def horizon_distances(real: Windows, synthetic: Windows, days: int) -> Distances:
    """Return the distances of disjoint sums of standardised returns, Wasserstein's in deviations of the real sums."""
    sums = real.sums(days)
    distances = sample_distances(sums, synthetic.sums(days))
    return Distances(distances.ks, distances.wasserstein / deviation(sums))


def return_shape(windows: Windows) -> ReturnShape:
    """Return the excess kurtosis and skew of the windows' returns, about each stock's mean."""
    z = standardise(windows.returns).flatten(0, -2)
    fourth, third = (z.pow(power).nanmean(0, dtype=torch.float64).nanmedian() for power in (4, 3))
    return ReturnShape(float(fourth) - 3.0, float(third))


def tail_indices(windows: Windows) -> TailIndices:
    """Return the tail indices of all stocks' standardised returns."""
    z = present_values(standardise(windows.returns))
    few, many = (max(2, int(share * len(z))) for share in (TAIL_SHARE, WIDE_TAIL_SHARE))
    largest = z.abs().topk(many).values
    return TailIndices(hill_index(largest[:few]), hill_index(largest), hill_index((-z).topk(few).values))


def hill_index(largest: Tensor) -> float:
    """Return 1 / mean log(z_j / z_k) over the k largest values, descending (Hill, Annals of Statistics 3(5), 1975)."""
    return float(1.0 / (largest / largest[-1]).log().mean(dtype=torch.float64))


def _ascending(values: Tensor) -> Tensor:
    """Sort non-NaN values; NumPy's sort of float32 is twenty times as fast as torch's."""
    return torch.from_numpy(np.sort(present_values(values).numpy()))
