"""The tiers' kernels against the scalar oracle, step by step over random episodes of random size and rules."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.tasks.tiers.oracle import MISTAKES as PAGE_MISTAKES
from tests.tasks.tiers.oracle import PRESETS, SIGNAL, TierAccount
from tests.tasks.tiers.random_tiers import (
    HIGHEST,
    oracle_market,
    random_orders,
    random_rules,
    random_tiers,
    random_tilts,
    tier_tape,
)
from tests.tasks.tiers.weights_oracle import limit_weights_to_orders
from vecenv.core.engine import BoundEngine, Engine
from vecenv.core.rows import Rows
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.law import Kind
from vecenv.tasks.tiers.reward import COMPONENTS, component_weights
from vecenv.tasks.tiers.reward_presets import MISTAKES, RULE_BREAKS
from vecenv.tasks.tiers.scenario import TierTrading

NUM_PATHS = 2
WIDE = 2**33

# Whole numbers up to 2^24 or averages in the settings' precision: equal, bit for bit.
EXACT = (
    *("cash", "holdings", "days_held", "losing_sells", "portfolio_value", "peak_value", "costs", "traded"),
    *("traded_total", "fills", "num_trades", "gate_days", "average_price"),
)
SUMS = ("max_drawdown", "return_sums", "exposure_sum")


def decoded(scenario: TierTrading, bound: BoundEngine, rows: Rows, action: np.ndarray) -> np.ndarray:
    """Return the orders that actions become; invalid ones name nothing."""
    orders = bound.mapped(scenario.orders, rows.state, torch.from_numpy(action))
    return torch.where(orders[..., :1] == Kind.INVALID, torch.tensor([float(Kind.INVALID), 0.0, 0.0]), orders).numpy()


def play(rng: np.random.Generator, shared: TierConfig, tiers: list[TierConfig], num_envs: int) -> Counter:
    """Play an episode of every row on both sides, compare after every step, and count what happened."""
    # Every fourth market has prices beyond the 24 bits in which float32 is exact.
    highest = WIDE if rng.random() < 0.25 else HIGHEST
    tape = tier_tape(rng, len(shared.symbols), num_paths=NUM_PATHS, ragged=bool(rng.random() < 0.7), highest=highest)
    scenario, close = TierTrading(tape, shared, tiers), tape.price_ticks().long()
    rule = torch.from_numpy(rng.integers(0, len(tiers), num_envs))
    scenario.randomise({"rule": rule}, num_envs)
    bound, ids = Engine(scenario, num_envs).bound(), torch.arange(num_envs)
    rows = bound.start(torch.tensor(int(rng.integers(2**31))), ids, torch.zeros_like(ids))
    markets = [oracle_market(tape, path, bool(shared.context)) for path in range(NUM_PATHS)]
    starts = zip(
        rule.tolist(),
        rows.state.path.tolist(),
        rows.state.day.tolist(),
        bound.grade(rows).double().tolist(),
        strict=True,
    )
    accounts = [TierAccount(tiers[row], markets[path], day, grade) for row, path, day, grade in starts]
    tolerance = 1e-9 if shared.dtype == "float64" else 2e-5
    happened: Counter = Counter(episodes=num_envs)
    for step in range(scenario.longest):
        playing = [n for n, account in enumerate(accounts) if not (account.terminated or account.truncated)]
        if not playing:
            break
        where = f"step {step}, {tiers}"
        seen = scenario.unscaled(bound.observation(rows))[playing]
        expected = np.array([accounts[n].observation() for n in playing], np.float32)
        np.testing.assert_allclose(seen, expected, rtol=2e-6, atol=5e-7, err_msg=where)

        if shared.action == "limit_weights":
            given = random_tilts(rng, num_envs, len(shared.symbols))
            actions = {
                n: limit_weights_to_orders(accounts[n], given[n].tolist(), shared.tilt_gain, shared.max_orders)
                for n in playing
            }
            listed = decoded(scenario, bound, rows, given)[playing]
            np.testing.assert_array_equal(listed, np.array([actions[n] for n in playing], np.float32), err_msg=where)
        else:
            given = random_orders(rng, num_envs, shared.max_orders, num_symbols=len(shared.symbols))
            actions = dict(enumerate(given.tolist()))
        outcome = bound.step(rows, torch.from_numpy(given))
        state, info = outcome.rows.state, bound.info(outcome.rows)
        grade = bound.grade(outcome.rows).double().tolist()
        rewards = [accounts[n].step(actions[n], grade[n]) for n in playing]

        for name in (*EXACT, *SUMS):
            found = getattr(state, name)[playing].double().numpy()
            held = np.array([getattr(accounts[n], name) for n in playing], float)
            error = 0.0 if name in EXACT else 1e-9
            np.testing.assert_allclose(found, held, rtol=error, atol=error, err_msg=f"{name}, {where}")
        parts = torch.stack([info[f"reward/{name}"] for name in COMPONENTS], dim=-1)[playing].double().numpy()
        wanted = np.array([[accounts[n].components[name] for name in COMPONENTS] for n in playing])
        np.testing.assert_allclose(parts, wanted, rtol=tolerance, atol=tolerance, err_msg=f"components, {where}")
        np.testing.assert_allclose(outcome.reward[playing], rewards, rtol=tolerance, atol=tolerance, err_msg=where)
        totals = state.totals[playing].double().numpy()
        for name in MISTAKES:
            counts = [accounts[n].mistakes[name] for n in playing]
            np.testing.assert_array_equal(totals[:, COMPONENTS.index(name)], counts, err_msg=f"{name}, {where}")
        invalid = [accounts[n].invalid_days for n in playing]
        np.testing.assert_array_equal(totals[:, COMPONENTS.index("invalid")], invalid, err_msg=where)
        assert outcome.terminated[playing].tolist() == [accounts[n].terminated for n in playing], where
        assert outcome.truncated[playing].tolist() == [accounts[n].truncated for n in playing], where

        assert float(state.cash[playing].min()) >= 0 and float(state.holdings[playing].min()) >= 0, where
        path, day = rows.state.path[playing], rows.state.day[playing]
        move = close[path, day + 1] - close[path, day]
        gain = (state.holdings[playing].long() * move).sum(-1) - state.costs[playing].long()
        change = state.portfolio_value[playing].long() - rows.state.portfolio_value[playing].long()
        assert torch.equal(change, gain), where

        happened.update({name: int((wanted[:, index] != 0).sum()) for index, name in enumerate(COMPONENTS)})
        drawdown = (1.0 - state.portfolio_value / state.peak_value)[playing]
        for level in (0.03, 0.05, 0.08):
            happened[f"drawdown of {level}"] += int((drawdown >= level).sum())
        happened["sold out"] += int(((rows.state.holdings > 0) & (state.holdings == 0)).sum())
        rows = outcome.rows
    return happened


def example_of(seed: tuple[int, ...], number: int, tilts: bool, num_envs: int) -> Counter:
    """Play one random market and rules, with orders or with tilts of the benchmark."""
    rng = np.random.default_rng((*seed, number))
    symbols = tuple(f"S{k}" for k in range(int(rng.choice([1, 2, 3, 5, 10, 25]))))
    gain = float(rng.choice([0.5, 1.0, 8.0])) if tilts else 1.0
    shared = random_rules(rng, symbols)
    # Three long examples of each seed pay by the grade, so that every component occurs in it.
    graded = ("aligned", "aligned", "grade_potential")
    if tilts:
        shared = replace(shared, action="limit_weights", tilt_gain=gain)
    elif number < len(graded):
        shared = replace(shared, reward=graded[number], days=12)
    happened = play(rng, shared, random_tiers(rng, shared), num_envs)
    # No order of tilts is refused or cut by a limit.
    assert not tilts or not any(happened[name] for name in (*RULE_BREAKS, "sell_unheld"))
    return happened


@pytest.mark.parametrize("tilts", [False, True])
@pytest.mark.parametrize("example", range(8))
def test_accounts_equal_the_oracle(example, tilts):
    """Exactly in money, shares, counts and average prices, at every step; of tilts also the orders."""
    assert example_of((0,), example, tilts, 50)["episodes"] == 50


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(1, 7))
def test_ten_thousand_accounts_equal_the_oracle(part):
    happened: Counter = Counter()
    for example in range(15):
        happened += example_of((part,), example, False, 120)
    rare = {name: happened[name] for name in (*SIGNAL, "drawdown of 0.08", "sold out") if happened[name] < 30}
    assert not rare, f"too rare to be tested: {rare}"
    tilted = sum((example_of((7, part), example, True, 120) for example in range(3)), Counter())
    assert tilted["sold out"] > 0


def test_presets_weigh_as_the_page_says():
    for preset, weights in PRESETS.items():
        assert component_weights(preset).tolist() == [weights[name] for name in COMPONENTS], preset
    assert set(MISTAKES) == set(PAGE_MISTAKES) and len(MISTAKES) == 7
    assert RULE_BREAKS == ("regime_violation", "position_limit", "trade_limit")
