"""Statistics of volume, gaps and ranges of bars."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.worldmodel.metrics.dependence import autocorrelation, correlation_matrix
from vecenv.worldmodel.metrics.distribution import sample_distances
from vecenv.worldmodel.metrics.windows import Windows

VOLUME_DAYS = 20
"""Days of the mean in the log-volume ratio."""


class VolumeStatistics(NamedTuple):
    """Dependence of volume.

    Attributes:
        correlation: of absolute returns, each in units of its stock's scale, with the log-volume ratio.
        persistence: autocorrelation of the log-volume ratio at lag 1.
    """

    correlation: float
    persistence: float


class BarDistances(NamedTuple):
    """Kolmogorov-Smirnov distances of parts of bars, each in units of its stock's scale.

    Attributes:
        gap: log(open / close before).
        body: log(close / open).
        range: log(high / low).
    """

    gap: float
    body: float
    range: float


def log_volume_ratio(windows: Windows) -> Tensor:
    """Return log-volume less its mean over the previous `VOLUME_DAYS`, NaN where one of these days is missing.

    Volumes below one share count as one.

    Returns:
        Shape: (O, M, H, N).

    Raises:
        ValueError: the windows have no bars, or too few days of context.
    """
    bars, context = windows.bars_and_context(VOLUME_DAYS)
    ratios = torch.empty_like(windows.returns)
    for ratio, following, before in zip(ratios, bars[..., VOLUME], context[..., VOLUME].to(bars.dtype), strict=True):
        volume = torch.cat([before.expand(len(following), -1, -1), following], dim=1).clamp(min=1.0).log()
        level = volume[:, :-1].unfold(1, VOLUME_DAYS, 1).mean(-1)
        torch.sub(volume[:, VOLUME_DAYS:], level, out=ratio)
    return ratios


def volume_statistics(windows: Windows) -> VolumeStatistics:
    """Return the dependence of volume on returns and on the previous volume.

    Raises:
        ValueError: the windows have no bars, or too few days of context.
    """
    ratio = log_volume_ratio(windows)
    both = torch.stack([windows.standardised.abs().flatten(), ratio.flatten()], dim=-1)
    return VolumeStatistics(float(correlation_matrix(both)[0, 1]), float(autocorrelation(ratio, 1)))


def bar_distances(real: Windows, synthetic: Windows) -> BarDistances:
    """Compare gaps, bodies and ranges of bars.

    Raises:
        ValueError: the windows have no bars.
    """
    distances = []
    for numerator, denominator in ((OPEN, None), (CLOSE, OPEN), (HIGH, LOW)):
        parts = (_log_ratio(windows, numerator, denominator) for windows in (real, synthetic))
        distances.append(sample_distances(*parts).ks)
    return BarDistances(*distances)


def invalid_share(windows: Windows) -> float:
    """Return the share of bars without low <= min(open, close) <= max(open, close) <= high.

    Raises:
        ValueError: the windows have no bars.
    """
    bars, _ = windows.bars_and_context()
    opened, high, low, close = bars[..., :VOLUME].unbind(-1)
    present = ~close.isnan()
    invalid = present & ~((low <= opened.minimum(close)) & (opened.maximum(close) <= high))
    return int(invalid.sum()) / int(present.sum())


def _log_ratio(windows: Windows, numerator: int, denominator: int | None) -> Tensor:
    """Return the logarithm of one price over another, or over the previous close. Shape: (O, M, H, N)."""
    bars, context = windows.bars_and_context()
    if denominator is None:
        close = bars[..., CLOSE]
        first = context[:, None, :, :, CLOSE].to(bars.dtype).expand(-1, bars.shape[1], -1, -1)
        base = torch.cat([first, close[:, :, :-1]], dim=2)
    else:
        base = bars[..., denominator]
    return (bars[..., numerator] / base).log() / windows.scale.to(bars.dtype)
