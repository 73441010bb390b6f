"""Pictures of the accounts of an evaluation: equity, drawdown, exposure and holdings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from vecenv.finance.metrics import drawdowns
from vecenv.learn.intervals import Interval
from vecenv.learn.report import COLOURS, colour_of, empty_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vecenv.finance.evaluation import AccountRecord, TradingEvaluation

_BAND = "median (thick) and 5-95% (thin)"
_LINE_STYLES = ("-", "--", ":", "-.")
_LARGEST_POSITIONS = 8

# Days at which the mean excess is shown.
_MARKS = 26

# Percentages that are shown: what is beyond is cut off.
_LARGEST_PERCENT = 300.0

# Ratio of highest to lowest equity above which the axis is logarithmic, if the lowest is above this % of the start: one
# that is nearly lost would leave no room for the others.
_LOG_SCALE_RATIO = 2.0
_LOWEST_LOG = 10.0

# What an agent reaches beyond so many times what is usual, or what the first agent reaches, is cut off.
_LARGEST_REACH = 10.0


def _title(evaluation: TradingEvaluation, subject: str) -> str:
    market = evaluation.traded
    first, last = market.dates[int(market.start_day.min())], market.dates[int(_end_day(evaluation).max())]
    return f"{subject} of {evaluation.episodes()}\n{evaluation.title()}, {first} to {last}"


def _end_day(evaluation: TradingEvaluation) -> torch.Tensor:
    """Return the last day of each episode over all agents. Shape: (N,)."""
    lengths = torch.stack([record.curves.length for record in evaluation.records.values()])
    return evaluation.traded.start_day + lengths.max(0).values


def equity_figure(evaluation: TradingEvaluation) -> Figure:
    """Plot the equity of every agent in % of the start and, below, its log-return above the reference's.

    The agent that knows the future would flatten the others, so its end is told in words, as are those of agents that
    leave a panel. The excess of an agent that never invests is left out: it is the reference's loss.
    """
    shown, known = _without_hindsight(evaluation)
    curves = {name: 100.0 * record.curves.equity / record.curves.equity[0] for name, record in shown.items()}
    above = [name for name, record in shown.items() if name != evaluation.reference and record.curves.exposure.any()]
    compared = bool(above) and evaluation.reference in shown
    figure, axes = empty_figure(1 + compared, 1, (9.5, 8.0 if compared else 5.0), "x")
    _bands(axes[0], evaluation, curves, "Portfolio value, % of the start")
    axes[0].axhline(100.0, color="grey", linewidth=0.8)
    told: list[str] = []
    if known is not None:
        end = 100.0 * float((known.curves.equity[-1] / known.curves.equity[0]).quantile(0.5))
        told = [f"{evaluation.hindsight} knows the future and ends at {end:,.0f}%"]
    _keep_in_sight(axes[0], _ends(curves), 100.0, told)
    low, high = axes[0].get_ylim()
    if low > _LOWEST_LOG and high > _LOG_SCALE_RATIO * low:
        _show_logarithmic(axes[0], high / low)
    if compared:
        _excess(axes[1], evaluation, above)
    axes[-1].set_xlabel("Day of the episode")
    figure.suptitle(_title(evaluation, f"Equity: {_BAND}"))
    return figure


def _ends(curves: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return 5%, median and 95% of the last day."""
    return {name: [float(curve[-1].quantile(level)) for level in (0.05, 0.5, 0.95)] for name, curve in curves.items()}


