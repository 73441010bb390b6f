"""Orders, long or short, and target weights: plain Python beside them, and small examples worked by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vecenv.kernels.exponential import single_exp
from vecenv.kernels.margin import Margin, borrow_fee, execute_with_shorts, margin_call, short_value
from vecenv.kernels.money import RATIO_STEPS, Money
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
from vecenv.kernels.weights import benchmark_units, chosen_weights, orders_to_weights, tilted_weights

EXACT, FRACTIONAL = Money(), Money(whole_shares=False)
QUICK = settings(max_examples=100)
RATES = st.sampled_from([0.0, 0.0005, 0.001, 0.0123, 0.3])


def rate(number: float | list[float]) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


def flat(ticks: list[float], commission: float = 0.0) -> Prices:
    """Prices without slippage."""
    fill = torch.tensor(ticks)
    return Prices(fill, fill, fill, rate(commission))


def test_prices_orders_and_purchases_by_hand():
    fill = torch.tensor([10_000.0, 10_001.0, 1.0])
    prices = fill_prices(EXACT, fill, rate(0.125), rate(0.001))
    assert prices.buy.tolist() == [11_250.0, 11_252.0, 2.0]
    assert prices.sell.tolist() == [8_750.0, 8_750.0, 0.0]
    assert prices.fill is fill and prices.commission.item() == 0.001
    fill = torch.tensor([1_000.0, 1_000.0])
    prices = fill_prices(EXACT, fill, rate([0.25, 0.0]), rate([0.5, 0.125]))
    assert prices.buy.tolist() == [1_750.0, 1_125.0] and prices.sell.tolist() == [250.0, 875.0]
    assert prices.commission.item() == 0.0 and prices.commission.ndim == 0
    deep = fill_prices(EXACT, torch.tensor([1_000.0]), rate([0.75]), rate([0.75]))
    assert deep.sell.tolist() == [0.0] and deep.buy.tolist() == [2_500.0], "a sell price is never negative"
    free = fill_prices(EXACT, fill, None, rate(0.0))
    assert free.buy is fill and free.sell is fill
    action = torch.tensor([1.0, -1.0, 0.999, -0.999, 0.009])
    assert wanted_shares(EXACT, action, rate(100), None).tolist() == [100.0, -100.0, 99.0, -99.0, 0.0]
    assert wanted_shares(FRACTIONAL, action[2:3], rate(100), None).item() == pytest.approx(99.9)
    action = torch.tensor([0.1, -0.1, 0.1001, -0.2])
    assert wanted_shares(EXACT, action, rate(1_000), rate(0.1)).tolist() == [0.0, 0.0, 100.0, -200.0]
    wanted, price = torch.tensor([10.0, 20.0, 0.0]), torch.tensor([100.0, 50.0, 7.0])
    half, ratio = ration_pro_rata(EXACT, wanted, price, rate(0.0), torch.tensor(1_000), 100)
    assert half.tolist() == [5.0, 10.0, 0.0] and ratio.item() == 0.5
    all_of_it, ratio = ration_pro_rata(EXACT, wanted, price, rate(0.0), torch.tensor(2_000), 100)
    assert all_of_it.tolist() == wanted.tolist() and ratio.item() == 1.0
    less, _ = ration_pro_rata(EXACT, wanted, price, rate(0.001), torch.tensor(2_000), 100)
    assert less.tolist() == [9.0, 19.0, 0.0], "the commission does not fit beside the purchase"
    told = buy(EXACT, torch.tensor(1_000), torch.tensor([10.0]), flat([100.0], 0.001), 100)
    assert [int(part) for part in told] == [0, 1_000, 0]
    told = buy(EXACT, torch.tensor(-50), torch.tensor([0.0]), flat([100.0], 0.001), 100)
    assert [int(part) for part in told] == [-50, 0, 0]
    told = sell(EXACT, torch.tensor(5), torch.tensor([3.0]), flat([100.0], 0.001), 100)
    assert [int(part) for part in told] == [304, 300, 1]
    # Of real numbers a rounding error is no debt, but what was debt stays.
    for cash, left in ((9.9999, 0.0), (-1.0, -11.0)):
        told = buy(FRACTIONAL, torch.tensor(cash), torch.tensor([0.1]), flat([100.0]), None)
        assert told[0].item() == pytest.approx(left, abs=1e-6) and told[1].item() == pytest.approx(10.0)


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
    bought, ratio = ration_by_size(
        EXACT, torch.tensor(wanted).float(), torch.tensor(price).float(), rate(0.0), torch.tensor(cash), max_shares
    )
    assert bought.tolist() == expected
    assert float(ratio) == pytest.approx(sum(expected) / max(int(wanted.sum()), 1e-9))


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


MONEY = [Money(), Money(dtype=torch.float64)]
CASES = [
    # Cash, holdings, orders, prices, commission and initial margin; cash, holdings, value and commissions after orders.
    # An account in debt buys back nothing, and above all does not sell short instead; nor does it buy, at any price.
    (-100, [-10.0, 0.0], [5.0, 3.0], [50.0, 20.0], 0.001, 0.5, (-100, [-10.0, 0.0], 0, 0)),
    (-100, [0.0], [3.0], [1.0], 0.0, 0.5, (-100, [0.0], 0, 0)),
    # 160 ticks pay for 3 of 5 shares at 50: 3.2 of 5, rounded down.
    (160, [-10.0], [5.0], [50.0], 0.0, 0.5, (10, [-7.0], 150, 0)),
    # Of 1,000 ticks the shorts hold 1.5 x 500; 250 buy 12 of 20 shares at 20. Shorts bought back hold nothing.
    (1_000, [-10.0, 0.0], [0.0, 20.0], [50.0, 20.0], 0.0, 0.5, (760, [-10.0, 12.0], 240, 0)),
    (1_000, [-10.0, 0.0], [10.0, 20.0], [50.0, 20.0], 0.0, 0.5, (100, [0.0, 20.0], 900, 0)),
    # 800 ticks back shorts worth 1,600 at an initial margin of a half, or of a quarter beside a fee of a quarter.
    (700, [2.0], [-66.0], [50.0], 0.0, 0.5, (2_400, [-32.0], 1_700, 0)),
    (800, [0.0], [-64.0], [50.0], 0.25, 0.25, (2_000, [-32.0], 1_600, 400)),
    # Without a margin beyond the proceeds a short is of any size.
    (0, [0.0], [-42.0], [50.0], 0.0, 0.0, (2_100, [-42.0], 2_100, 0)),
]


def margin(initial: float, borrow: float = 0.0) -> Margin:
    return Margin(rate(initial), rate(0.25), rate(borrow))


@pytest.mark.parametrize("money", MONEY, ids=["int64", "float64"])
@pytest.mark.parametrize("by_size", [False, True])
def test_orders_of_accounts_with_shorts(money, by_size):
    for cash, held, order, ticks, commission, initial, expected in CASES:
        cash, price = torch.tensor(cash, dtype=money.money_dtype), torch.tensor(ticks, dtype=money.dtype)
        held, order = (torch.tensor(part, dtype=money.dtype) for part in (held, order))
        prices = Prices(price, price, price, rate(commission))
        fills = execute_with_shorts(money, cash, held, order, prices, by_size, margin(initial))
        assert (int(fills.cash), fills.holdings.tolist(), int(fills.traded), int(fills.commissions)) == expected
        assert torch.equal(fills.bought, (fills.holdings - held).clamp(min=0))


def test_a_margin_call_is_below_the_requirement_and_a_fee_is_that_of_a_day():
    for money in MONEY:
        held, close = torch.tensor([-10.0, 7.0], dtype=money.dtype), torch.tensor([50.0, 20.0], dtype=money.dtype)
        assert int(short_value(money, held, close)) == 500
        for cash, called in ((624, True), (625, False), (626, False)):
            told = margin_call(money, torch.tensor(cash, dtype=money.money_dtype), held, close, margin(0.5))
            assert bool(told) == called, cash
        # 500 x 0.126 / 252 is a quarter of a tick, rounded up.
        assert int(borrow_fee(money, held, close, margin(0.5, borrow=0.126), 252)) == 1
        assert int(borrow_fee(money, held * 8, close, margin(0.5, borrow=0.126), 252)) == 2
        assert int(borrow_fee(money, held * 8, close, margin(0.5, borrow=0.126), 126)) == 4


REAL = Money(whole_shares=False, dtype=torch.float64)


def test_weights_become_the_orders_that_reach_them():
    """A quarter of 10,000 in each: targets of 25 and 12 shares, from 30 and 0. Negative weights count as zero."""
    prices = flat([100.0, 200.0])
    weights, holdings = chosen_weights(EXACT, torch.tensor([0.25, 0.25])), torch.tensor([30.0, 0.0])
    value = torch.tensor(10_000)
    assert orders_to_weights(EXACT, weights, value, holdings, prices, rate(1.0), None).tolist() == [-5.0, 12.0]
    dropped = orders_to_weights(EXACT, weights, value, holdings, prices, rate(1.0), rate(0.05))
    assert dropped.tolist() == [0.0, 12.0], "an order of 500, 5% of the value, is in the dead zone"
    weights = chosen_weights(EXACT, torch.tensor([1.0, 1.0, -1.0]))
    assert weights.tolist() == [0.5, 0.5, 0.0]
    prices, nothing = flat([100.0] * 3), torch.zeros(3)
    assert orders_to_weights(EXACT, weights, value, nothing, prices, rate(1.0), None).tolist() == [50.0, 50.0, 0.0]
    whole = chosen_weights(EXACT, torch.tensor([1.0, 0.0, 0.0]))
    order = orders_to_weights(EXACT, whole, value, nothing, prices, rate(1.001), None)
    assert order.tolist() == [99.0, 0.0, 0.0], "costs are part of the price of a share: 101 ticks"


@pytest.mark.parametrize("money", [EXACT, REAL])
def test_tilts_multiply_weights_by_their_exponential(money):
    """Weights before normalisation: 0.4 e, 0.4 / e, and 0.2 of cash. No tilt is the benchmark."""
    benchmark = benchmark_units(torch.tensor([1.0, 2.0, 0.0, 1.0]))
    weights = tilted_weights(money, torch.zeros(5), benchmark, 0.25, 2.0)
    assert weights.tolist() == [0.1875, 0.375, 0.0, 0.1875]
    nothing = benchmark_units(torch.zeros(3))
    assert tilted_weights(money, torch.ones(4), nothing, 0.1, 1.0).tolist() == [0.0, 0.0, 0.0]
    weights = tilted_weights(money, torch.tensor([0.5, -0.5, 0.0]), benchmark_units(torch.ones(2)), 0.2, 2.0)
    total = 0.4 * math.e + 0.4 / math.e + 0.2
    expected = [0.4 * math.e / total, 0.4 / math.e / total]
    assert weights.tolist() == pytest.approx(expected, abs=2 / RATIO_STEPS if money is EXACT else 1e-12)


def test_whole_weights_never_sum_to_more_than_one():
    rng = np.random.default_rng(0)
    for count in (1, 2, 30, 127, 128, 500):
        action = torch.from_numpy(rng.uniform(-1, 1, (200, count + 1)).astype(np.float32))
        portfolio = torch.from_numpy(rng.uniform(0, 5, (200, count)).astype(np.float32))
        units = benchmark_units(portfolio)
        assert float(units.sum(-1).max()) < 2**23 and float((units % 1).max()) == 0
        weights = tilted_weights(EXACT, action, units, 0.5, 3.0)
        assert float((weights * RATIO_STEPS % 1).max()) == 0
        sums = weights.sum(-1)
        assert float(sums.max()) <= 1.0 and float(weights.min()) >= 0
        smooth = tilted_weights(REAL, action, portfolio, 0.5, 3.0)
        assert float((smooth - weights).abs().max()) < 1e-3


def test_the_single_precision_exponential_is_exact_to_five_millionths():
    for largest in (0.1, 0.5, 2.0, 8.0):
        exponent = -torch.linspace(0.0, largest, 10_001)
        error = single_exp(exponent, largest).double() / exponent.double().exp() - 1
        assert float(error.abs().max()) < 5e-6
        assert single_exp(torch.zeros(1), largest).item() == 1.0
