"""What each task of the agent-based market asks and shows in words."""

from __future__ import annotations

from typing import Any

from vecenv.tasks.agent_market.execution import Execution, remaining
from vecenv.tasks.agent_market.market_making import MarketMaking
from vecenv.tasks.agent_market.text.market_text import MarketText
from vecenv.tasks.agent_market.trading import Trading


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
