"""Rolling windows and exponential means over time, the building blocks of the indicators.

All functions take float tensors of shape (..., T, K), time before symbols, and work on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def lagged(values: Tensor, days: int) -> Tensor:
    """Values of ``days`` days ago, NaN where there were none. Shape: as ``values``."""
    return functional.pad(values, (0, 0, days, 0), value=torch.nan)[..., : values.shape[-2], :]


def windows(values: Tensor, window: int) -> Tensor:
    """Return a view of the last ``window`` values of each day, oldest first, NaN before the first day."""
    return functional.pad(values, (0, 0, window - 1, 0), value=torch.nan).unfold(-2, window, 1)


def rolling_mean(values: Tensor, window: int) -> Tensor:
    """Mean of the last ``window`` values, NaN until the window is full. Shape: as ``values``."""
    return windows(values, window).mean(-1)


def rolling_mean_std(values: Tensor, window: int, correction: int = 1) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the last ``window`` values, NaN until it is full. Shape: as ``values``.

    Both are computed from differences to today's value: a constant window has exactly zero deviation,
    and since today is in the window, the squares are not much larger than the variance.
    """
    total, squares = torch.zeros_like(values), torch.zeros_like(values)
    for past in windows(values, window).unbind(-1):
        difference = past - values
        total += difference
        squares.addcmul_(difference, difference)
    mean = total / window
    variance = (squares - total * mean).clamp(min=0.0) / (window - correction)
    return values + mean, variance.sqrt()


def exponential_mean(values: Tensor, alpha: float) -> Tensor:
    """Exponentially weighted mean with normalised weights. Shape: as ``values``.

    ``y[t] = sum_i (1 - alpha)^i x[t - i] / sum_i (1 - alpha)^i`` over all i in 0 … t, which is
    ``pandas.Series.ewm(alpha=alpha, adjust=True).mean()``. The first value needs no seed, and a
    constant series stays exactly constant.
    """
    first, *rest = values.unbind(-2)
    means = [first]
    total_weight = 1.0
    for today in rest:
        total_weight = 1.0 + (1.0 - alpha) * total_weight
        means.append(torch.lerp(means[-1], today, 1.0 / total_weight))
    return torch.stack(means, -2)


def span_mean(values: Tensor, span: int) -> Tensor:
    """Exponential moving average EMA(span): ``alpha = 2 / (span + 1)``. Shape: as ``values``."""
    return exponential_mean(values, 2.0 / (span + 1.0))


def wilder_mean(values: Tensor, window: float) -> Tensor:
    """Wilder's smoothed average: ``alpha = 1 / window``. Shape: as ``values``."""
    return exponential_mean(values, 1.0 / window)


def ratio(numerator: Tensor, denominator: Tensor, neutral: float) -> Tensor:
    """``numerator / denominator``, and ``neutral`` where the denominator is not positive."""
    return torch.where(denominator > 0, numerator / denominator, neutral)
