"""Auctions are cleared as plain Python does it, exactly, alone or among others, eager or compiled."""

import random
from collections import Counter

import pytest
import torch

from tests.kernels.auction.auction_oracle import BUY, SELL, cleared
from vecenv.kernels.auction.clearing import MAX_QUANTITY, Cleared, Orders, clear

LOW, LEVELS = 95, 11

WRONG = [(2, 100, 5), (BUY, 0, 5), (SELL, 2**30 + 1, 5), (BUY, 100, -1), (SELL, 100, MAX_QUANTITY + 1)]
"""Orders out of range."""


def drawn(draw: random.Random, count: int) -> list[tuple[int, int, int]]:
    """Orders near one price, so that prices tie and margins are shared; some far away, some invalid."""
    kind = draw.random()
    sides = [BUY] if kind < 0.03 else [SELL] if kind < 0.06 else [BUY, SELL]
    largest = draw.choice([1, 7, 100, MAX_QUANTITY])
    spread = draw.choice([0, 1, 3, 9])
    orders = []
    for _ in range(count):
        side, price = draw.choice(sides), 100 + draw.randint(-spread, spread)
        quantity = draw.choice([0, draw.randint(1, largest), draw.randint(1, largest)])
        if draw.random() < 0.03:
            price = draw.choice([1, 94, 106, 2**30])
        if draw.random() < 0.03:
            side, price, quantity = draw.choice(WRONG)
        orders.append((side, price, quantity))
    return orders


def batch_of(orders: list[list[tuple[int, int, int]]]) -> Orders:
    return Orders(*torch.tensor(orders).unbind(-1))


def all_cleared(orders: Orders, reference: torch.Tensor) -> Cleared:
    low = torch.full_like(reference, LOW)
    return torch.vmap(lambda *args: clear(Orders(*args[:3]), args[3], args[4], LEVELS))(*orders, reference, low)


@pytest.mark.parametrize("count", [1, 2, 5, 12, 40])
def test_random_auctions_are_those_of_the_rules(count):
    """Every rule comes about; what is bought is sold, and nobody gets more than asked for, or at a worse price."""
    draw, seen = random.Random(count), Counter()
    auctions = [drawn(draw, count) for _ in range(600)]
    reference = torch.tensor([draw.choice([90, 98, 100, 101, 110]) for _ in auctions])
    found = all_cleared(batch_of(auctions), reference)
    for number, orders in enumerate(auctions):
        expected = cleared(orders, int(reference[number]), LOW, LEVELS, seen)
        told = (found.price[number], found.volume[number], found.imbalance[number])
        told = (*map(int, told), found.filled[number].tolist(), int(found.invalid[number]))
        assert told == expected, orders
        filled, price = expected[3], expected[0]
        sides = [sum(f for f, (side, _, _) in zip(filled, orders, strict=True) if side == one) for one in (BUY, SELL)]
        assert sides == [expected[1]] * 2
        for (side, limit, quantity), got in zip(orders, filled, strict=True):
            assert 0 <= got <= max(quantity, 0)
            assert not got or (limit >= price if side == BUY else limit <= price)
    if count >= 12:
        assert {"nothing is traded", "shares are left over by rounding down", "the rest is shared"} <= set(seen)
        assert {"0 of the reasons are equal", "1 of the reasons are equal", "2 of the reasons are equal"} <= set(seen)


@pytest.mark.nightly
def test_compiled_auctions_are_equal_bit_for_bit():
    draw = random.Random(7)
    orders, reference = batch_of([drawn(draw, 33) for _ in range(500)]), torch.full((500,), 100)
    compiled = torch.compile(all_cleared)(orders, reference)
    assert all(map(torch.equal, compiled, all_cleared(orders, reference)))


def test_the_largest_quantities_are_exact_and_sizes_beyond_are_refused():
    """A thousand agents with the largest quantity against one share less."""
    largest, less = (SELL, 100, MAX_QUANTITY), (BUY, 100, MAX_QUANTITY - 1)
    found = all_cleared(batch_of([[largest] * 1_000 + [(BUY, 100, MAX_QUANTITY)] * 999 + [less]]), torch.tensor([100]))
    assert int(found.volume) == 1_000 * MAX_QUANTITY - 1
    assert found.filled[0, :1_000].tolist() == [MAX_QUANTITY] * 999 + [MAX_QUANTITY - 1]
    for count, levels in ((2**20 + 1, 5), (3, 0)):
        nothing = torch.zeros(count, dtype=torch.int64)
        with pytest.raises(ValueError, match="an auction has at most 1,048,576 agents and a price"):
            clear(Orders(nothing, nothing, nothing), torch.tensor(1), torch.tensor(1), levels)
