"""Validation plot: tails, autocorrelation, leverage, correlations, drawdowns, and fan charts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from vecenv.worldmodel.metrics.dependence import autocorrelation, cross_correlation, leverage
from vecenv.worldmodel.metrics.paths import max_drawdowns
from vecenv.worldmodel.metrics.windows import Windows, present_values, standardise
from vecenv.worldmodel.validation.judge import HORIZON, Trial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999", "#8C564B", "#F0E442")
"""Colours of the models, cyclic; the real days are black."""

LEGEND_COLUMNS = 7

TAIL_POINTS = 200
FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


class Sketch(NamedTuple):
    """Plotted statistics of the real days or of a model.

    Attributes:
        tail: absolute standardised returns, descending, at the exceedance shares `tail_share`. Shape: (points,).
        tail_share: shares of returns that are at least as large. Shape: (points,).
        magnitude_acf: of |r|, by lag from 1. Shape: (20,).
        leverage: by lag from 1. Shape: (10,).
        correlation: between stocks. Shape: (N, N).
        drawdown: quantiles of maximum drawdowns in percentage points, at evenly spaced levels. Shape: (101,).
        fan: quantiles of the equal-weight market's return since each origin, percent, the levels `FAN_LEVELS`.
            Shape: (5, O, H).
    """

    tail: np.ndarray
    tail_share: np.ndarray
    magnitude_acf: np.ndarray
    leverage: np.ndarray
    correlation: np.ndarray
    drawdown: np.ndarray
    fan: np.ndarray


def sketch(windows: Windows) -> Sketch:
    """Compute the plotted statistics of windows."""
    sizes = np.sort(present_values(standardise(windows.returns).abs()).numpy())[::-1]
    rank = np.unique(np.geomspace(1, len(sizes) / 2, TAIL_POINTS).astype(int))
    falls = present_values(max_drawdowns(windows)).double().numpy()
    market = 100.0 * torch.expm1(windows.market.nan_to_num().cumsum(-1))
    levels = torch.tensor(FAN_LEVELS, dtype=market.dtype)
    return Sketch(
        tail=sizes[rank - 1],
        tail_share=rank / len(sizes),
        magnitude_acf=autocorrelation(windows.returns.abs()).numpy(),
        leverage=leverage(windows.returns).numpy(),
        correlation=cross_correlation(windows).matrix.numpy(),
        drawdown=np.quantile(falls, np.linspace(0, 1, 101)),
        fan=market.quantile(levels, dim=1).numpy(),
    )


def draw_validation(trial: Trial, real: Sketch, models: Mapping[str, Sketch], shown: str, path: Path) -> None:
    """Draw one figure of the real days and all models.

    Args:
        trial: of the models.
        real: sketch of the real days.
        models: sketches of the models, by name.
        shown: name of the model with plotted correlations and fans.
        path: of the PNG.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure = plt.figure(figsize=(15, 13), layout="constrained")
    grid = figure.add_gridspec(3, 3)
    tails, memory, effect, observed, generated, falls = (figure.add_subplot(grid[i // 3, i % 3]) for i in range(6))
    colours = {"real": "black"} | dict(zip(models, cycle(COLOURS), strict=False))
    for name, side in {"real": real, **models}.items():
        curves = {
            tails: (side.tail, side.tail_share),
            memory: (np.arange(1, len(side.magnitude_acf) + 1), side.magnitude_acf),
            effect: (np.arange(1, len(side.leverage) + 1), side.leverage),
            falls: (side.drawdown, np.linspace(0, 1, len(side.drawdown))),
        }
        for axes, (x, y) in curves.items():
            axes.plot(x, y, color=colours[name], linewidth=2.2 if name in ("real", shown) else 1.2, label=name)
    tails.set(xscale="log", yscale="log", xlabel="|z|, size of a daily return in standard deviations")
    tails.set(ylabel="share of days at least as large", title="Return tails")
    tails.set_xlim(0.5, 1.5 * float(max(real.tail[0], models[shown].tail[0])))
    memory.set(xlabel="lag, days", title="ACF of |r|: clusters of volatility")
    effect.set(xlabel="lag, days", title="Leverage: corr(z(t), z(t+k)²)")
    falls.set(xlabel="percentage points", ylabel="share at most as deep", title="40-day maximum drawdown of a stock")
    falls.set_xlim(0, 1.1 * float(max(real.drawdown[99], models[shown].drawdown[99])))
    for axes in (tails, memory, effect, falls):
        axes.grid(True, alpha=0.3)
    for axes in (memory, effect):
        axes.axhline(0.0, color="grey", linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _correlations({observed: ("real", real), generated: (shown, models[shown])})
    _fans(figure.add_subplot(grid[2, :]), trial, real, models[shown], shown, colours[shown])
    columns = min(len(colours), LEGEND_COLUMNS)
    figure.legend(*tails.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)
    first, last = trial.bars.dates[trial.first], trial.bars.dates[-1]
    figure.suptitle(
        f"{len(trial.bars.symbols)} stocks of {Path(trial.bars.source).name}, test days {first} to {last}", fontsize=12
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _correlations(panels: Mapping[Axes, tuple[str, Sketch]]) -> None:
    """Draw correlation matrices with one scale, stocks sorted by the first one's leading eigenvector."""
    first = next(iter(panels.values()))[1].correlation
    order = np.argsort(np.abs(np.linalg.eigh(np.nan_to_num(first))[1][:, -1]))[::-1]
    highest = float(np.nanmax(np.where(np.eye(len(first), dtype=bool), np.nan, first)))
    for axes, (name, side) in panels.items():
        matrix = side.correlation[order][:, order].copy()
        np.fill_diagonal(matrix, np.nan)
        image = axes.imshow(matrix, vmin=0.0, vmax=highest, cmap="viridis")
        axes.set(xticks=[], yticks=[], title=f"Correlations of stocks, {name}")
        axes.grid(False)
        axes.figure.colorbar(image, ax=axes, shrink=0.8)


def _fans(axes: Axes, trial: Trial, real: Sketch, model: Sketch, name: str, colour: str) -> None:
    """Draw non-overlapping fans of the equal-weight market around the real paths."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

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
    locator = AutoDateLocator(maxticks=12)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.grid(True, alpha=0.3)
    axes.margins(x=0.01)
    axes.legend(loc="upper left", ncols=4, frameon=False)
