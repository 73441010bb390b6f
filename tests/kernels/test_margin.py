"""Short positions by examples worked out by hand; the oracle of stock trading holds them to the rules at random."""

from __future__ import annotations

import pytest
import torch

from vecenv.kernels.margin import Margin, borrow_fee, execute_with_shorts, margin_call, short_value
from vecenv.kernels.money import Money
from vecenv.kernels.orders import Prices

MONEY = [Money(), Money(dtype=torch.float64)]


def rate(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def flat(ticks: list[float], money: Money, commission: float = 0.0) -> Prices:
    price = torch.tensor(ticks, dtype=money.dtype)
    return Prices(price, price, price, rate(commission))


def margin(initial: float, maintenance: float = 0.25, borrow: float = 0.0) -> Margin:
    return Margin(rate(initial), rate(maintenance), rate(borrow))


def executed(
    cash: int, held: list[float], order: list[float], prices: Prices, rules: Margin, by_size: bool, money: Money
) -> list[object]:
    """Cash, holdings, shares bought, value traded and commissions after orders."""
    held, order = (torch.tensor(part, dtype=money.dtype) for part in (held, order))
    fills = execute_with_shorts(money, torch.tensor(cash, dtype=money.money_dtype), held, order, prices, by_size, rules)
    return [int(fills.cash), fills.holdings.tolist(), fills.bought.tolist(), int(fills.traded), int(fills.commissions)]


@pytest.mark.parametrize("money", MONEY, ids=["int64", "float64"])
@pytest.mark.parametrize("by_size", [False, True])
def test_orders_of_accounts_with_shorts(money, by_size):
    prices = flat([50.0, 20.0], money, 0.001)
    # An account in debt buys back nothing, and above all does not sell short instead.
    assert executed(-100, [-10.0, 0.0], [5.0, 3.0], prices, margin(0.5), by_size, money) == [
        -100, [-10.0, 0.0], [0.0, 0.0], 0, 0,
    ]  # fmt: skip
    # Nor does it buy, at any price.
    assert executed(-100, [0.0], [3.0], flat([1.0], money), margin(0.5), by_size, money)[:2] == [-100, [0.0]]
    # 160 ticks pay for 3 of 5 shares at 50: 3.2 of 5, rounded down.
    assert executed(160, [-10.0], [5.0], flat([50.0], money), margin(0.5), by_size, money) == [
        10, [-7.0], [3.0], 150, 0,
    ]  # fmt: skip
    # Of 1,000 ticks the shorts hold 1.5 x 500; 250 buy 12 of 20 shares at 20.
    assert executed(1_000, [-10.0, 0.0], [0.0, 20.0], flat([50.0, 20.0], money), margin(0.5), by_size, money) == [
        760, [-10.0, 12.0], [0.0, 12.0], 240, 0,
    ]  # fmt: skip
    # 800 ticks back shorts worth 1,600 at an initial margin of a half, or of a quarter beside a fee of a quarter.
    assert executed(700, [2.0], [-66.0], flat([50.0], money), margin(0.5), by_size, money) == [
        2_400, [-32.0], [0.0], 1_700, 0,
    ]  # fmt: skip
    assert executed(800, [0.0], [-64.0], flat([50.0], money, 0.25), margin(0.25), by_size, money) == [
        2_000, [-32.0], [0.0], 1_600, 400,
    ]  # fmt: skip
    # Without a margin beyond the proceeds a short is of any size.
    assert executed(0, [0.0], [-42.0], flat([50.0], money), margin(0.0), by_size, money)[1] == [-42.0]


@pytest.mark.parametrize("money", MONEY, ids=["int64", "float64"])
def test_a_margin_call_is_below_the_requirement_and_a_fee_is_that_of_a_day(money):
    held, close = torch.tensor([-10.0, 7.0], dtype=money.dtype), torch.tensor([50.0, 20.0], dtype=money.dtype)
    assert int(short_value(money, held, close)) == 500
    for cash, called in ((624, True), (625, False), (626, False)):
        told = margin_call(money, torch.tensor(cash, dtype=money.money_dtype), held, close, margin(0.5))
        assert bool(told) == called, cash
    # 500 x 0.126 / 252 is a quarter of a tick, rounded up.
    assert int(borrow_fee(money, held, close, margin(0.5, borrow=0.126))) == 1
    assert int(borrow_fee(money, held * 8, close, margin(0.5, borrow=0.126))) == 2
