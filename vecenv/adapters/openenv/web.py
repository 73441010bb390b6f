"""What the web interface draws of a session: the account from day to day, and what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from vecenv.adapters.openenv.models import MarketState
from vecenv.system.page_figures import page_figure, svg
from vecenv.text.money import exact_money, sign_of

_STYLE = (
    "<style>.market pre { white-space: pre-wrap; } .market td, .market th { text-align: right; padding: 2px 8px; }"
    " .market td:nth-child(2) { text-align: left; } .market svg { width: 100%; height: auto; }"
    " .market .invalid { color: #b54708; }</style>"
)

LONGEST_SAID = 80
"""Characters of an answer in the list of days."""


class EpisodeDay(NamedTuple):
    """A day of an episode: what was said on it and what it came to; the first only holds the value at the start."""

    said: str
    portfolio_value: float
    reward: float
    traded: bool = False
    valid: bool = True


def episode_html(task: str, state: MarketState, days: Sequence[EpisodeDay], observation: Mapping[str, Any]) -> str:
    """Return what has happened in an episode, the curve of its account and the text of the day.

    Args:
        task: name of the task.
        state: where the session stands.
        days: of the episode so far, the first before any answer.
        observation: shown last.
    """
    parts = [_STYLE, f"<h3>{escape(task)}: {escape(_title(state))}</h3>"]
    if days:
        parts.append(_curve(days))
    parts.append(f"<pre>{escape(str(observation.get('text', '')))}</pre>")
    if len(days) > 1:
        parts.append(_table(days, sign_of(state.currency)))
    return f'<div class="market">{"".join(parts)}</div>'


def _title(state: MarketState) -> str:
    if state.split is None:
        return "no episode yet"
    told = f"{state.split}, seed {state.seed}, task {state.index}, day {state.day}, return {state.total_return:+.2%}"
    return told if state.grade is None else f"{told}, grade {state.grade:.3f}"


def _curve(days: Sequence[EpisodeDay]) -> str:
    figure, (axes,) = page_figure([1], 2.6)
    values = [day.portfolio_value for day in days]
    axes.plot(range(len(days)), values, color="#0072B2", marker="o", markersize=3)
    traded = [number for number, day in enumerate(days) if day.traded]
    axes.plot(traded, [values[number] for number in traded], "o", color="#D55E00", label="after a day with a trade")
    axes.axhline(values[0], color="#8a8f98", linewidth=0.8)
    axes.set(xlabel="day", ylabel="portfolio value", xlim=(-0.5, max(len(days), 10)))
    if traded:
        axes.legend(loc="best", frameon=False)
    return svg(figure)


def _table(days: Sequence[EpisodeDay], sign: str) -> str:
    rows = []
    for number, day in enumerate(days[1:], 1):
        short = day.said if len(day.said) <= LONGEST_SAID else f"{day.said[:LONGEST_SAID]}…"
        kind = "" if day.valid else ' class="invalid"'
        rows.append(
            f"<tr><td>{number}</td><td{kind}>{escape(short)}</td>"
            f"<td>{escape(exact_money(sign, day.portfolio_value))}</td><td>{day.reward:+.3f}</td></tr>"
        )
    head = "<tr><th>day</th><th>answer</th><th>portfolio</th><th>reward</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
