"""Statistics of volume, gaps and ranges of bars: a `ValueError` of windows without bars, or too few days of context."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.worldmodel.validation.returns import correlation_matrix, sample_distances
from vecenv.worldmodel.validation.windows import Windows, deviation, present_values

VOLUME_DAYS = 20
"""Days of the mean in the ratios of log-volume and log-range."""

ZERO_GAP = 1e-6
"""Gaps below this, in log-price, are zero: float32 moves a ratio of equal prices by 1e-7, the rounding of adjusted
prices by less than 1e-6, while a tick of 0.05 moves a price of 12,000 by 4e-6."""

LEAST_RANGE = 1e-4
"""Minimum log(high / low), a basis point, so that bars of one price have a log-range."""


def log_volume_ratio(windows: Windows) -> Tensor:
    """Return log-volume less its mean over the previous `VOLUME_DAYS`, NaN where one of these days is missing.

    Volumes below one share count as one. Shape: (O, M, H, N).
    """
    return _less_recent_mean(windows, lambda bars: bars[..., VOLUME].clamp(min=1.0).log())


def log_range_ratio(windows: Windows) -> Tensor:
    """Return log(log(high / low)) less its mean over the previous `VOLUME_DAYS`. Shape: (O, M, H, N).

    NaN where one of these days is missing. Ranges below `LEAST_RANGE` count as that.
    """

    def log_range(bars: Tensor) -> Tensor:
        return (bars[..., HIGH] / bars[..., LOW]).log().clamp(min=LEAST_RANGE).log()

    return _less_recent_mean(windows, log_range)


def log_ratio(windows: Windows, numerator: int, denominator: int | None = None) -> Tensor:
    """Return the logarithm of one price over another, or over the previous close, in units of each stock's scale.

    Shape: (O, M, H, N).
    """
    bars, context = windows.bars_and_context()
    if denominator is None:
        close = bars[..., CLOSE]
        first = context[:, None, :, :, CLOSE].to(bars.dtype).expand(-1, bars.shape[1], -1, -1)
        base = torch.cat([first, close[:, :, :-1]], dim=2)
    else:
        base = bars[..., denominator]
    return (bars[..., numerator] / base).log() / windows.scale.to(bars.dtype)


def volume_correlation(windows: Windows) -> float:
    """Return the correlation of scaled absolute returns with the log-volume ratio."""
    both = torch.stack([windows.standardised.abs().flatten(), log_volume_ratio(windows).flatten()], dim=-1)
    return float(correlation_matrix(both)[0, 1])


def zero_gaps(windows: Windows) -> float:
    """Return the share of overnight gaps below `ZERO_GAP`."""
    gap = log_ratio(windows, OPEN)
    size = present_values((gap * windows.scale.to(gap.dtype)).abs())
    return float((size < ZERO_GAP).double().mean())


def gap_body_ratio(windows: Windows) -> float:
    """Return the deviation of gaps over that of bodies, both in units of each stock's scale."""
    return deviation(log_ratio(windows, OPEN)) / deviation(log_ratio(windows, CLOSE, OPEN))


def gap_kurtosis(windows: Windows) -> float:
    """Return the mean over stocks and paths of the excess kurtosis of gaps, each of one path's days of all origins.

    The sample kurtosis of heavy tails grows with the number of days: for FHS on NSE it is 17 of a path and 24 of 32
    paths pooled. So generated gaps are not pooled over paths. With origins at least a window apart, a path has as many
    different days as the real days, and the means are of the same quantity.
    """
    gap = log_ratio(windows, OPEN).double()
    centred = gap - gap.nanmean((0, 2), keepdim=True)
    second, fourth = (centred.pow(power).nanmean((0, 2)) for power in (2, 4))
    return float((fourth / second.square()).nanmean()) - 3.0


def bar_distance(real: Windows, synthetic: Windows, numerator: int, denominator: int | None = None) -> float:
    """Return the Kolmogorov-Smirnov distance of a `log_ratio` of bars."""
    return sample_distances(*(log_ratio(windows, numerator, denominator) for windows in (real, synthetic))).ks


def invalid_share(windows: Windows) -> float:
    """Return the share of bars without low <= min(open, close) <= max(open, close) <= high."""
    bars, _ = windows.bars_and_context()
    opened, high, low, close = bars[..., :VOLUME].unbind(-1)
    present = ~close.isnan()
    invalid = present & ~((low <= opened.minimum(close)) & (opened.maximum(close) <= high))
    return int(invalid.sum()) / int(present.sum())


def _less_recent_mean(windows: Windows, measure: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a measure of bars, (..., 5) -> (...), less its mean over the `VOLUME_DAYS` before. Shape: (O, M, H, N)."""
    bars, context = windows.bars_and_context(VOLUME_DAYS)
    ratios = torch.empty_like(windows.returns)
    for ratio, following, before in zip(ratios, bars, context.to(bars.dtype), strict=True):
        values = torch.cat([measure(before).expand(len(following), -1, -1), measure(following)], dim=1)
        torch.sub(values[:, VOLUME_DAYS:], values[:, :-1].unfold(1, VOLUME_DAYS, 1).mean(-1), out=ratio)
    return ratios
