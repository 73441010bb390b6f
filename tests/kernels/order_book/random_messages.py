"""Random messages to many books, near one price, of few owners, some of them wrong."""

from __future__ import annotations

import numpy as np
import torch

from vecenv.kernels.order_book.accounts import Accounts, empty_accounts
from vecenv.kernels.order_book.book import Book, empty_book, max_quantity
from vecenv.kernels.order_book.messages import BUY, MAX_PRICE, Kind, Message

OWNERS = 3
"""Owners that have an account, one fewer than send messages."""


def accounts_of(count: int) -> Accounts:
    return Accounts(*(leaf.expand(count, -1).clone() for leaf in empty_accounts(OWNERS)))


def books(count: int, room: int) -> Book:
    return Book(*(leaf.expand(count, *leaf.shape).clone() for leaf in empty_book(room)))


def drawn(random: np.random.Generator, count: int, next_id: np.ndarray, room: int) -> np.ndarray:
    """Messages near one price, of few owners, some of them wrong. Shape: (6, count), int32."""
    kinds = [Kind.LIMIT, Kind.MARKET, Kind.IMMEDIATE, Kind.POST_ONLY, Kind.CANCEL, Kind.CANCEL_ALL, Kind.MODIFY]
    odds = np.array([0.419, 0.06, 0.06, 0.08, 0.12, 0.006, 0.13, 0.09, 0.005, 0.02, 0.01])
    kind = random.choice([*kinds, Kind.REPLACE, Kind.REPLACE_ALL, Kind.NOTHING, 99], count, p=odds)
    side = random.integers(0, 2, count)
    # Buyers below and sellers above the middle, with an overlap.
    price = 100 + np.where(side == BUY, -1, 1) * random.integers(-3, 9, count)
    quantity = random.integers(1, 12, count)
    owner = random.integers(0, 4, count)
    target = next_id - 1 - random.integers(0, 3 * room, count)
    wrong = random.random(count) < 0.03
    column = random.integers(0, 4, count)
    values = np.array([2, 0, -1, -5, MAX_PRICE + 1, max_quantity(room) + 1, 2**31 - 1, -(2**31)])
    bad = values[random.integers(0, len(values), count)]
    side = np.where(wrong & (column == 0), bad, side)
    price = np.where(wrong & (column == 1), bad, price)
    quantity = np.where(wrong & (column == 2), bad, quantity)
    owner = np.where(wrong & (column == 3), bad, owner)
    return np.stack([kind, side, price, quantity, owner, target]).astype(np.int32)


def filling(random: np.random.Generator, count: int, room: int) -> Message:
    """Orders that meet nothing, as many as both sides have room for, in random order of their prices."""
    side = torch.arange(2 * room, dtype=torch.int32).expand(count, -1) % 2
    behind, quantity, owner = (
        torch.from_numpy(random.integers(low, high, side.shape).astype(np.int32))
        for low, high in ((1, 9), (1, 12), (0, OWNERS))
    )
    price = 100 + torch.where(side == BUY, -behind, behind)
    return Message(torch.full_like(side, Kind.LIMIT), side, price, quantity, owner, torch.full_like(side, -1))
