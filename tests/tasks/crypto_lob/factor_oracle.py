"""Factors of one row of a table of books, by loops and pandas, written from their definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

BAR = 10.0
Series = Callable[[int], float]


class Rows:
    """A table of books up to a row, which is all that a factor of that row may see."""

    def __init__(self, table: pd.DataFrame, gap: float) -> None:
        self.table, self.gap = table, gap
        self.levels = sum(name.startswith("bid_px_") for name in table)
        self.bar = max(1, round(BAR / gap))

    def at(self, row: int, name: str) -> float:
        return float(self.table[name].iloc[max(row, 0)])

    def mid(self, row: int) -> float:
        return (self.at(row, "bid_px_0") + self.at(row, "ask_px_0")) / 2

    def log_mid(self, row: int) -> float:
        return 1e4 * np.log(self.mid(row))

    def window(self, row: int, seconds: float) -> range:
        return range(max(0, row + 1 - max(1, round(seconds / self.gap))), row + 1)

    def volume(self, row: int) -> float:
        return sum(self.at(r, "buy_qty") + self.at(r, "sell_qty") for r in self.window(row, BAR))

    def open(self, row: int) -> float:
        return self.mid(row - self.bar)

    def high(self, row: int) -> float:
        return max(self.mid(r) for r in self.window(row, BAR))

    def low(self, row: int) -> float:
        return min(self.mid(r) for r in self.window(row, BAR))

    def vwap(self, row: int) -> float:
        rows = self.window(row, BAR)
        volume = [self.at(r, "buy_qty") + self.at(r, "sell_qty") for r in rows]
        if not sum(volume):
            return self.mid(row)
        return sum(v * self.mid(r) for v, r in zip(volume, rows, strict=True)) / sum(volume)

    def bars(self, row: int, series: Series, count: int) -> pd.Series:
        """The last bars, the newest last; before the table its first row."""
        return pd.Series([series(max(row - bar * self.bar, 0)) for bar in reversed(range(count))])

    def delta(self, row: int, series: Series, count: int) -> float:
        return series(row) - series(max(row - count * self.bar, 0))

    def rank(self, row: int, series: Series, count: int = 20) -> float:
        return float(self.bars(row, series, count).rank(pct=True).iloc[-1])

    def correlation(self, row: int, left: Series, right: Series, count: int) -> float:
        value = self.bars(row, left, count).corr(self.bars(row, right, count))
        return 0.0 if np.isnan(value) else float(value)


def imbalance(rows: Rows, row: int, levels: int) -> float:
    bid, ask = (
        sum(rows.at(row, f"{side}_qty_{n}") for n in range(min(levels, rows.levels))) for side in ("bid", "ask")
    )
    return (bid - ask) / (bid + ask)


def order_flow(rows: Rows, row: int) -> float:
    if row == 0:
        return 0.0
    total = 0.0
    for side, sign in (("bid", 1), ("ask", -1)):
        price, before = (sign * rows.at(r, f"{side}_px_0") for r in (row, row - 1))
        size, size_before = (rows.at(r, f"{side}_qty_0") for r in (row, row - 1))
        total += sign * ((size if price >= before else 0) - (size_before if price <= before else 0))
    return total


def flow(rows: Rows, row: int, seconds: float) -> float:
    window = rows.window(row, seconds)
    best = np.mean([(rows.at(r, "bid_qty_0") + rows.at(r, "ask_qty_0")) / 2 for r in window])
    return sum(order_flow(rows, r) for r in window) / (best * np.sqrt(max(1, round(seconds / rows.gap))))


def trades(rows: Rows, row: int, seconds: float) -> float:
    bought, sold = (sum(rows.at(r, name) for r in rows.window(row, seconds)) for name in ("buy_qty", "sell_qty"))
    return (bought - sold) / (bought + sold) if bought + sold else 0.0


def volatility(rows: Rows, row: int, seconds: float) -> float:
    moves = [rows.log_mid(r) - rows.log_mid(r - 1) for r in rows.window(row, seconds)]
    return float(np.sqrt(np.mean(np.square(moves)) / rows.gap))


def microprice(rows: Rows, row: int) -> float:
    bid, ask = rows.at(row, "bid_qty_0"), rows.at(row, "ask_qty_0")
    weighted = (rows.at(row, "bid_px_0") * ask + rows.at(row, "ask_px_0") * bid) / (bid + ask)
    return 1e4 * (weighted - rows.mid(row)) / rows.mid(row)


def alpha_007(b: Rows, t: int) -> float:
    if not b.bars(t, b.volume, 20).mean() < b.volume(t):
        return -1.0
    move = lambda row: b.delta(row, b.mid, 7)  # noqa: E731
    return -b.rank(t, lambda row: abs(move(row)), 60) * float(np.sign(move(t)))


def alpha_009(b: Rows, t: int) -> float:
    moves = b.bars(t, lambda row: b.delta(row, b.mid, 1), 5)
    with_it = moves.min() > 0 or moves.max() < 0
    return (1 if with_it else -1) * moves.iloc[-1] * 1e4 / b.mid(t)


def alpha_026(b: Rows, t: int) -> float:
    volume, high = (lambda row, s=s: b.rank(row, s, 5) for s in (b.volume, b.high))
    return -b.bars(t, lambda row: b.correlation(row, volume, high, 5), 3).max()


def alpha_049(b: Rows, t: int) -> float:
    def last(row: int) -> float:
        return 1e4 * b.delta(row, b.mid, 10) / b.mid(row)

    if (last(max(t - 10 * b.bar, 0)) - last(t)) / 10 < -1:
        return 1.0
    return -1e4 * b.delta(t, b.mid, 1) / b.mid(t)


def alpha_053(b: Rows, t: int) -> float:
    def place(row: int) -> float:
        above, below = b.high(row) - b.mid(row), b.mid(row) - b.low(row)
        return float(np.clip((below - above) / below, -10, 10)) if below > 1e-12 else 0.0

    return -b.delta(t, place, 9)


def alpha_054(b: Rows, t: int) -> float:
    width = b.low(t) - b.high(t)
    return -(b.low(t) - b.mid(t)) * b.open(t) ** 5 / (width * b.mid(t) ** 5) if width else 0.0


def factor(name: str, table: pd.DataFrame, gap: float) -> float:
    """Return a factor of the last row of a table."""
    b, t = Rows(table, gap), len(table) - 1
    head, _, number = name.rpartition("_")
    windows: dict[str, Callable[[Rows, int, float], float]] = {
        "imbalance": imbalance,  # type: ignore[dict-item]
        "flow": flow,
        "trades": trades,
        "volatility": volatility,
        "return": lambda b, t, s: b.log_mid(t) - b.log_mid(t - max(1, round(s / b.gap))),
        "mean_imbalance": lambda b, t, s: float(np.mean([imbalance(b, r, 5) for r in b.window(t, s)])),
    }
    if head in windows:
        return windows[head](b, t, int(number))
    single: dict[str, Callable[[Rows, int], Any]] = {
        "microprice": microprice,
        "spread": lambda b, t: 1e4 * (b.at(t, "ask_px_0") - b.at(t, "bid_px_0")) / b.mid(t),
        "stale": lambda b, t: 0.0,
        "queue_change_bid": lambda b, t: np.log(b.at(t, "bid_qty_0")) - np.log(b.at(t - 1, "bid_qty_0")),
        "queue_change_ask": lambda b, t: np.log(b.at(t, "ask_qty_0")) - np.log(b.at(t - 1, "ask_qty_0")),
        "alpha_006": lambda b, t: -b.correlation(t, b.open, b.volume, 10),
        "alpha_007": alpha_007,
        "alpha_009": alpha_009,
        "alpha_012": lambda b, t: -np.sign(b.delta(t, b.volume, 1)) * b.delta(t, b.mid, 1) * 1e4 / b.mid(t),
        "alpha_023": lambda b, t: (
            -1e4 * b.delta(t, b.high, 2) / b.mid(t) if b.bars(t, b.high, 20).mean() < b.high(t) else 0.0
        ),
        "alpha_026": alpha_026,
        "alpha_041": lambda b, t: 1e4 * (np.sqrt(b.high(t) * b.low(t)) - b.vwap(t)) / b.mid(t),
        "alpha_042": lambda b, t: b.rank(t, lambda r: b.vwap(r) - b.mid(r)) / b.rank(t, lambda r: b.vwap(r) + b.mid(r)),
        "alpha_043": lambda b, t: (
            b.rank(t, lambda r: b.volume(r) / max(b.bars(r, b.volume, 20).mean(), 1e-12))
            * b.rank(t, lambda r: -b.delta(r, b.mid, 7), 8)
        ),
        "alpha_049": alpha_049,
        "alpha_053": alpha_053,
        "alpha_054": alpha_054,
        "alpha_101": lambda b, t: (b.mid(t) - b.open(t)) / (b.high(t) - b.low(t)) if b.high(t) > b.low(t) else 0.0,
    }
    return float(single[name](b, t))
