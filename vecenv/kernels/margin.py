"""Margin rules of short positions: collateral, margin calls, borrow fees and order execution."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.money import Money
from vecenv.kernels.orders import Fills, Prices, buy, ration_by_size, ration_pro_rata, sell

UNLIMITED = 2.0**52


class Margin(NamedTuple):
    """Requirements on cash as a share of the value of the shorts. Shape of each: (), float64.

    Attributes:
        initial: beyond 1, when a short is opened or cash is spent on something else.
        maintenance: beyond 1, below which everything is closed.
        borrow_rate: yearly fee on the value of the shorts.
    """

    initial: Tensor
    maintenance: Tensor
    borrow_rate: Tensor


def short_value(money: Money, holdings: Tensor, price: Tensor) -> Tensor:
    """Return the cost of buying back all shorts at ``price``, in ticks. Shape: ()."""
    return money.total((-holdings).clamp(min=0.0), price)


def margin_call(money: Money, cash: Tensor, holdings: Tensor, close: Tensor, margin: Margin) -> Tensor:
    """Whether cash is below the maintenance requirement. Shape: ()."""
    shorts = short_value(money, holdings, close)
    return cash.double() < (1.0 + margin.maintenance) * shorts.double()


def borrow_fee(money: Money, holdings: Tensor, close: Tensor, margin: Margin, year: float) -> Tensor:
    """Return one day's fee for the borrowed shares, in ticks, with ``year`` days a year. Shape: ()."""
    shorts = short_value(money, holdings, close).double()
    return money.rounded_up(shorts * margin.borrow_rate / year).to(money.money_dtype)


def execute_with_shorts(
    money: Money, cash: Tensor, holdings: Tensor, order: Tensor, prices: Prices, by_size: bool, margin: Margin
) -> Fills:
    """Sell longs, cover shorts, buy longs, open shorts, in that order.

    Arguments and shapes as in `orders.execute_long_only`; holdings may be negative.
    """
    longs, shorts = holdings.clamp(min=0.0), (-holdings).clamp(min=0.0)
    sell_order, buy_order = (-order).clamp(min=0.0), order.clamp(min=0.0)
    sold = torch.minimum(sell_order, longs)
    opened = sell_order - sold
    covered = torch.minimum(buy_order, shorts)
    wanted = buy_order - covered

    cash, sold_value, fee_sold = sell(money, cash, sold, prices, None)
    covered, _ = ration_pro_rata(money, covered, prices.buy, prices.commission, cash.clamp(min=0), None)
    cash, covered_value, fee_covered = buy(money, cash, covered, prices, None)

    held_short = short_value(money, covered - shorts, prices.fill)
    free = _free_cash(money, cash, held_short, margin)
    if by_size:
        bought, ratio = ration_by_size(money, wanted, prices.buy, prices.commission, free, None)
    else:
        bought, ratio = ration_pro_rata(money, wanted, prices.buy, prices.commission, free, None)
    cash, bought_value, fee_bought = buy(money, cash, bought, prices, None)

    opening = money.total(opened, prices.sell)
    rate = margin.initial + prices.commission
    most = _free_cash(money, cash, held_short, margin).double() / torch.where(rate > 0, rate, 1.0)
    most = money.rounded_down(torch.where(rate > 0, most, UNLIMITED)).to(money.money_dtype)
    opened = money.scaled(opened, money.ratio(most, opening), None)
    cash, opened_value, fee_opened = sell(money, cash, opened, prices, None)

    return Fills(
        cash,
        (longs - sold + bought) - (shorts - covered + opened),
        covered + bought,
        sold_value + covered_value + bought_value + opened_value,
        fee_sold + fee_covered + fee_bought + fee_opened,
        ratio,
    )


def _free_cash(money: Money, cash: Tensor, shorts: Tensor, margin: Margin) -> Tensor:
    """Return the cash beyond the collateral of the shorts, rounded down, at least 0. Shape: ()."""
    free = cash.double() - (1.0 + margin.initial) * shorts.double()
    free = torch.floor(free) if money.whole_shares else free
    return free.clamp(min=0.0).to(money.money_dtype)
