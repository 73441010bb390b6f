"""The task `agent_market`: trade for profit."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical, MultiCategorical

from vecenv.tasks.agent_market.config import TradingConfig
from vecenv.tasks.agent_market.orders import Order, order
from vecenv.tasks.agent_market.scenario import MarketScenario, Tensors
from vecenv.tasks.agent_market.seat import SeatState, doubled_equity, equity_change

SELLS, HOLDS, BUYS = 0, 1, 2
"""Choices of the discrete action, and of the side of a limit order."""


class Trading(MarketScenario):
    """Trade for profit, at the market or by limit orders."""

    config: TradingConfig

    def __init__(self, config: TradingConfig) -> None:
        super().__init__(config)
        if config.action == "discrete":
            self.action_spec = Categorical(3, (1,), dtype=torch.int64)
        elif config.action == "continuous":
            self.action_spec = Bounded(-1.0, 1.0, (1,), dtype=torch.float32)
        else:
            self.action_spec = MultiCategorical([3, len(config.distances), len(config.sizes), 2], dtype=torch.int64)

    @property
    def unit(self) -> float:
        return float(self.config.order_size)

    def room(self, state: SeatState) -> tuple[Tensor, Tensor]:
        return self.config.max_position - state.shares, self.config.max_position + state.shares

    def chosen_orders(self, state: SeatState, action: Tensor) -> Tensor:
        config = self.config
        if config.action == "limit":
            return self._limit_orders(state, action)
        if config.action == "discrete":
            wanted = (action[0] - HOLDS) * config.order_size
        else:
            finite = torch.where(action[0].isfinite(), action[0], 0.0)
            wanted = torch.round(finite.clamp(-1, 1) * config.order_size).to(torch.int64)
        kind = torch.where(wanted > 0, Order.BUY, torch.where(wanted < 0, Order.SELL, Order.NONE))
        return order(kind, 1, wanted.abs(), state.tick).unsqueeze(0)

    def _limit_orders(self, state: SeatState, action: Tensor) -> Tensor:
        config = self.config
        side_choice, distance_choice, size_choice, cancels = action.unbind()
        buys = side_choice == BUYS
        bid, ask = state.touch.to(torch.int64).unbind()
        distance = _chosen(config.distances, distance_choice)
        mid = state.doubled_mid >> 1
        price = torch.where(buys, torch.where(bid > 0, bid, mid) - distance, torch.where(ask > 0, ask, mid) + distance)
        size = _chosen([round(size * config.order_size) for size in config.sizes], size_choice)
        side = torch.where(buys, Order.BUY_LIMIT, Order.SELL_LIMIT)
        acts = (side_choice != HOLDS) & (size > 0)
        return torch.stack(
            [
                order(torch.where(cancels == 0, Order.NONE, Order.CANCEL), 1, 0, state.tick),
                order(torch.where(acts, side, Order.NONE), price, size, state.tick),
            ]
        )

    def reward(
        self, state: SeatState, action: Tensor, next_state: SeatState, params: Tensors, shared: Tensors
    ) -> Tensor:
        config = self.config
        if config.reward == "equity":
            return equity_change(state, next_state, config.price_tick, config.scale)
        if config.reward == "shortfall":
            return shortfall_of_fills(state, next_state, config.price_tick, config.scale)
        ended = self.terminated(next_state, params, shared) | self.truncated(next_state, params, shared)
        return risk_adjusted(state, next_state, ended, config)

    def grade(self, state: SeatState, params: Tensors, shared: Tensors) -> Tensor:
        equity = doubled_equity(state).double()
        initial = 2 * self.config.initial_cash / self.config.price_tick
        return torch.sigmoid((equity / initial - 1) / self.config.grade_scale).float()


def shortfall_of_fills(state: SeatState, next_state: SeatState, price_tick: float, scale: float) -> Tensor:
    """Return minus the shortfall of a step's fills against the mid before it, in currency times a scale. Shape: ()."""
    bought = next_state.shares - state.shares
    doubled_gain = 2 * (next_state.cash - state.cash) + bought * state.doubled_mid
    return (doubled_gain.double() * (price_tick / 2 * scale)).float()


def risk_adjusted(state: SeatState, next_state: SeatState, ended: Tensor, config: TradingConfig) -> Tensor:
    """Return the change of equity less drawdown and traded shares, plus the Sharpe ratio of the steps at the end.

    Shape: (), float32.
    """
    change = equity_change(state, next_state, config.price_tick, 1.0).double()
    equity = doubled_equity(next_state)
    drawdown = (next_state.peak - equity).double() * (config.price_tick / 2)
    shares = next_state.last_traded.sum().double()
    steps = (next_state.tick // config.ticks_per_step).clamp(min=1).double()
    mean, square = (next_state.changes / steps).unbind()
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    sharpe = torch.where(deviation > 0, mean / deviation.clamp(min=1e-12), 0.0)
    bonus = torch.where(ended, config.sharpe_weight * sharpe, 0.0)
    penalty = config.drawdown_weight * drawdown
    return (config.scale * (change - penalty - config.cost_per_share * shares) + bonus).float()


def _chosen(values: list[int] | tuple[int, ...], choice: Tensor) -> Tensor:
    result = choice * 0
    for number, value in enumerate(values):
        result = torch.where(choice == number, value, result)
    return result
