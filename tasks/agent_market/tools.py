"""Tools for text agents of the agent-based market; they know no more than the texts show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.tasks.agent_market.features import FEATURES
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat import SeatState
from vecenv.tools.calculator import Calculator
from vecenv.tools.declaration import ToolFault
from vecenv.tools.tool_set import Callers, Reply, each, tool


@dataclass(frozen=True)
class _Row:
    """Context of a tool call: one row. Prices and money are in price ticks.

    By side, ``levels`` are prices and shares of the best levels, ``own`` shares of own orders, and price, shares, queue
    and id of the best.
    """

    features: Sequence[float]
    levels: Sequence[Sequence[Sequence[int]]]
    own: Sequence[Sequence[int]]
    doubled_mid: int
    shares: int
    cost: float
    traded: Sequence[int]


class MarketTools(Calculator):
    """Tools of a market's task: ``offered`` names tools or families; raises ValueError if there is no such tool."""

    example = "feature"
    turn = "step"

    def __init__(self, scenario: MarketScenario, offered: Sequence[str]) -> None:
        super().__init__(offered)
        self.scenario = scenario
        self._names = [name for name in scenario.feature_names if name in FEATURES]

    @tool("market", "a feature of the market, such as macd or change_16; name", {"name": str})
    def feature(self, callers: Callers[SeatState], name: Sequence[str]) -> list[Reply]:
        return each(self._feature, self._rows(callers.state), name)

    @tool(
        "market",
        "mean price of a market order against the book that you see; side (buy or sell), shares",
        {"side": ("buy", "sell"), "shares": int},
    )
    def cost(self, callers: Callers[SeatState], side: Sequence[str], shares: Tensor) -> list[Reply]:
        return each(self._cost, self._rows(callers.state), side, shares)

    @tool("account", "what you hold, what it has cost, and your orders")
    def position(self, callers: Callers[SeatState]) -> list[Reply]:
        return each(self._position, self._rows(callers.state))

    def _rows(self, state: SeatState) -> list[_Row]:
        ladder = state.ladder if self.scenario.config.depth else state.ladder[..., :1]
        columns = (
            state.features,
            ladder.transpose(-3, -2),
            state.own.transpose(-2, -1),
            state.doubled_mid,
            state.shares,
            state.cost,
            state.traded,
        )
        return [_Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def _feature(self, row: _Row, name: str) -> str:
        if name not in self._names:
            raise ToolFault(f"there is no feature {name[:40]!r}; there are {', '.join(self._names)}")
        value = row.features[self._names.index(name)]
        return f"{name}, {FEATURES[name].meaning}: {value:.6g}"

    def _cost(self, row: _Row, side: str, shares: int) -> str:
        if shares < 1:
            raise ToolFault("shares must be at least 1")
        prices, sizes = row.levels[SELL if side == "buy" else BUY]
        left, paid = shares, 0
        for price, size in zip(prices, sizes, strict=True):
            taken = min(left, size if price > 0 else 0)
            left, paid = left - taken, paid + taken * price
        filled = shares - left
        if not filled:
            return "that side of the book is empty"
        mid, mean = row.doubled_mid / 2, paid / filled
        worse = 1e4 * (mean / mid - 1) * (1 if side == "buy" else -1)
        told = f"{filled:,} shares at {mean * self._tick:,.6g} on average, {worse:.3g} basis points from the mid"
        return told if not left else f"{told}; for the other {left:,} you see no orders"

    def _position(self, row: _Row) -> str:
        value = row.shares * row.doubled_mid / 2
        bids, asks = (orders[0] for orders in row.own)
        return (
            f"{row.shares:+,} shares, cost {row.cost * self._tick:,.2f}, value at the mid {value * self._tick:,.2f}, "
            f"profit of them {(value - row.cost) * self._tick:+,.2f}; {bids:,} shares in bids, {asks:,} in asks; "
            f"{row.traded[BUY]:,} bought and {row.traded[SELL]:,} sold since the start"
        )

    @property
    def _tick(self) -> float:
        return self.scenario.config.price_tick
