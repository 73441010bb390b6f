"""Plotted statistics of the real days and of models, with the real ones' bootstrap bands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from vecenv.worldmodel.metrics.bar_statistics import log_range_ratio, log_volume_ratio
from vecenv.worldmodel.metrics.dependence import autocorrelation, cross_correlation, leverage, pair_correlations
from vecenv.worldmodel.metrics.forecast import ForecastScores
from vecenv.worldmodel.metrics.intervals import BLOCK, drawn_origins
from vecenv.worldmodel.metrics.paths import max_drawdowns
from vecenv.worldmodel.metrics.windows import Windows, present_values, standardise

TAIL_POINTS = 200
FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
QUANTILES = np.linspace(0.0, 1.0, 101)

BAND_DRAWS = 200
"""Bootstrap draws of the bands."""

Band = tuple[np.ndarray, np.ndarray]
"""Lower and upper bound of a curve, pointwise 95%."""


class Sketch(NamedTuple):
    """Plotted statistics of the real days or of a model.

    `tail` has absolute standardised returns, descending, at the exceedance shares `tail_share`; `fan` the quantiles
    `FAN_LEVELS` of the equal-weight market's return since each origin, percent, (5, O, H). `pit` is empty for the real
    days.
    """

    tail: np.ndarray
    tail_share: np.ndarray
    curves: Mapping[str, np.ndarray]
    correlation: np.ndarray
    fan: np.ndarray
    pit: np.ndarray


CURVES: dict[str, Callable[[Windows], np.ndarray]] = {
    "magnitude_acf": lambda windows: autocorrelation(windows.returns.abs()).numpy(),
    "leverage": lambda windows: leverage(windows.returns).numpy(),
    "volatility": lambda windows: windows.standardised.double().square().nanmean((0, 1, 3)).sqrt().numpy(),
    "volume_pairs": lambda windows: _quantiles(pair_correlations(log_volume_ratio(windows))),
    "range_pairs": lambda windows: _quantiles(pair_correlations(log_range_ratio(windows))),
    "drawdown": lambda windows: _quantiles(max_drawdowns(windows)),
}
"""Curves with bands: ACF of |r| by lag; leverage by lag; standard deviation of standardised returns by day of the path;
and quantiles at `QUANTILES` of pair correlations of volume and of ranges, and of maximum drawdowns in points."""


def sketch(windows: Windows, forecasts: ForecastScores | None = None) -> Sketch:
    """Compute the plotted statistics of windows, and of a model's one-day forecasts."""
    sizes = np.sort(present_values(standardise(windows.returns).abs()).numpy())[::-1]
    rank = np.unique(np.geomspace(1, len(sizes) / 2, TAIL_POINTS).astype(int))
    market = 100.0 * torch.expm1(windows.market.nan_to_num().cumsum(-1))
    levels = torch.tensor(FAN_LEVELS, dtype=market.dtype)
    return Sketch(
        tail=sizes[rank - 1],
        tail_share=rank / len(sizes),
        curves={name: curve(windows) for name, curve in CURVES.items()},
        correlation=cross_correlation(windows).matrix.numpy(),
        fan=market.quantile(levels, dim=1).numpy(),
        pit=np.empty(0) if forecasts is None else present_values(forecasts.pit).numpy(),
    )


def bands(real: Windows, draws: int = BAND_DRAWS) -> dict[str, Band]:
    """Return pointwise 95% bootstrap bands of the real days' `CURVES`; none with fewer than three blocks of origins."""
    origins = len(real.returns)
    if origins < 3 * BLOCK:
        return {}
    again: dict[str, list[np.ndarray]] = {name: [] for name in CURVES}
    for drawn in drawn_origins(origins, draws=draws):
        windows = real.select(drawn)
        for name, curve in CURVES.items():
            again[name].append(curve(windows))
    return {name: tuple(np.quantile(drawn, (0.025, 0.975), axis=0)) for name, drawn in again.items()}


def _quantiles(values: torch.Tensor) -> np.ndarray:
    return np.quantile(present_values(values).double().numpy(), QUANTILES)
