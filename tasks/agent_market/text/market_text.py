"""Text interface of the agent-based market: rendered rows, and answers parsed into lists of orders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Any

import torch
from torch import Tensor

from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.tasks.agent_market.scenario import MarketScenario
from vecenv.tasks.agent_market.seat_state import doubled_equity, own_orders
from vecenv.tasks.agent_market.text.parse import OrderLanguage
from vecenv.tasks.agent_market.text.prompt import order_grammar, system_prompt
from vecenv.tasks.agent_market.text.render import Renderer, Shown
from vecenv.tasks.agent_market.tools import MarketTools
from vecenv.text.task_text import TaskText


class MarketText(TaskText):
    """Renders rows and parses answers of a market's task."""

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
        equity = doubled_equity(state.cash, state.shares, state.doubled_mid).double()
        ladder = state.ladder if config.depth else state.ladder[..., :1]
        rooms = [
            shares - own_orders(state, side).quantity
            for side, shares in zip((BUY, SELL), self.scenario.room(state), strict=True)
        ]
        columns = (
            state.tick // config.ticks_per_step,
            observations[:, : len(names)],
            ladder.transpose(-3, -2),
            state.own.transpose(-2, -1),
            state.doubled_mid,
            state.estimate.double() * 2.0**-16,
            state.shares,
            state.cash,
            equity * (config.price_tick / 2) - config.initial_cash,
            state.last_traded,
            state.last_volume,
            *rooms,
        )
        rows = []
        for step, features, levels, own, mid, estimate, shares, cash, profit, traded, volume, buys, sells in zip(
            *(column.tolist() for column in _on_host(columns)), strict=True
        ):
            rows.append(
                Shown(
                    step=step,
                    steps=config.num_steps,
                    features=dict(zip(names, features, strict=False)),
                    ladder=levels,
                    own=own,
                    doubled_mid=mid,
                    estimate=estimate if config.fair_value else None,
                    shares=shares,
                    cash=cash,
                    profit=profit,
                    last_traded=traded,
                    last_volume=volume,
                    room=(buys, sells),
                )
            )
        return rows

    def grammar(self, state: Any) -> list[str]:  # noqa: ANN401
        language, config = self.language, self.scenario.config
        prices, auction = (state.doubled_mid >> 1).tolist(), config.clearing == "auction"
        return [
            order_grammar(config.max_orders, language.default, language.price(price), str(language.price_tick), auction)
            for price in prices
        ]

    def instructions(self, state: Any) -> list[str]:  # noqa: ANN401
        config = self.scenario.config
        seconds = config.ticks_per_step * config.tick_seconds
        auction_seconds = config.tick_seconds if config.clearing == "auction" else None
        return [
            system_prompt(goal, config.num_steps, seconds, grammar, auction_seconds)
            for goal, grammar in zip(self.goals(state), self.grammar(state), strict=True)
        ]

    def acted(self, state: Any) -> Tensor:  # noqa: ANN401
        return (state.last_traded > 0).any(-1) | (state.own[:, 0] > 0).any(-1)

    def parse(self, texts: Sequence[object], state: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Parse each text to kind, price and shares of orders, (B, M, 3), and validity; an invalid one is a hold."""
        orders, valid = self.language.tensor([self.language.parse(text) for text in texts])
        return orders.to(state.tick.device), valid.to(state.tick.device)

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
