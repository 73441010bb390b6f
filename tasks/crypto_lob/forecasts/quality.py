"""How good forecasts are on rows that their models have not seen: measured, as a table, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.table import Table

from vecenv.learn.intervals import Interval, bootstrap_of_sums, correlation_of_sums
from vecenv.system.figures import COLOURS, empty_figure, entitle, legend_below
from vecenv.tasks.crypto_lob.forecast_file import HORIZONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLOCK_SECONDS = 1800.0
"""Length of the blocks that intervals resample: several times the longest horizon."""

MEASURES = {"information_coefficient": "Information coefficient", "r_squared": "R²"}


@dataclass(frozen=True)
class Quality:
    """Quality of the forecasts of one horizon.

    ``information_coefficient`` is Spearman's rank correlation of forecast and move, over all rows, ``r_squared`` one
    less the squared error over that of the mean move of the rows that the model learned from.
    """

    information_coefficient: Interval
    r_squared: Interval


def quality(forecast: np.ndarray, move: np.ndarray, mean: np.ndarray, block: np.ndarray) -> Quality:
    """Measure forecasts of one horizon, in basis points, against what happened. Shape of each: (n,).

    ``mean`` is the mean move of the rows that each forecast's model learned from; blocks, by number, are resampled.
    """
    ranks = [_ranks(values) for values in (forecast, move)]
    x, y = (torch.from_numpy(rank - rank.mean()) for rank in ranks)
    correlated = torch.stack([torch.ones_like(x), x, y, x * x, y * y, x * y], 1)
    errors = torch.from_numpy(np.stack([(forecast - move) ** 2, (mean - move) ** 2], 1))
    numbered = torch.from_numpy(np.unique(block, return_inverse=True)[1])
    count = int(numbered.max()) + 1
    by_block = [
        torch.zeros(count, rows.shape[1], dtype=torch.float64).index_add(0, numbered, rows)
        for rows in (correlated, errors.double())
    ]
    return Quality(
        information_coefficient=bootstrap_of_sums(by_block[0], correlation_of_sums),
        r_squared=bootstrap_of_sums(by_block[1], lambda sums: 1 - sums[..., 0] / sums[..., 1].clamp(min=1e-12)),
    )


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, equal ones with their mean rank. Shape: (n,), float64."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def quality_by_horizon(
    forecasts: Mapping[str, np.ndarray], moves: np.ndarray, mean: np.ndarray, seconds: np.ndarray
) -> dict[str, list[Quality | None]]:
    """Measure several forecasters on the same rows; NaN is no forecast or an unknown move. Shapes: (T, H).

    A quality is None where fewer than two rows have a forecast and a move.
    """
    known = np.isfinite(moves) & np.all([np.isfinite(part) for part in forecasts.values()], axis=0)
    block = (seconds // BLOCK_SECONDS).astype(np.int64)
    told: dict[str, list[Quality | None]] = {name: [] for name in forecasts}
    for place in range(moves.shape[1]):
        rows = known[:, place]
        for name, forecast in forecasts.items():
            enough = rows.sum() > 1
            told[name].append(
                quality(forecast[rows, place], moves[rows, place], mean[rows, place], block[rows]) if enough else None
            )
    return told


def to_json(told: Mapping[str, list[Quality | None]]) -> dict[str, Any]:
    """Return qualities by forecaster and horizon as JSON-able lists."""
    return {
        name: [item and {measure: getattr(item, measure)._asdict() for measure in MEASURES} for item in items]
        for name, items in told.items()
    }


def quality_table(told: Mapping[str, list[Quality | None]]) -> Table:
    """Return a row for each horizon, with both measures of every forecaster."""
    table = Table(
        title="Forecasts of smoothed moves of the mid, by models of earlier rows",
        caption="95% intervals of a bootstrap over half-hour blocks. R² is 0 for the mean move of the earlier rows.",
    )
    table.add_column("Horizon", justify="right")
    for name in told:
        for short in ("IC", "R²"):
            table.add_column(f"{short}, {name}", justify="right")
    for place, seconds in enumerate(HORIZONS):
        cells = [
            "—" if items[place] is None else _shown(getattr(items[place], measure))
            for items in told.values()
            for measure in MEASURES
        ]
        table.add_row(f"{seconds} s", *cells)
    return table


def _shown(interval: Interval) -> str:
    if interval.low != interval.low:
        return f"{interval.mean:.3f}"
    return f"{interval.mean:.3f} ({interval.low:.3f} … {interval.high:.3f})"


def quality_figure(told: Mapping[str, list[Quality | None]], title: str) -> Figure:
    """Plot both measures over the horizon, with their intervals."""
    figure, panels = empty_figure(2, 1, 7.0)
    for panel, (measure, label) in zip(panels, MEASURES.items(), strict=True):
        for number, (name, items) in enumerate(told.items()):
            known = [(place, getattr(item, measure)) for place, item in enumerate(items) if item is not None]
            centres = [interval.mean for _, interval in known]
            bars = [
                [interval.mean - interval.low for _, interval in known],
                [interval.high - interval.mean for _, interval in known],
            ]
            # Side by side, so that intervals do not hide each other.
            across = [place + 0.12 * (number - 1) for place, _ in known]
            panel.errorbar(across, centres, bars, fmt="o", capsize=3, color=COLOURS[number], label=name)
        panel.axhline(0.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(HORIZONS)), [str(seconds) for seconds in HORIZONS])
        panel.set_ylabel(label)
    panels[-1].set_xlabel("Horizon, seconds")
    legend_below(figure)
    entitle(figure, title)
    return figure
