"""Observations of stock trading split into symbols, for policies that are shared by all symbols."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from vecenv.core.scenario import Items
from vecenv.market.indicators import INDICATORS
from vecenv.tasks.stock_trading.config import StockTradingConfig


def split_symbols(observation: Tensor, config: StockTradingConfig, features: Sequence[str], num_symbols: int) -> Items:
    """Return features of each symbol, (B, K, I + 1), and of the account, (B, 1), free of prices and the account's size.

    A symbol has its I indicators, those in units of price divided by the close, and its weight in the account times K.
    The account has its share of cash. ``observation`` is ``[b, p, h, f]``, (B, K (I + 2) + 1).
    """
    widths = [1, num_symbols, num_symbols, num_symbols * len(features)]
    cash, prices, holdings, shown = observation.split(widths, dim=-1)
    cash, prices, holdings = cash / config.cash_scale, prices / config.price_scale, holdings / config.holdings_scale
    worth = prices * holdings
    value = (cash + worth.sum(-1, keepdim=True)).clamp(min=1e-6)
    shown = shown.unflatten(-1, (num_symbols, len(features)))
    # A symbol that has not listed yet shows price 0, and features of 0.
    divisor = torch.where(prices > 0, prices, 1.0)
    columns, first = [], 0
    # Runs of neighbours, not column by column: one pass over contiguous memory.
    for in_price, run in groupby(_in_price(name) for name in features):
        last = first + len(list(run))
        part = shown[..., first:last]
        columns.append(part / divisor.unsqueeze(-1) if in_price else part)
        first = last
    weights = num_symbols * worth / value
    return Items(torch.cat([*columns, weights.unsqueeze(-1)], dim=-1), cash / value)


def _in_price(name: str) -> bool:
    """Return whether a feature is in units of price; columns of the user's are not."""
    return name in INDICATORS and INDICATORS[name].price_unit
