"""Action spaces, decoded into order lists: choices, target weights, and tilts that keep within the tier's limits.

`actions.md` beside this file has the rules (*Other action spaces*). Weights of `limit_weights` are whole numbers of
steps, whose sums are exact in any order, and the exponential is made of products and sums, so that all devices compute
the same orders.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torchrl.data import Bounded, MultiCategorical, TensorSpec

from vecenv.kernels.exponential import exponential
from vecenv.kernels.materialise import materialise
from vecenv.kernels.money import RATIO_STEPS, Money
from vecenv.kernels.orders import fill_prices
from vecenv.tasks.tiers.law import CAPACITY_STEPS, FRACTION_STEPS, MAX_SHARES, Kind, Limits, affordable

FRACTION_BINS = 10
"""Number of fraction choices: tenths of the cash or of a position."""

SMALLEST_TRADE = 0.005
"""Dead zone: differences to a target below this share of the portfolio value are ignored."""


def action_spec(space: str, num_symbols: int, max_orders: int, device: torch.device) -> TensorSpec:
    """Return the spec of an action space by name, as in `TierConfig.action`."""
    if space == "weights":
        return Bounded(0.0, 1.0, (num_symbols,), dtype=torch.float32, device=device)
    if space == "limit_weights":
        return Bounded(-1.0, 1.0, (num_symbols + 1,), dtype=torch.float32, device=device)
    if space == "discrete":
        choices = [[1 + 2 * num_symbols, FRACTION_BINS]] * max_orders
        return MultiCategorical(torch.tensor(choices, device=device), dtype=torch.int64, device=device)
    # Samples of this spec are rarely whole numbers in kind and symbol: see the random agents for valid orders.
    high = torch.tensor([2.0, max(1.0, num_symbols - 1.0), 1.0], device=device).expand(max_orders, 3)
    return Bounded(torch.zeros_like(high), high, dtype=torch.float32, device=device)


def choices_to_orders(action: Tensor, num_symbols: int) -> Tensor:
    """Convert categorical choices to orders. Shapes: (M, 2), int64 -> (M, 3), float32.

    Each is a choice among HOLD, K BUYs and K SELLs, and a tenth from 0 to 9.
    """
    choice, tenth = action.unbind(-1)
    trades = choice > 0
    sells = choice > num_symbols
    symbol = torch.where(trades, choice - 1 - torch.where(sells, num_symbols, 0), 0)
    kind = torch.where(sells, Kind.SELL, torch.where(trades, Kind.BUY, Kind.HOLD))
    fraction = (tenth + 1).to(torch.float32) / FRACTION_BINS
    return torch.stack([kind.to(torch.float32), symbol.to(torch.float32), fraction], dim=-1)


def choice_mask(
    tradable: Tensor, price: Tensor, weight: Tensor, cash: Tensor, unit_cost: Tensor, max_orders: int
) -> Tensor:
    """Return which choices of `choices_to_orders` can have an effect at the start of a day.

    Prices and cash are in any one unit, ``weight`` is the share of the portfolio value held, and ``unit_cost`` 1 +
    commission + slippage. Shape: (..., M (1 + 2K + 10)), bool, in the layout of the orders' logits.
    """
    buys = (tradable > 0) & (price * unit_cost <= cash)
    sells = (tradable > 0) & (weight > 0)
    hold = torch.ones_like(buys[..., :1])
    one = torch.cat([hold, buys, sells, hold.expand(*hold.shape[:-1], FRACTION_BINS)], dim=-1)
    return one.repeat(*(1,) * (one.ndim - 1), max_orders)


def weights_to_orders(action: Tensor, weight: Tensor, cash_share: Tensor, max_orders: int) -> Tensor:
    """Convert target portfolio weights to the M largest orders. Shape: (K,) -> (M, 3), float32.

    A sum of targets above 1 is scaled down to 1; a NaN or infinite one makes the action invalid. ``weight`` and
    ``cash_share`` are of now. Orders are kind, symbol and fraction, sales first, in the order of the symbols.
    """
    finite = (action.abs() <= torch.finfo(action.dtype).max).all(-1)
    target = torch.where(finite, action, 0.0).clamp(0.0, 1.0)
    target = target / target.sum(-1).clamp(min=1.0)
    difference = target - weight
    difference = torch.where(difference.abs() >= SMALLEST_TRADE, difference, 0.0)
    place = order_places(difference, max_orders)
    sells, buys = (place >= 0) & (difference < 0), (place >= 0) & (difference > 0)
    sold = torch.where(sells, -difference, 0.0).sum(-1)
    spent_before = torch.where(buys, difference, 0.0).cumsum(-1) - torch.where(buys, difference, 0.0)
    left = (cash_share + sold - spent_before).clamp(min=1e-9)
    fraction = torch.where(sells, -difference / weight.clamp(min=1e-9), difference / left).clamp(0.0, 1.0)
    kind = torch.where(sells, float(Kind.SELL), torch.where(buys, float(Kind.BUY), float(Kind.HOLD)))
    slots = torch.arange(len(weight), device=weight.device)
    rows = [in_places(values, place, max_orders) for values in (kind, slots.to(torch.float32), fraction)]
    rows[0] = torch.where(finite, rows[0], float(Kind.INVALID))
    return torch.stack(rows, dim=-1)


def order_places(difference: Tensor, most: Tensor | int) -> Tensor:
    """Return the place of each symbol's order in the list of the largest trades: sales first, each side by symbol.

    Ties of the wanted trades go to the first symbol; -1 is no order. Shape: (K,), float32.
    """
    size = difference.abs()
    slots = torch.arange(len(size), device=size.device)
    # Ranks by counting: K is small, and a sort of 30 numbers costs ten times as much.
    first = (size > size.unsqueeze(-1)) | ((size == size.unsqueeze(-1)) & (slots < slots.unsqueeze(-1)))
    traded = (size > 0) & (first.to(torch.float32).sum(-1) < most)
    sells, buys = traded & (difference < 0), traded & (difference > 0)
    sold_before = sells.to(torch.float32).cumsum(-1)
    place = torch.where(sells, sold_before, sold_before[-1] + buys.to(torch.float32).cumsum(-1))
    return torch.where(traded, place, 0.0) - 1.0


def in_places(values: Tensor, place: Tensor, max_orders: int) -> Tensor:
    """Return a number of each order's symbol, 0 for orders without one. Shapes: (K,), (K,) -> (M,)."""
    here = place.unsqueeze(0) == torch.arange(max_orders, device=place.device).unsqueeze(-1)
    return torch.where(here, values.unsqueeze(0), 0.0).sum(-1)


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


LEAST_CASH = 0.02
"""Least benchmark weight of cash, and the share of each limit that target weights leave free."""

TILT_STEPS = 2.0**30
"""Steps per unit of a benchmark weight, before and after its tilt."""

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