def _keep_in_sight(axis: Axes, ends: Mapping[str, Sequence[float]], start: float, told: Sequence[str] = ()) -> None:
    """Limit a panel in which an agent would flatten the others, and tell the ends that are out of sight.

    ``ends`` are lower, middle and upper value of the last day by agent. The first agent, whose picture it is, stays in
    sight.
    """
    reach = [max(abs(low - start), abs(high - start)) for low, _, high in ends.values()]
    moved = sorted(far for far in reach if far > 0) or [0.0]
    largest = _LARGEST_REACH * max(reach[0], moved[(len(moved) - 1) // 2])
    low, high = axis.get_ylim()
    if max(reach) > largest:
        lowest, highest = axis.dataLim.intervaly
        low, high = max(low, lowest, start - largest), min(high, highest, start + largest)
        low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
        axis.set_ylim(low, high)
    lost = [f"out of sight: {name} ends at {end:,.0f}" for name, (_, end, _) in ends.items() if not low <= end <= high]
    if lines := [*told, *lost]:
        axis.text(0.01, 0.98, "\n".join(lines), transform=axis.transAxes, va="top", color="grey")


def _excess(axis: Axes, evaluation: TradingEvaluation, agents: Sequence[str]) -> None:
    """Plot the mean log-return of agents above the reference's since the start, with its 95% interval."""
    held = evaluation.daily_log_returns(evaluation.reference)
    days = np.unique(np.linspace(0, len(held), _MARKS).round().astype(int))
    ends: dict[str, tuple[float, float, float]] = {}
    for name in agents:
        daily = 100.0 * (evaluation.daily_log_returns(name) - held)
        means = [evaluation.of_days(daily[:day]) if day else Interval(0.0, 0.0, 0.0) for day in days]
        colour = colour_of(evaluation, name)
        axis.fill_between(days, [at.low for at in means], [at.high for at in means], facecolor=colour, alpha=0.15)
        axis.plot(days, [at.mean for at in means], color=colour, linewidth=2, label=name)
        ends[name] = (means[-1].low, means[-1].mean, means[-1].high)
    axis.axhline(0.0, color=colour_of(evaluation, evaluation.reference), linewidth=2)
    axis.set_ylabel(f"Log-return above\n{evaluation.reference}, points:\nmean, 95% interval")
    _keep_in_sight(axis, ends, 0.0)


def _show_logarithmic(axis: Axes, ratio: float) -> None:
    """Scale the values of a panel by their logarithm, with round marks for a ratio of highest to lowest."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_yscale("log")
    marks = (1.0,) if ratio > 30.0 else (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    axis.yaxis.set_major_locator(LogLocator(subs=marks))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def drawdown_figure(evaluation: TradingEvaluation) -> Figure:
    """Plot the drawdown of every agent: median and 5-95% of the episodes."""
    curves = {name: -100.0 * drawdowns(record.curves.equity) for name, record in evaluation.records.items()}
    return _one_panel(evaluation, curves, "Loss since the peak %", "Drawdown")


def exposure_figure(evaluation: TradingEvaluation) -> Figure:
    """Plot the invested share of equity, without the agent that knows the future: it is all in or all out each day."""
    shown, _ = _without_hindsight(evaluation)
    curves = {name: 100.0 * record.curves.exposure for name, record in shown.items()}
    return _one_panel(evaluation, curves, "Invested, % of the portfolio value", "Exposure")


def _without_hindsight(evaluation: TradingEvaluation) -> tuple[dict[str, AccountRecord], AccountRecord | None]:
    """Return the records of the others, and that of the agent that knows the future, if it played beside others."""
    others = {name: record for name, record in evaluation.records.items() if name != evaluation.hindsight}
    return (others, evaluation.records.get(evaluation.hindsight)) if others else (dict(evaluation.records), None)


def _one_panel(evaluation: TradingEvaluation, curves: Mapping[str, torch.Tensor], label: str, subject: str) -> Figure:
    figure, (axis,) = empty_figure(1, 1, (9.5, 5.0), "x")
    _bands(axis, evaluation, curves, label)
    # An account near nothing, or in debt, has any ratio.
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, -_LARGEST_PERCENT), min(high, _LARGEST_PERCENT))
    _keep_in_sight(axis, _ends(curves), 0.0)
    axis.set_xlabel("Day of the episode")
    figure.suptitle(_title(evaluation, f"{subject}: {_BAND}"))
    return figure


def _bands(axis: Axes, evaluation: TradingEvaluation, curves: Mapping[str, torch.Tensor], label: str) -> None:
    """Plot median and 5-95% of curves over the days of an episode, without ended episodes."""
    for name, curve in curves.items():
        length = evaluation.records[name].curves.length
        running = torch.arange(len(curve), device=curve.device)[:, None] <= length
        levels = torch.tensor([0.05, 0.5, 0.95], dtype=curve.dtype, device=curve.device)
        low, middle, high = curve.masked_fill(~running, math.nan).nanquantile(levels, dim=1).cpu().numpy()
        day, colour = np.arange(len(curve)), colour_of(evaluation, name)
        first = name == next(iter(curves))
        if first:
            axis.fill_between(day, low, high, facecolor=colour, alpha=0.12, label=f"{name}, 5-95%")
        axis.plot(day, np.stack([low, high], 1), color=colour, linewidth=0.7, alpha=0.6)
        # Where the palette begins anew.
        style = _LINE_STYLES[list(evaluation.records).index(name) // len(COLOURS) % len(_LINE_STYLES)]
        # The first agent lies above the others.
        axis.plot(day, middle, color=colour, linewidth=2, linestyle=style, label=name, zorder=3 if first else 2)
    axis.set_ylabel(label)
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def holdings_figure(evaluation: TradingEvaluation, agent: str) -> Figure:
    """Plot cash and positions of an agent in its first episode, the smaller positions summed."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    record, market = evaluation.records[agent], evaluation.traded
    days = int(record.curves.length[0]) + 1
    start = int(market.start_day[0])
    dates = market.dates[start : start + days]
    layers, names = _holding_layers(record, market.symbols, days)
    figure, (axis,) = empty_figure(1, 1, (9.5, 5.0), "x")
    # Light grey for cash, a colour for each position that is shown, dark grey for the others.
    colours = ["#DDDDDD", *(colour for colour in COLOURS if colour != "#000000")][: _LARGEST_POSITIONS + 1]
    axis.stackplot(dates, layers / 1e3, labels=names, colors=[*colours, "#888888"], linewidth=0)
    axis.plot(dates, layers.sum(0) / 1e3, color="black", linewidth=1)
    axis.set_ylabel(f"Value, thousands{_of_currency(evaluation)}")
    title = f"Holdings of {agent} in the first of {evaluation.episodes()}\n{evaluation.title()}"
    figure.suptitle(f"{title}, {dates[0]} to {dates[-1]}")
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    axis.margins(x=0)
    locator = AutoDateLocator(maxticks=8)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    return figure


def _of_currency(evaluation: TradingEvaluation) -> str:
    """Return " of " and the market's currency, empty if unknown."""
    currency = evaluation.metadata["market"].get("currency")
    return "" if currency is None else f" of {currency}"


def _holding_layers(record: AccountRecord, symbols: Sequence[str], days: int) -> tuple[np.ndarray, list[str]]:
    """Return cash, the positions largest by mean, and the sum of the rest. Shape: (layers, days)."""
    positions = record.positions[:days].cpu().numpy()
    largest = np.argsort(-np.abs(positions).mean(0), kind="stable")
    shown, rest = largest[:_LARGEST_POSITIONS], largest[_LARGEST_POSITIONS:]
    cash = record.curves.cash[:days, 0].cpu().numpy()
    layers, names = [cash, *positions[:, shown].T], ["cash", *(symbols[i] for i in shown)]
    if len(rest):
        layers.append(positions[:, rest].sum(1))
        names.append(f"{len(rest)} others")
    return np.stack(layers), names
