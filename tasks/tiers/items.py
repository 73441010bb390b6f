"""Observations of the tiers split into symbols, for policies that are shared by all symbols."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.capabilities import Items
from vecenv.tasks.tiers.layout import ACCOUNT_SIZE, POSITION_SIZE, Account
from vecenv.tasks.tiers.limit_weights import LEAST_CASH

OWN_FEATURES = ("tradable", "weight", "of_limit", "profit", "held")
"""Features of a symbol beside its indicators: a flag; its weight over the benchmark's; its weight over the limit of one
position; the close over the average price, less 1; and days held over the days of the episode."""

SHARED_FEATURES = (
    *("elapsed", "room", "total_return", "cash", "drawdown", "losing_sells", "gate_closed"),
    *("share_down", "mean_change", "commission", "slippage"),
)
"""Features of the account before the series of the market: ``elapsed`` is the share of the days that are gone, ``room``
that of the exposure's limit that is free; the others are those of `Account`."""


def split_symbols(observation: Tensor, features: tuple[str, ...], num_context: int, num_symbols: int) -> Items:
    """Return features of each symbol and of the account, free of prices and of the account's size.

    Symbols that are not of the row's tier show the mean of those that are. So the mean over all symbols, which
    policies see too, is that of the tier's own, in a mixed batch as alone. Returned are the I indicators, then
    `OWN_FEATURES`, shape (B, K, I + 5); and `SHARED_FEATURES`, then the C series, shape (B, 11 + C).
    """
    width = 2 + len(features)
    parts = [ACCOUNT_SIZE, num_context, num_symbols * width, num_symbols * POSITION_SIZE]
    account, series, shown, positions = observation.split(parts, dim=-1)
    number = {name: account[:, place : place + 1] for place, name in enumerate(Account._fields)}
    shown = shown.unflatten(-1, (num_symbols, width))
    close, tradable, indicators = shown.split([1, 1, len(features)], dim=-1)
    weight, profit, days_held = positions.unflatten(-1, (POSITION_SIZE, num_symbols)).unsqueeze(-1).unbind(1)
    # A price of 0 is that of another tier's symbol: episodes begin when all symbols of their tier have listed.
    owned = (close > 0).to(close.dtype)
    count = owned.sum(1).clamp(min=1.0)
    most = number["max_position"].clamp(min=1e-6)
    benchmark = (1.0 - LEAST_CASH) * torch.minimum(most, number["max_exposure"].clamp(min=1e-6) / count)
    days = number["num_days"].clamp(min=1.0)
    columns = [
        *(indicators, tradable),
        *(weight / benchmark.unsqueeze(1), weight / most.unsqueeze(1)),
        *(profit, days_held / days.unsqueeze(1)),
    ]
    own = torch.cat(columns, dim=-1)
    mean = (own * owned).sum(1, keepdim=True) / count.unsqueeze(1)
    derived = {
        "elapsed": number["days_gone"] / days,
        "room": 1.0 - number["exposure"] / number["max_exposure"].clamp(min=1e-6),
    }
    shared = [(number | derived)[name] for name in SHARED_FEATURES]
    return Items(torch.where(owned > 0, own, mean), torch.cat([*shared, series], dim=-1))
