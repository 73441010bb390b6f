"""Accounts of all owners, settled after messages: what one buys, others have sold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.messages import BUY, SELL, Report, Trades


class Accounts(NamedTuple):
    """Cash in ticks and shares, negative if sold short, of the owners of orders. Shape of each: (A,), int64."""

    cash: Tensor
    shares: Tensor


def empty_accounts(owners: int, device: torch.device | str = "cpu") -> Accounts:
    """Return accounts without cash and shares; ValueError below one owner."""
    if owners < 1:
        raise ValueError(f"a market needs at least 1 owner, got {owners}")
    nothing = torch.zeros(owners, dtype=torch.int64, device=device)
    return Accounts(nothing, nothing.clone())


class Transfers(NamedTuple):
    """What trades add to accounts: owner, cash in ticks, shares. Shape of each: (T,), int64."""

    owner: Tensor
    cash: Tensor
    shares: Tensor


def transfers_of(owner: Tensor, report: Report, trades: Trades, owners: int) -> Transfers:
    """Return what the trades of a message add to the accounts of the K orders that it may meet and its owner's."""
    sign = torch.where(report.side == BUY, 1, torch.where(report.side == SELL, -1, 0)).to(torch.int64)
    size = trades.size.to(torch.int64)
    paid = size * trades.price.to(torch.int64)
    # Without a trade nothing is added, to whomever.
    makers, taker = trades.maker.clamp(min=0), owner.clamp(0, owners - 1).reshape(1)
    return Transfers(
        torch.cat([makers, taker]).to(torch.int64),
        torch.cat([sign * paid, (-sign * report.notional).reshape(1)]),
        torch.cat([-sign * size, (sign * report.filled).reshape(1)]),
    )


def settled(accounts: Accounts, transfers: Sequence[Transfers]) -> Accounts:
    """Return the accounts after the trades of some messages, whose sums over all owners stay the same.

    In one go: a copy of all accounts for each message would take longer than matching it.
    """
    if not transfers:
        return accounts
    owner, cash, shares = (torch.cat(column) for column in zip(*transfers, strict=True))
    # Not index_add, which vmap repeats book by book.
    return Accounts(accounts.cash.scatter_add(0, owner, cash), accounts.shares.scatter_add(0, owner, shares))
