"""Observations of stock trading split into symbols, for policies that are shared by all symbols."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from vecenv.core.capabilities import Items
from vecenv.market.indicators import INDICATORS
from vecenv.tasks.stock_trading.config import StockTradingConfig


def split_symbols(observation: Tensor, config: StockTradingConfig, features: Sequence[str], num_symbols: int) -> Items:
    """Return features of each symbol, (B, K, I + 1), and of the account, (B, 1), free of prices and the account's size.

    A symbol has its I indicators, those in units of price divided by the close, and its weight in the account times K.
    The account has its share of cash. ``observation`` is ``[b, p, h, f]``, (B, K (I + 2) + 1).

    Raises:
        ValueError: some of the scales are set and others not, so that amounts are in different units.
    """
    in_price = list(map(_in_price, features))
    own = {getattr(config, name) is None for name in ("cash_scale", "price_scale", "holdings_scale")}
    in_currency = any(in_price) and config.feature_scale is not None
    if len(own) > 1 or (in_currency and config.price_scale is None):
        raise ValueError(
            "splitting symbols needs all of cash_scale, price_scale, holdings_scale, feature_scale, or none"
        )
    widths = [1, num_symbols, num_symbols, num_symbols * len(features)]
    cash, prices, holdings, shown = observation.split(widths, dim=-1)
    if config.price_scale is None:
        worth = holdings / num_symbols
    else:
        cash, prices, holdings = cash / config.cash_scale, prices / config.price_scale, holdings / config.holdings_scale
        worth = prices * holdings
    value = (cash + worth.sum(-1, keepdim=True)).clamp(min=1e-6)
    shown = shown.unflatten(-1, (num_symbols, len(features)))
    # A symbol that has not listed yet shows price 0, and features of 0.
    divisor = torch.where(prices > 0, prices, 1.0)
    columns, first = [], 0
    # Runs of neighbours, not column by column: one pass over contiguous memory.
    for divided, run in groupby(in_currency and one for one in in_price):
        last = first + len(list(run))
        part = shown[..., first:last]
        columns.append(part / divisor.unsqueeze(-1) if divided else part)
        first = last
    weights = num_symbols * worth / value
    return Items(torch.cat([*columns, weights.unsqueeze(-1)], dim=-1), cash / value)


def _in_price(name: str) -> bool:
    """Return whether a feature is in units of price; columns of the user's are not."""
    return name in INDICATORS and INDICATORS[name].price_unit
