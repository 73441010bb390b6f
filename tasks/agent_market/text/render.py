"""Rendering of what the seat sees as text: the order book as a ladder, the market, the account and the own orders.

Shown are the observation's numbers, prices and quantities exactly; without ``depth`` only the best level of each side.
Features are rounded to three significant digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import NamedTuple

from vecenv.kernels.order_book.messages import BUY, SELL


class Shown(NamedTuple):
    """One row. Prices and cash are in price ticks, profit in currency.

    ``steps`` are those of the longest episode, ``ladder`` prices and shares of the best levels, bids first, 0 where
    there is none, ``own`` of each side's orders the shares of all, and price, shares, queue before it and id of the
    best. ``estimate`` is None if it is not shown. ``last_traded`` and ``room`` are shares bought and sold in the last
    step, and those that may still be, those in open orders aside.
    """

    step: int
    steps: int
    features: Mapping[str, float]
    ladder: Sequence[Sequence[Sequence[int]]]
    own: Sequence[Sequence[int]]
    doubled_mid: int
    estimate: float | None
    shares: int
    cash: int
    profit: float
    last_traded: Sequence[int]
    last_volume: int
    room: Sequence[int]


class Renderer:
    """Renders rows as text; ``price_tick`` is in currency."""

    def __init__(self, price_tick: float, candle_seconds: float) -> None:
        self._tick = Decimal(str(price_tick))
        self._seconds = candle_seconds

    def price(self, ticks: float | Decimal) -> str:
        """Format a price or an amount of money, given in price ticks, with separators; exact but for a float's."""
        amount = Decimal(ticks) * self._tick
        return f"{amount.quantize(self._tick / 10 if amount % self._tick else self._tick):,f}"

    def text(self, row: Shown, task_lines: Sequence[str]) -> str:
        step = f"Step {row.step + 1} of {row.steps}" if row.step < row.steps else "The episode has ended."
        lines = [step, *task_lines, *self._market(row), *self._ladder(row)]
        return "\n".join([*lines, *self._account(row)])

    def _market(self, row: Shown) -> list[str]:
        told = row.features
        mid = self.price(Decimal(row.doubled_mid) / 2)
        changes = ", ".join(f"{told[f'change_{lag}']:+z.3f}% over {lag}" for lag in (1, 8, 64))
        lines = [
            f"Mid {mid} | spread {told['spread']:.3g} basis points | imbalance of the book {told['imbalance']:+z.2f}",
            f"Candles of {self._seconds:g} s: {changes} | RSI {told['rsi_8']:.0f} | "
            f"volatility {100 * told['volatility_8']:.3g}% (8), {100 * told['volatility_32']:.3g}% (32) | "
            f"volume {told['volume_surge']:.2g}x",
        ]
        news = "none"
        if told["news_active"]:
            kind = "good" if told["news_sentiment"] > 0 else "bad"
            size = self.price(round(told["news_magnitude"]))
            news = f"{kind}, worth {size}, {told['news_remaining']:.0f} ticks left"
        fair = "" if row.estimate is None else f" | fair value, a noisy estimate: {self.price(round(row.estimate))}"
        return [*lines, f"News: {news}{fair}"]

    def _ladder(self, row: Shown) -> list[str]:
        """Return the levels of the book, highest price first, with the own orders beside theirs."""
        bids, asks = ([(price, size) for price, size in zip(*side, strict=True) if price > 0] for side in row.ladder)
        width = max([len(self.price(price)) for price, _ in (*bids, *asks)], default=5)
        lines = [f"{'bids':>9}  {'price':>{width}}  {'asks':>9}"]
        lines += [
            f"{'':>9}  {self.price(price):>{width}}  {size:>9,}{self._mark(row, SELL, price)}"
            for price, size in reversed(asks)
        ]
        lines += [
            f"{size:>9,}  {self.price(price):>{width}}  {'':>9}{self._mark(row, BUY, price)}".rstrip()
            for price, size in bids
        ]
        empty = [name for name, side in (("bids", bids), ("asks", asks)) if not side]
        return [*lines, *(f"There are no {name}." for name in empty)]

    def _mark(self, row: Shown, side: int, price: int) -> str:
        quantity, own_price, size, ahead, _ = row.own[side]
        return f"  < yours: {size:,}, {ahead:,} before it" if quantity and own_price == price else ""

    def _account(self, row: Shown) -> list[str]:
        orders = []
        for name, (quantity, price, size, _, _) in zip(("bid", "ask"), row.own, strict=True):
            if quantity:
                more = f", and {quantity - size:,} more behind it" if quantity > size else ""
                orders.append(f"{name} {size:,} at {self.price(price)}{more}")
        bought, sold = row.last_traded
        lines = [
            f"Position: {row.shares:+,} shares | cash {self.price(row.cash)} | profit {row.profit:+z,.2f}",
            f"Your orders: {'; '.join(orders) or 'none'}",
            f"You may buy {max(row.room[BUY], 0):,} more and sell {max(row.room[SELL], 0):,} more.",
        ]
        if row.step:
            lines.append(f"In the last step you bought {bought:,} and sold {sold:,}, of {row.last_volume:,} traded.")
        return lines
