"""Action space `limit_weights`: tilts of the benchmark's weights that keep within the tier's limits.

The rules are those of ``tasks/tiers/rules.md``, *Other action spaces*. Weights are whole numbers of steps, whose sums
are exact in any order, and the exponential is made of products and sums, so that all devices compute the same orders.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.exponential import exponential
from vecenv.kernels.materialise import materialise
from vecenv.kernels.money import RATIO_STEPS, Money
from vecenv.kernels.orders import fill_prices
from vecenv.tasks.tiers.order_list import MAX_SHARES, Kind, Limits
from vecenv.tasks.tiers.order_spaces import SMALLEST_TRADE, in_places, order_places
from vecenv.tasks.tiers.sized_orders import Balance, Wanted, sized_order

LEAST_CASH = 0.02
"""Least benchmark weight of cash, and the share of each limit that target weights leave free."""

TILT_STEPS = 2.0**30
"""Steps per unit of a benchmark weight, before and after its tilt."""

MAX_GAIN = 8.0
"""Largest gain: the exponential has ten digits up to it, and tilted steps sum exactly."""

HALVINGS, TERMS = 8, 6
"""Of the exponential, for these ten digits."""


class WeightLimits(NamedTuple):
    """Shares of the value: of a symbol in buy-and-hold, at most in one, at most in all. Shape of each: (), float64."""

    holding_share: Tensor
    max_position: Tensor
    max_exposure: Tensor


class Market(NamedTuple):
    """Closes in ticks, 0 before the listing; 1 where tradable and of the tier; whole shares. Shape: (K,), float64."""

    close: Tensor
    tradable: Tensor
    held: Tensor


def target_weights(action: Tensor, tradable: Tensor, stuck: Tensor, limits: WeightLimits, gain: float) -> Tensor:
    """Return the tilted benchmark weights within the limits, in steps of 1 / `RATIO_STEPS`. Shape: (K,), float64.

    The last of the K + 1 tilts is cash's. ``stuck`` is the share of the value in untradable symbols, in whole steps.
    """
    tilt = exponential(action.clamp(-1.0, 1.0).double() * gain, HALVINGS, TERMS)
    share = torch.round((1.0 - LEAST_CASH) * limits.holding_share * TILT_STEPS) * tradable
    cash = (TILT_STEPS - share.sum(-1)).clamp(min=LEAST_CASH * TILT_STEPS)
    tilted = torch.round(share * tilt[:-1])
    total = tilted.sum(-1) + torch.round(cash * tilt[-1])
    most = torch.floor((1.0 - LEAST_CASH) * limits.max_position * RATIO_STEPS)
    most_of_all = torch.floor((1.0 - LEAST_CASH) * limits.max_exposure * RATIO_STEPS)
    weight = torch.minimum(torch.floor(tilted * RATIO_STEPS / total), most)
    room, used = (most_of_all - stuck).clamp(min=0.0), weight.sum(-1)
    return torch.where(used > room, torch.floor(weight * room / used.clamp(min=1.0)), weight)


def limit_weights_to_orders(
    money: Money,
    action: Tensor,
    market: Market,
    cash: Tensor,
    value: Tensor,
    weight_limits: WeightLimits,
    limits: Limits,
    gain: float,
    max_orders: int,
) -> Tensor:
    """Convert tilts of the benchmark's weights to the M largest orders. Shape: (M, 3), float32.

    Tilts of the K symbols and, last, of cash are clamped to [-1, 1]; a NaN or infinite one makes the action invalid.
    Cash and portfolio value are whole ticks. Orders are kind, symbol and fraction, sales first, in the symbols' order.
    """
    finite = (action.abs() <= torch.finfo(action.dtype).max).all(-1)
    tradable, held, close = market.tradable, market.held, market.close.clamp(min=1.0)
    stuck = torch.ceil((held * close * (1.0 - tradable)).sum(-1) * RATIO_STEPS / value)
    weight = target_weights(torch.where(finite, action, 0.0), tradable, stuck, weight_limits, gain)
    target = torch.floor(weight * value / (close * RATIO_STEPS)).clamp(max=float(MAX_SHARES))
    change = (target - held) * tradable
    change = torch.where(limits.closed, change.clamp(max=0.0), change)
    worth = change * close
    worth = torch.where(worth.abs() >= SMALLEST_TRADE * value, worth, 0.0)
    place = order_places(worth, limits.max_trades.clamp(max=max_orders))
    slots = torch.arange(len(held), dtype=torch.float64, device=held.device)
    symbol, change, held, close = (in_places(values, place, max_orders) for values in (slots, change, held, close))
    prices = fill_prices(money, close, limits.slippage, limits.commission)
    # Each order reads a number of every symbol's: computed once, not once an order.
    symbol, *columns = materialise([symbol, change, held, close, prices.buy, prices.sell])
    balance, orders = Balance(cash, value - cash, torch.zeros_like(cash)), []
    for number in range(max_orders):
        shares, owned, price, buy, sell = (column[number] for column in columns)
        wanted = Wanted(shares, owned, price.clamp(min=1.0), buy.clamp(min=1.0), sell)
        kind, fraction, balance = sized_order(money, wanted, balance, limits)
        orders.append(torch.stack([kind.double(), symbol[number], fraction]) * torch.sign(kind))
    listed = torch.stack(orders).to(torch.float32)
    kinds = torch.where(finite, listed[:, :1], float(Kind.INVALID))
    # As above: a day of orders reads each of these many times.
    return materialise([torch.cat([kinds, listed[:, 1:]], dim=-1)])[0]
