"""Rewards of a step in the agent-based market, in float32 from exact accounts."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.tasks.agent_market.config import SeatConfig
from vecenv.tasks.agent_market.seat_state import SeatState, doubled_equity


def equity_change(state: SeatState, next_state: SeatState, price_tick: float, scale: float) -> Tensor:
    """Return the change of equity at the mid, in currency times a scale. Shape: (), float32."""
    before = doubled_equity(state.cash, state.shares, state.doubled_mid)
    after = doubled_equity(next_state.cash, next_state.shares, next_state.doubled_mid)
    return ((after - before).double() * (price_tick / 2 * scale)).float()


def shortfall_of_fills(state: SeatState, next_state: SeatState, price_tick: float, scale: float) -> Tensor:
    """Return minus the shortfall of a step's fills against the mid before it, in currency times a scale. Shape: ()."""
    bought = next_state.shares - state.shares
    doubled_gain = 2 * (next_state.cash - state.cash) + bought * state.doubled_mid
    return (doubled_gain.double() * (price_tick / 2 * scale)).float()


def risk_adjusted(
    state: SeatState,
    next_state: SeatState,
    ended: Tensor,
    weights: tuple[float, float, float],
    config: SeatConfig,
    scale: float,
) -> Tensor:
    """Return the change of equity less drawdown and traded shares, plus the Sharpe ratio of the steps at the end.

    ``weights`` are of the drawdown, of a share traded, in currency, and of the Sharpe ratio; ``scale`` is of the rest.
    Shape: (), float32.
    """
    drawdown_weight, cost_per_share, sharpe_weight = weights
    change = equity_change(state, next_state, config.price_tick, 1.0).double()
    equity = doubled_equity(next_state.cash, next_state.shares, next_state.doubled_mid)
    drawdown = (next_state.peak - equity).double() * (config.price_tick / 2)
    shares = next_state.last_traded.sum().double()
    steps = (next_state.tick // config.ticks_per_step).clamp(min=1).double()
    mean, square = (next_state.changes / steps).unbind()
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    sharpe = torch.where(deviation > 0, mean / deviation.clamp(min=1e-12), 0.0)
    bonus = torch.where(ended, sharpe_weight * sharpe, 0.0)
    return (scale * (change - drawdown_weight * drawdown - cost_per_share * shares) + bonus).float()
