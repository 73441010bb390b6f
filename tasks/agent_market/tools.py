"""Tools for text agents of the agent-based market; they know no more than the texts show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.tasks.agent_market.features import FEATURES
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat import SeatState
from vecenv.text.tool_set import CALCULATOR, Tool, ToolFault, ToolSet

TOOLS: dict[str, Tool] = {
    "feature": Tool("market", "a feature of the market, such as macd or change_16; name", {"name": str}, ("name",)),
    "cost": Tool(
        "market",
        "mean price of a market order against the book that you see; side (buy or sell), shares",
        {"side": str, "shares": int},
        ("side", "shares"),
    ),
    "position": Tool("account", "what you hold, what it has cost, and your orders", {}),
    "calculator": CALCULATOR,
}


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


class MarketTools(ToolSet[_Row]):
    """Tools of a market's task: ``offered`` names tools or families; raises ValueError if there is no such tool."""

    tools = TOOLS
    example = "feature"
    turn = "step"

    def __init__(self, scenario: MarketScenario, offered: Sequence[str]) -> None:
        super().__init__(offered)
        self.scenario = scenario
        self._names = [name for name in scenario.feature_names if name in FEATURES]

    def rows(self, state: Any) -> list[_Row]:  # noqa: ANN401
        seen: SeatState = state
        ladder = seen.ladder if self.scenario.config.depth else seen.ladder[..., :1]
        columns = (
            seen.features,
            ladder.transpose(-3, -2),
            seen.own.transpose(-2, -1),
            seen.doubled_mid,
            seen.shares,
            seen.cost,
            seen.traded,
        )
        return [_Row(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    @property
    def functions(self) -> dict[str, Callable[..., str]]:
        return {"feature": self._feature, "cost": self._cost, "position": self._position}

    def _feature(self, row: _Row, name: str) -> str:
        if name not in self._names:
            raise ToolFault(f"there is no feature {name[:40]!r}; there are {', '.join(self._names)}")
        value = row.features[self._names.index(name)]
        return f"{name}, {FEATURES[name].meaning}: {value:.6g}"

    def _cost(self, row: _Row, side: str, shares: int) -> str:
        sides = {"buy": SELL, "sell": BUY}
        if side.lower() not in sides:
            raise ToolFault("side must be buy or sell")
        if shares < 1:
            raise ToolFault("shares must be at least 1")
        prices, sizes = row.levels[sides[side.lower()]]
        left, paid = shares, 0
        for price, size in zip(prices, sizes, strict=True):
            taken = min(left, size if price > 0 else 0)
            left, paid = left - taken, paid + taken * price
        filled = shares - left
        if not filled:
            return "that side of the book is empty"
        mid, mean = row.doubled_mid / 2, paid / filled
        worse = 1e4 * (mean / mid - 1) * (1 if side.lower() == "buy" else -1)
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
