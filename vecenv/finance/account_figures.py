"""Pictures of the accounts of an evaluation: equity, drawdown, exposure and holdings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from vecenv.finance.metrics import drawdowns
from vecenv.learn.intervals import Interval
from vecenv.system.figures import COLOURS, dated, empty_figure, entitle, legend_below, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vecenv.finance.evaluation import AccountRecord, TradingEvaluation

_BAND = "median (thick) and 5-95% (thin)"
_LARGEST_POSITIONS = 6

# Greys of the groups of smaller positions.
_SMALLER = ("#666666", "#999999", "#bbbbbb")

# Days at which the mean excess is shown.
_MARKS = 26

# Percentages that are shown: what is beyond is cut off.
_LARGEST_PERCENT = 300.0

# Ratio of highest to lowest equity above which the axis is logarithmic, if the lowest is above this % of the start: one
# that is nearly lost would leave no room for the others.
_LOG_SCALE_RATIO = 2.0
_LOWEST_LOG = 10.0

# What an agent reaches beyond so many times what is usual, or what the first agent reaches, is cut off.
_LARGEST_REACH = 4.0


def _entitle(figure: Figure, evaluation: TradingEvaluation, subject: str) -> None:
    market, told = evaluation.traded, evaluation.title()
    if not market.generated:
        told += f", {market.dates[int(market.start_day.min())]} to {market.dates[int(_end_day(evaluation).max())]}"
    entitle(figure, f"{subject} of {evaluation.episodes()}", told)


def _days(evaluation: TradingEvaluation, count: int) -> np.ndarray:
    """Return the first days of the episodes: their dates if all begin on the same one, or else their numbers.

    Generated markets have no dates. Shape: (count,).
    """
    market, start = evaluation.traded, evaluation.traded.start_day
    same = bool((start == start[0]).all()) and not market.generated
    return market.dates[int(start[0]) : int(start[0]) + count] if same else np.arange(count)


def _show_days(axis: Axes, days: np.ndarray) -> None:
    if days.dtype.kind == "M":
        dated(axis)
    else:
        axis.set_xlabel("Day of the episode")


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
    figure, axes = empty_figure(1 + compared, 1, 8.0 if compared else 5.0)
    days = _bands(axes[0], evaluation, curves, "Portfolio value, % of the start")
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
    _show_days(axes[-1], days)
    legend_below(figure)
    _entitle(figure, evaluation, f"Equity: {_BAND}")
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
    places, shown = _days(evaluation, len(held) + 1)[days], looks(evaluation.records)
    ends: dict[str, tuple[float, float, float]] = {}
    for name in agents:
        daily = 100.0 * (evaluation.daily_log_returns(name) - held)
        means = [evaluation.of_days(daily[:day]) if day else Interval(0.0, 0.0, 0.0) for day in days]
        look = shown[name]
        axis.fill_between(
            places, [at.low for at in means], [at.high for at in means], facecolor=look.colour, alpha=0.15
        )
        axis.plot(places, [at.mean for at in means], **look.line(), label=name)
        ends[name] = (means[-1].low, means[-1].mean, means[-1].high)
    axis.axhline(0.0, **shown[evaluation.reference].line())
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
    figure, (axis,) = empty_figure(1, 1, 5.0)
    days = _bands(axis, evaluation, curves, label)
    # An account near nothing, or in debt, has any ratio.
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, -_LARGEST_PERCENT), min(high, _LARGEST_PERCENT))
    _keep_in_sight(axis, _ends(curves), 0.0)
    _show_days(axis, days)
    legend_below(figure)
    _entitle(figure, evaluation, f"{subject}: {_BAND}")
    return figure


def _bands(axis: Axes, evaluation: TradingEvaluation, curves: Mapping[str, torch.Tensor], label: str) -> np.ndarray:
    """Plot median and 5-95% of curves over the days of an episode, without ended episodes; return the days."""
    shown = looks(evaluation.records)
    for name, curve in curves.items():
        length, look = evaluation.records[name].curves.length, shown[name]
        running = torch.arange(len(curve), device=curve.device)[:, None] <= length
        levels = torch.tensor([0.05, 0.5, 0.95], dtype=curve.dtype, device=curve.device)
        low, middle, high = curve.masked_fill(~running, math.nan).nanquantile(levels, dim=1).cpu().numpy()
        days = _days(evaluation, len(curve))
        if look.subject:
            axis.fill_between(days, low, high, facecolor=look.colour, alpha=0.12, label=f"{name}, 5-95%")
        axis.plot(days, np.stack([low, high], 1), color=look.colour, linewidth=0.7, alpha=0.6)
        axis.plot(days, middle, **look.line(), label=name)
    axis.set_ylabel(label)
    return days


def holdings_figure(evaluation: TradingEvaluation, agent: str) -> Figure:
    """Plot cash and positions of an agent in its first episode, the smaller positions summed by their size."""
    record, market = evaluation.records[agent], evaluation.traded
    count = int(record.curves.length[0]) + 1
    start = int(market.start_day[0])
    days = np.arange(count) if market.generated else market.dates[start : start + count]
    layers, names = _holding_layers(record, market.symbols, count)
    figure, (axis,) = empty_figure(1, 1, 5.5)
    # Light grey for cash, a colour for each position that is shown.
    own = [colour for colour in COLOURS if colour != "#000000"][: len(names) - 1]
    own[_LARGEST_POSITIONS:] = _SMALLER
    axis.stackplot(days, layers / 1e3, labels=names, colors=["#DDDDDD", *own], linewidth=0)
    axis.plot(days, layers.sum(0) / 1e3, color="black", linewidth=1)
    axis.set_ylabel(f"Value, thousands{_of_currency(evaluation)}")
    told = evaluation.title() if market.generated else f"{evaluation.title()}, {days[0]} to {days[-1]}"
    entitle(figure, f"Holdings of {agent} in the first of {evaluation.episodes()}, and their mean shares", told)
    _show_days(axis, days)
    axis.margins(x=0)
    legend_below(figure)
    return figure


def _of_currency(evaluation: TradingEvaluation) -> str:
    """Return " of " and the market's currency, empty if unknown."""
    currency = evaluation.metadata["market"].get("currency")
    return "" if currency is None else f" of {currency}"


def _holding_layers(record: AccountRecord, symbols: Sequence[str], days: int) -> tuple[np.ndarray, list[str]]:
    """Return cash, the positions largest by mean, and sums of up to three groups of the rest. Shape: (layers, days)."""
    positions = record.positions[:days].cpu().numpy()
    cash = record.curves.cash[:days, 0].cpu().numpy()
    sizes = np.abs(positions).mean(0) / max(float((cash + positions.sum(1)).mean()), 1e-9)
    ranked = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
    shown, rest = ranked[:_LARGEST_POSITIONS], ranked[_LARGEST_POSITIONS:]
    layers = [cash, *positions[:, shown].T]
    names = ["cash", *(f"{symbols[place]} {100 * sizes[place]:.1f}%" for place in shown)]
    for group in np.array_split(rest, min(len(_SMALLER), len(rest)) or 1):
        if len(group):
            layers.append(positions[:, group].sum(1))
            low, high = 100 * sizes[group[-1]], 100 * sizes[group[0]]
            names.append(f"{len(group)} of {low:.1f} to {high:.1f}% each")
    return np.stack(layers), names
