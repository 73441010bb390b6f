"""A day's list of orders, by examples worked out by hand, and what a budget pays for at its bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenv.kernels.money import Money
from vecenv.tasks.tiers.order_list import (
    MAX_SHARES,
    Execution,
    Limits,
    Positions,
    Quotes,
    affordable,
    capacity,
    decode_orders,
    execute_orders,
)

MONEY = Money(whole_shares=True, dtype=torch.float64)
HOLD, BUY, SELL = 0, 1, 2


def number(value: float) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


def serve(
    *orders: tuple[float, float, float],
    cash: float = 100_000,
    held: tuple[int, ...] = (0, 0),
    close: tuple[int, ...] = (1_000, 250),
    average: tuple[float, ...] | None = None,
    rsi: tuple[float, ...] = (50, 50),
    tradable: tuple[int, ...] = (1, 1),
    streak: int = 0,
    quarters: int = 4,
    max_trades: int = 100,
    position: float = math.inf,
    exposure: float = math.inf,
    commission: float = 0.0,
    slippage: float = 0.0,
    closed: bool = False,
) -> Execution:
    """Serve (kind, symbol, fraction) orders of an account of two symbols; limits in ticks."""
    shares, prices = torch.tensor(held, dtype=torch.float32), torch.tensor(close, dtype=torch.float32)
    before = Positions(
        number(cash),
        shares,
        torch.tensor(average or tuple(price if count else 0 for price, count in zip(close, held, strict=True))).float(),
        torch.tensor(float(streak)),
    )
    strengths, trades = torch.tensor(rsi), torch.tensor(tradable)
    decoded = decode_orders(torch.tensor(orders, dtype=torch.float32), 2)
    quotes = Quotes(*(column[decoded.symbols] for column in (prices, strengths, trades)))
    limits = Limits(
        *(number(commission), number(slippage), torch.tensor(closed), number(quarters)),
        *(number(max_trades), number(position), number(exposure)),
    )
    worth = (shares.double() * prices.double()).sum()
    return execute_orders(MONEY, decoded, before, worth, quotes, limits)


def counted(done: Execution) -> dict[str, int]:
    """Return what was counted at least once."""
    return {name: int(count) for name, count in done.counts.items() if count}


@pytest.mark.parametrize("last", range(5))
def test_writes_of_orders_in_one_symbol_need_no_sequence(monkeypatch, last):
    """A device may scatter in any order: whichever order of a symbol writes last, it writes what the final one left."""
    orders = [(BUY, 0, 0.1), (BUY, 1, 0.3), (BUY, 0, 0.2), (SELL, 0, 0.5), (BUY, 0, 0.1)]
    expected = serve(*orders, held=(7, 3)).positions
    scatter = torch.Tensor.scatter

    def turned(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return scatter(self, dim, index.roll(4 - last), source.roll(4 - last))

    monkeypatch.setattr(torch.Tensor, "scatter", turned)
    found = serve(*orders, held=(7, 3)).positions
    assert torch.equal(found.holdings, expected.holdings) and torch.equal(found.average_price, expected.average_price)


@pytest.mark.parametrize(
    ("value", "quarters"),
    [(100, 4), (97.01, 4), (97, 3), (95.01, 3), (95, 2), (92.01, 2), (91.99, 1), (10, 1)],
)
def test_capacity_falls_at_3_5_and_8_percent(value, quarters):
    assert capacity(number(value), number(100)) == quarters


def test_a_purchase_spends_a_share_of_the_cash_within_the_capacity():
    """Half of 100,000 pays for 50 shares; at two quarters of capacity for 25."""
    done = serve((BUY, 0, 0.5))
    assert done.fills.tolist() == [50] and done.positions.cash == 50_000 and done.num_trades == 1
    assert serve((BUY, 0, 0.5), quarters=2).fills.tolist() == [25]


def test_costs_of_a_purchase_and_a_sale():
    """Slippage 0.1% of 1,000 is 1 tick; 0.15% commission on 10,010 is 15.015, rounded up to 16."""
    bought = serve((BUY, 0, 0.1003), slippage=0.001, commission=0.0015)
    assert bought.fills.tolist() == [10] and bought.positions.cash == 100_000 - 10_010 - 16
    assert bought.costs == 10 + 16 and bought.traded == 10_010 and bought.exposure == 10_000
    sold = serve((SELL, 0, 1.0), held=(10, 0), slippage=0.001, commission=0.0015)
    assert sold.fills.tolist() == [-10] and sold.positions.cash == 100_000 + 9_990 - 15
    assert sold.costs == 10 + 15 and sold.exposure == 0 and sold.positions.holdings.tolist() == [0, 0]


def test_each_order_sees_what_the_ones_before_it_left():
    """Sell 10 × 1,000 without other cash, buy 40 × 250 with it, and sell half of those."""
    done = serve((SELL, 0, 1.0), (BUY, 1, 1.0), (SELL, 1, 0.5), cash=0, held=(10, 0))
    assert done.fills.tolist() == [-10, 40, -20] and done.positions.holdings.tolist() == [0, 20]
    assert done.positions.cash == 5_000 and done.num_trades == 3 and done.exposure == 5_000


def test_purchases_are_cut_to_the_limits():
    """Of 100 shares asked for, the position may reach 30,500 and all positions 40,000 with 25,000 held already."""
    done = serve((BUY, 0, 1.0), position=30_500)
    assert done.fills.tolist() == [30] and counted(done) == {"position_limit": 1}
    done = serve((BUY, 0, 1.0), held=(0, 100), exposure=40_000)
    assert done.fills.tolist() == [15] and counted(done) == {"position_limit": 1}
    full = serve((BUY, 0, 1.0), held=(31, 0), position=30_500)
    assert full.fills.tolist() == [0] and full.num_trades == 0 and counted(full) == {"position_limit": 1}
    assert counted(serve((BUY, 0, 1.0), position=100_000)) == {}


def test_no_position_grows_beyond_what_float32_counts():
    done = serve((BUY, 0, 1.0), cash=2**31, close=(1, 1), held=(MAX_SHARES - 5, 0))
    assert done.fills.tolist() == [5] and done.positions.holdings[0] == MAX_SHARES
    assert counted(done) == {"position_limit": 1}


def test_the_limit_of_trades_refuses_purchases_and_never_sales():
    """Two trades are allowed; the order that moves nothing is none of them."""
    orders = ((BUY, 1, 0.0), (BUY, 0, 0.1), (BUY, 1, 0.1), (BUY, 0, 0.1), (SELL, 0, 1.0))
    done = serve(*orders, max_trades=2)
    assert done.fills.tolist() == [0, 10, 36, 0, -10] and counted(done) == {"trade_limit": 1}
    assert done.num_trades == 3


def test_a_closed_day_refuses_purchases_and_never_sales():
    done = serve((BUY, 0, 0.1), (SELL, 1, 1.0), (BUY, 1, 0.0), held=(0, 8), closed=True, max_trades=1)
    assert done.fills.tolist() == [0, -8, 0] and counted(done) == {"regime_violation": 2}


def test_what_is_not_tradable_and_what_is_not_held():
    done = serve((BUY, 0, 0.1), (SELL, 0, 1.0), (SELL, 1, 1.0), held=(4, 0), tradable=(0, 1))
    assert done.fills.tolist() == [0, 0, 0] and counted(done) == {"sell_unheld": 1}


def test_relative_strength_counts_executed_orders_alone():
    """Above 70 and below 30, not at them."""
    orders = ((BUY, 0, 0.1), (BUY, 0, 0.0), (SELL, 1, 0.5), (SELL, 1, 0.0))
    assert counted(serve(*orders, held=(0, 8), rsi=(70.5, 29.5))) == {"overbought_buy": 1, "oversold_sell": 1}
    assert counted(serve(*orders, held=(0, 8), rsi=(70.0, 30.0))) == {}


def test_a_purchase_after_three_losing_sales_ends_the_streak():
    """Below the average price, not at it; a sale at it starts again, one that moves nothing changes nothing."""
    losing = {"held": (100, 100), "average": (1_001.0, 250.0)}
    third = serve((SELL, 0, 0.1), (SELL, 0, 0.0), (BUY, 1, 0.1), (BUY, 1, 0.1), streak=2, **losing)
    assert counted(third) == {"losing_streak_buy": 1} and third.positions.losing_sells == 0
    second = serve((SELL, 0, 0.1), (BUY, 1, 0.1), streak=1, **losing)
    assert counted(second) == {} and second.positions.losing_sells == 2
    assert serve((SELL, 1, 0.1), streak=2, **losing).positions.losing_sells == 0


def test_the_average_price_of_a_position():
    """(200 × 10 + 250 × 30) / 40 = 237.5; selling leaves it; what is sold out and bought again is new."""
    more = serve((BUY, 1, 0.075), held=(0, 10), average=(0.0, 200.0))
    assert more.positions.average_price.tolist() == [0, 237.5]
    less = serve((SELL, 1, 0.5), held=(0, 10), average=(0.0, 200.0))
    assert less.positions.average_price.tolist() == [0, 200]
    again = serve((SELL, 1, 1.0), (BUY, 1, 0.01), held=(0, 10), average=(0.0, 200.0))
    assert again.positions.average_price.tolist() == [0, 250]


@pytest.mark.parametrize(
    ("order", "valid", "steps"),
    [
        ((BUY, 1, 0.00005), True, 0),
        ((BUY, 1, 0.00015), True, 2),
        ((SELL, 0, 1.5), True, 10_000),
        ((SELL, 0, -0.5), True, 0),
        ((HOLD, 77.5, 0.5), True, 5_000),
        ((3, 0, 0.5), False, 5_000),
        ((0.5, 0, 0.5), False, 5_000),
        ((BUY, 2, 0.5), False, 5_000),
        ((BUY, -1, 0.5), False, 5_000),
        ((BUY, 0.5, 0.5), False, 5_000),
        ((BUY, 0, math.nan), False, 0),
        ((BUY, math.inf, 0.5), False, 5_000),
        ((HOLD, math.nan, 0.5), False, 5_000),
    ],
)
def test_actions_are_checked_as_a_whole(order, valid, steps):
    """One order that breaks the format takes the good one beside it with it; halves are rounded to even."""
    orders = decode_orders(torch.tensor([(BUY, 0, 1.0), order]), 2)
    assert bool(orders.valid) is valid and bool(orders.buys[0]) is valid
    if math.isfinite(order[2]) and math.isfinite(order[1]):
        assert orders.steps[1] == steps


def test_symbols_of_other_tiers_are_unknown():
    owned = torch.tensor([True, False])
    assert bool(decode_orders(torch.tensor([(BUY, 0.0, 1.0), (HOLD, 1.0, 1.0)]), 2, owned).valid)
    assert not bool(decode_orders(torch.tensor([(BUY, 0.0, 1.0), (SELL, 1.0, 1.0)]), 2, owned).valid)


@given(
    budget=st.integers(0, 2**37),
    price=st.integers(1, 2**23),
    commission=st.sampled_from([0.0, 1e-9, 0.0005, 0.001, 0.0123, 0.3, 0.999]) | st.floats(0.0, 0.999),
)
@settings(max_examples=500, deadline=None, derandomize=True)
@pytest.mark.assembly
def test_what_is_affordable_is_never_overspent(budget, price, commission):
    """In whole numbers, and no share fewer than two that would be paid for."""
    shares = int(affordable(MONEY, number(budget), number(price), number(commission)))
    value = shares * price
    assert shares >= 0 and value + min(math.ceil(value * commission), value) <= budget
    more = (shares + 2) * price
    assert more + math.floor(more * commission) > budget
