"""Validation plot: tails, dependence, volatility by day, calibration, volume, ranges, correlations, and fan charts.

Statistics of the real days have bands of a bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from vecenv.system.figures import dated, empty_figure, entitle, legend_below, save
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchT
from vecenv.worldmodel.baselines.resampled import GeometricBrownianMotion
from vecenv.worldmodel.network.settings import RUNNING_MEAN_CHAIN
from vecenv.worldmodel.validation.bar_statistics import log_range_ratio, log_volume_ratio
from vecenv.worldmodel.validation.criteria import LAST_YEAR_BOOTSTRAP
from vecenv.worldmodel.validation.forecast import ForecastScores
from vecenv.worldmodel.validation.report import KNOWN, heading
from vecenv.worldmodel.validation.returns import (
    autocorrelation,
    cross_correlation,
    leverage,
    max_drawdowns,
    pair_correlations,
)
from vecenv.worldmodel.validation.trial import HORIZON, Trial
from vecenv.worldmodel.validation.windows import BLOCK, Windows, drawn_origins, present_values, standardise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "neural": "#D55E00",
    RUNNING_MEAN_CHAIN: "#0072B2",
    "independent transformer, 3 Gaussians": "#009E73",
    "CNN+GRU, 3 Gaussians": "#CC79A7",
    GeometricBrownianMotion.name: "#E69F00",
    "bootstrap": "#56B4E9",
    LAST_YEAR_BOOTSTRAP: "#999999",
    GarchT.name: "#8C564B",
    FilteredHistoricalSimulation.name: "#332288",
}
"""Colour of each model, the same in all pictures; the real days are black."""

OTHER_COLOURS = ("#117733", "#882255", "#44AA99", "#AA4499")
"""Colours of models without one, cyclic."""

COLUMNS = 2
PIT_BINS = 20
COVERED = np.linspace(0.05, 0.95, 19)
"""Central intervals whose coverage is plotted."""


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


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return the colour of each model."""
    others = cycle(OTHER_COLOURS)
    return {name: COLOURS.get(name) or next(others) for name in names}


def draw_validation(
    trial: Trial,
    real: Sketch,
    real_bands: Mapping[str, Band],
    models: Mapping[str, Sketch],
    met: Mapping[str, str],
    shown: str,
    path: Path,
) -> None:
    """Draw one figure of the real days and all models, with the criteria that these meet.

    Correlations and fans are those of the model `shown`.
    """
    figure, every = empty_figure(7, COLUMNS, 26.0, "none", width=9.0)
    *panels, last, beside = every
    beside.remove()
    grid = last.get_gridspec()
    assert grid is not None
    last.set_subplotspec(grid[-1, :])
    tails, memory, effect, volatility, pit, coverage, volume, ranges, falls = panels[:9]
    of_curve = {
        "magnitude_acf": memory,
        "leverage": effect,
        "volatility": volatility,
        "volume_pairs": volume,
        "range_pairs": ranges,
        "drawdown": falls,
    }
    distributions = {volume, ranges, falls}
    colour = {"real": "black", **colours(models)}
    for name, side in {"real": real, **models}.items():
        first = name in ("real", shown)
        style: dict[str, Any] = {"color": colour[name], "linewidth": 2.2 if first else 1.2, "zorder": 3 if first else 2}
        label = f"{heading(name)}: {met[name]} criteria" if name in met else name
        tails.plot(side.tail, side.tail_share, label=label, **style)
        for key, axes in of_curve.items():
            values = side.curves[key]
            x, y = (values, QUANTILES) if axes in distributions else (np.arange(1, len(values) + 1), values)
            axes.plot(x, y, **style)
        if len(side.pit):
            _calibration(pit, coverage, side.pit, style)
    for key, (low, high) in real_bands.items():
        if of_curve[key] in distributions:
            of_curve[key].fill_betweenx(QUANTILES, low, high, color="black", alpha=0.15, linewidth=0)
        else:
            lags = np.arange(1, len(low) + 1)
            of_curve[key].fill_between(lags, low, high, color="black", alpha=0.15, linewidth=0)
    _label(panels[:9])
    tails.set_xlim(0.5, 1.5 * float(max(real.tail[0], models[shown].tail[0])))
    falls.set_xlim(0, 1.1 * float(max(side.curves["drawdown"][99] for side in (real, models[shown]))))
    _correlations(panels[9:], real.correlation, models[shown].correlation, heading(shown))
    _fans(last, trial, real, models[shown], heading(shown), colour[shown])
    legend_below(figure, tails)
    stocks, source = len(trial.bars.symbols), Path(trial.bars.source).name
    days = f"{trial.bars.dates[trial.first]} to {trial.bars.dates[-1]}"
    told = f"Grey bands: 95% of a block bootstrap of the real days. {KNOWN}"
    entitle(figure, f"{stocks} stocks of {source}, test days {days}", told)
    save(figure, path)


def _calibration(histogram: Axes, coverage: Axes, pit: np.ndarray, style: Mapping[str, Any]) -> None:
    """Draw the density of the transforms, and the coverage of central intervals less their probability."""
    density, edges = np.histogram(pit, bins=PIT_BINS, range=(0.0, 1.0), density=True)
    histogram.stairs(density, edges, baseline=None, **style)
    inside = (2.0 * np.abs(pit - 0.5) <= COVERED[:, None]).mean(1)
    coverage.plot(COVERED, inside - COVERED, **style)


