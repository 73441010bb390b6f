"""Path metrics: maximum drawdown, memorisation of training data, and drift by rollout day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.worldmodel.metrics.dependence import ACF_LAGS, magnitude_autocorrelation, return_autocorrelation
from vecenv.worldmodel.metrics.distribution import sample_distances
from vecenv.worldmodel.metrics.windows import Windows, deviation

DRAWDOWN_DAYS, MEMORY_DAYS = 40, 20

DAY_BUCKETS = ((1, 10), (11, 20), (21, 30), (31, 40))
"""First and last days since the origin."""

# Bounds the distances from one block of paths to all training windows to about 200 MB.
_DISTANCES_AT_ONCE = 1 << 25


class DrawdownComparison(NamedTuple):
    """Maximum drawdowns of single stocks, percentage points: means, and Wasserstein distance of the distributions."""

    real_mean: float
    synthetic_mean: float
    wasserstein: float


class Memorisation(NamedTuple):
    """Distance of generated paths to the training data, relative to real test paths.

    Attributes:
        distance_ratio: median distance of a generated path to its nearest training window, over that of a test path.
        share_below: generated paths nearer than the nearest 1% of test paths; about 0.01 without copies.
    """

    distance_ratio: float
    share_below: float


class DriftBucket(NamedTuple):
    """Realism of the standardised returns of days `first` to `last` since the origin, counted from 1."""

    first: int
    last: int
    volatility_ratio: float
    ks: float
    return_acf_error: float
    magnitude_acf_error: float


def max_drawdowns(windows: Windows, days: int = DRAWDOWN_DAYS) -> Tensor:
    """Return each stock's maximum drawdown from its highest close since the origin, the origin's close included.

    Percentage points, not negative; NaN where a day is missing. Shape: (O, M, N).
    """
    falls = []
    for returns in windows.days(1, days).returns:
        level = returns.cumsum(1)
        falls.append((level.cummax(1).values.clamp(min=0.0) - level).amax(1))
    return -100.0 * torch.expm1(-torch.stack(falls))


def drawdown_comparison(real: Windows, synthetic: Windows, days: int = DRAWDOWN_DAYS) -> DrawdownComparison:
    """Compare the distributions of maximum drawdowns."""
    observed, generated = (max_drawdowns(windows, days) for windows in (real, synthetic))
    real_mean, synthetic_mean = (float(falls.nanmean(dtype=torch.float64)) for falls in (observed, generated))
    return DrawdownComparison(real_mean, synthetic_mean, sample_distances(observed, generated).wasserstein)


def memorisation(
    train_returns: Tensor,
    real: Windows,
    synthetic: Windows,
    days: int = MEMORY_DAYS,
    max_paths: int = 20_000,
    seed: int = 0,
) -> Memorisation:
    """Measure the nearest-neighbour distances of single-stock paths to training windows, which start on every day.

    Paths and windows are standardised individually, so that low volatility does not reduce distances, and rescaled
    copies are found. Distances are Euclidean. Of more than `max_paths` generated paths some are drawn. Shape of the
    training days' log-returns: (T, N').

    Raises:
        ValueError: training data or windows are shorter than a path.
    """
    if len(train_returns) < days:
        raise ValueError(f"paths of {days} days need as many days of training data, got {len(train_returns)}")
    train = _standard_paths(train_returns.unfold(0, days, 1).flatten(0, 1))
    test, generated = (_cut_paths(windows, days) for windows in (real, synthetic))
    chosen = torch.randperm(len(generated), generator=torch.Generator().manual_seed(seed))[:max_paths]
    test_distance = _nearest(_standard_paths(test), train)
    distance = _nearest(_standard_paths(generated[chosen.to(generated.device)]), train)
    return Memorisation(
        float(distance.median() / test_distance.median()),
        float((distance < test_distance.quantile(0.01)).double().mean()),
    )


def drift(
    real: Windows, synthetic: Windows, buckets: Sequence[tuple[int, int]] = DAY_BUCKETS
) -> tuple[DriftBucket, ...]:
    """Compare generated with real days by bucket of rollout days, to detect drift in long rollouts.

    Autocorrelations are of days within a bucket, so a bucket of d days has at most d - 1 lags.

    Raises:
        ValueError: the windows do not have the days of a bucket.
    """
    found = []
    for first, last in buckets:
        observed, generated = (windows.days(first, last) for windows in (real, synthetic))
        lags = min(ACF_LAGS, last - first)
        found.append(
            DriftBucket(
                first,
                last,
                deviation(generated.standardised) / deviation(observed.standardised),
                sample_distances(observed.standardised, generated.standardised).ks,
                return_autocorrelation(observed, generated, lags).error,
                magnitude_autocorrelation(observed, generated, lags).error,
            )
        )
    return tuple(found)


def _cut_paths(windows: Windows, days: int) -> Tensor:
    """Return non-overlapping paths of single stocks, gaps included. Shape: (paths, days)."""
    blocks = windows.horizon // windows.days(1, days).horizon
    cut = windows.returns[:, :, : blocks * days].unflatten(2, (blocks, days))
    return cut.transpose(-1, -2).flatten(0, -2)


def _standard_paths(paths: Tensor) -> Tensor:
    """Drop paths with gaps or without a move, and scale the rest to mean 0 and length 1. Shape: (paths, days)."""
    centred = paths.float() - paths.float().mean(-1, keepdim=True)
    length = centred.norm(dim=-1, keepdim=True)
    return (centred / length)[(length > 0).squeeze(-1)]


def _nearest(paths: Tensor, train: Tensor) -> Tensor:
    """Return each path's distance to the nearest training window, in units of `_standard_paths`. Shape: (paths,)."""
    # For unit vectors the nearest has the largest inner product.
    blocks = paths.split(max(1, _DISTANCES_AT_ONCE // len(train)))
    return torch.cat([(2.0 - 2.0 * (block @ train.T).amax(1)).clamp(min=0.0).sqrt() for block in blocks])
