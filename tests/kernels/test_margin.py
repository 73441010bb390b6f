"""Short positions by examples worked out by hand; the oracle of stock trading holds them to the rules at random."""

from __future__ import annotations

import pytest
import torch

from vecenv.kernels.margin import Margin, execute_with_shorts
from vecenv.kernels.money import Money
from vecenv.kernels.orders import Prices

MONEY = [Money(), Money(dtype=torch.float64)]


def rate(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


@pytest.mark.parametrize("money", MONEY, ids=["int64", "float64"])
@pytest.mark.parametrize("by_size", [False, True])
def test_without_cash_no_short_is_covered(money, by_size):
    """An account in debt buys back nothing, and above all does not sell short instead."""
    price = torch.tensor([50.0, 20.0], dtype=money.dtype)
    prices = Prices(price, price, price, rate(0.001))
    cash, held = torch.tensor(-100, dtype=money.money_dtype), torch.tensor([-10.0, 0.0], dtype=money.dtype)
    order = torch.tensor([5.0, 3.0], dtype=money.dtype)
    fills = execute_with_shorts(money, cash, held, order, prices, by_size, Margin(rate(0.5), rate(0.25), rate(0.0)))
    assert int(fills.cash) == -100 and fills.holdings.tolist() == [-10.0, 0.0]
    assert int(fills.traded) == int(fills.commissions) == 0


def test_cash_that_covers_a_part_buys_back_that_part():
    """160 ticks pay for 3 of 5 shares at 50: 3.2 of 5, rounded down."""
    price = torch.tensor([50.0])
    prices = Prices(price, price, price, rate(0.0))
    margin = Margin(rate(0.5), rate(0.25), rate(0.0))
    held = torch.tensor([-10.0])
    fills = execute_with_shorts(MONEY[0], torch.tensor(160), held, torch.tensor([5.0]), prices, False, margin)
    assert int(fills.cash) == 10 and fills.holdings.tolist() == [-7.0]
