"""The task `execution`: buy or sell a parent order within a time, at a small shortfall against the arrival price."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrl.data import MultiCategorical

from vecenv.core.random import EpisodeKey, random_bits
from vecenv.tasks.agent_market.config import ExecutionConfig
from vecenv.tasks.agent_market.market import MarketStream
from vecenv.tasks.agent_market.orders import Order, order
from vecenv.tasks.agent_market.scenario import MarketScenario, Tensors
from vecenv.tasks.agent_market.seat import SeatState

WAITS, JOINS, IMPROVES = 0, 1, 2
"""Choices of the passive order: none, at the best price of its side, or one price tick better."""


class Execution(MarketScenario):
    """Execute a parent order by slices at the market and one passive order.

    What is left in the last step is bought or sold up to `max_spread` from the mid; what the book cannot fill at once
    waits there until the end.
    """

    config: ExecutionConfig

    def __init__(self, config: ExecutionConfig) -> None:
        super().__init__(config)
        self.action_spec = MultiCategorical([len(config.slices), 3], dtype=torch.int64)

    def own_features(self) -> tuple[str, ...]:
        return "parent_sign", "remaining", "ahead_of_schedule", "shortfall"

    def shown(self, state: SeatState, params: Tensors) -> tuple[Tensor, ...]:
        """Return sign, remaining share, share ahead of an even schedule, and shortfall so far in basis points."""
        left = remaining(state).double() / self.config.parent_size
        return state.parent[0], left, 1 - state.tick / self.config.max_ticks - left, self.shortfall(state)

    def shortfall(self, state: SeatState) -> Tensor:
        return shortfall(state, self.config.left_cost, self.config.max_ticks)

    def parent_order(self, key: EpisodeKey, seat: int) -> Tensor:
        word = random_bits(key, MarketStream.PARENT, seat)[0]
        signs = {"buy": word * 0 + 1, "sell": word * 0 - 1, "random": torch.where(word % 2 == 0, 1, -1)}
        return torch.stack([signs[self.config.side], word * 0 + self.config.parent_size])

    def room(self, state: SeatState) -> tuple[Tensor, Tensor]:
        left, buys = remaining(state), state.parent[..., 0] > 0
        return torch.where(buys, left, 0), torch.where(buys, 0, left)

    def orders(self, state: SeatState, action: Tensor) -> Tensor:
        orders = super().orders(state, action)
        kind = torch.where(state.parent[0] > 0, Order.BUY_LIMIT, Order.SELL_LIMIT)
        price = (state.doubled_mid >> 1) + state.parent[0] * self.config.max_spread
        cancels = torch.where((state.own[0] > 0).any(), Order.CANCEL, Order.NONE)
        closing = [order(cancels, 1, 0, state.tick), order(kind, price, remaining(state), state.tick)]
        closing += [order(Order.NONE, 1, 0, state.tick)] * (len(orders) - len(closing))
        last = state.tick + self.config.ticks_per_step >= self.config.max_ticks
        return torch.where(last, torch.stack(closing), orders)

    def chosen_orders(self, state: SeatState, action: Tensor) -> Tensor:
        config, left = self.config, remaining(state)
        slice_choice, passive_choice = action.unbind()
        buys = state.parent[0] > 0
        quantity = left * 0
        for number, part in enumerate(config.slices):
            quantity = torch.where(slice_choice == number, round(part * config.even_slice), quantity)
        quantity = torch.minimum(quantity, left)
        passive = torch.minimum(quantity * 0 + round(config.passive_slices * config.even_slice), left - quantity)
        bid, ask = state.touch.to(torch.int64).unbind()
        better = (passive_choice == IMPROVES) & (ask - bid > 1)
        price = torch.where(buys, bid + better.to(torch.int64), ask - better.to(torch.int64))
        # Beside nobody there is no price to join.
        waits = (passive_choice != WAITS) & (torch.where(buys, bid, ask) > 0)
        passive = torch.where(waits, passive, 0)
        market = torch.where(quantity > 0, torch.where(buys, Order.BUY, Order.SELL), Order.NONE)
        return torch.stack(
            [
                order(Order.BID, price, torch.where(buys, passive, 0), state.tick),
                order(Order.ASK, price, torch.where(buys, 0, passive), state.tick),
                order(market, 1, quantity, state.tick),
            ]
        )

    def reward(
        self, state: SeatState, action: Tensor, next_state: SeatState, params: Tensors, shared: Tensors
    ) -> Tensor:
        """Return minus the shortfall that the step has added, in basis points of the parent order times a scale."""
        return (-(self.shortfall(next_state) - self.shortfall(state)) * self.config.reward_scale).float()

    def terminated(self, state: SeatState, params: Tensors, shared: Tensors) -> Tensor:
        """Whether the seat is bankrupt, or its parent order executed; among others it waits until they are done."""
        bankrupt = super().terminated(state, params, shared)
        return bankrupt if self.num_agents > 1 else (remaining(state) == 0) | bankrupt

    def grade(self, state: SeatState, params: Tensors, shared: Tensors) -> Tensor:
        return torch.sigmoid(-self.shortfall(state) / self.config.grade_scale).float()

    def info(self, state: SeatState, params: Tensors, shared: Tensors) -> dict[str, Tensor]:
        own = {
            "shortfall": self.shortfall(state),
            "shortfall_to_vwap": shortfall_to_vwap(state),
            "left": remaining(state),
        }
        return own | super().info(state, params, shared)


def remaining(state: SeatState) -> Tensor:
    """Return the shares of the parent order that are left. Shape: () or that of the rows, int64."""
    return state.parent[..., 1] - state.parent[..., 0] * state.shares


def shortfall(state: SeatState, left_cost: float, max_ticks: int) -> Tensor:
    """Return the implementation shortfall, in basis points of the parent order at the arrival price.

    What has been paid above the mid at the arrival, and what is left at the mid now: Perold, "The implementation
    shortfall: paper versus reality", Journal of Portfolio Management 14 (1988). What is left after the last tick costs
    ``left_cost`` basis points more, so that leaving it is no way to save the spread. Shape: () or that of the rows,
    float64.
    """
    arrival, left = state.first_mid.double() / 2, remaining(state).double()
    paid = state.cost - state.shares.double() * arrival
    waiting = left * state.parent[..., 0].double() * (state.doubled_mid.double() / 2 - arrival)
    waiting = waiting + torch.where(state.tick >= max_ticks, left * arrival * (left_cost / 1e4), 0.0)
    return 1e4 * (paid + waiting) / (arrival * state.parent[..., 1].double()).clamp(min=1.0)


def shortfall_to_vwap(state: SeatState) -> Tensor:
    """Return the executed shares' cost above the market's mean price by volume, in basis points; 0 before a trade."""
    volume, notional = state.flow.double().unbind()
    mean = notional / volume.clamp(min=1.0)
    held = state.shares.double()
    excess = 1e4 * (state.cost - held * mean) / (mean * held.abs()).clamp(min=1.0)
    return torch.where((volume > 0) & (state.shares != 0), excess, 0.0)
