"""The learning curve: metrics of the updates of one run, or of several that differ by their seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from vecenv.learn.figures import COLOURS, empty_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

History: TypeAlias = Sequence[Mapping[str, float]]
"""Metrics of every update of a run."""

PANELS = {
    "validation_excess_percent": "Validation:\nexcess %",
    "validation_reward": "Validation:\nreward",
    "validation_grade": "Validation:\ngrade",
    "return_percent": "Training:\nreturn %",
    "grade": "Training:\ngrade",
    "samples_per_second": "Samples/s",
}
"""Metrics and the labels of their panels. The policy to keep is chosen on the validation: its figures are no test's."""

BOUNDS = {"validation_excess_percent": "validation_excess"}
"""Metrics whose bounds have names of their own: those of the others are called as they are, and `_low` and `_high`."""


def learning_curve_figure(histories: Sequence[History], title: str) -> Figure:
    """Plot validation, return, grade and samples per second of the updates over environment steps (``frames``).

    Of several runs it shows each, and at the steps at which all are measured their median and the band from the lowest
    to the highest: the band ends where the first run stopped early. NaN is not measured.
    """
    from matplotlib.ticker import EngFormatter

    rows = [row for history in histories for row in history]
    measured = {name for row in rows for name, value in row.items() if math.isfinite(value)}
    if "validation_grade" in measured:
        measured.discard("grade")
    if "validation_excess_percent" in measured:
        measured.discard("validation_reward")
    present = {name: label for name, label in PANELS.items() if name in measured}
    figure, axes = empty_figure(len(present), 1, (9.5, 1.0 + 2.3 * len(present)), "x")
    for index, (axis, (name, label)) in enumerate(zip(axes, present.items(), strict=True)):
        if len(histories) == 1:
            _draw_run(axis, histories[0], name, index)
        else:
            _draw_runs(axis, histories, name, index)
        if name == "validation_excess_percent":
            axis.axhline(0.0, color="black", linewidth=1, linestyle="--", label="buy and hold")
            best = [row.get("validation_attainable_percent", math.nan) for row in rows]
            attainable = np.nanmax([*best, 0.0])
            # A rule of the best Sharpe ratio may earn less than buy and hold: then its excess is no bound.
            if attainable > 0:
                axis.axhline(attainable, color="black", linewidth=1, linestyle=":", label="best attainable")
        references = [row.get("validation_reference_reward", math.nan) for row in rows]
        if name == "validation_reward" and not np.isnan(references).all():
            axis.axhline(
                float(np.nanmean(references)), color="black", linewidth=1, linestyle="--", label="reference agent"
            )
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="best", frameon=False, ncols=2)
        axis.set_ylabel(label)
        if name == "samples_per_second":
            axis.yaxis.set_major_formatter(EngFormatter())
            axis.set_ylim(0.0, 1.1 * max(row[name] for row in rows))
    axes[-1].xaxis.set_major_formatter(EngFormatter())
    axes[-1].set_xlabel("Steps of all sub-environments together")
    figure.suptitle(f"Learning curve\n{title}")
    return figure


def _draw_run(axis: Axes, history: History, name: str, index: int) -> None:
    """Plot a metric of one run, with its 95% interval where that is known."""
    values = np.array([row[name] for row in history], dtype=float)
    frames = np.array([row["frames"] for row in history], dtype=float)
    known = np.isfinite(values)
    axis.plot(frames[known], values[known], color=COLOURS[index], marker="." if known.sum() < 30 else None)
    low, high = (
        np.array([row.get(f"{BOUNDS.get(name, name)}_{bound}", math.nan) for row in history])[known]
        for bound in ("low", "high")
    )
    if np.isfinite(low).any():
        axis.fill_between(frames[known], low, high, facecolor=COLOURS[index], alpha=0.15, label="95% interval")


def _draw_runs(axis: Axes, histories: Sequence[History], name: str, index: int) -> None:
    """Plot a metric of several runs: each, and their median, lowest and highest where all are measured."""
    runs = [
        {row["frames"]: row[name] for row in history if math.isfinite(row.get(name, math.nan))} for history in histories
    ]
    for run in runs:
        axis.plot(list(run), list(run.values()), color=COLOURS[index], linewidth=0.6, alpha=0.5)
    frames = sorted(set.intersection(*(set(run) for run in runs)))
    if not frames:
        return
    values = np.array([[run[frame] for frame in frames] for run in runs])
    # The first panel's legend is that of all.
    line, band = (f"median of {len(runs)} seeds", "lowest to highest seed") if index == 0 else (None, None)
    marker = "." if len(frames) < 30 else None
    axis.plot(frames, np.median(values, 0), color=COLOURS[index], linewidth=2, marker=marker, label=line)
    axis.fill_between(frames, values.min(0), values.max(0), facecolor=COLOURS[index], alpha=0.15, label=band)