def _label(panels: Sequence[Axes]) -> None:
    from matplotlib.ticker import MaxNLocator

    tails, memory, effect, volatility, pit, coverage, volume, ranges, falls = panels
    tails.set(xscale="log", yscale="log", xlabel="|z|, size of a daily return in standard deviations")
    tails.set(ylabel="share of days at least as large", title="Return tails")
    memory.set(xlabel="lag, days", title="ACF of |r|: clusters of volatility")
    effect.set(xlabel="lag, days", title="Leverage: corr(z(t), z(t+k)²)")
    volatility.set(xlabel="day of the path", title="Volatility by day of the path", ylabel="over the test's volatility")
    pit.set(xlabel="transform of the next day's return", title="PIT of one-day forecasts", ylabel="density")
    coverage.set(xlabel="probability of a central interval", title="Coverage less probability, one day")
    volume.set(xlabel="correlation", ylabel="share of pairs at most as high", title="Pair correlations of volume moves")
    ranges.set(
        xlabel="correlation", ylabel="share of pairs at most as high", title="Pair correlations of log-range moves"
    )
    falls.set(xlabel="percentage points", ylabel="share at most as deep", title="40-day maximum drawdown of a stock")
    for axes, level in ((memory, 0.0), (effect, 0.0), (coverage, 0.0), (pit, 1.0)):
        axes.axhline(level, color="black", linewidth=1.0, linestyle="--")
    for axes in (memory, effect, volatility):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _correlations(panels: Iterable[Axes], real: np.ndarray, model: np.ndarray, name: str) -> None:
    """Draw both matrices and their difference on one signed scale, stocks in the order of the real clusters."""
    order = cluster_order(real)
    highest = float(np.nanmax(np.where(np.eye(len(real), dtype=bool), np.nan, np.abs(real))))
    titles = ("Correlations of stocks, real", f"Correlations of stocks, {name}", f"{name} less real")
    for axes, matrix, title in zip(panels, (real, model, model - real), titles, strict=True):
        drawn = matrix[order][:, order]
        np.fill_diagonal(drawn, np.nan)
        image = axes.imshow(drawn, vmin=-highest, vmax=highest, cmap="RdBu_r")
        axes.set(xticks=[], yticks=[], title=title, facecolor="lightgrey")
        axes.grid(False)
        axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _fans(axes: Axes, trial: Trial, real: Sketch, model: Sketch, name: str, colour: str) -> None:
    """Draw non-overlapping fans of the equal-weight market around the real paths."""
    origins, free = trial.origins(), 0
    for index, day in enumerate(origins):
        if day < free:
            continue
        free = day + HORIZON
        dates = trial.bars.dates[day : free + 1]
        low, quarter, middle, upper, high = (np.insert(line[index], 0, 0.0) for line in model.fan)
        told = not index
        axes.fill_between(dates, low, high, color=colour, alpha=0.15, linewidth=0, label="5–95%" if told else None)
        axes.fill_between(dates, quarter, upper, color=colour, alpha=0.3, linewidth=0, label="25–75%" if told else None)
        axes.plot(dates, middle, color=colour, linewidth=1, label="median" if told else None)
        happened = np.insert(real.fan[len(FAN_LEVELS) // 2, index], 0, 0.0)
        axes.plot(dates, happened, color="black", linewidth=1.8, label="real" if told else None)
    axes.axhline(0.0, color="grey", linewidth=0.8)
    axes.set(ylabel="% since the origin", title=f"Equal-weight market: {HORIZON}-day fans of {name} around real paths")
    dated(axes)
    axes.legend(loc="upper left", ncols=4, frameon=False)


def cluster_order(correlation: np.ndarray) -> np.ndarray:
    """Return stocks in the order of the leaves of a tree of average linkage on the distance 1 - correlation.

    Two clusters are joined so that the most correlated of their ends lie side by side (UPGMA: Sokal and Michener, "A
    statistical method for evaluating systematic relationships", University of Kansas Science Bulletin 38, 1958; joined
    ends as in Gruvaeus and Wainer, British Journal of Mathematical and Statistical Psychology 25, 1972). NaN counts as
    0. Shape: (N, N) -> (N,).
    """
    known = np.nan_to_num(correlation)
    clusters = [[stock] for stock in range(len(known))]
    mean = known.copy()
    np.fill_diagonal(mean, -np.inf)
    while len(clusters) > 1:
        first, second = sorted(np.unravel_index(np.argmax(mean), mean.shape))
        sizes = len(clusters[first]), len(clusters[second])
        joined = (sizes[0] * mean[first] + sizes[1] * mean[second]) / sum(sizes)
        mean[first], mean[:, first] = joined, joined
        mean[first, first] = -np.inf
        mean = np.delete(np.delete(mean, second, axis=0), second, axis=1)
        clusters[first] = _side_by_side(clusters[first], clusters.pop(second), known)
    return np.array(clusters[0])


def _side_by_side(left: list[int], right: list[int], correlation: np.ndarray) -> list[int]:
    """Join two orders, of which either may be reversed, where their ends are correlated most."""
    ways = [(one, other) for one in (left, left[::-1]) for other in (right, right[::-1])]
    one, other = max(ways, key=lambda way: correlation[way[0][-1], way[1][0]])
    return one + other
