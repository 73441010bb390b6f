"""Statistical significance: block bootstrap intervals, probabilistic and deflated Sharpe ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import NormalDist

import torch
from torch import Tensor

from vecenv.learn.metrics import Interval

DRAWS = 2000
"""Bootstrap resamples: the bounds of a 95% interval are the 50th lowest and highest."""

_EULER_MASCHERONI = 0.5772156649015329

# Standard deviations of daily returns below this are rounding errors.
_NO_DEVIATION = 1e-12


def bootstrap_interval(values: Tensor, groups: Tensor, seed: int = 0) -> Interval:
    """Return the mean with the 95% percentile interval of a cluster bootstrap over groups. Shape of both: (N,).

    Efron, "Bootstrap methods", Annals of Statistics 7(1), 1979; Künsch, "The jackknife and the bootstrap for general
    stationary observations", Annals of Statistics 17(3), 1989. Episodes of a group share market days; see
    `vecenv.learn.metrics.independent_groups`. Bounds are NaN with fewer than three groups.
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


def returns_by_day(returns: Tensor, lived: Tensor, path: Tensor, start_day: Tensor) -> Tensor:
    """Average returns over the episodes that ran on the same day of the same path, so that each day counts once.

    Shapes: (T, N), (T, N), (N,), (N,) -> (days,), float64.
    """
    day = start_day + torch.arange(len(returns), device=path.device)[:, None]
    place = (path * (int(day.max()) + 1) + day)[lived].unique(return_inverse=True)[1]
    count = int(place.max()) + 1
    total = torch.zeros(count, dtype=torch.float64, device=path.device).index_add(0, place, returns[lived].double())
    return total / torch.bincount(place, minlength=count)


def deflated_sharpe(returns: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the probability that each agent's true Sharpe ratio exceeds the expected maximum of trials without skill.

    Bailey and López de Prado, "The Deflated Sharpe Ratio", Journal of Portfolio Management 40(5), 2014: the
    `probabilistic_sharpe` ratio against the `expected_maximum_sharpe` of as many trials as agents whose returns vary.
    Returns are of distinct days; those that are constant get NaN.
    """
    ratios = {name: _sharpe(series) for name, series in returns.items()}
    known = torch.tensor([ratio for ratio in ratios.values() if not math.isnan(ratio)], dtype=torch.float64)
    deviation = float(known.std()) if len(known) > 1 else 0.0
    best_by_luck = expected_maximum_sharpe(len(known), deviation)
    # NaN ratios propagate to the probability.
    return {
        name: probabilistic_sharpe(ratio, best_by_luck, len(returns[name]), *_skewness_and_kurtosis(returns[name]))
        for name, ratio in ratios.items()
    }


def expected_maximum_sharpe(num_trials: int, deviation: float) -> float:
    """Return the expected maximum Sharpe ratio of trials without skill (eq. 1 of Bailey and López de Prado).

    Fewer than two independent trials give 0. ``deviation`` is that of the trials' ratios.
    """
    if num_trials < 2:
        return 0.0
    quantile = NormalDist().inv_cdf
    first, second = quantile(1 - 1 / num_trials), quantile(1 - 1 / (num_trials * math.e))
    return deviation * ((1 - _EULER_MASCHERONI) * first + _EULER_MASCHERONI * second)


def probabilistic_sharpe(ratio: float, benchmark: float, num_days: int, skewness: float, kurtosis: float) -> float:
    """Return the probability that the true Sharpe ratio exceeds a benchmark (eq. 2 of Bailey and López de Prado).

    Ratios are of daily returns, not annualised; the kurtosis of a normal distribution is 3.
    """
    variance = 1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2
    return NormalDist().cdf((ratio - benchmark) * math.sqrt(num_days - 1) / math.sqrt(max(variance, 1e-12)))


def _sharpe(returns: Tensor) -> float:
    deviation = float(returns.std()) if len(returns) > 1 else 0.0
    return float(returns.mean()) / deviation if deviation > _NO_DEVIATION else math.nan


def _skewness_and_kurtosis(returns: Tensor) -> tuple[float, float]:
    scaled = (returns - returns.mean()) / returns.std(correction=0)
    return float(scaled.pow(3).mean()), float(scaled.pow(4).mean())
