"""Order execution: fill prices, sells before buys, and rationing of buys by cash."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.money import Money


class Prices(NamedTuple):
    """Prices of one day in ticks.

    Attributes:
        fill: price before slippage. Shape: (K,).
        buy: paid for a share. Shape: (K,).
        sell: received for a share. Shape: (K,).
        commission: rate on the traded value, 0 where it is part of the prices. Shape: (), float64.
    """

    fill: Tensor
    buy: Tensor
    sell: Tensor
    commission: Tensor


class Fills(NamedTuple):
    """Account and trade totals after the orders.

    Attributes:
        cash: ticks. Shape: ().
        holdings: shares. Shape: (K,).
        bought: shares bought. Shape: (K,).
        traded: value bought plus value sold at trade prices, ticks. Shape: ().
        commissions: ticks. Shape: ().
        buy_ratio: share of the wanted purchases that cash covered. Shape: ().
    """

    cash: Tensor
    holdings: Tensor
    bought: Tensor
    traded: Tensor
    commissions: Tensor
    buy_ratio: Tensor


def fill_prices(money: Money, fill: Tensor, slippage: Tensor | None, commission: Tensor) -> Prices:
    """Move the fill price against the trader by slippage and, where it is given per symbol, commission.

    Prices are ticks, rates float64, of shape () or (K,); None for no slippage.
    """
    surcharges = [] if slippage is None else [slippage]
    if commission.ndim == 1:
        surcharges.append(commission)
    buy = sell = fill
    for rate in surcharges:
        amount = money.rounded_up(fill.to(money.single) * rate.to(money.single))
        # Above 2^24 ticks a sum is rounded to the 24 bits of a price, in either precision.
        buy = (buy.to(money.single) + amount).to(fill.dtype)
        sell = (sell.to(money.single) - amount).to(fill.dtype)
    if surcharges:
        sell = sell.clamp(min=0.0)
    per_trade = commission if commission.ndim == 0 else torch.zeros_like(commission[0])
    return Prices(fill, buy, sell, per_trade)


def wanted_shares(money: Money, action: Tensor, hmax: Tensor, dead_zone: Tensor | None) -> Tensor:
    """Turn actions in [-1, 1] into signed share orders of at most ``hmax``. Shape: (K,)."""
    action = action.to(money.single)
    order = money.rounded_down(action * hmax.to(money.single)).to(money.dtype)
    return order if dead_zone is None else torch.where(action.abs() <= dead_zone.to(money.single), 0.0, order)


def ration_pro_rata(
    money: Money, wanted: Tensor, price: Tensor, commission: Tensor, available: Tensor, max_shares: int | None
) -> tuple[Tensor, Tensor]:
    """Scale buy orders by one ratio so that they and their commission cost at most ``available``. Shapes: (K,), ()."""
    cost = money.total(wanted, price, max_shares)
    need = cost + money.commission(cost, commission)
    ratio = money.ratio(available, need, money.most_value(wanted.shape[-1], max_shares))
    return money.scaled(wanted, ratio, max_shares), ratio


def ration_by_size(
    money: Money, wanted: Tensor, price: Tensor, commission: Tensor, available: Tensor, max_shares: int | None
) -> tuple[Tensor, Tensor]:
    """Fill buy orders sequentially, largest first, ties by position: FinRL's rule. Shapes: (K,), ()."""
    budget = _affordable(money, available, commission)
    rank = _rank(wanted, max_shares if money.whole_shares else None)
    sorted_wanted = torch.zeros_like(wanted).scatter(-1, rank, wanted).double()
    sorted_price = torch.zeros_like(price).scatter(-1, rank, price).double()
    divisor = torch.where(sorted_price > 0, sorted_price, 1.0)
    served = []
    # As few operations as can be: each is compiled K times.
    for want, price, whole in zip(*(part.unbind(-1) for part in (sorted_wanted, sorted_price, divisor)), strict=True):
        most = torch.floor(budget / whole) if money.whole_shares else budget / whole
        shares = torch.minimum(want, most)
        budget = budget - shares * price
        if not money.whole_shares:
            budget = budget.clamp(min=0.0)
        served.append(shares)
    bought = torch.stack(served, dim=-1).to(wanted.dtype).gather(-1, rank)
    return bought, bought.sum(-1) / wanted.sum(-1).clamp(min=1e-9)


def _rank(wanted: Tensor, max_shares: int | None) -> Tensor:
    """Return each order's place, largest first, ties by position. Shape: (K,), int64.

    Counting the larger ones takes K² comparisons and is still eight times as fast as a stable sort of short rows.
    """
    count = wanted.shape[-1]
    position = torch.arange(count, device=wanted.device)
    if max_shares is not None and (max_shares + 1) * count < 2**24:
        # Order and position are packed into one exact number, without ties.
        key = wanted * count - position
        before = key.unsqueeze(-2) > key.unsqueeze(-1)
    else:
        own, other = wanted.unsqueeze(-1), wanted.unsqueeze(-2)
        before = (other > own) | ((other == own) & (position < position.unsqueeze(-1)))
    return before.to(torch.float32).sum(-1).to(torch.int64)


def _affordable(money: Money, cash: Tensor, commission: Tensor) -> Tensor:
    """Return the largest value that cash pays including commission, in float64. Shape: ()."""
    value = cash.double() / (1.0 + commission.double())
    if not money.whole_shares:
        return value
    # The quotient is within a tick of the answer; try the tick above, then the one below.
    value = torch.floor(value) + 1.0
    for _ in range(2):
        cost = value + torch.ceil(value * commission.double())
        value = torch.where(cost > cash.double(), value - 1.0, value)
    return value.clamp(min=0.0)


def buy(
    money: Money, cash: Tensor, shares: Tensor, prices: Prices, max_shares: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Pay for shares that cash covers; return cash, value and commission. Shape of each: ()."""
    value = money.total(shares, prices.buy, max_shares)
    # Negative cash, possible with shorts only, must not count as commission.
    fee = torch.minimum(money.commission(value, prices.commission), (cash - value).clamp(min=0))
    if money.whole_shares:
        return cash - value - fee, value, fee
    # With real-valued shares the ratio is exact up to a rounding error, which must not become debt.
    left = cash - value - fee
    return torch.where(cash >= 0, left.clamp(min=0.0), left), value, fee


def sell(
    money: Money, cash: Tensor, shares: Tensor, prices: Prices, max_shares: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Receive the proceeds less commission; return cash, value and commission. Shape of each: ()."""
    value = money.total(shares, prices.sell, max_shares)
    fee = money.commission(value, prices.commission)
    return cash + value - fee, value, fee


def execute_long_only(
    money: Money, cash: Tensor, holdings: Tensor, order: Tensor, prices: Prices, by_size: bool, max_shares: int | None
) -> Fills:
    """Sell at most what is held, then buy what cash covers, by size or pro rata; a positive order buys.

    Holdings are not negative; ``max_shares`` is a bound of one order, where there is a small one. Shape of both: (K,).
    """
    order = torch.maximum(order, -holdings)
    wanted = order.clamp(min=0.0)
    sold = wanted - order
    cash, sold_value, sell_fee = sell(money, cash, sold, prices, max_shares)
    if by_size:
        bought, ratio = ration_by_size(money, wanted, prices.buy, prices.commission, cash, max_shares)
    else:
        bought, ratio = ration_pro_rata(money, wanted, prices.buy, prices.commission, cash, max_shares)
    cash, bought_value, buy_fee = buy(money, cash, bought, prices, max_shares)
    return Fills(cash, holdings + (bought - sold), bought, sold_value + bought_value, sell_fee + buy_fee, ratio)
