"""What an agent chooses: one market order, and with limit orders a bid and an ask."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.tasks.crypto_lob.config import CryptoLobConfig

LARGEST_ORDER = 2**30
"""Lots of an order are cut to this."""


class Order(IntEnum):
    """Kinds of the market order of a choice."""

    HOLD = 0
    """No order."""
    TRADE = 1
    """Lots to buy, negative to sell."""
    TARGET = 2
    """Lots to hold, negative to be short."""
    INVALID = 3
    """No order, and counted."""


KEEP = -1
"""Price of a quote that leaves the resting order as it is."""


class Choice(NamedTuple):
    """A choice of one account: kind and lots of a market order, and price in ticks and lots of bid and ask.

    Of ``quotes``, (2, 2), int64, 0 lots stand for no order, and a price of `KEEP` for the one that rests.
    """

    kind: Tensor
    lots: Tensor
    quotes: Tensor


def choice_of_orders(orders: Tensor) -> Choice:
    """Return the choice of an action in orders: kind and lots, and price and lots of bid and ask. Shape: (3, 2)."""
    first, lots = orders[:, 0].clamp(KEEP, LARGEST_ORDER), orders[:, 1].clamp(-LARGEST_ORDER, LARGEST_ORDER)
    return Choice(first[0], lots[0], torch.stack([first[1:], lots[1:]], -1))


def choice_of_action(action: Tensor, config: CryptoLobConfig, unit: int, best: Tensor | None = None) -> Choice:
    """Return the choice of an action of the task's own space; see the rules.

    ``unit`` is in lots, ``best`` the best ask and bid where it was chosen, for limit orders, (2,), int64.
    """
    nothing = action.new_full((2, 2), KEEP, dtype=torch.int64)
    if config.action == "continuous":
        finite = action[0].isfinite()
        share = torch.where(finite, action[0], 0.0).double().clamp(-1.0, 1.0)
        lots = torch.floor(share * (config.max_position * unit) + 0.5).to(torch.int64)
        return Choice(torch.where(finite, int(Order.TARGET), int(Order.INVALID)), lots, nothing)
    first = action[0]
    if config.action == "target":
        return Choice(first * 0 + Order.TARGET, (first - config.max_position) * unit, nothing)
    kind, lots = first * 0 + Order.TRADE, (first - 1) * unit
    if best is None:
        return Choice(kind, lots, nothing)
    # Bids count away from the mid downwards, asks upwards.
    prices = [best[1] - _offset(action[1], config), best[0] + _offset(action[2], config)]
    sizes = [torch.where(choice > 0, unit, 0) for choice in (action[1], action[2])]
    return Choice(kind, lots, torch.stack([torch.stack(prices), torch.stack(sizes)], -1))


def _offset(choice: Tensor, config: CryptoLobConfig) -> Tensor:
    ticks = choice * 0
    for number, offset in enumerate(config.limit_offsets):
        ticks = torch.where(choice == number + 1, offset, ticks)
    return ticks
