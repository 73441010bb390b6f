"""Statistical significance of Sharpe ratios: of distinct days, probabilistic and deflated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

import torch
from torch import Tensor

_EULER_MASCHERONI = 0.5772156649015329

# Standard deviations of daily returns below this are rounding errors.
_NO_DEVIATION = 1e-12


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
