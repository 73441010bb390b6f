"""What a task remembers of the learner's seat beside the market."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor

from vecenv.tasks.agent_market.market import Market


class SeatState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """The seat and what it sees of the market. Money is in price ticks.

    Attributes:
        market: the whole market, which only `Scenario.step` reads.
        features: of the last ticks. Shape: (54,) or (51,), float32.
        touch: best bid and ask, 0 where there is none. Shape: (2,), int32.
        ladder: prices and quantities of the best levels, bids first. Shape: (2, 2, 10), int32.
        doubled_mid: last sum of best bid and ask. Shape: (), int64.
        estimate: public estimate of the fundamental, in 2^-16. Shape: (), int64.
        cash: Shape: (), int64.
        shares: negative if sold short. Shape: (), int64.
        cost: what the shares have cost, negative if sold short. Shape: (), float64.
        peak: highest doubled equity. Shape: (), int64.
        traded: shares bought and sold in the episode. Shape: (2,), int64.
        last_traded: shares bought and sold in the last step. Shape: (2,), int32.
        own: of the seat's orders, as in `Own`, by side. Shape: (5, 2), int32.
        tick: ticks since the episode began. Shape: (), int64.
        first_mid: doubled mid when it began. Shape: (), int64.
        flow: volume and notional of the market's trades in the episode. Shape: (2,), int64.
        last_volume: volume of the market's trades in the last step. Shape: (), int64.
        changes: sums of the steps' changes of equity and of their squares, in currency. Shape: (2,), float64.
        parent: sign and shares of an order to execute, else zeros. Shape: (2,), int64.
        invalid: steps with an invalid action. Shape: (), int64.
        counts: of the market. Shape: (5,), int64.
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
    """The seat's orders on one side. Shape of each: (), int32.

    Attributes:
        quantity: of all of them.
        price: of the best, 0 without.
        size: quantity of the best.
        ahead: quantity before it at its price.
        id: of it, -1 without.
    """

    quantity: Tensor
    price: Tensor
    size: Tensor
    ahead: Tensor
    id: Tensor


def own_orders(state: SeatState, side: int) -> Own:
    """Return the seat's orders on a side, of one row or of several."""
    return Own(*state.own[..., side].unbind(-1))


def doubled_equity(cash: Tensor, shares: Tensor, doubled_mid: Tensor) -> Tensor:
    """Return twice the value of cash and shares at the mid, exact. Shapes: ()."""
    return 2 * cash + shares * doubled_mid


def cost_after(cost: Tensor, shares: Tensor, bought: Tensor, paid: Tensor) -> Tensor:
    """Return what a position has cost after a net purchase, at average cost.

    A purchase that makes the position larger adds what was paid; one that makes it smaller takes the average cost of
    what was closed; one that turns it around leaves its price.

    Args:
        cost: before it. Shape: (), float64.
        shares: before it. Shape: (), int64.
        bought: net, negative if sold. Shape: (), int64.
        paid: net. Shape: (), int64.
    """
    held, change, money = shares.double(), bought.double(), paid.double()
    after = held + change
    reduced = cost * after / torch.where(shares == 0, 1.0, held)
    turned = money * after / torch.where(bought == 0, 1.0, change)
    extends = (shares * bought >= 0) & (bought != 0)
    result = torch.where(shares * (shares + bought) >= 0, reduced, turned)
    result = torch.where(extends, cost + money, result)
    return torch.where(after == 0, 0.0, torch.where(bought == 0, cost, result))
