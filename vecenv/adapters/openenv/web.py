"""HTML view of a session for the web interface: a plot of its first outcome, and the answers by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from vecenv.adapters.openenv.models import TextState
from vecenv.system.figures import COLOURS, GREY, page_figure, svg
from vecenv.text.money import exact_money, sign_of

# OpenEnv's page gives a drawing as much room as it asks for, beside the form: here it takes the row, and no more.
_STYLE = (
    "<style>.gradio-container .oe-visual { flex: 1 1 100% !important; max-width: 100%; }"
    " .market { overflow-x: auto; } .market pre { white-space: pre-wrap; overflow-wrap: anywhere; }"
    " .market td, .market th { text-align: right; padding: 2px 8px; }"
    " .market td:nth-child(2) { text-align: left; overflow-wrap: anywhere; } .market svg { width: 100%; height: auto; }"
    " .market .invalid { color: #b54708; }</style>"
)

LONGEST_SAID = 80
"""Maximum characters of an answer in the list of days."""


class EpisodeDay(NamedTuple):
    """A day of an episode: its answer, and the most important outcome, if any, after it; the first is the start."""

    said: str
    outcome: float | None
    reward: float
    acted: bool = False
    valid: bool = True


def episode_html(task: str, state: TextState, days: Sequence[EpisodeDay], observation: Mapping[str, Any]) -> str:
    """Return an episode's answers, the plot of its outcome and the text of the day; the first day has no answer."""
    parts = [_STYLE, f"<h3>{escape(task)}: {escape(_title(state))}</h3>"]
    if days:
        parts.append(_curve(days, next(iter(state.units), "")))
    parts.append(f"<pre>{escape(str(observation.get('text', '')))}</pre>")
    if len(days) > 1:
        parts.append(_table(days, state))
    return f'<div class="market">{"".join(parts)}</div>'


def _title(state: TextState) -> str:
    if state.split is None:
        return "no episode yet"
    told = f"{state.split}, seed {state.seed}, task {state.index}, day {state.day}"
    if (gain := state.outcomes.get("total_return")) is not None:
        told += f", return {gain:+.2%}"
    return told if state.grade is None else f"{told}, grade {state.grade:.3f}"


def _curve(days: Sequence[EpisodeDay], name: str) -> str:
    values = {number: day.outcome for number, day in enumerate(days) if day.outcome is not None}
    if not values:
        return ""
    figure, (axes,) = page_figure([1], 2.6)
    axes.plot(list(values), list(values.values()), color=COLOURS[0], marker="o", markersize=3)
    acted = [number for number in values if days[number].acted]
    axes.plot(acted, [values[number] for number in acted], "o", color=COLOURS[1], label="after an answer that acted")
    axes.axhline(next(iter(values.values())), color=GREY, linewidth=0.8)
    axes.set(xlabel="day", ylabel=name.replace("_", " "), xlim=(-0.5, max(len(days), 10)))
    if acted:
        axes.legend(loc="best", frameon=False)
    return svg(figure)


def _table(days: Sequence[EpisodeDay], state: TextState) -> str:
    name, unit = next(iter(state.units.items()), ("", ""))
    rows = []
    for number, day in enumerate(days[1:], 1):
        short = day.said if len(day.said) <= LONGEST_SAID else f"{day.said[:LONGEST_SAID]}…"
        kind = "" if day.valid else ' class="invalid"'
        rows.append(
            f"<tr><td>{number}</td><td{kind}>{escape(short)}</td>"
            f"<td>{escape(_amount(day.outcome, unit, state.currency))}</td><td>{day.reward:+.3f}</td></tr>"
        )
    named = escape(name.replace("_", " "))
    head = f"<tr><th>day</th><th>answer</th><th>{named}</th><th>reward</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"


def _amount(outcome: float | None, unit: str, currency: str | None) -> str:
    if outcome is None:
        return ""
    return exact_money(sign_of(currency), outcome) if unit == "currency" else f"{outcome:.4g}"
