"""The report of a backtest: one HTML page without anything from elsewhere, and its table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from vecenv.learn.verdict import verdict_text
from vecenv.system.figures import GREY, at_widths, dated, legend_below, looks, page_figure
from vecenv.system.report_page import page, values, word_table
from vecenv.tasks.backtest.result import Backtest
from vecenv.tasks.stock_trading.decisions import REASONS
from vecenv.text.money import exact_money, money, sign_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_RATIO = 3.0
"""Ratio of highest to lowest value above which the axis of money is logarithmic."""

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

COMPARED = (
    "One account, whose first purchase counts once. Tables of vecenv train and evaluate are means over short episodes, "
    "each with a first purchase: their Sharpe ratios and turnovers differ from these. Points of the verdict: 100 times "
    "the log-return above the benchmark's over all days that are judged."
)
"""What figures of one account are beside those of episodes."""

LAST_TRADES = 40
"""Trades on the page; the files have all."""


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


FIGURES: Mapping[str, tuple[str, Callable[[float], str] | None]] = {
    "final_value": ("Value at the end", None),
    "cumulative_return": ("Return", _percent),
    "annual_return": ("Return a year", _percent),
    "volatility": ("Volatility a year", _percent),
    "sharpe": ("Sharpe ratio", _ratio),
    "sortino": ("Sortino ratio", _ratio),
    "max_drawdown": ("Largest drawdown", _percent),
    "cvar": ("Mean of the worst 5% of days", lambda value: f"{100 * value:.2f}%"),
    "best_day": ("Best day", lambda value: f"{100 * value:.2f}%"),
    "worst_day": ("Worst day", lambda value: f"{100 * value:.2f}%"),
    "exposure": ("Mean exposure", _percent),
    "turnover": ("Turnover a year", _ratio),
    "costs": ("Costs paid", None),
}
"""Names of figures and how they are written; None for money."""


def summary_rows(summary: pd.DataFrame, sign: str) -> list[tuple[str, ...]]:
    """Return a row of words for each figure: its name, then of each agent."""
    rows = []
    for name, (told, write) in FIGURES.items():
        cells = (money(sign, value) if write is None else write(value) for value in summary.loc[name])
        rows.append((told, *cells))
    return rows


def summary_table(found: Backtest) -> Table:
    """Return the figures beside the benchmarks, and those of the days after the training, for a terminal."""
    first, last = (found.daily.index[place].date() for place in (0, -1))
    days = int(found.summary.loc["days"].iloc[0])
    title = f"{first} to {last}, {days:,} days"
    table = Table(title=title, caption=COMPARED, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    names = [name.replace("_", " ") for name in found.summary.columns]
    for place, heading in enumerate(("", *names)):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for row in summary_rows(found.summary, _sign(found)):
        table.add_row(*row)
    if found.apart is not None:
        table.add_section()
        table.add_row(f"After {found.apart[0]}")
        if (told := _seen(found)) is not None:
            table.add_row(f"({told})")
        for row in summary_rows(found.apart[1], _sign(found)):
            table.add_row(*row)
    return table


def _seen(found: Backtest) -> str | None:
    """Return what the validation, which chose the policy, has to do with the days after the training."""
    if found.chosen_until is None:
        return None
    return "validation included" if found.test is None else "the validation's end"


def _sign(found: Backtest) -> str:
    return sign_of(found.told["market"]["currency"])


def report_page(found: Backtest, title: str | None = None, more: Mapping[str, str] | None = None) -> str:
    """Return the page: verdict, figures, equity, drawdown, exposure, months, worst days, cut orders, last trades.

    ``more`` are sections by their headings, which stand above the drawdown.
    """
    sign, market = _sign(found), found.told["market"]
    first, last = (found.daily.index[place].date() for place in (0, -1))
    whole, (day, figures) = found.summary[found.agent], found.apart or (None, found.summary)
    own, after = figures[found.agent], "" if day is None else f" after {day}"
    notes = "".join(f'<p class="wrong">{escape(note)}</p>' for note in found.notes)
    names = ["", *(name.replace("_", " ") for name in found.summary.columns)]
    sections = {"_notes": notes} if notes else {}
    if found.verdicts:
        told = verdict_text(found.verdicts).plain.removeprefix("Verdict").strip().replace("_", " ")
        sections["Verdict"] = f"<p>{escape(f'{told[0].upper()}{told[1:]}.')}</p><p>{escape(COMPARED)}</p>"
    if day is not None:
        seen = "the training's end" if _seen(found) is None else _seen(found)
        sections[f"After {day}, {seen}"] = word_table(names, summary_rows(figures, sign))
    sections["Figures" if day is None else "All days"] = word_table(names, summary_rows(found.summary, sign))
    sections["Value of the account"] = at_widths(lambda width: equity_figure(found, width))
    sections |= more or {}
    sections["Drawdown"] = at_widths(lambda width: drawdown_figure(found, width))
    sections["Exposure, turnover and costs"] = at_widths(lambda width: trading_figure(found, width))
    sections["Returns by month, %"] = _months(found)
    sections["Worst days"] = _worst_days(found, sign)
    sections["Orders that were cut"] = _cut_orders(found)
    sections[f"Last trades of {len(found.trades):,}"] = _last_trades(found, sign)
    sections["Rules, market and version"] = values("As JSON", dict(found.told))
    source, symbols = Path(market["source"]).name, market["symbols"]
    shown = ", ".join(symbols) if len(symbols) <= 10 else f"{len(symbols)} symbols"
    currency = market["currency"] or "currency unknown"
    currency += " · adjusted prices" if found.told["adjusted"] else ""
    rules = found.told["config"]
    costs = " · ".join(f"{name} {rules[name]:g}" for name in ("commission", "slippage") if np.isscalar(rules[name]))
    line = f"{first} to {last} · {shown} · {source} · {currency} · {costs} · one account, no restart"
    returns = figures.loc["cumulative_return", found.benchmarks]
    beside = [f"{name.replace('_', ' ')} {_percent(value)}" for name, value in returns.items()]
    cards = [
        (_percent(own["cumulative_return"]), "; ".join(filter(None, (f"return{after}", ", ".join(beside))))),
        (_ratio(own["sharpe"]), f"Sharpe ratio{after}"),
        (_percent(own["max_drawdown"]), f"largest drawdown{after}"),
        (_ratio(own["turnover"]), f"turnovers a year{after}"),
        (money(sign, whole["final_value"]), f"at the end, from {money(sign, found.daily['value'].iloc[0])} on {first}"),
        (money(sign, whole["costs"]), f"costs of {len(found.trades):,} trades since {first}"),
    ]
    return page(title or f"Backtest of {found.agent.replace('_', ' ')}", line, cards, sections)


def _values(found: Backtest) -> dict[str, pd.Series]:
    """Return the values of the agent and of the benchmarks by date."""
    return {name: found.daily["value" if name == found.agent else name] for name in (found.agent, *found.benchmarks)}


def equity_figure(found: Backtest, width: float) -> Figure:
    """Draw the values of agent and benchmarks by date, and below how far the agent is above each of them.

    The days of the training are shaded, and those on which another policy took over are marked.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    equity = _values(found)
    figure, panels = page_figure([2, 1][: len(equity)], 2.6 + 0.35 * width, width)
    _lines(panels[0], found, equity)
    shown = found.daily[["value", *found.benchmarks]].to_numpy()
    low, high = np.nanmin(shown), np.nanmax(shown)
    if low > 0 and high > LOG_RATIO * low:
        panels[0].set_yscale("log")
        panels[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panels[0].yaxis.set_minor_formatter(NullFormatter())
    panels[0].yaxis.set_major_formatter(FuncFormatter(lambda amount, _: _short_money(_sign(found), amount)))
    panels[0].set_ylabel(f"value, {found.told['market']['currency'] or 'units of currency'}")
    for axes in panels[1:]:
        own = equity[found.agent]
        _lines(axes, found, {name: 100 * (own / equity[name] - 1) for name in found.benchmarks})
        axes.axhline(0, color=GREY, linewidth=0.8)
        axes.set_ylabel("agent above\nbenchmark, %")
    if found.trained_until is not None:
        until = pd.Timestamp(found.trained_until)
        shade: dict[str, Any] = {"facecolor": "#f3e8c8", "edgecolor": "#b9a45c", "linewidth": 0.6}
        for axes in panels:
            axes.axvspan(found.daily.index[0], until, zorder=0, label="trained on these days", **shade)
    for axes, day in product(panels, found.handovers):
        axes.axvline(pd.Timestamp(day), color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    legend_below(figure)
    dated(panels[-1], width)
    return figure


def _short_money(sign: str, amount: float) -> str:
    for unit, size in (("bn", 1e9), ("m", 1e6), ("k", 1e3)):
        if abs(amount) >= size:
            return f"{sign}{amount / size:g} {unit}"
    return money(sign, amount)


def drawdown_figure(found: Backtest, width: float) -> Figure:
    """Draw the loss since the peak of agent and benchmarks, in per cent."""
    figure, (axes,) = page_figure([1], 2.0 + 0.14 * width, width)
    _lines(axes, found, {name: 100 * (value / value.cummax() - 1) for name, value in _values(found).items()})
    axes.set_ylabel("loss since the peak, %")
    legend_below(figure)
    dated(axes, width)
    return figure


def trading_figure(found: Backtest, width: float) -> Figure:
    """Draw the agent's exposure, and by month what it traded as a share of its value, and the costs so far."""
    from matplotlib.ticker import FuncFormatter

    figure, (exposure, traded, costs) = page_figure([1, 1, 1], 4.5 + 0.15 * width, width)
    colour = looks([found.agent])[found.agent].colour
    exposure.fill_between(found.daily.index, 100 * found.daily["exposure"], color=colour, alpha=0.5, linewidth=0)
    exposure.set_ylabel("invested, %")
    months = (found.daily["traded"] / found.daily["value"]).resample("MS").sum()
    traded.bar(months.index, 100 * months, width=25, align="edge", color=colour, alpha=0.7)
    traded.set_ylabel("traded a month, %")
    costs.plot(found.daily.index, found.daily["costs"].cumsum(), color=colour)
    costs.yaxis.set_major_formatter(FuncFormatter(lambda amount, _: _short_money(_sign(found), amount)))
    costs.set_ylabel("costs so far,\n" + (found.told["market"]["currency"] or "units of currency"))
    dated(costs, width)
    return figure


def _lines(axes: Axes, found: Backtest, lines: Mapping[str, pd.Series]) -> None:
    """Draw lines by date; the agent's above the others."""
    shown = looks((found.agent, *found.benchmarks))
    for name, line in lines.items():
        axes.plot(line.index, line, label=name.replace("_", " "), **shown[name].line())


def _months(found: Backtest) -> str:
    """Return the returns by month as a table, coloured by their size."""
    table, largest = found.monthly, float(np.nanmax(np.abs(found.monthly[list(range(1, 13))].to_numpy()), initial=1e-9))

    def cell(value: float, strong: bool) -> str:
        if np.isnan(value):
            return "<td></td>"
        share = min(abs(value) / largest, 1.0) * (0.0 if strong else 0.55)
        colour = f"rgba({'0,114,178' if value > 0 else '213,94,0'},{share:.2f})"
        text = f"<b>{100 * value:.1f}</b>" if strong else f"{100 * value:.1f}"
        return f'<td style="background:{colour}">{text}</td>'

    head = "".join(f"<th>{month}</th>" for month in (*MONTHS, "Year"))
    body = "".join(
        f"<tr><td>{year}</td>{''.join(cell(row[column], column == 'total') for column in table.columns)}</tr>"
        for year, row in table.iterrows()
    )
    return f'<div class="wide"><table class="plain"><tr><th></th>{head}</tr>{body}</table></div>'


def _worst_days(found: Backtest, sign: str) -> str:
    names = [found.agent, *found.benchmarks]
    heads = ["Day", *(f"{name.replace('_', ' ')}, %" for name in names), "value after", "lost most by"]
    rows = [
        (
            str(day.date()),
            *(f"{100 * row[name]:.2f}" for name in names),
            money(sign, row["value"]),
            str(row["most_lost"]),
        )
        for day, row in found.worst.iterrows()
    ]
    return word_table(heads, rows) if rows else "<p>No day lost money.</p>"


def _cut_orders(found: Backtest) -> str:
    counts = found.orders["reason"].value_counts()
    counts = counts[counts.index != ""]
    if counts.empty:
        return f"<p>All {len(found.orders):,} orders were filled as they were wanted.</p>"
    rows = [(f"{name.replace('_', ' ')}: {REASONS[name]}", f"{count:,}") for name, count in counts.items()]
    return word_table(("Reason", f"of {len(found.orders):,} orders"), rows)


def _last_trades(found: Backtest, sign: str) -> str:
    rows: list[Sequence[str]] = [
        (
            str(trade.date.date()),
            trade.symbol,
            f"{trade.shares:+,.6g}" if isinstance(trade.shares, float) else f"{trade.shares:+,}",
            *(exact_money(sign, amount) for amount in (trade.price, trade.value, trade.commission + trade.slippage)),
        )
        for trade in found.trades.tail(LAST_TRADES).iloc[::-1].itertuples()
    ]
    heads = ("Day", "Symbol", "Shares", "Price", "Value", "Costs")
    return word_table(heads, rows) if rows else "<p>Nothing was traded.</p>"
