"""HTML report of one episode, as a self-contained file."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN
from vecenv.market.state_indicators import RSI_OVERBOUGHT, RSI_OVERSOLD
from vecenv.market.tape import MarketTape
from vecenv.system.page_figures import page_figure, svg
from vecenv.tasks.tiers.records import RecordedDay, RecordedEpisode
from vecenv.text.money import exact_money

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CHARTS = 6
"""Maximum number of symbol charts, those traded most."""

DAYS_BEFORE = 15
"""Days plotted before the episode."""

_UP, _DOWN, _BUY, _SELL, _OWN, _OTHER = "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#0072B2", "#8a8f98"
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#555555")
"""Okabe and Ito's colour-blind-safe palette."""

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2128; background: #f5f6f8; margin: 0; }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 60px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 0 0 10px; }
.sub { color: #626975; margin: 2px 0 18px; }
section { background: #fff; border: 1px solid #e2e5ea; border-radius: 8px; padding: 16px 18px; margin: 0 0 16px; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; margin: 0 0 16px; }
.card { background: #fff; border: 1px solid #e2e5ea; border-radius: 8px; padding: 10px 16px; }
.card b { display: block; font-size: 20px; } .card span { color: #626975; font-size: 13px; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: system-ui, sans-serif !important; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: 4px 8px; border-bottom: 1px solid #eceef1; white-space: nowrap; }
th { color: #626975; font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tr:last-child td { font-weight: 600; border-bottom: 0; } .minus { color: #b54708; } .zero { color: #b9bec6; }
details { border-top: 1px solid #eceef1; padding: 6px 0; } summary { cursor: pointer; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f6f8; border-radius: 6px;
  padding: 10px 12px; font-size: 13px; margin: 8px 0; }
pre.action { background: #eaf3fa; } .wrong { color: #b54708; font-weight: 600; }
"""


def write_report(path: Path | str, record: RecordedEpisode, reference: RecordedEpisode, tape: MarketTape) -> None:
    """Write the report of an episode: candles, trades, indicators, equity, reward, texts and grades.

    Args:
        path: HTML file.
        record: of the episode.
        reference: buy-and-hold's record of the same episode.
        tape: market of the scenario, on whose paths the episode lies.

    Raises:
        ValueError: the record has no days.
    """
    if not record.days:
        raise ValueError("no day of the episode has been played, so there is nothing to show")
    # Lone surrogates in an agent's text cannot be encoded.
    Path(path).write_text(report_page(record, reference, tape), encoding="utf-8", errors="xmlcharrefreplace")


def report_page(record: RecordedEpisode, reference: RecordedEpisode, tape: MarketTape) -> str:
    """Return the page of `write_report`."""
    shown = traded_most(record)
    charts = "".join(f"<h2>{escape(symbol)}</h2>{svg(market_figure(record, tape, symbol))}" for symbol in shown)
    names = ", ".join(record.symbols) if len(record.symbols) <= 10 else f"{len(record.symbols)} symbols"
    days = "".join(_day(number, day, record.money_sign) for number, day in enumerate(record.days, 1))
    title = f"{record.task}, {record.dates[0]} to {record.dates[1]}"
    state = "" if record.finished else ", left before the end"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(names)} · {len(record.days)} days{state} · {escape(record.market["source"])}</p>',
        _cards(record, reference),
        f"<section><h2>Equity</h2>{svg(equity_figure(record, reference))}</section>",
        f"<section>{charts}</section>",
        f"<section><h2>Reward by component</h2>{svg(reward_figure(record))}{_reward_table(record)}</section>",
        f"<section><h2>Days</h2>{days}</section>",
        f"<section><h2>Metadata</h2>{_metadata(record)}</section>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_CSS}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body><main>{"".join(parts)}</main></body></html>\n'


def traded_most(record: RecordedEpisode) -> list[str]:
    """Return the symbols traded, most often first, at most `MOST_CHARTS`; the first symbol if none was."""
    trades = [order["symbol"] for day in record.days for order in day.orders if order["shares"]]
    ranked = sorted(set(trades), key=lambda symbol: (-trades.count(symbol), record.symbols.index(symbol)))
    return ranked[:MOST_CHARTS] or record.symbols[:1]


def equity_figure(record: RecordedEpisode, reference: RecordedEpisode) -> Figure:
    """Draw the portfolio value and buy-and-hold's, in percent of the start."""
    figure, (axes,) = page_figure([1], 3.0)
    for curve, name, colour in ((reference, "buy and hold", _OTHER), (record, "agent", _OWN)):
        values = np.array([curve.start_value, *(day.portfolio_value for day in curve.days)])
        axes.plot(100 * (values / values[0] - 1), color=colour, label=name, linewidth=2, marker=".", markersize=5)
    axes.axhline(0, color="#8a8f98", linewidth=0.8)
    axes.set_ylabel("return, %")
    axes.set_xlabel("days")
    axes.legend(frameon=False, loc="best")
    return figure


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
    rsi.axhspan(RSI_OVERSOLD, RSI_OVERBOUGHT, color="#8a8f98", alpha=0.12, linewidth=0)
    rsi.set(ylabel="RSI", ylim=(0, 100), yticks=(0, RSI_OVERSOLD, RSI_OVERBOUGHT, 100))
    volume.bar(place, features["volume_ratio_20"], color="#8a8f98", width=0.65)
    volume.axhline(1, color="#3d434c", linewidth=0.8)
    volume.set_ylabel("volume / avg")
    for axes in (candles, rsi, volume):
        axes.axvspan(-0.5, first - low - 0.5, color="#8a8f98", alpha=0.10, linewidth=0)
        axes.set_xlim(-0.5, len(bars) - 0.5)
    ticks = np.linspace(0, len(bars) - 1, min(7, len(bars))).round().astype(int)
    volume.set_xticks(ticks, [str(tape.dates[low + tick]) for tick in ticks])
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
    """Mark purchases below and sales above the candles, with the number of shares."""
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
        colour = _PALETTE[number % len(_PALETTE)]
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


def _cards(record: RecordedEpisode, reference: RecordedEpisode) -> str:
    """Return summary cards of the outcome and buy-and-hold's."""
    trades = sum(order["shares"] != 0 for day in record.days for order in day.orders)
    cards = [(f"{record.total_return:+.2%}", f"return, buy and hold {reference.total_return:+.2%}")]
    cards += [
        (f"{grade:.3f}", f"{name} grade, buy and hold {reference.grades[name]:.3f}")
        for name, grade in record.grades.items()
    ]
    cards += [
        (f"{sum(day.reward for day in record.days):+.3f}", "reward"),
        (str(trades), f"trades, costs {exact_money(record.money_sign, sum(day.costs for day in record.days))}"),
        (str(sum(record.mistakes.values())), "mistakes"),
    ]
    inner = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in cards
    )
    return f'<div class="cards">{inner}</div>'


def _reward_table(record: RecordedEpisode) -> str:
    """Return the weighted components of each day and their sums."""
    names = used_components(record)
    heads = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in ("day", "date", *names, "reward"))
    rows = [
        ([str(number), day.date], [*(day.weighted[name] for name in names), day.reward])
        for number, day in enumerate(record.days, 1)
    ]
    rows.append((["sum", ""], [sum(column) for column in zip(*(values for _, values in rows), strict=True)]))
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in words)}{''.join(map(_cell, values))}</tr>"
        for words, values in rows
    )
    return f'<div class="wide"><table><tr>{heads}</tr>{body}</table></div>'


def _cell(value: float) -> str:
    kind = "zero" if value == 0 else "minus" if value < 0 else ""
    return f'<td class="{kind}">{value:+.3f}</td>' if value else f'<td class="{kind}">0</td>'


def _day(number: int, day: RecordedDay, sign: str) -> str:
    """Return a day's texts, collapsed."""
    said = day.action
    short = said if len(said) <= 80 else f"{said[:80]}…"
    mistakes = [f"{name.replace('_', ' ')} ×{count}" for name, count in day.mistakes.items() if count]
    wrong = [] if day.valid else ["invalid"]
    marks = f' <span class="wrong">{escape(", ".join(wrong + mistakes))}</span>' if wrong + mistakes else ""
    texts = "".join(
        f'<pre class="{"action" if message["role"] == "assistant" else ""}">{escape(message["content"])}</pre>'
        for message in day.messages
    )
    fills = (
        "; ".join(f"{order['shares']:+,} {order['symbol']}" for order in day.orders if order["shares"]) or "no trade"
    )
    value, costs = exact_money(sign, day.portfolio_value), exact_money(sign, day.costs)
    result = f"{fills} · portfolio {value} · costs {costs} · reward {day.reward:+.3f}"
    summary = f"<summary>Day {number}, {day.date}: {escape(short)}{marks}</summary>"
    return f"<details>{summary}{texts}<p>{escape(result)}</p></details>"


def _metadata(record: RecordedEpisode) -> str:
    """Return the episode's metadata, collapsed."""
    names = (
        "versions",
        "task",
        "config",
        "curriculum",
        "params",
        "market",
        "seed",
        "env_id",
        "episode",
        "path",
        "mistakes",
    )
    text = json.dumps({name: getattr(record, name) for name in names}, indent=2)
    return f"<details><summary>Versions, rules, market and seed</summary><pre>{escape(text)}</pre></details>"
