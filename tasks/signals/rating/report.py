"""HTML report of one episode of rating symbols, as a self-contained file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vecenv.learn.figures import COLOURS
from vecenv.system.page_figures import page_figure, svg
from vecenv.system.report_page import conversation, page, shortened, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vecenv.tasks.signals.rating.records import RatedDay, RatedEpisode


def rating_report(
    record: RatedEpisode,
    reference: RatedEpisode,
    name: str,
    title: str,
    outcomes: tuple[Mapping[str, str], Mapping[str, str]],
) -> str:
    """Return the report of an episode beside a baseline's: signals against moves, the portfolio, and texts by day."""
    other = name.replace("_", " ")
    cards = [(told, f"{what}, {other} {outcomes[1][what]}") for what, told in outcomes[0].items()]
    state = "" if record.finished else ", left before the end"
    sections = {
        "Signals and moves": svg(signal_figure(record)),
        "Portfolio": svg(value_figure(record, reference, other)),
        "Days": "".join(_day(number, day) for number, day in enumerate(record.days, 1)),
        "Metadata": values(
            "Versions, rules, market and seed",
            {name: getattr(record, name) for name in ("versions", "config", "market", "seed", "env_id", "episode")},
        ),
    }
    return page(title, f"{len(record.days)} days{state} · {record.market['source']}", cards, sections)


def signal_figure(record: RatedEpisode) -> Figure:
    """Draw the moves after each signal, all symbols and days, in per cent."""
    figure, (axes,) = page_figure([1], 3.4)
    pairs = [(day.signals[name], 100 * day.moves[name]) for day in record.days for name in day.signals]
    signal, move = np.array(pairs, float).T
    axes.scatter(signal, move, color=COLOURS[0], s=22, alpha=0.6)
    axes.axhline(0, color="#8a8f98", linewidth=0.8)
    axes.axvline(0, color="#8a8f98", linewidth=0.8)
    axes.set(xlabel="signal", ylabel=f"move over {record.config['horizon']} days, %", xlim=(-10.5, 10.5))
    return figure


def value_figure(record: RatedEpisode, reference: RatedEpisode, other: str) -> Figure:
    """Draw the portfolio value and the reference's, in percent of the start."""
    figure, (axes,) = page_figure([1], 3.0)
    for curve, label, colour in ((reference, other, "#8a8f98"), (record, "agent", COLOURS[0])):
        equity = np.array([curve.start_value, *(day.portfolio_value for day in curve.days)])
        axes.plot(100 * (equity / equity[0] - 1), color=colour, label=label, linewidth=2, marker=".", markersize=5)
    axes.axhline(0, color="#8a8f98", linewidth=0.8)
    axes.set(xlabel="days", ylabel="return, %")
    axes.legend(frameon=False, loc="best")
    return figure


def _day(number: int, day: RatedDay) -> str:
    moved = ", ".join(f"{name} {signal:+d} moved {day.moves[name]:+.2%}" for name, signal in day.signals.items())
    return conversation(
        f"Day {number}, {day.date}: {shortened(day.action)}",
        [] if day.valid else ["invalid"],
        day.messages,
        f"{moved} · portfolio {day.portfolio_value:,.2f} · reward {day.reward:+.3f}",
    )
