"""A day's list of orders by numbers worked out by hand, and choices, weights and tilts that become one."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tasks.tiers.oracle import Market, TierAccount
from tests.tasks.tiers.random_tiers import tier_tape
from tests.tasks.tiers.weights_oracle import weights_to_orders
from vecenv.core.env import VecEnv
from vecenv.kernels.exponential import exponential
from vecenv.kernels.money import RATIO_STEPS, Money
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers import orders as order_spaces
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.law import (
    MAX_SHARES,
    Execution,
    Kind,
    Limits,
    Positions,
    Quotes,
    affordable,
    capacity,
    decode_orders,
    execute_orders,
)
from vecenv.tasks.tiers.limits import MAX_GAIN
from vecenv.tasks.tiers.orders import FRACTION_BINS, HALVINGS, TERMS, WeightLimits, choices_to_orders, target_weights
from vecenv.tasks.tiers.task import SINGLE_STOCK
from vecenv.testing import check_task

MONEY = Money(whole_shares=True, dtype=torch.float64)
HOLD, BUY, SELL = 0, 1, 2
FREE = {"commission": 0, "slippage": 0, "closed": 0, "capacity": 4, "max_trades": 100}
WIDE = {"position_value": math.inf, "exposure_value": math.inf}


def number(value: float) -> torch.Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


def serve(
    *orders, cash=100_000, held=(0, 0), average=(0, 0), close=(1_000, 250), rsi=(50, 50), tradable=(1, 1), **changes
) -> Execution:
    """Serve (kind, symbol, fraction) orders of an account of two symbols; limits in ticks."""
    shares, prices, strengths, trades, paid = (torch.tensor(x).float() for x in (held, close, rsi, tradable, average))
    before = Positions(number(cash), shares, paid, torch.tensor(float(changes.pop("streak", 0))))
    decoded = decode_orders(torch.tensor(orders, dtype=torch.float32), 2)
    quotes = Quotes(*(column[decoded.symbols] for column in (prices, strengths, trades)))
    limits = Limits(**{name: number(limit) for name, limit in (FREE | WIDE | changes).items()})
    worth = (shares.double() * prices.double()).sum()
    return execute_orders(MONEY, decoded, before, worth, quotes, limits._replace(closed=limits.closed > 0))


def counted(done: Execution) -> dict[str, int]:
    """Return what was counted at least once."""
    return {name: int(count) for name, count in done.counts.items() if count}


def test_capacity_falls_at_3_5_and_8_percent():
    values = (100, 97.01, 97, 95.01, 95, 92.01, 91.99, 10)
    assert [capacity(number(value), number(100)) for value in values] == [4, 4, 3, 3, 2, 2, 1, 1]


def test_what_orders_move_and_cost():
    """Slippage 0.1% of 1,000 is 1 tick; 0.15% commission on 10,010 is 15.015, rounded up to 16."""
    done = serve((BUY, 0, 0.5))
    assert done.fills.tolist() == [50] and done.positions.cash == 50_000 and done.num_trades == 1
    assert serve((BUY, 0, 0.5), capacity=2).fills.tolist() == [25]
    bought = serve((BUY, 0, 0.1003), slippage=0.001, commission=0.0015)
    assert bought.fills.tolist() == [10] and bought.positions.cash == 100_000 - 10_010 - 16
    assert bought.costs == 10 + 16 and bought.traded == 10_010 and bought.exposure == 10_000
    sold = serve((SELL, 0, 1.0), held=(10, 0), slippage=0.001, commission=0.0015)
    assert sold.fills.tolist() == [-10] and sold.positions.cash == 100_000 + 9_990 - 15
    assert sold.costs == 10 + 15 and sold.exposure == 0 and sold.positions.holdings.tolist() == [0, 0]
    # Sell 10 × 1,000 without other cash, buy 40 × 250 with it, and sell half of those.
    done = serve((SELL, 0, 1.0), (BUY, 1, 1.0), (SELL, 1, 0.5), cash=0, held=(10, 0))
    assert done.fills.tolist() == [-10, 40, -20] and done.positions.holdings.tolist() == [0, 20]
    assert done.positions.cash == 5_000 and done.num_trades == 3 and done.exposure == 5_000
    # (200 × 10 + 250 × 30) / 40 = 237.5; selling leaves it; what is sold out and bought again is new.
    for orders, average in (
        ([(BUY, 1, 0.075)], 237.5),
        ([(SELL, 1, 0.5)], 200),
        ([(SELL, 1, 1.0), (BUY, 1, 0.01)], 250),
    ):
        assert serve(*orders, held=(0, 10), average=(0, 200)).positions.average_price.tolist() == [0, average]


def test_purchases_are_cut_to_the_limits_and_refused_beyond_them_and_sales_never():
    """Of 100 shares asked for, the position may reach 30,500 and all positions 40,000 with 25,000 held already."""
    cut, every = {"position_limit": 1}, (BUY, 0, 1.0)
    for fills, counts, done in (
        ([30], cut, serve(every, position_value=30_500)),
        ([15], cut, serve(every, held=(0, 100), exposure_value=40_000)),
        ([0], cut, serve(every, held=(31, 0), position_value=30_500)),
        ([100], {}, serve(every, position_value=100_000)),
        ([5], cut, serve(every, cash=2**31, close=(1, 1), held=(MAX_SHARES - 5, 0))),
        # An order that moves nothing is none of the two trades that are allowed.
        (
            [0, 10, 36, 0, -10],
            {"trade_limit": 1},
            serve((BUY, 1, 0.0), (BUY, 0, 0.1), (BUY, 1, 0.1), (BUY, 0, 0.1), (SELL, 0, 1.0), max_trades=2),
        ),
        (
            [0, -8, 0],
            {"regime_violation": 2},
            serve((BUY, 0, 0.1), (SELL, 1, 1.0), (BUY, 1, 0.0), held=(0, 8), closed=1, max_trades=1),
        ),
        (
            [0, 0, 0],
            {"sell_unheld": 1},
            serve((BUY, 0, 0.1), (SELL, 0, 1.0), (SELL, 1, 1.0), held=(4, 0), tradable=(0, 1)),
        ),
    ):
        assert done.fills.tolist() == fills and counted(done) == counts
        assert done.num_trades == np.count_nonzero(fills)


def test_relative_strength_and_losing_sales_count_executed_orders_alone():
    """Above 70, below 30 and below the average price, not at them; what moves nothing changes nothing."""
    orders = ((BUY, 0, 0.1), (BUY, 0, 0.0), (SELL, 1, 0.5), (SELL, 1, 0.0))
    assert counted(serve(*orders, held=(0, 8), rsi=(70.5, 29.5))) == {"overbought_buy": 1, "oversold_sell": 1}
    assert counted(serve(*orders, held=(0, 8), rsi=(70.0, 30.0))) == {}
    losing = {"held": (100, 100), "average": (1_001, 250)}
    third = serve((SELL, 0, 0.1), (SELL, 0, 0.0), (BUY, 1, 0.1), (BUY, 1, 0.1), streak=2, **losing)
    assert counted(third) == {"losing_streak_buy": 1} and third.positions.losing_sells == 0
    second = serve((SELL, 0, 0.1), (BUY, 1, 0.1), streak=1, **losing)
    assert counted(second) == {} and second.positions.losing_sells == 2
    assert serve((SELL, 1, 0.1), streak=2, **losing).positions.losing_sells == 0
    # What was bought at one price has that price, though their product with the shares is not exact in float32.
    for price in range(100_001, 100_100, 2):
        done = serve((BUY, 0, 0.3), (BUY, 0, 0.5), (SELL, 0, 0.5), cash=2**32, close=(price, 250))
        assert done.positions.average_price[0] == price and done.positions.losing_sells == 0


@pytest.mark.parametrize("last", range(5))
def test_writes_of_orders_in_one_symbol_need_no_sequence(monkeypatch, last):
    """A device may scatter in any order: whichever order of a symbol writes last, it writes what the final one left."""
    orders = [(BUY, 0, 0.1), (BUY, 1, 0.3), (BUY, 0, 0.2), (SELL, 0, 0.5), (BUY, 0, 0.1)]
    expected, scatter = serve(*orders, held=(7, 3)).positions, torch.Tensor.scatter

    def turned(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return scatter(self, dim, index.roll(4 - last), source.roll(4 - last))

    monkeypatch.setattr(torch.Tensor, "scatter", turned)
    found = serve(*orders, held=(7, 3)).positions
    assert torch.equal(found.holdings, expected.holdings) and torch.equal(found.average_price, expected.average_price)


def test_actions_are_checked_as_a_whole():
    """One order that breaks the format takes the good one beside it with it; halves are rounded to even."""
    good = {
        (BUY, 1, 0.00005): 0,
        (BUY, 1, 0.00015): 2,
        (SELL, 0, 1.5): 10_000,
        (SELL, 0, -0.5): 0,
        (HOLD, 77.5, 0.5): 5_000,
    }
    for order, steps in good.items():
        orders = decode_orders(torch.tensor([(BUY, 0, 1.0), order]), 2)
        assert bool(orders.valid) and bool(orders.buys[0]) and orders.steps[1] == steps, order
    for order in (
        *((3, 0, 0.5), (0.5, 0, 0.5), (BUY, 2, 0.5), (BUY, -1, 0.5), (BUY, 0.5, 0.5)),
        *((BUY, 0, math.nan), (BUY, math.inf, 0.5), (HOLD, math.nan, 0.5)),
    ):
        orders = decode_orders(torch.tensor([(BUY, 0, 1.0), order]), 2)
        assert not bool(orders.valid) and not bool(orders.buys.any()), order
    owned = torch.tensor([True, False])
    for kind, valid in ((HOLD, True), (SELL, False)):
        assert bool(decode_orders(torch.tensor([(BUY, 0.0, 1.0), (kind, 1.0, 1.0)]), 2, owned).valid) is valid


def test_what_is_affordable_is_never_overspent():
    """In whole numbers, and no share fewer than two that would be paid for."""
    rng = np.random.default_rng(0)
    budgets, prices = rng.integers(0, 2 ** rng.integers(1, 38, 2_000)), rng.integers(1, 2 ** rng.integers(1, 24, 2_000))
    rates = rng.choice([0.0, 1e-9, 0.0005, 0.001, 0.0123, 0.3, 0.999, rng.random()], 2_000)
    bought = affordable(MONEY, *(torch.from_numpy(numbers).double() for numbers in (budgets, prices, rates)))
    for shares, *numbers in zip(map(int, bought), budgets, prices, rates, strict=True):
        budget, price, rate = (number.item() for number in numbers)
        assert shares >= 0 and shares * price + min(math.ceil(shares * price * rate), shares * price) <= budget
        assert (shares + 2) * price + math.floor((shares + 2) * price * rate) > budget


NUM_SYMBOLS = 6


def flat_tape(*prices: float) -> MarketTape:
    """Return a market whose closes stay where they are; all symbols trade."""
    tape = tier_tape(np.random.default_rng(0), len(prices), num_days=60, ragged=False)
    ohlcv = torch.tensor(prices)[:, None].expand(1, 60, -1, 5).contiguous()
    return replace(tape, ohlcv=ohlcv, tradable=torch.ones_like(tape.tradable))


def test_choices_name_hold_then_purchases_then_sales():
    action = torch.tensor([[0, 9], [1, 0], [3, 9], [4, 4], [6, 1]])
    orders = [[0, 0, 1.0], [1, 0, 0.1], [1, 2, 1.0], [2, 0, 0.5], [2, 2, 0.2]]
    assert torch.equal(choices_to_orders(action, 3), torch.tensor(orders))


def test_the_mask_leaves_what_can_be_done():
    """Cash of 1,200 pays 1,000 with the costs of 3/16, but not 1,012; the third symbol does not trade."""
    tape = flat_tape(1000.0, 1012.0, 10.0, 500.0)
    tape.tradable[:, 1:, 2] = False
    config = TierConfig(symbols=tape.symbols, initial_cash=1200.0, commission=0.125, slippage=0.0625, max_orders=2)
    env = VecEnv(SINGLE_STOCK.build(tape, config), 1, compiled=False)
    env.rows.state.get("holdings").copy_(torch.tensor([[0.0, 1.0, 1.0, 0.0]]))
    env.rows.state.get("portfolio_value").copy_(env.state.cash + 1_022_000)
    one = [True, True, False, False, True, False, True, False, False] + [True] * FRACTION_BINS
    assert env.scenario.action_mask(env.observations()).tolist() == [one + one]


def account(rng: np.random.Generator) -> TierAccount:
    """An account of the scalar oracle that holds some of six symbols, beside cash."""
    prices, names = rng.integers(50, 5_000, NUM_SYMBOLS).tolist(), tuple("ABCDEF")
    market = Market(names, [prices] * 2, [[True] * NUM_SYMBOLS] * 2, [[0.0] * NUM_SYMBOLS] * 2, 1.0, [])
    cash = int(rng.choice([40, 3_000, 10_000_000]))
    held = TierAccount(TierConfig(symbols=names, initial_cash=float(cash)), market, 0)
    held.holdings = (rng.integers(0, 500, NUM_SYMBOLS) * (rng.random(NUM_SYMBOLS) < 0.6)).tolist()
    held.portfolio_value = cash + sum(count * price for count, price in zip(held.holdings, prices, strict=True))
    return held


@pytest.mark.parametrize("max_orders", [1, 3, 8])
def test_weights_become_the_oracles_orders(max_orders):
    """Kinds and symbols exactly, fractions to the precision of float32 shares."""
    rng, kinds = np.random.default_rng(max_orders), []
    for _ in range(300):
        held, weights = account(rng), rng.dirichlet(np.ones(NUM_SYMBOLS)) * rng.choice([0.3, 0.9, 1.0, 2.5])
        target = (weights * (rng.random(NUM_SYMBOLS) < 0.7)).astype(np.float32)
        worth = torch.tensor(held.holdings, dtype=torch.float64) * torch.tensor(held.market.close[0])
        shares = (worth / held.portfolio_value).float(), torch.tensor(held.cash / held.portfolio_value)
        ours = order_spaces.weights_to_orders(torch.from_numpy(target), *shares, max_orders)
        expected = torch.tensor(weights_to_orders(held, target.tolist(), max_orders))
        assert torch.equal(ours[:, :2], expected[:, :2]), (held.holdings, target)
        torch.testing.assert_close(ours[:, 2], expected[:, 2], rtol=1e-4, atol=2e-5)
        kinds += ours[:, 0].tolist()
    assert all(kinds.count(float(kind)) > 50 for kind in (Kind.BUY, Kind.SELL))


def test_the_largest_differences_come_first_and_small_ones_are_left_alone():
    weight, cash = torch.tensor([0.0, 0.3, 0.0, 0.2, 0.1, 0.0]), torch.tensor(0.4)
    target = torch.tensor([0.004, 0.0, 0.1, 0.1, 0.1, 0.25])
    expected = [[Kind.SELL, 1, 1.0], [Kind.BUY, 2, 0.1 / 0.7], [Kind.BUY, 5, 0.25 / 0.6]]
    torch.testing.assert_close(order_spaces.weights_to_orders(target, weight, cash, 3), torch.tensor(expected))
    every = order_spaces.weights_to_orders(target, weight, cash, 8)
    assert every[:, 0].tolist() == [2, 2, 1, 1, 0, 0, 0, 0] and every[:4, 1].tolist() == [1, 3, 2, 5]
    for broken in (math.nan, math.inf, -math.inf):
        target[1] = broken
        orders = order_spaces.weights_to_orders(target, weight, cash, 4)
        assert (orders[:, 0] == Kind.INVALID).all() and bool(orders.isfinite().all())


def test_an_action_beside_a_limit_leaves_the_excess_in_cash():
    """Half of the account is a symbol's limit and 60% that of all; 10% is stuck in a symbol that does not trade."""
    limits = WeightLimits(*(torch.tensor(share, dtype=torch.float64) for share in (0.2, 0.5, 0.6)))
    every, nothing = torch.ones(3, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    stuck = torch.tensor(0.1 * RATIO_STEPS, dtype=torch.float64).ceil()
    for action, tradable, share, expected in (
        ((0.0, 0.0, 0.0, 0.0), every, nothing, [0.196] * 3),
        ((1.0, -1.0, -1.0, -1.0), every, nothing, [0.49, 0.0, 0.0]),
        ((1.0, 1.0, 1.0, -1.0), every, nothing, [0.196] * 3),
        ((1.0, 1.0, -1.0, -1.0), every, nothing, [0.294, 0.294, 0.0]),
        ((0.0, 0.0, 0.0, 1.0), every, nothing, [0.0] * 3),
        ((1.0, 1.0, 0.0, -1.0), torch.tensor([1.0, 1.0, 0.0]).double(), stuck, [0.244, 0.244, 0.0]),
        ((1.0, 1.0, 1.0, -1.0), every, 6 * stuck, [0.0] * 3),
    ):
        weights = target_weights(torch.tensor(action), tradable, share, limits, 8.0) / RATIO_STEPS
        assert weights.tolist() == pytest.approx(expected, abs=1e-3 if action[3] == 1 else 1e-4)
    exponent = torch.linspace(-MAX_GAIN, MAX_GAIN, 4_001, dtype=torch.float64)
    assert float((exponential(exponent, HALVINGS, TERMS) / exponent.exp() - 1).abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("task", "compiled"),
    [pytest.param("curriculum", False, marks=pytest.mark.assembly)]
    + [
        pytest.param(task, True, marks=pytest.mark.nightly)
        for task in ("single_stock", "full_autonomous", "curriculum")
    ],
)
def test_tilts_of_tiers_conform(task, compiled):
    rules = {"action": "limit_weights", "reward": "grade_potential", "max_orders": 3}
    check_task(task, steps=5, compiled=compiled, market_options={"num_paths": 2, "num_days": 330}, **rules)
