"""Empty figures in the style of all pictures of a run, their titles and colours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vecenv.learn.evaluation import Evaluation

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255", "#F0E442")
"""Okabe and Ito's palette for colour-blind readers, and a wine red."""

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


def task_title(evaluation: Evaluation) -> str:
    """Return task, market and number of symbols."""
    if evaluation.traded is None:
        return str(evaluation.metadata["task"])
    source = Path(evaluation.metadata["market"]["source"]).name
    return f"{evaluation.metadata['task']} on {source}, {len(evaluation.traded.symbols)} symbols"


def episodes_of(evaluation: Evaluation) -> str:
    """Return number and part of the episodes, such as ``256 test episodes``."""
    return " ".join(filter(None, (str(evaluation.num_episodes), evaluation.part, "episodes")))


def colour_of(evaluation: Evaluation, agent: str) -> str:
    """Return the colour of an agent, the same in all pictures of an evaluation."""
    return COLOURS[list(evaluation.records).index(agent) % len(COLOURS)]
