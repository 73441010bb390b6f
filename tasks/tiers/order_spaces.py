"""Discrete and weight action spaces, decoded into order lists."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.tasks.tiers.order_list import Kind

FRACTION_BINS = 10
"""Number of fraction choices: tenths of the cash or of a position."""

SMALLEST_TRADE = 0.005
"""Dead zone: differences to a target below this share of the portfolio value are ignored."""


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
