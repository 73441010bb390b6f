"""Choices, weights and tilts of the benchmark as lists of orders: by hand, against the oracle, and what zero holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import vecenv
from tests.tasks.tiers.oracle import Market, Rules, TierAccount, weights_to_orders
from tests.tasks.tiers.random_tiers import tier_tape
from vecenv.core.env import VecEnv
from vecenv.kernels.exponential import exponential
from vecenv.kernels.money import RATIO_STEPS
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers import order_spaces
from vecenv.tasks.tiers.agents import BuyAndHold
from vecenv.tasks.tiers.config import TIERS, TierConfig
from vecenv.tasks.tiers.limit_weights import HALVINGS, MAX_GAIN, TERMS, WeightLimits, target_weights
from vecenv.tasks.tiers.order_list import Kind
from vecenv.tasks.tiers.order_spaces import FRACTION_BINS, choices_to_orders
from vecenv.tasks.tiers.reward_components import COMPONENTS, RULE_BREAKS
from vecenv.tasks.tiers.tasks import SINGLE_STOCK
from vecenv.testing import check_task

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
    prices = rng.integers(50, 5_000, NUM_SYMBOLS).tolist()
    market = Market([prices] * 2, [[True] * NUM_SYMBOLS] * 2, [[0.0] * NUM_SYMBOLS] * 2, 0.01, [])
    cash = int(rng.choice([40, 3_000, 10_000_000]))
    held = TierAccount(Rules(9, cash, (True,) * NUM_SYMBOLS, 0.0, 0.0, 9, 1.0, 1.0, False, {}), market, 0)
    held.held = (rng.integers(0, 500, NUM_SYMBOLS) * (rng.random(NUM_SYMBOLS) < 0.6)).tolist()
    held.value = cash + sum(count * price for count, price in zip(held.held, prices, strict=True))
    return held


@pytest.mark.parametrize("max_orders", [1, 3, 8])
def test_weights_become_the_oracles_orders(max_orders):
    """Kinds and symbols exactly, fractions to the precision of float32 shares."""
    rng, kinds = np.random.default_rng(max_orders), []
    for _ in range(300):
        held, weights = account(rng), rng.dirichlet(np.ones(NUM_SYMBOLS)) * rng.choice([0.3, 0.9, 1.0, 2.5])
        target = (weights * (rng.random(NUM_SYMBOLS) < 0.7)).astype(np.float32)
        worth = torch.tensor(held.held, dtype=torch.float64) * torch.tensor(held.market.close[0])
        shares = (worth / held.value).float(), torch.tensor(held.cash / held.value)
        ours = order_spaces.weights_to_orders(torch.from_numpy(target), *shares, max_orders)
        expected = torch.tensor(weights_to_orders(held, target.tolist(), max_orders))
        assert torch.equal(ours[:, :2], expected[:, :2]), (held.held, target)
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


def test_zero_tilts_hold_the_benchmark():
    """Zero buys what buy and hold buys, within the limits, and trades little after that: a tenth of the account."""
    env, held = (
        vecenv.make("multi_stock_3", 32, seed=1, compile=False, market_options={"num_days": 400}, action=action)
        for action in ("limit_weights", "orders")
    )
    later = torch.zeros(32, dtype=torch.float64)
    for day in range(25):
        env.advance(torch.zeros(32, 4))
        held.advance(BuyAndHold().act(held))
        later += env.state.traded / env.state.portfolio_value * (day > 0)
    state = env.state
    weights = state.holdings * env.scenario.shared["close"][env.scenario.row(state)] / state.portfolio_value[:, None]
    broken = [COMPONENTS.index(name) for name in (*RULE_BREAKS, "sell_unheld")]
    assert float(state.totals[:, broken].sum()) == 0 and bool(env.rows.truncated.all())
    assert float((weights - 0.98 * 0.2).abs().mean()) < 0.005
    assert float(later.mean()) < 0.1 and abs(float(env.grade().mean() - held.grade().mean())) < 0.02


def test_an_action_beside_a_limit_leaves_the_excess_in_cash():
    """Half of the account is a symbol's limit and 60% that of all; 10% is stuck in a symbol that does not trade."""
    limits = WeightLimits(*(torch.tensor(share, dtype=torch.float64) for share in (0.2, 0.5, 0.6)))
    every, nothing = torch.ones(3, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    stuck = torch.tensor(0.1 * RATIO_STEPS, dtype=torch.float64).ceil()
    for action, tradable, share, expected in (
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


def test_a_drawn_symbol_is_the_only_one():
    config = replace(TIERS["single_stock"], symbols=("random",), action="limit_weights")
    env = VecEnv(SINGLE_STOCK.build(flat_tape(10.0, 20.0, 30.0), config), 8, 1, "cpu", False)
    # At first 98% of the account, then 49 e⁻¹ : e of it.
    for tilts, weight in (((0.0, 0.0), 0.98), ((-1.0, 1.0), 0.98 / math.e / (0.98 / math.e + 0.02 * math.e))):
        env.advance(torch.tensor([tilts] * 8))
        assert (1 - env.state.cash / env.state.portfolio_value).tolist() == pytest.approx([weight] * 8, abs=0.002)


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
