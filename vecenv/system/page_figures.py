"""Matplotlib figures for HTML pages: no display needed, written as SVG elements."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "axes.edgecolor": "#8a8f98",
    "xtick.color": "#50555e",
    "ytick.color": "#50555e",
}


WIDE, NARROW = 10.0, 4.6
"""Widths of figures in inches: for pages of a screen, and for those of a telephone."""


def page_figure(heights: Sequence[float], height: float, width: float = WIDE) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of stacked axes without a window; sizes are in inches."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    return figure, list(axes)


def at_widths(draw: Callable[[float], Figure]) -> str:
    """Return a figure as SVG elements drawn for both widths, of which a page shows the one that fits."""
    return f'<div class="broad">{svg(draw(WIDE))}</div><div class="narrow">{svg(draw(NARROW))}</div>'


def dated(axes: Axes, width: float) -> None:
    """Write the dates of an axis, as many as its width has room for."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=max(4, int(width)))
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    axes.margins(x=0.01)


def svg(figure: Figure) -> str:
    """Return a figure as an SVG element without the XML header."""
    from matplotlib import rc_context

    target = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context(_STYLE):
        figure.savefig(target, format="svg", transparent=True, metadata=nothing)
    _, tag, rest = target.getvalue().partition("<svg")
    return tag + rest
