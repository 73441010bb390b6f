"""The learner's seat beside the market: what a task remembers of it, and its account."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.tasks.agent_market.config import SeatConfig
from vecenv.tasks.agent_market.market import Market


class SeatState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """The seat and what it sees of the market. Money is in price ticks; a number is int64 where nothing else is said.

    ``market`` is the whole market, which only `Scenario.step` reads. ``features`` are of the last ticks, (54,) or
    (51,), float32, ``touch`` best bid and ask, (2,), int32, and ``ladder`` prices and quantities of the best levels,
    bids first, (2, 2, 10), int32, 0 where there is none. ``doubled_mid`` is the last sum of best bid and ask,
    ``first_mid`` that when the episode began, ``estimate`` the public estimate of the fundamental, in 2^-16. ``shares``
    and what they have cost, ``cost``, float64, are negative if sold short; ``peak`` is the highest doubled equity.
    ``traded``, (2,), are shares bought and sold in the episode, ``last_traded``, int32, those in the last step, ``own``
    the fields of `Own` by side, (5, 2), int32. ``flow``, (2,), is volume and notional of the market's trades in the
    episode, ``last_volume`` the volume of the last step, ``changes`` the sums of the steps' changes of equity and of
    their squares, in currency, (2,), float64. ``parent``, (2,), is sign and shares of an order to execute, else zeros;
    ``invalid`` counts steps with an invalid action, ``counts``, (5,), are the market's.
    """

    market: Market
    features: Tensor
    touch: Tensor
    ladder: Tensor
    doubled_mid: Tensor
    estimate: Tensor
    cash: Tensor
    shares: Tensor
    cost: Tensor
    peak: Tensor
    traded: Tensor
    last_traded: Tensor
    own: Tensor
    tick: Tensor
    first_mid: Tensor
    flow: Tensor
    last_volume: Tensor
    changes: Tensor
    parent: Tensor
    invalid: Tensor
    counts: Tensor


class Own(NamedTuple):
    """The seat's orders on one side: shares of all, and price, size, shares ahead and id of the best. Shapes: ().

    Without orders the price is 0 and the id -1.
    """

    quantity: Tensor
    price: Tensor
    size: Tensor
    ahead: Tensor
    id: Tensor


def own_orders(state: SeatState, side: int) -> Own:
    """Return the seat's orders on a side, of one row or of several."""
    return Own(*state.own[..., side].unbind(-1))


def doubled_equity(state: SeatState) -> Tensor:
    """Return twice the value of cash and shares at the mid, exact. Shape: () or that of the rows."""
    return 2 * state.cash + state.shares * state.doubled_mid


def equity_change(state: SeatState, next_state: SeatState, price_tick: float, scale: float) -> Tensor:
    """Return the change of equity at the mid, in currency times a scale. Shape: (), float32."""
    change = doubled_equity(next_state) - doubled_equity(state)
    return (change.double() * (price_tick / 2 * scale)).float()


def account_after(
    state: SeatState,
    invalid: Tensor,
    cash: Tensor,
    shares: Tensor,
    traded: Tensor,
    doubled_mid: Tensor,
    config: SeatConfig,
) -> dict[str, Any]:
    """Return the fields of a seat's account after a step; ``cash`` is received in the episode, in price ticks."""
    cash = round(config.initial_cash / config.price_tick) + cash
    equity = 2 * cash + shares * doubled_mid
    change = (equity - doubled_equity(state)).double() * (config.price_tick / 2)
    return {
        "cash": cash,
        "shares": shares,
        "cost": cost_after(state.cost, state.shares, shares - state.shares, state.cash - cash),
        "peak": torch.maximum(state.peak, equity),
        "traded": state.traded + traded,
        "last_traded": traded,
        "invalid": state.invalid + invalid,
        "changes": state.changes + torch.stack([change, change.square()]),
    }


def cost_after(cost: Tensor, shares: Tensor, bought: Tensor, paid: Tensor) -> Tensor:
    """Return what a position has cost after a net purchase, negative if sold, at average cost. Shapes: ().

    A purchase that makes the position larger adds what was paid; one that makes it smaller takes the average cost of
    what was closed; one that turns it around leaves its price.
    """
    held, change, money = shares.double(), bought.double(), paid.double()
    after = held + change
    reduced = cost * after / torch.where(shares == 0, 1.0, held)
    turned = money * after / torch.where(bought == 0, 1.0, change)
    extends = (shares * bought >= 0) & (bought != 0)
    result = torch.where(shares * (shares + bought) >= 0, reduced, turned)
    result = torch.where(extends, cost + money, result)
    return torch.where(after == 0, 0.0, torch.where(bought == 0, cost, result))
