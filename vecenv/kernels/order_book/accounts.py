"""Messages in turn, with the accounts of all owners: what one buys, others have sold."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.kernels.order_book.book import Book
from vecenv.kernels.order_book.matching import process
from vecenv.kernels.order_book.messages import BUY, SELL, Message, Report, Trades


class Accounts(NamedTuple):
    """Cash and shares of the owners of orders.

    Attributes:
        cash: in ticks. Shape: (A,), int64.
        shares: negative if sold short. Shape: (A,), int64.
    """

    cash: Tensor
    shares: Tensor


def empty_accounts(owners: int, device: torch.device | str = "cpu") -> Accounts:
    """Return accounts without cash and shares.

    Args:
        owners: number of them, A.
        device: of the tensors.

    Raises:
        ValueError: there is none.
    """
    if owners < 1:
        raise ValueError(f"a market needs at least 1 owner, got {owners}")
    nothing = torch.zeros(owners, dtype=torch.int64, device=device)
    return Accounts(nothing, nothing.clone())


def settled(accounts: Accounts, owner: Tensor, report: Report, trades: Trades) -> Accounts:
    """Return the accounts after the trades of one message.

    The sums of cash and of shares over all owners stay the same.

    Args:
        accounts: before it.
        owner: of the message. Shape: ().
        report: of the message.
        trades: of the message.
    """
    sign = torch.where(report.side == BUY, 1, torch.where(report.side == SELL, -1, 0)).to(torch.int64)
    size = trades.size.to(torch.int64)
    paid = size * trades.price.to(torch.int64)
    # Without a trade nothing is added, to whomever. Not index_add, which vmap repeats book by book.
    makers = trades.maker.clamp(min=0).to(torch.int64)
    taker = owner.clamp(0, len(accounts.cash) - 1).to(torch.int64).reshape(1)
    cash = accounts.cash.scatter_add(0, makers, sign * paid)
    shares = accounts.shares.scatter_add(0, makers, -sign * size)
    cash = cash.scatter_add(0, taker, (-sign * report.notional).reshape(1))
    return Accounts(cash, shares.scatter_add(0, taker, (sign * report.filled).reshape(1)))


def process_all(book: Book, accounts: Accounts, messages: Message, evict: bool = True) -> tuple[Book, Accounts, Report]:
    """Carry out messages one after the other, and settle their trades.

    Args:
        book: of one sub-environment.
        accounts: of its owners; messages of others are invalid.
        messages: Shape of each: (M,).
        evict: as in `process`.

    Returns:
        The book and the accounts after them, and what each did. Shape of the reports: (M,).
    """
    reports = []
    for number in range(len(messages.kind)):
        message = Message(*(words[number] for words in messages))
        book, report, trades = process(book, message, evict, len(accounts.cash))
        accounts = settled(accounts, message.owner, report, trades)
        reports.append(report)
    return book, accounts, Report(*(torch.stack(column) for column in zip(*reports, strict=True)))
