"""Tilts of the benchmark's weights: what zero does, what no tilt may do, and the numbers behind them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import vecenv
from tests.small_env import assert_same_bits, numbers, snapshot, step
from tests.tasks.tiers.random_tiers import random_tilts, tier_tape
from vecenv.core.env import VecEnv
from vecenv.kernels.exponential import exponential
from vecenv.kernels.money import RATIO_STEPS
from vecenv.learn.ppo import PPO, PPOConfig
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.agents import BuyAndHold
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.limit_weights import HALVINGS, LEAST_CASH, MAX_GAIN, TERMS, WeightLimits, target_weights
from vecenv.tasks.tiers.order_list import Kind
from vecenv.tasks.tiers.reward_components import COMPONENTS, RULE_BREAKS
from vecenv.tasks.tiers.tasks import SINGLE_STOCK
from vecenv.testing import check_task

NUM_ENVS = 64
SMALL = {"market_options": {"num_paths": 2, "num_days": 330}}


@cache
def market(num_days: int = 400) -> MarketTape:
    options = {"num_paths": 4, "num_days": num_days}
    return vecenv.make("full_autonomous", 1, market_options=options, compile=False).scenario.tape


@cache
def ragged_market() -> MarketTape:
    """A market of wild prices with late listings and days without trade."""
    tape = tier_tape(np.random.default_rng(3), len(TWENTY_FIVE), 90, num_paths=2, highest=3_000_000)
    return replace(tape, symbols=TWENTY_FIVE)


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


@pytest.mark.parametrize("task", TIERS)
@pytest.mark.assembly
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


@pytest.mark.parametrize(("task", "gain"), [("multi_stock_3", 1.0), ("portfolio", 8.0), ("full_autonomous", 3.0)])
@pytest.mark.assembly
def test_no_tilt_breaks_a_limit(task, gain):
    """On a wild market: purchases leave position and exposure within the tier's limits at the day's closes."""
    tier = TIERS[task]
    env, rng = env_of(ragged_market(), task, tilt_gain=gain, max_orders=6), np.random.default_rng(1)
    bought_days = 0
    for _ in range(tier.days):
        before, row = env.state.holdings, env.scenario.row(env.state)
        value = env.state.portfolio_value.unsqueeze(-1)
        tilts = random_tilts(rng, NUM_ENVS, len(tier.symbols), broken=0.0)
        playing = ~env.rows.done
        env.advance(torch.from_numpy(tilts))
        worth = env.state.holdings.double() * env.scenario.shared["close"][row].double()
        bought = playing.unsqueeze(-1) & (env.state.holdings > before)
        assert bool((worth <= tier.max_position * value)[bought].all())
        assert bool((worth.sum(-1) <= tier.max_exposure * value.squeeze(-1))[bought.any(-1)].all())
        assert int((env.state.fills != 0).sum(-1).max()) <= min(tier.max_trades, 6)
        bought_days += int(bought.any(-1).sum())
    assert bought_days > 10 * NUM_ENVS and broken(env) == 0


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


def test_within_the_limits_the_weights_are_a_softmax():
    generator = torch.Generator().manual_seed(0)
    limits = WeightLimits(*(torch.tensor(share, dtype=torch.float64) for share in (0.05, 1.0, 1.0)))
    tradable, nothing = torch.ones(10, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    log_benchmark = torch.tensor([0.049] * 10 + [0.51], dtype=torch.float64).log()
    for gain in (0.5, 1.0, 2.0):
        action = torch.rand(11, generator=generator) * 2 - 1
        expected = (log_benchmark + gain * action.double()).softmax(-1)[:-1]
        found = target_weights(action, tradable, nothing, limits, gain) / RATIO_STEPS
        assert float((expected - found).abs().max()) < 1.1 / RATIO_STEPS


def test_the_exponential_has_ten_digits():
    exponent = torch.linspace(-MAX_GAIN, MAX_GAIN, 4_001, dtype=torch.float64)
    assert float((exponential(exponent, HALVINGS, TERMS) / exponent.exp() - 1).abs().max()) < 1e-10
    assert exponential(torch.zeros((), dtype=torch.float64), HALVINGS, TERMS).item() == 1.0


@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf])
def test_tilts_that_are_no_numbers_are_invalid(entry):
    env = env_of(market(), "multi_stock_3", num_envs=4)
    action = torch.zeros(4, 4)
    action[1, 3], action[2, 0] = entry, entry
    env.advance(action)
    assert env.state.totals[:, COMPONENTS.index("invalid")].tolist() == [0, 1, 1, 0]
    assert (env.state.holdings.sum(-1) > 0).tolist() == [True, False, False, True]


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


def test_small_differences_are_left_alone():
    env = env_of(market(), "multi_stock_3", tilt_gain=1.0)
    env.advance(torch.zeros(NUM_ENVS, 4))
    tilt = torch.zeros(NUM_ENVS, 4)
    for size, trades in ((0.0, False), (0.4, True)):
        tilt[:, 0] = size
        row = env.scenario.row(env.state)
        worth = env.state.holdings * env.scenario.shared["close"][row]
        near = ((worth / env.state.portfolio_value.unsqueeze(-1) - 0.196).abs() < 0.002).all(-1)
        listed = env.engine.bound()._vmap(env.scenario.orders, env.state, tilt)
        assert bool((listed[near][..., 0] != Kind.HOLD).any()) == trades
    assert int(near.sum()) > 5


def test_an_untrained_policy_starts_at_the_benchmark():
    env = env_of(market(), "portfolio")
    learner = PPO(env, PPOConfig(num_steps=2, total_frames=2 * NUM_ENVS, minibatches=1))
    shown = env.observations()
    outputs, _ = learner.network.outputs(learner.actor, shown * 0.0, None)
    assert torch.equal(learner.network.head.mode(outputs), torch.zeros(NUM_ENVS, 11))


@pytest.mark.nightly
@pytest.mark.parametrize(("task", "changes"), [("multi_stock_3", {}), ("full_autonomous", {"max_orders": 5})])
def test_a_compiled_step_is_the_eager_one_bit_for_bit(task, changes):
    """Every tensor of the rows, the reward and the observation over a whole episode, paid by its grade."""
    rng, tier = np.random.default_rng(2), TIERS[task]
    eager, compiled = (
        env_of(ragged_market(), task, 16, flag, reward="grade_potential", **changes) for flag in (False, True)
    )
    for _ in range(tier.days):
        action = torch.from_numpy(random_tilts(rng, 16, len(tier.symbols)))
        assert_same_bits(numbers(step(eager, action)), numbers(step(compiled, action)))
        assert_same_bits(snapshot(eager.rows), snapshot(compiled.rows))
    assert bool(eager.rows.truncated.all()) and float(eager.state.num_trades.min()) > 0


@pytest.mark.parametrize("task", ["single_stock", pytest.param("multi_stock_3", marks=pytest.mark.nightly)])
@pytest.mark.nightly
def test_tiers_conform(task):
    check_task(task, steps=6, compiled=False, action="limit_weights", reward="grade_potential", **SMALL)


@pytest.mark.nightly
@pytest.mark.parametrize("task", ["single_stock", "full_autonomous", "curriculum"])
def test_compiled_steps_of_tiers_conform(task):
    check_task(task, steps=6, action="limit_weights", reward="grade_potential", **SMALL)


@pytest.mark.parametrize("gain", [0.0, -1.0, 8.1, math.nan])
def test_a_gain_that_makes_no_sense_is_refused(gain):
    with pytest.raises(ValueError, match="tilt_gain must be positive and at most 8, got"):
        TierConfig(tilt_gain=gain)
