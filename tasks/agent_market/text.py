"""Text interface of the agent-based market: goals, rendered rows, and answers parsed into lists of orders.

Shown are the observation's numbers, prices and quantities exactly, with the order book as a ladder; without ``depth``
only the best level of each side. Features are rounded to three significant digits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.tasks.agent_market.execution import Execution, remaining
from vecenv.tasks.agent_market.language import OrderLanguage
from vecenv.tasks.agent_market.market_making import MarketMaking
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat import doubled_equity, own_orders
from vecenv.tasks.agent_market.tools import MarketTools
from vecenv.tasks.agent_market.trading import Trading
from vecenv.text.interface import TextInterface

MARKET = (
    "You trade one stock in a limit order book among background agents, whom your orders move. There are {steps} "
    "steps of {seconds:g} seconds. At each you are shown the market and your account, and you answer with orders "
    "alone; they are carried out at once, and the market goes on until the next step.\n"
)

AUCTION = (
    "You trade one stock among background agents. Every {tick_seconds:g} s all orders are cleared at one price, and "
    "none waits for the next. There are {steps} steps of {seconds:g} seconds. At each you are shown the market, what "
    "was not filled last, and your account, and you answer with orders alone; they are cleared next, and the market "
    "goes on until the next step.\n"
)

ORDERS = """\
Answers, on one line separated by ; at most {max_orders} orders
  HOLD                    do nothing
  BUY {size}                 buy at the best prices there are; SELL likewise; without a number {default} shares
  BUY {size} AT {price}      buy up to that price, the rest waits in the book; SELL likewise
  BID {size} AT {price}      have one bid in the book, never traded at once: yours moves there, and keeps its place
                          if it is there already; ASK likewise; BID 0 cancels it
  CANCEL                  cancel all your orders
Orders beyond your limits are cut to them. Prices are multiples of {tick}."""


AUCTION_ORDERS = """\
Answers, on one line separated by ; at most {max_orders} orders
  HOLD                    do nothing
  BUY {size}                 buy at the price of all; SELL likewise; without a number {default} shares
  BUY {size} AT {price}      buy if the price of all is at most this; SELL if it is at least this
Orders beyond your limits are cut to them. Prices are multiples of {tick}."""


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


class MarketText(TextInterface):
    """Renders rows and parses answers of a market's task."""

    called = "orders"
    language: OrderLanguage

    def __init__(self, scenario: MarketScenario) -> None:
        config = scenario.config
        self.scenario = scenario
        self.language = OrderLanguage(config.price_tick, round(scenario.unit), config.max_orders)

    @cached_property
    def renderer(self) -> Renderer:
        config = self.scenario.config
        return Renderer(config.price_tick, config.candle_ticks * config.tick_seconds)

    def render(self, observations: Tensor, state: Any) -> list[str]:  # noqa: ANN401
        rows = zip(self._shown(observations, state), self.task_lines(state), strict=True)
        return [self.renderer.text(row, lines) for row, lines in rows]

    @abstractmethod
    def goals(self, state: Any) -> list[str]:  # noqa: ANN401
        """Return what is asked of the agent of each row."""

    def task_lines(self, state: Any) -> list[list[str]]:  # noqa: ANN401
        """Return what the task shows of each row beside the market."""
        return [[]] * len(state.tick)

    def _shown(self, observations: Tensor, state: Any) -> list[Shown]:  # noqa: ANN401
        config, names = self.scenario.config, self.scenario.feature_names
        equity = doubled_equity(state).double()
        ladder = state.ladder if config.depth else state.ladder[..., :1]
        rooms = [
            shares - own_orders(state, side).quantity
            for side, shares in zip((BUY, SELL), self.scenario.room(state), strict=True)
        ]
        columns = {
            "step": state.tick // config.ticks_per_step,
            "features": self.scenario.unscaled(observations)[:, : len(names)],
            "ladder": ladder.transpose(-3, -2),
            "own": state.own.transpose(-2, -1),
            "doubled_mid": state.doubled_mid,
            "estimate": state.estimate.double() * 2.0**-16,
            "shares": state.shares,
            "cash": state.cash,
            "profit": equity * (config.price_tick / 2) - config.initial_cash,
            "last_traded": state.last_traded,
            "last_volume": state.last_volume,
            "room": torch.stack(rooms, -1),
        }
        rows = []
        for numbers in zip(*(column.tolist() for column in _on_host(list(columns.values()))), strict=True):
            row: dict[str, Any] = dict(zip(columns, numbers, strict=True))
            row["features"] = dict(zip(names, row["features"], strict=False))
            row["estimate"] = row["estimate"] if config.fair_value else None
            rows.append(Shown(steps=config.num_steps, **row))
        return rows

    def grammar(self, state: Any) -> list[str]:  # noqa: ANN401
        language, config = self.language, self.scenario.config
        told, size = AUCTION_ORDERS if config.clearing == "auction" else ORDERS, language.default
        given = {"max_orders": config.max_orders, "size": size, "default": size, "tick": language.price_tick}
        return [told.format(price=language.price(price), **given) for price in (state.doubled_mid >> 1).tolist()]

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        config = self.scenario.config
        market = (AUCTION if config.clearing == "auction" else MARKET).format(
            steps=config.num_steps,
            seconds=config.ticks_per_step * config.tick_seconds,
            tick_seconds=config.tick_seconds,
        )
        goals = zip(self.goals(state), self.grammar(state), strict=True)
        return [f"{market}{goal}\n{grammar}" for goal, grammar in goals]

    def acted(self, state: Any) -> Tensor:  # noqa: ANN401
        return (state.last_traded > 0).any(-1) | (state.own[:, 0] > 0).any(-1)

    def examples(self) -> tuple[str, ...]:
        return "HOLD", "BUY", "SELL", "CANCEL"

    def tools(self, names: Sequence[str]) -> MarketTools:
        return MarketTools(self.scenario, names)

    def random_answer(self, draw: Random) -> str:
        middle = self.scenario.config.mean_price
        kinds = ("HOLD", "CANCEL", "BUY", "SELL 10", "BUY {n} AT {p}", "SELL {n} @ {p}", "BID {n} AT {p}", "ASK 0")
        chosen = draw.sample(kinds, draw.randrange(1, 3))
        price = self.language.price(middle + draw.randrange(-20, 21))
        return "; ".join(kind.format(n=draw.randrange(1, 200), p=price) for kind in chosen)


