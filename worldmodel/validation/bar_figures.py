"""Figures of whole bars: volume, ranges and gaps beside the returns, drift, and discriminators of whole bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from vecenv.worldmodel.metrics.bar_discriminator import Told
from vecenv.worldmodel.metrics.bar_statistics import (
    gap_kurtosis,
    gap_statistics,
    log_range_ratio,
    log_volume_ratio,
)
from vecenv.worldmodel.metrics.dependence import pair_correlations
from vecenv.worldmodel.metrics.intervals import block_bootstrap
from vecenv.worldmodel.metrics.windows import Windows
from vecenv.worldmodel.validation.figures import REAL_DRAWS, Figures, distance_from_chance, over_origins, point

BASIS_POINT = 1e-4

STATISTICS: dict[str, Callable[[Windows], float]] = {
    "volume_pair_correlation": lambda windows: float(pair_correlations(log_volume_ratio(windows)).nanmean()),
    "range_pair_correlation": lambda windows: float(pair_correlations(log_range_ratio(windows)).nanmean()),
    "zero_gaps": lambda windows: gap_statistics(windows).zero_share,
    "gap_body_ratio": lambda windows: gap_statistics(windows).body_ratio,
    "drift": lambda windows: float(windows.returns.nanmean(dtype=torch.float64)) / BASIS_POINT,
}
"""Statistics of windows by name, defined equally for real and generated ones."""


def real_bar_figures(real: Windows, every: int, draws: int = REAL_DRAWS) -> Figures:
    """Return the statistics of the real days' bars, with intervals over origins.

    Args:
        real: with bars and context.
        every: days between origins.
        draws: number of bootstrap draws.
    """
    figures = {name: over_origins(real, statistic, draws) for name, statistic in STATISTICS.items()}
    apart = _apart(real, every)
    figures["gap_kurtosis"] = block_bootstrap(
        lambda origins: gap_kurtosis(apart.select(origins)), len(apart.returns), block=1, draws=draws
    )
    return figures


def bar_figures(synthetic: Windows, every: int) -> Figures:
    """Return the statistics of a model's bars.

    Args:
        synthetic: with bars and context.
        every: days between origins.
    """
    figures = {name: point(statistic(synthetic)) for name, statistic in STATISTICS.items()}
    return figures | {"gap_kurtosis": point(gap_kurtosis(_apart(synthetic, every)))}


def bar_discriminator_figures(told: Mapping[str, Told]) -> Figures:
    """Return the discriminative score |accuracy - 0.5| and the AUC of classifiers of whole bars.

    Args:
        told: by the classifier's name, of `discriminate_bars` or `discriminate_real_bars`.
    """
    figures = {f"{name}_score": distance_from_chance(each.accuracy) for name, each in told.items()}
    return figures | {f"{name}_auc": each.auc for name, each in told.items()}


def _apart(windows: Windows, every: int) -> Windows:
    """Return the windows of origins whose days do not overlap."""
    step = -(-windows.horizon // every)
    return windows.select(torch.arange(0, len(windows.returns), step))
