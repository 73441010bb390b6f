"""Quality of forecasts as a table and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from vecenv.learn.figures import COLOURS, empty_figure
from vecenv.learn.metrics import Interval
from vecenv.tasks.crypto_lob.forecasts.moves import HORIZONS
from vecenv.tasks.crypto_lob.forecasts.quality import Quality

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = {"information_coefficient": "Information coefficient", "r_squared": "R²"}


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
    """Return a value with its interval."""
    if interval.low != interval.low:
        return f"{interval.mean:.3f}"
    return f"{interval.mean:.3f} ({interval.low:.3f} … {interval.high:.3f})"


def quality_figure(told: Mapping[str, list[Quality | None]], title: str) -> Figure:
    """Plot both measures over the horizon, with their intervals."""
    figure, panels = empty_figure(1, 2, (11, 4.5), "x")
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
        panel.set_xlabel("Horizon, seconds")
        panel.set_title(label)
    panels[0].legend()
    figure.suptitle(title)
    return figure


def save_quality_figure(path: Path, told: Mapping[str, list[Quality | None]], title: str) -> None:
    """Write the picture."""
    quality_figure(told, title).savefig(path, dpi=110)
