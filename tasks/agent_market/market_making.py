"""The task `market_making`: quote both sides, and earn the spread at a small inventory."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.data import MultiCategorical

from vecenv.kernels.order_book.messages import BUY, SELL
from vecenv.tasks.agent_market.config import MarketMakingConfig
from vecenv.tasks.agent_market.orders import Order, order
from vecenv.tasks.agent_market.scenario import MarketScenario, Tensors
from vecenv.tasks.agent_market.seat import SeatState, doubled_equity, equity_change


class MarketMaking(MarketScenario):
    """One bid and one ask at chosen distances from the mid, or none."""

    config: MarketMakingConfig

    def __init__(self, config: MarketMakingConfig) -> None:
        super().__init__(config)
        choices = 1 + len(config.distances)
        self.action_spec = MultiCategorical([choices, choices], dtype=torch.int64)

    @property
    def unit(self) -> float:
        return float(self.config.quote_size)

    def room(self, state: SeatState) -> tuple[Tensor, Tensor]:
        return self.config.max_inventory - state.shares, self.config.max_inventory + state.shares

    def chosen_orders(self, state: SeatState, action: Tensor) -> Tensor:
        """Return bid and ask as chosen: 0 for none, else a number of a distance from 1."""
        config = self.config
        sent = []
        for side, kind in ((BUY, Order.BID), (SELL, Order.ASK)):
            choice, room = action[side], self.room(state)[side]
            distance = choice * 0
            for number, value in enumerate(config.distances):
                distance = torch.where(choice == number + 1, value, distance)
            mid = state.doubled_mid
            price = (mid >> 1) - distance if side == BUY else ((mid + 1) >> 1) + distance
            wanted = (choice > 0) & (room >= config.quote_size) & (price > 0)
            sent.append(order(kind, price, torch.where(wanted, config.quote_size, 0), state.tick))
        return torch.stack(sent)

    def reward(
        self, state: SeatState, action: Tensor, next_state: SeatState, params: Tensors, shared: Tensors
    ) -> Tensor:
        config = self.config
        inventory = next_state.shares.double() / config.quote_size
        change = equity_change(state, next_state, config.price_tick, config.reward_scale)
        return change - (config.inventory_weight * inventory.square()).float()

    def grade(self, state: SeatState, params: Tensors, shared: Tensors) -> Tensor:
        equity = doubled_equity(state).double()
        profit = equity * (self.config.price_tick / 2) - self.config.initial_cash
        return torch.sigmoid(profit / self.config.grade_scale).float()
