"""What separates skill from luck over many episodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import torch
from torch import Tensor

from vecenv.metrics import Interval

DRAWS = 2000
"""Resamples of a bootstrap: the ends of a 95% interval are then its 50th lowest and highest."""

_EULER_MASCHERONI = 0.5772156649015329


def bootstrap_interval(values: Tensor, groups: Tensor, seed: int = 0) -> Interval:
    """Return the mean with the 95% percentile interval of a bootstrap that draws whole groups (Efron 1979; Künsch 1989).

    Args:
        values: one per episode. Shape: (N,).
        groups: episodes of a group share market days; from `vecenv.metrics.independent_groups`. Shape: (N,), int64.
        seed: of the draws.

    Returns:
        NaN bounds with fewer than three groups.
    """
    values = values.double().cpu()
    numbered = groups.cpu().unique(return_inverse=True)[1]
    count = int(numbered.max()) + 1
    mean = float(values.mean())
    if count < 3:
        return Interval(mean, math.nan, math.nan)
    sums = torch.zeros(count, dtype=torch.float64).index_add(0, numbered, values)
    sizes = torch.zeros(count, dtype=torch.float64).index_add(0, numbered, torch.ones_like(values))
    drawn = torch.randint(count, (DRAWS, count), generator=torch.Generator().manual_seed(seed))
    means = sums[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return Interval(mean, low, high)


def returns_by_day(returns: Tensor, lived: Tensor, path: Tensor, start_day: Tensor) -> Tensor:
    """Average the returns of all episodes that ran on the same day of the same path, so that no day counts twice.

    Args:
        returns: simple daily returns. Shape: (T, N).
        lived: whether the episode ran on the day. Shape: (T, N), bool.
        path: of each episode. Shape: (N,).
        start_day: of each episode. Shape: (N,).

    Returns:
        One number per day of the market that any episode saw. Shape: (days,), float64.
    """
    day = start_day + torch.arange(len(returns), device=path.device)[:, None]
    place = (path * (int(day.max()) + 1) + day)[lived].unique(return_inverse=True)[1]
    count = int(place.max()) + 1
    total = torch.zeros(count, dtype=torch.float64, device=path.device).index_add(0, place, returns[lived].double())
    return total / torch.bincount(place, minlength=count)


def deflated_sharpe(returns: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the probability that the true Sharpe ratio of each agent is above what the best of as many would show by luck.

    Bailey and López de Prado, "The Deflated Sharpe Ratio", Journal of Portfolio Management 40(5), 2014: the
    probabilistic Sharpe ratio with skewness and kurtosis against the expected maximum of as many trials as agents
    whose returns vary.

    Args:
        returns: by agent, daily returns of distinct days. Shape of each: (days,).

    Returns:
        By agent; NaN where the returns do not vary.
    """
    ratios: dict[str, float] = {}
    for name, series in returns.items():
        deviation = float(series.std()) if len(series) > 1 else 0.0
        ratios[name] = float(series.mean()) / deviation if deviation > 1e-12 else math.nan
    known = torch.tensor([ratio for ratio in ratios.values() if not math.isnan(ratio)], dtype=torch.float64)
    best_by_luck = 0.0
    if len(known) > 1:
        normal, trials = NormalDist(), len(known)
        first, second = normal.inv_cdf(1 - 1 / trials), normal.inv_cdf(1 - 1 / (trials * math.e))
        best_by_luck = float(known.std()) * ((1 - _EULER_MASCHERONI) * first + _EULER_MASCHERONI * second)
    return {name: _probabilistic_sharpe(returns[name], ratio, best_by_luck) for name, ratio in ratios.items()}


def _probabilistic_sharpe(returns: Tensor, ratio: float, benchmark: float) -> float:
    """Return the probability that the true ratio is above the benchmark (eq. 2 of the paper)."""
    if math.isnan(ratio):
        return math.nan
    scaled = (returns - returns.mean()) / returns.std(correction=0)
    skewness, kurtosis = float(scaled.pow(3).mean()), float(scaled.pow(4).mean())
    variance = 1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2
    return NormalDist().cdf((ratio - benchmark) * math.sqrt(len(returns) - 1) / math.sqrt(max(variance, 1e-12)))
