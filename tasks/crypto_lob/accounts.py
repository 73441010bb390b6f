"""Money, trades and the position of one account after an order was filled."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Account(NamedTuple):
    """What fills change, as in `LobState`. Shape of each: (), int64."""

    position: Tensor
    cash: Tensor
    trade_cost: Tensor
    entry: Tensor
    best: Tensor
    age: Tensor
    won: Tensor
    lost: Tensor
    traded: Tensor
    costs: Tensor


def after_fill(account: Account, filled: Tensor, value: Tensor, cost: Tensor, doubled_mid: Tensor) -> Account:
    """Return an account after an order of ``filled`` lots, negative if sold; ``cost`` is fees and slippage."""
    paid = torch.where(filled < 0, -value, value) + cost
    position = account.position + filled
    was, now = account.position.sign(), position.sign()
    ends = (was != 0) & (was != now)
    begins = (now != 0) & (was != now)
    # An order through zero belongs to two trades, in proportion to its lots.
    closing = (paid * account.position.abs()) // filled.abs().clamp(min=1)
    of_old = torch.where(ends & begins, closing, paid)
    result = account.trade_cost + of_old
    open_cost = torch.where(begins, torch.where(ends, paid - closing, paid), result)
    return Account(
        position=position,
        cash=account.cash - paid,
        trade_cost=torch.where(now == 0, 0, open_cost),
        entry=torch.where(begins, doubled_mid, account.entry),
        best=torch.where(begins, doubled_mid, account.best),
        age=torch.where(begins | (now == 0), 0, account.age),
        won=account.won + (ends & (result < 0)),
        lost=account.lost + (ends & (result > 0)),
        traded=account.traded + value,
        costs=account.costs + cost,
    )