def _on_host(columns: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of B rows on the host, by one copy: float64 holds all of a seat's numbers exactly."""
    flat = [column.reshape(len(column), -1).double() for column in columns]
    parts = torch.cat(flat, dim=-1).cpu().split([column.shape[-1] for column in flat], dim=-1)
    return [part.to(column.dtype).view(column.shape) for part, column in zip(parts, columns, strict=True)]


class TradingText(MarketText):
    """Text of the task `agent_market`."""

    scenario: Trading

    def goals(self, state: Any) -> list[str]:  # noqa: ANN401
        most = self.scenario.config.max_position
        goal = f"Make as much profit as you can. You may hold at most {most:,} shares, or be short as many.\n"
        return [goal] * len(state.tick)


class MarketMakingText(MarketText):
    """Text of the task `market_making`."""

    scenario: MarketMaking

    def goals(self, state: Any) -> list[str]:  # noqa: ANN401
        most = self.scenario.config.max_inventory
        goal = (
            "You are a market maker: earn the spread by a bid and an ask, and keep your inventory small. It may be at "
            f"most {most:,} shares long or short, open quotes included.\n"
        )
        return [goal] * len(state.tick)


class ExecutionText(MarketText):
    """Text of the task `execution`."""

    scenario: Execution

    def goals(self, state: Any) -> list[str]:  # noqa: ANN401
        return [
            f"{'Buy' if sign > 0 else 'Sell'} {shares:,} shares, as near as you can to the price at the start. What is "
            "left in the last step is traded whatever you answer, and what is left after it is costly.\n"
            for sign, shares in state.parent.tolist()
        ]

    def task_lines(self, state: Any) -> list[list[str]]:  # noqa: ANN401
        columns = (state.parent, remaining(state), self.scenario.shortfall(state), state.first_mid / 2)
        return [
            [
                f"Order: {'buy' if sign > 0 else 'sell'} {shares:,} shares, {left:,} are left | price at the start "
                f"{self.renderer.price(arrival)} | shortfall so far {so_far:+.2f} basis points"
            ]
            for (sign, shares), left, so_far, arrival in zip(*(column.tolist() for column in columns), strict=True)
        ]
