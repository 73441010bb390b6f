"""Pictures of one episode of the tiers for its report: candles of what was traded, rewards by component."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN
from vecenv.market.state_indicators import RSI_OVERBOUGHT, RSI_OVERSOLD
from vecenv.market.tape import MarketTape
from vecenv.system.figures import COLOURS, GREY, page_figure, svg
from vecenv.system.report_page import number_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vecenv.tasks.tiers.records import RecordedEpisode
    from vecenv.tasks.tiers.scenario import TierTrading

MOST_CHARTS = 6
"""Maximum number of symbol charts, those traded most."""

DAYS_BEFORE = 15
"""Days plotted before the episode."""

_BUY, _DOWN, _UP, _SELL = COLOURS[:4]


def candle_charts(record: RecordedEpisode, reference: RecordedEpisode, other: str, scenario: TierTrading) -> str:
    """Return the charts of the symbols that were traded most."""
    return "".join(
        f'<h2>{escape(symbol)}</h2><div class="wide">{svg(market_figure(record, scenario.tape, symbol))}</div>'
        for symbol in traded_most(record)
    )


def reward_section(record: RecordedEpisode, reference: RecordedEpisode, other: str, scenario: TierTrading) -> str:
    """Return picture and table of each day's reward by component."""
    return f'<div class="wide">{svg(reward_figure(record))}</div>{_reward_table(record)}'


def traded_most(record: RecordedEpisode) -> list[str]:
    """Return the symbols traded, most often first, at most `MOST_CHARTS`; the first symbol if none was."""
    trades = [order["symbol"] for day in record.days for order in day.orders if order["shares"]]
    ranked = sorted(set(trades), key=lambda symbol: (-trades.count(symbol), record.symbols.index(symbol)))
    return ranked[:MOST_CHARTS] or record.symbols[:1]


def market_figure(record: RecordedEpisode, tape: MarketTape, symbol: str) -> Figure:
    """Draw a symbol's candles with the trades, its RSI, and its volume against the average."""
    # With a random symbol, each path has one symbol.
    column = tape.symbols.index(symbol) if symbol in tape.symbols else 0
    first, last = (int(np.searchsorted(tape.dates, np.datetime64(date))) for date in record.dates)
    low = max(first - DAYS_BEFORE, tape.first_day)
    days = slice(low, last + 1)
    bars = tape.ohlcv[record.path, days, column].cpu().double().numpy()
    features = dict(zip(tape.feature_names, tape.features[record.path, days, column].cpu().numpy().T, strict=True))
    figure, (candles, rsi, volume) = page_figure([3.2, 1, 1], 5.2)
    _draw_candles(candles, bars)
    _draw_trades(candles, record, symbol, bars, first - low)
    candles.set_ylabel(f"price, {sign}" if (sign := record.money_sign.strip()) else "price")
    place = np.arange(len(bars))
    rsi.plot(place, features["rsi_14"], color="#3d434c", linewidth=1.4)
    rsi.axhspan(RSI_OVERSOLD, RSI_OVERBOUGHT, color=GREY, alpha=0.12, linewidth=0)
    rsi.set(ylabel="RSI", ylim=(0, 100), yticks=(0, RSI_OVERSOLD, RSI_OVERBOUGHT, 100))
    volume.bar(place, features["volume_ratio_20"], color=GREY, width=0.65)
    volume.axhline(1, color="#3d434c", linewidth=0.8)
    volume.set_ylabel("volume / avg")
    for axes in (candles, rsi, volume):
        axes.axvspan(-0.5, first - low - 0.5, color=GREY, alpha=0.10, linewidth=0)
        axes.set_xlim(-0.5, len(bars) - 0.5)
    ticks = np.linspace(0, len(bars) - 1, min(7, len(bars))).round().astype(int)
    told = [f"day {tick - first + low}" if tape.generated else str(tape.dates[low + tick]) for tick in ticks]
    volume.set_xticks(ticks, told)
    figure.align_ylabels()
    return figure


def _draw_candles(axes: Axes, bars: np.ndarray) -> None:
    """Draw daily bars, shape (T, 5)."""
    place = np.arange(len(bars))
    colours = np.where(bars[:, CLOSE] >= bars[:, OPEN], _UP, _DOWN)
    axes.vlines(place, bars[:, LOW], bars[:, HIGH], color=colours, linewidth=1)
    bottom, height = np.minimum(bars[:, OPEN], bars[:, CLOSE]), np.abs(bars[:, CLOSE] - bars[:, OPEN])
    # A candle with equal open and close is a line.
    thin = 0.004 * np.ptp(bars[:, LOW])
    axes.bar(place, np.maximum(height, thin), bottom=bottom, color=colours, width=0.65)


def _draw_trades(axes: Axes, record: RecordedEpisode, symbol: str, bars: np.ndarray, start: int) -> None:
    gap = 0.06 * max(float(np.ptp(bars[:, LOW])), 1e-9)
    sides = ((1, "bought", "^", _BUY, LOW), (-1, "sold", "v", _SELL, HIGH))
    for sign, name, marker, colour, edge in sides:
        sums = [
            sum(
                abs(order["shares"]) for order in day.orders if order["symbol"] == symbol and sign * order["shares"] > 0
            )
            for day in record.days
        ]
        marked = [(start + number, shares) for number, shares in enumerate(sums) if shares]
        if not marked:
            continue
        height = [bars[place, edge] - sign * gap for place, _ in marked]
        axes.scatter([place for place, _ in marked], height, marker=marker, color=colour, s=48, zorder=3, label=name)
        for (place, shares), level in zip(marked, height, strict=True):
            axes.annotate(
                f"{shares:,}",
                (place, level),
                xytext=(0, -sign * 7),
                textcoords="offset points",
                ha="center",
                va="top" if sign > 0 else "bottom",
                fontsize=7,
                color=colour,
            )
    axes.margins(y=0.14)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, loc="best", ncols=2)


def reward_figure(record: RecordedEpisode) -> Figure:
    """Draw the weighted components of each day's reward as stacked bars, and the reward itself."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = page_figure([1], 3.2)
    place = np.arange(1, len(record.days) + 1)
    above, below = np.zeros(len(place)), np.zeros(len(place))
    for number, name in enumerate(used_components(record)):
        value = np.array([day.weighted[name] for day in record.days])
        bottom = np.where(value >= 0, above, below)
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(place, value, bottom=bottom, width=0.75, label=name.replace("_", " "), color=colour)
        above, below = above + value.clip(min=0), below + value.clip(max=0)
    axes.plot(place, [day.reward for day in record.days], "k.", markersize=6, label="reward")
    axes.axhline(0, color="#3d434c", linewidth=0.8)
    axes.set_xlim(0.4, len(place) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="day", ylabel="reward")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def used_components(record: RecordedEpisode) -> list[str]:
    """Return the components with a nonzero contribution on any day."""
    return [name for name in record.days[0].weighted if any(day.weighted[name] for day in record.days)]


def _reward_table(record: RecordedEpisode) -> str:
    names = used_components(record)
    rows: list[tuple[list[str], list[float]]] = [
        ([str(number), day.date], [*(day.weighted[name] for name in names), day.reward])
        for number, day in enumerate(record.days, 1)
    ]
    rows.append((["sum", ""], [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]))
    return number_table([name.replace("_", " ") for name in ("day", "date", *names, "reward")], rows)
