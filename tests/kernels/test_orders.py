"""Orders of one account against plain Python, and small examples worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from vecenv.kernels.money import Money
from vecenv.kernels.orders import (
    Prices,
    _affordable,
    buy,
    execute_long_only,
    fill_prices,
    ration_by_size,
    ration_pro_rata,
    sell,
    wanted_shares,
)

EXACT, FRACTIONAL = Money(), Money(whole_shares=False)
QUICK = settings(deadline=None, max_examples=200, derandomize=True)
RATES = st.sampled_from([0.0, 0.0005, 0.001, 0.0123, 0.3])


def rate(number: float | list[float]) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def flat(ticks: list[float], commission: float = 0.0) -> Prices:
    """Prices without slippage."""
    fill = torch.tensor(ticks)
    return Prices(fill, fill, fill, rate(commission))


def test_slippage_moves_prices_against_the_trader_by_whole_ticks():
    fill = torch.tensor([10_000.0, 10_001.0, 1.0])
    prices = fill_prices(EXACT, fill, rate(0.125), rate(0.001))
    assert prices.buy.tolist() == [11_250.0, 11_252.0, 2.0]
    assert prices.sell.tolist() == [8_750.0, 8_750.0, 0.0]
    assert prices.fill is fill and prices.commission.item() == 0.001


def test_commission_per_symbol_is_part_of_the_prices():
    fill = torch.tensor([1_000.0, 1_000.0])
    prices = fill_prices(EXACT, fill, rate([0.25, 0.0]), rate([0.5, 0.125]))
    assert prices.buy.tolist() == [1_750.0, 1_125.0] and prices.sell.tolist() == [250.0, 875.0]
    assert prices.commission.item() == 0.0 and prices.commission.ndim == 0


def test_prices_without_costs_are_the_fill_itself():
    fill = torch.tensor([5.0])
    prices = fill_prices(EXACT, fill, None, rate(0.0))
    assert prices.buy is fill and prices.sell is fill


def test_sell_prices_are_never_negative():
    prices = fill_prices(EXACT, torch.tensor([1_000.0]), rate([0.75]), rate([0.75]))
    assert prices.sell.tolist() == [0.0] and prices.buy.tolist() == [2_500.0]


@pytest.mark.parametrize(
    ("action", "hmax", "expected"),
    [(1.0, 100, 100), (-1.0, 100, -100), (0.999, 100, 99), (-0.999, 100, -99), (0.009, 100, 0), (0.5, 3, 1)],
)
def test_wanted_shares_are_truncated_toward_zero(action, hmax, expected):
    wanted = wanted_shares(EXACT, torch.tensor([action]), rate(hmax), None)
    assert wanted.tolist() == [expected]
    fractional = wanted_shares(FRACTIONAL, torch.tensor([action]), rate(hmax), None)
    assert fractional.item() == pytest.approx(action * hmax)


def test_the_dead_zone_includes_its_edge():
    action = torch.tensor([0.1, -0.1, 0.1001, -0.2])
    assert wanted_shares(EXACT, action, rate(1_000), rate(0.1)).tolist() == [0.0, 0.0, 100.0, -200.0]


def test_buys_are_rationed_by_one_ratio():
    wanted, price = torch.tensor([10.0, 20.0, 0.0]), torch.tensor([100.0, 50.0, 7.0])
    half, ratio = ration_pro_rata(EXACT, wanted, price, rate(0.0), torch.tensor(1_000), 100)
    assert half.tolist() == [5.0, 10.0, 0.0] and ratio.item() == 0.5
    all_of_it, ratio = ration_pro_rata(EXACT, wanted, price, rate(0.0), torch.tensor(2_000), 100)
    assert all_of_it.tolist() == wanted.tolist() and ratio.item() == 1.0
    less, _ = ration_pro_rata(EXACT, wanted, price, rate(0.001), torch.tensor(2_000), 100)
    assert less.tolist() == [9.0, 19.0, 0.0], "the commission does not fit beside the purchase"


@pytest.mark.parametrize("max_shares", [100, None])
def test_buys_by_size_serve_the_largest_order_first(max_shares):
    """FinRL's rule: 30 shares of 10 first, then what is left buys 2 of 5 shares of 100; ties by position."""
    wanted, price = torch.tensor([5.0, 30.0]), torch.tensor([100.0, 10.0])
    bought, _ = ration_by_size(EXACT, wanted, price, rate(0.0), torch.tensor(550), max_shares)
    assert bought.tolist() == [2.0, 30.0]
    wanted, price = torch.tensor([5.0, 5.0, 5.0]), torch.tensor([10.0, 10.0, 10.0])
    tied, _ = ration_by_size(EXACT, wanted, price, rate(0.0), torch.tensor(70), max_shares)
    assert tied.tolist() == [5.0, 2.0, 0.0]


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 9, 109]), st.sampled_from([3, 100, 2**16, None]))
@QUICK
def test_buys_by_size_equal_a_plain_loop(seed, symbols, max_shares):
    """Orders of few sizes, so that many tie."""
    rng = np.random.default_rng(seed)
    wanted = rng.choice([0, 1, 2, max_shares or 10**6], symbols)
    price = rng.integers(1, 2**12, symbols)
    budget = cash = int(rng.integers(0, 1 + 2 * int((wanted * price).sum())))
    expected = [0] * symbols
    for k in sorted(range(symbols), key=lambda k: (-wanted[k], k)):
        expected[k] = min(int(wanted[k]), budget // int(price[k]))
        budget -= expected[k] * int(price[k])
    bought, _ = ration_by_size(
        EXACT, torch.tensor(wanted).float(), torch.tensor(price).float(), rate(0.0), torch.tensor(cash), max_shares
    )
    assert bought.tolist() == expected


@given(st.integers(0, 2**40), RATES | st.floats(0.0, 0.999))
@example(9_296_223_557, 0.08782781030127951)
@example(1_001_001, 0.001)
@example(1, 0.001)
@example(0, 0.0)
@QUICK
def test_the_budget_is_the_largest_value_that_cash_pays_with_its_commission(cash, commission):
    budget = int(_affordable(EXACT, torch.tensor(cash), rate(commission)))
    assert budget + math.ceil(budget * commission) <= cash
    assert budget + 1 + math.ceil((budget + 1) * commission) > cash


@st.composite
def accounts(draw):
    symbols = draw(st.sampled_from([1, 2, 3, 30]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    prices = rng.integers(1, 2 ** draw(st.sampled_from([4, 14, 23])), symbols)
    holdings = rng.integers(0, 100, symbols) * draw(st.sampled_from([0, 1]))
    orders = rng.integers(-100, 101, symbols)
    return draw(st.integers(0, 2 ** draw(st.sampled_from([4, 20, 36])))), holdings, orders, prices


@given(accounts(), RATES, RATES, st.booleans())
@QUICK
def test_an_account_adds_up_and_is_never_in_debt(account, commission, slippage, by_size):
    cash, holdings, orders, ticks = account
    fill = torch.from_numpy(ticks).float()
    prices = fill_prices(EXACT, fill, rate(slippage) if slippage else None, rate(commission))
    held, order = torch.from_numpy(holdings).float(), torch.from_numpy(orders).float()
    fills = execute_long_only(EXACT, torch.tensor(cash), held, order, prices, by_size, 100)
    bought = fills.bought.long().tolist()
    sold = [min(max(-int(n), 0), int(h)) for n, h in zip(orders, holdings, strict=True)]
    buy_prices, sell_prices = prices.buy.long().tolist(), prices.sell.long().tolist()
    paid = sum(n * price for n, price in zip(bought, buy_prices, strict=True))
    received = sum(n * price for n, price in zip(sold, sell_prices, strict=True))
    after = [int(h) + b - s for h, b, s in zip(holdings, bought, sold, strict=True)]
    assert fills.holdings.long().tolist() == after and min(after) >= 0
    assert int(fills.traded) == paid + received
    assert int(fills.cash) == cash + received - paid - int(fills.commissions) >= 0
    assert all(0 <= b <= max(int(n), 0) for b, n in zip(bought, orders, strict=True))


@given(accounts(), RATES)
@QUICK
@pytest.mark.assembly
def test_rationing_wastes_little(account, commission):
    """Pro rata leaves no more than a share of each symbol and a rounding of the ratio unspent."""
    cash, _, orders, ticks = account
    wanted, price = torch.from_numpy(orders.clip(0)).float(), torch.from_numpy(ticks).float()
    bought, ratio = ration_pro_rata(EXACT, wanted, price, rate(commission), torch.tensor(cash), 100)
    assume(ratio < 1)
    cost = int(EXACT.total(wanted, price, 100))
    left = cash - int(EXACT.total(bought, price, 100))
    assert left <= sum(ticks) + (cost * commission + cost / 2**16) + 2


def test_a_purchase_leaves_no_debt_to_its_commission():
    """Cash of 1,000 for a value of 1,000: the commission is what is left, nothing."""
    cash, value, fee = buy(EXACT, torch.tensor(1_000), torch.tensor([10.0]), flat([100.0], 0.001), 100)
    assert (int(cash), int(value), int(fee)) == (0, 1_000, 0)
    cash, value, fee = buy(EXACT, torch.tensor(-50), torch.tensor([0.0]), flat([100.0], 0.001), 100)
    assert (int(cash), int(value), int(fee)) == (-50, 0, 0)


def test_a_sale_pays_its_commission():
    cash, value, fee = sell(EXACT, torch.tensor(5), torch.tensor([3.0]), flat([100.0], 0.001), 100)
    assert (int(cash), int(value), int(fee)) == (304, 300, 1)
