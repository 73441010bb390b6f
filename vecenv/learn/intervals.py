"""Means with 95% intervals: bootstraps over groups of what is not independent, and Student's t."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

DRAWS = 2000
"""Bootstrap resamples: the bounds of a 95% interval are the 50th lowest and highest."""

LARGEST_PERCENT = 1e4
"""Percentages are shown up to this one: those of an account near nothing are divided by nearly nothing."""


class Interval(NamedTuple):
    """A mean with its 95% confidence interval; NaN bounds with too few groups."""

    mean: float
    low: float
    high: float


def jackknife_interval(values: Tensor, groups: Tensor) -> Interval:
    """Return the mean with the 95% interval of `jackknife`, of values and their groups, both of shape (N,)."""
    group = groups.unique(return_inverse=True)[1]
    sums, counts = torch.bincount(group, values.double()), torch.bincount(group)
    return jackknife(float(values.mean()), (sums.sum() - sums) / (len(values) - counts))


def of_grades(interval: Interval) -> Interval:
    """Return the interval of a mean grade with bounds in [0, 1], as grades are."""
    mean, low, high = interval
    # In this order, by which a bound that is not a number stays that.
    return Interval(mean, max(low, 0.0), min(high, 1.0))


def jackknife(mean: float, without: Tensor) -> Interval:
    """Return the 95% interval of a mean, given the means without each of G groups. Shape: (G,), float64.

    The variance is the delete-a-group jackknife's, (G - 1) / G Σ (θ₍g₎ - mean θ₍.₎)² (Künsch 1989; Kott 2001); the
    margin is its root times the 97.5% quantile of Student's t with G - 1 degrees of freedom. Bounds are NaN with fewer
    than three groups.
    """
    count = len(without)
    if count < 3:
        return Interval(mean, math.nan, math.nan)
    error = math.sqrt((count - 1) / count * float((without - without.mean()).square().sum()))
    margin = student_quantile(count - 1) * error
    return Interval(mean, mean - margin, mean + margin)


def bootstrap_interval(values: Tensor, groups: Tensor, seed: int = 0) -> Interval:
    """Return the mean with the 95% percentile interval of a cluster bootstrap over groups. Shape of both: (N,).

    Efron, "Bootstrap methods", Annals of Statistics 7(1), 1979; Künsch, "The jackknife and the bootstrap for general
    stationary observations", Annals of Statistics 17(3), 1989. Episodes of a group share market days; see
    `vecenv.finance.metrics.independent_groups`. Bounds are NaN with fewer than three groups.
    """
    numbered = groups.cpu().unique(return_inverse=True)[1]
    rows = torch.stack([values.double().cpu(), torch.ones(len(values), dtype=torch.float64)], 1)
    sums = torch.zeros(int(numbered.max()) + 1, 2, dtype=torch.float64).index_add(0, numbered, rows)
    return bootstrap_of_sums(sums, lambda drawn: drawn[..., 0] / drawn[..., 1], seed)


def bootstrap_of_sums(sums: Tensor, statistic: Callable[[Tensor], Tensor], seed: int = 0) -> Interval:
    """Return a statistic of sums (G, K) over groups, with the 95% percentile interval of a bootstrap over the groups.

    The statistic maps (..., K) to (...). Bounds are NaN with fewer than three groups.
    """
    count, value = len(sums), float(statistic(sums.sum(0)))
    if count < 3:
        return Interval(value, math.nan, math.nan)
    drawn = torch.randint(count, (DRAWS, count), generator=torch.Generator().manual_seed(seed))
    values = statistic(sums[drawn].sum(1))
    low, high = values.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(value, low, high)


def correlation_of_sums(sums: Tensor) -> Tensor:
    """Return the correlation from sums of 1, x, y, x², y², xy; 0 for a constant. Shape: (..., 6) -> (...)."""
    count, x, y, xx, yy, xy = sums.unbind(-1)
    covariance = xy - x * y / count
    variances = (xx - x * x / count) * (yy - y * y / count)
    return torch.where(variances > 0, covariance / variances.clamp(min=1e-12).sqrt(), 0.0)


def student_quantile(degrees: float) -> float:
    """Return the 97.5% quantile of Student's t (Abramowitz and Stegun 26.7.5), within 1% for 3 degrees or more."""
    z = NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (power + 1) for power, term in enumerate(terms))


@cache
def expected_maximum(count: int) -> float:
    """Return the expected maximum of independent standard normal numbers, 0 of one.

    It is the integral of x n φ(x) Φ(x)^(n - 1) (David and Nagaraja, "Order Statistics", 3rd edition, 2003, section
    3.1), of which the formula of Bailey and López de Prado is the limit for many.
    """
    if count < 2:
        return 0.0
    place = torch.linspace(-12.0, 12.0, 4801, dtype=torch.float64)
    density = torch.exp(-place.square() / 2) / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(place * count * density * torch.special.ndtr(place) ** (count - 1), place))


def standard_error(interval: Interval) -> float:
    """Return the standard error of a normal mean with this 95% interval."""
    return (interval.high - interval.low) / (2 * NormalDist().inv_cdf(0.975))


def interval_json(interval: Interval) -> dict[str, float | None]:
    """Return mean and bounds by name, None for NaN, which JSON lacks."""
    return {name: or_none(value) for name, value in interval._asdict().items()}


def or_none(value: float) -> float | None:
    """Return None for NaN, which JSON lacks."""
    return None if math.isnan(value) else value


def interval_text(interval: Interval, scale: float = 100.0, decimals: int = 1) -> str:
    """Format the bounds of an interval, in percent by default."""
    if math.isnan(interval.low):
        return "too few"
    return f"{scaled_text(interval.low, scale, decimals)} … {scaled_text(interval.high, scale, decimals)}"


def scaled_text(value: float, factor: float, decimals: int = 2) -> str:
    """Format a number times 1, or a share in percent."""
    scaled = factor * value
    if factor > 1 and abs(scaled) > LARGEST_PERCENT:
        return f"{'>' if scaled > 0 else '<-'}{LARGEST_PERCENT:,.0f}"
    return short_text(scaled, decimals)


def short_text(value: float, decimals: int = 2) -> str:
    """Format a number: fixed decimals below 10,000, whole ones below a billion, else two digits; a dash if unknown."""
    if math.isnan(value):
        return "–"
    if abs(value) < 1e4:
        return f"{value:.{decimals}f}"
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"
