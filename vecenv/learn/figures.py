"""Empty figures in the style of all pictures of a run, their titles and colours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vecenv.learn.evaluation import Evaluation

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#F0E442")
"""Okabe and Ito's palette for colour-blind readers, and a wine red."""

OUTLYING = 100.0
"""Ratio of the largest mean reward of an agent to the median one above which the axis is logarithmic."""

_STYLE: dict[Any, Any] = {
    "font.size": 12,
    "figure.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def empty_figure(rows: int, columns: int, size: tuple[float, float], share: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with the Agg canvas, without a window, and its panels; ``share`` is ``x`` or ``y``."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, sharex=share == "x", sharey=share == "y", squeeze=False)
    return figure, list(axes.flat)


def colour_of(evaluation: Evaluation, agent: str) -> str:
    """Return the colour of an agent, the same in all pictures of an evaluation."""
    return COLOURS[list(evaluation.records).index(agent) % len(COLOURS)]


def rewards_figure(evaluation: Evaluation) -> Figure:
    """Plot the mean reward of an episode by agent, with 95% intervals."""
    figure, (axis,) = empty_figure(1, 1, (9.5, 1.5 + 0.4 * len(evaluation.records)), "x")
    for place, (name, record) in enumerate(evaluation.records.items()):
        interval = evaluation.interval(record.reward)
        spread = [[interval.mean - interval.low], [interval.high - interval.mean]]
        axis.errorbar([interval.mean], [place], xerr=spread, fmt="o", color=colour_of(evaluation, name), capsize=3)
    axis.set_yticks(range(len(evaluation.records)), list(evaluation.records))
    axis.invert_yaxis()
    sizes = sorted(abs(float(record.reward.mean())) for record in evaluation.records.values())
    usual = sizes[len(sizes) // 2]
    if sizes[-1] > OUTLYING * usual > 0:
        axis.set_xscale("symlog", linthresh=usual)
    axis.set_xlabel("Reward of an episode: mean and 95% interval")
    axis.grid(axis="x", alpha=0.3)
    figure.suptitle(f"Rewards on test episodes\n{evaluation.title()}, {evaluation.num_episodes} episodes")
    return figure
