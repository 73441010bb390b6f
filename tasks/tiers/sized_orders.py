"""Orders that trade a wanted number of shares within the tier's limits; elementwise, for one account or N."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.money import Money
from vecenv.tasks.tiers.order_list import CAPACITY_STEPS, FRACTION_STEPS, MAX_SHARES, Kind, Limits, affordable


class Balance(NamedTuple):
    """What an order changes for later ones: cash and exposure in ticks, executed orders. Shape: (...), float64."""

    cash: Tensor
    exposure: Tensor
    trades: Tensor


class Wanted(NamedTuple):
    """A wanted trade in one symbol. Shape of each: (...), float64.

    ``shares`` to buy are negative to sell, at most those held; prices are in ticks, close and purchase at least 1.
    """

    shares: Tensor
    held: Tensor
    close: Tensor
    buy: Tensor
    sell: Tensor


def sized_order(money: Money, wanted: Wanted, before: Balance, limits: Limits) -> tuple[Tensor, Tensor, Balance]:
    """Return the order that trades the wanted shares, or as many of them as the limits allow.

    The symbol must be tradable, and for a purchase the day open to buying. Returned are the kind, int64: HOLD where
    nothing would be traded; the fraction, float64: the smallest that trades the shares, and with which no purchase
    breaks a limit; and the balance after the order. Shape of each: (...).
    """
    shares, held, close, buy, sell = wanted
    sell_steps = torch.ceil(-shares.clamp(max=0.0) * FRACTION_STEPS / held.clamp(min=1.0)).clamp(max=FRACTION_STEPS)
    sold = torch.floor(sell_steps * held / FRACTION_STEPS)

    room = torch.minimum(limits.position_value - held * close, limits.exposure_value - before.exposure).clamp(min=0.0)
    allowed = torch.minimum(torch.floor(room / close), MAX_SHARES - held)
    asked = torch.where(before.trades < limits.max_trades, torch.minimum(shares.clamp(min=0.0), allowed), 0.0)
    cost = asked * buy + money.commission(asked * buy, limits.commission)
    share_of_cash = limits.capacity * before.cash
    whole = FRACTION_STEPS * CAPACITY_STEPS
    steps = torch.ceil(cost * whole / share_of_cash.clamp(min=1.0)).clamp(max=FRACTION_STEPS)

    def bought_for(steps: Tensor) -> Tensor:
        return affordable(money, torch.floor(steps * share_of_cash / whole), buy, limits.commission)

    # In a large account one step of the fraction may buy a share too many, which would break the limits.
    steps = torch.where(bought_for(steps) > allowed, steps - 1.0, steps)
    bought = bought_for(steps)

    traded = bought * buy + sold * sell
    after = Balance(
        cash=before.cash + sold * sell - bought * buy - money.commission(traded, limits.commission),
        exposure=before.exposure + (bought - sold) * close,
        trades=before.trades + torch.where(bought + sold > 0, 1.0, 0.0),
    )
    kind = torch.where(sold > 0, Kind.SELL, torch.where(bought > 0, Kind.BUY, Kind.HOLD))
    return kind, torch.maximum(sell_steps, steps) / FRACTION_STEPS, after
