"""Tilts of the benchmark's weights: what zero does, what no tilt may do, and the numbers behind them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

import vecenv
from vecenv.core.env import VecEnv
from vecenv.kernels.exponential import exponential
from vecenv.kernels.money import RATIO_STEPS
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.agents import BuyAndHold
from vecenv.tasks.tiers.config import TIERS
from vecenv.tasks.tiers.limit_weights import HALVINGS, LEAST_CASH, MAX_GAIN, TERMS, WeightLimits, target_weights
from vecenv.tasks.tiers.reward_components import COMPONENTS, RULE_BREAKS
from vecenv.tasks.tiers.tasks import SINGLE_STOCK
from vecenv.testing import check_task

NUM_ENVS = 32


@cache
def market(num_days: int = 400) -> MarketTape:
    options = {"num_paths": 4, "num_days": num_days}
    return vecenv.make("full_autonomous", 1, market_options=options, compile=False).scenario.tape


def env_of(tape: MarketTape, task: str, num_envs: int = NUM_ENVS, compiled: bool = False, **changes) -> VecEnv:
    rules = replace(TIERS[task], action="limit_weights", **changes)
    return VecEnv(SINGLE_STOCK.build(tape, rules), num_envs, 1, "cpu", compiled)


def broken(env: VecEnv) -> float:
    """Return how often an order broke a rule or sold what was not held."""
    return float(env.state.totals[:, [COMPONENTS.index(name) for name in (*RULE_BREAKS, "sell_unheld")]].sum())


def shares(task: str) -> tuple[float, float]:
    """Return the benchmark's share of each symbol and of all under a tier's limits."""
    tier = TIERS[task]
    each = (1 - LEAST_CASH) * min(tier.max_position, tier.max_exposure / len(tier.symbols))
    return each, each * len(tier.symbols)


@pytest.mark.parametrize("task", ["single_stock_costs", "multi_stock_3", "full_autonomous"])
def test_zero_holds_the_benchmark(task):
    """It buys as buy and hold does, on as many days, keeps its weights, and trades little after that."""
    env, tier = env_of(market(), task), TIERS[task]
    held = VecEnv(SINGLE_STOCK.build(market(), replace(tier, action="orders")), NUM_ENVS, 1, "cpu", False)
    zero, (each, whole) = torch.zeros(NUM_ENVS, len(tier.symbols) + 1), shares(task)
    buying = -(-len(tier.symbols) // min(tier.max_orders, tier.max_trades))
    traded_later = torch.zeros(NUM_ENVS, dtype=torch.float64)
    for day in range(tier.days):
        closed = env.scenario.shared["breadth"][env.scenario.row(env.state), 0] > 0
        env.advance(zero)
        held.advance(BuyAndHold().act(held))
        # With a gate the days of buying are those on which it is open.
        if day >= buying and not tier.gate:
            traded_later += env.state.traded / env.state.portfolio_value
        assert not tier.gate or not bool((env.state.fills[closed] > 0).any())
    state = env.state
    weights = state.holdings * env.scenario.shared["close"][env.scenario.row(state)] / state.portfolio_value[:, None]
    assert broken(env) == 0 and bool(env.rows.truncated.all())
    assert float((weights - each).abs().mean()) < 0.005
    # In a month: less than a tenth of the account, in a tier of one symbol next to nothing.
    assert float(traded_later.mean()) < (0.1 if len(tier.symbols) > 1 else 0.001)
    assert abs(float((1 - state.cash / state.portfolio_value).mean()) - whole) < 0.01
    assert abs(float(env.grade().mean() - held.grade().mean())) < 0.02


def test_an_action_beside_a_limit_leaves_the_excess_in_cash():
    """Half of the account is a symbol's limit and 60% that of all; 10% is stuck in a symbol that does not trade."""
    limits = WeightLimits(*(torch.tensor(share, dtype=torch.float64) for share in (0.2, 0.5, 0.6)))
    tradable, nothing = torch.ones(3, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)

    def weights(*action: float, tradable: torch.Tensor = tradable, stuck: torch.Tensor = nothing) -> list[float]:
        return (target_weights(torch.tensor(action), tradable, stuck, limits, 8.0) / RATIO_STEPS).tolist()

    assert weights(1.0, -1.0, -1.0, -1.0) == pytest.approx([0.49, 0.0, 0.0], abs=1e-4)
    assert weights(1.0, 1.0, 1.0, -1.0) == pytest.approx([0.196] * 3, abs=1e-4)
    assert weights(1.0, 1.0, -1.0, -1.0) == pytest.approx([0.294, 0.294, 0.0], abs=1e-4)
    assert weights(0.0, 0.0, 0.0, 1.0) == pytest.approx([0.0] * 3, abs=1e-3)
    stuck = torch.tensor(0.1 * RATIO_STEPS, dtype=torch.float64).ceil()
    left = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    assert weights(1.0, 1.0, 0.0, -1.0, tradable=left, stuck=stuck) == pytest.approx([0.244, 0.244, 0.0], abs=1e-4)
    assert weights(1.0, 1.0, 1.0, -1.0, stuck=6 * stuck) == [0.0] * 3


def test_the_exponential_has_ten_digits():
    exponent = torch.linspace(-MAX_GAIN, MAX_GAIN, 4_001, dtype=torch.float64)
    assert float((exponential(exponent, HALVINGS, TERMS) / exponent.exp() - 1).abs().max()) < 1e-10
    assert exponential(torch.zeros((), dtype=torch.float64), HALVINGS, TERMS).item() == 1.0


def test_a_drawn_symbol_is_the_only_one():
    tape = market()
    rules = replace(TIERS["single_stock"], symbols=("random",), action="limit_weights")
    env = VecEnv(SINGLE_STOCK.build(tape, rules), NUM_ENVS, 1, "cpu", False)
    assert env.action_spec.shape == (NUM_ENVS, 2)
    env.advance(torch.zeros(NUM_ENVS, 2))
    assert float((1 - env.state.cash / env.state.portfolio_value).min()) > 0.9
    env.advance(torch.tensor([-1.0, 1.0]).expand(NUM_ENVS, 2))
    # 49 e⁻¹ : e, of which the drawn symbol has seven eighths.
    weight = 0.98 / math.e / (0.98 / math.e + 0.02 * math.e)
    assert abs(float((1 - env.state.cash / env.state.portfolio_value).mean()) - weight) < 0.02


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
