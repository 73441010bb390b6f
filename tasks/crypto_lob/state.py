"""What an account on replayed order books remembers, and how a fill changes its money, trades and position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorClass
from torch import Tensor


class LobState(TensorClass, frozen=True):  # type: ignore[call-arg]
    """An account and its place on the tape. Money is in half ticks times lots, and begins at 0.

    Shape (), int32, where nothing else is said. ``position`` is in lots, negative if short, ``cash`` is received less
    paid, ``equity`` that and the position at the mid. Of the open trade, ``trade_cost`` is paid less received,
    ``entry`` the doubled mid at which the position began, ``best`` the most favourable one and ``age`` the steps since.
    ``pending`` are choices that are not heard yet, the oldest first: kind and lots of each, see `orders.Order`,
    (latency - 1, 2), empty with a latency of at most one, and ``pending_quotes`` price and lots of bid and ask chosen
    with them, (latency - 1, 2, 2), or (0, 2, 2) where action is not limit. ``resting`` is price, lots left and lots
    ahead of bid and ask, (2, 3), or (0, 3). ``bought`` and ``sold`` are lots of the last step. ``drawdown`` is the
    largest from the ``peak`` as a share of it, initial cash included, and ``squares`` the sum of the squared changes of
    equity, in currency, both float64. ``won`` and ``lost`` count closed trades with a profit and a loss; ``traded`` is
    the value bought and sold, ``costs`` fees and slippage. ``exposed`` counts steps that ended with a position,
    ``unfilled``, int64, lots of market orders that the levels did not cover. ``liquidated`` is 1 if the margin ended
    the episode. All money is int64.
    """

    row: Tensor
    start_row: Tensor
    position: Tensor
    cash: Tensor
    equity: Tensor
    trade_cost: Tensor
    entry: Tensor
    best: Tensor
    age: Tensor
    pending: Tensor
    pending_quotes: Tensor
    resting: Tensor
    bought: Tensor
    sold: Tensor
    peak: Tensor
    drawdown: Tensor
    squares: Tensor
    won: Tensor
    lost: Tensor
    traded: Tensor
    costs: Tensor
    exposed: Tensor
    unfilled: Tensor
    invalid: Tensor
    liquidated: Tensor


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
