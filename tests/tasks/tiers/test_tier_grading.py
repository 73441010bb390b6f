"""What an episode of a tier is graded by, day by day, against plain numbers, and rewards that sum to the grade."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import vecenv
from tests.small_env import same_bits
from tests.tasks.tiers.random_tiers import random_orders, tier_tape
from vecenv.core.env import VecEnv
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.grading import episode_record
from vecenv.tasks.tiers.reward_components import GRADE_CHANGE
from vecenv.tasks.tiers.scenario import TierTrading
from vecenv.tasks.tiers.tasks import SINGLE_STOCK

# Rates that are powers of two, so that whole numbers tell costs exactly.
COMMISSION, SLIPPAGE = 1024, 512
DAYS, SYMBOLS, PER_DAY, SHARE = 9, 5, 2, 0.125
CONFIG = TierConfig(
    symbols=tuple(f"S{k}" for k in range(SYMBOLS)),
    days=DAYS,
    initial_cash=50_000.0,
    commission=1 / COMMISSION,
    slippage=1 / SLIPPAGE,
    max_trades=PER_DAY,
    max_position=SHARE,
    gate=True,
    action="orders",
)


def held(path: list[list[int]], closed: list[bool], start: int, day: int, cash: int) -> tuple[int, int]:
    """Return what buy-and-hold is worth at a day's close, and what it has bought for, both in ticks."""
    worth, traded, budget = cash, 0, int(SHARE * cash)
    open_days = [other for other in range(start, len(closed)) if not closed[other]]
    for symbol in range(SYMBOLS):
        turn = symbol // PER_DAY
        if turn >= len(open_days) or open_days[turn] >= day:
            continue
        price = path[open_days[turn]][symbol] + -(-path[open_days[turn]][symbol] // SLIPPAGE)
        shares = budget // price
        while shares * price - (-shares * price // COMMISSION) > budget:
            shares -= 1
        worth += shares * path[day][symbol] - shares * price + (-shares * price // COMMISSION)
        traded += shares * price
    return worth, traded


@pytest.mark.parametrize("seed", range(3))
def test_a_record_is_that_of_plain_numbers_on_every_day(seed):
    """Mean and deviation of the returns so far, and buy-and-hold that buys at a close and gains from the next on."""
    rng, num_envs = np.random.default_rng(seed), 12
    tape = tier_tape(rng, SYMBOLS, num_paths=2, highest=2_000_000)
    env = VecEnv(SINGLE_STOCK.build(tape, replace(CONFIG, dtype="float64")), num_envs, seed, "cpu", False)
    scenario, closes = env.scenario, tape.price_ticks().long().tolist()
    closed = (scenario.shared["breadth"][:, 0] > 0).view(2, -1).tolist()
    assert any(map(any, closed)) and not all(map(all, closed))
    values = [env.state.portfolio_value.tolist()]
    for elapsed in range(DAYS + 1):
        state = env.state
        record = env.engine.bound()._vmap(
            lambda state, params, market: episode_record(scenario, state, params, market, scenario.references), state
        )
        for row, (path, start) in enumerate(zip(state.path.tolist(), state.start_day.tolist(), strict=True)):
            first = values[0][row]
            returns = [after[row] / before[row] - 1 for before, after in pairwise(values)]
            worth, traded = held(closes[path], closed[path], start, start + elapsed, int(first))
            expected = {
                "days": elapsed,
                "tier_days": DAYS,
                "total_return": values[-1][row] / first - 1,
                "mean_return": statistics.fmean(returns) if returns else 0.0,
                "deviation": statistics.stdev(returns) if elapsed > 1 else 0.0,
                "costs": 1 / COMMISSION + 1 / SLIPPAGE,
                "benchmark_return": worth / first - 1,
                "benchmark_traded": traded / first,
            }
            found = {name: float(getattr(record, name)[row]) for name in expected}
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-10), (row, elapsed)
        if elapsed < DAYS:
            env.advance(torch.from_numpy(random_orders(rng, num_envs, CONFIG.max_orders, num_symbols=SYMBOLS)))
            values.append(env.state.portfolio_value.tolist())
    assert bool(env.rows.done.all())


@pytest.mark.parametrize(("grader", "dtype"), [("calibrated", "float32"), ("seed", "float64")])
def test_the_rewards_of_an_episode_sum_to_its_grade(grader, dtype):
    """Each is the change of the grade so far; together, the final grade less the one at the start, in every tier."""
    rows, generator = 10, torch.Generator().manual_seed(0)
    market = {"num_paths": 4, "num_days": 400}
    tape = vecenv.make("full_autonomous", 1, market_options=market, compile=False).scenario.tape
    env, signal = (
        VecEnv(
            TierTrading(
                tape,
                TierConfig(symbols=TWENTY_FIVE, action="weights", grader=grader, dtype=dtype, reward=reward),
                list(TIERS.values()),
            ),
            rows,
            1,
            compiled=False,
            params={"rule": torch.arange(rows) % len(TIERS)},
        )
        for reward in ("grade_potential", "signal")
    )
    first = before = env.grade().double()
    assert bool((first == 0).all()) == (grader == "calibrated")
    total = torch.zeros(rows, dtype=torch.float64)
    for step in range(40):
        weights = torch.rand(rows, 25, generator=generator) / 10
        if step < 6:
            # Neither hindsight nor the benchmark is shown: what is seen is that of another reward, bit for bit.
            assert same_bits(env.observations(), signal.observations())
            signal.advance(weights)
        reward, grade = env.advance(weights).double(), env.grade().double()
        torch.testing.assert_close(reward, grade - before, rtol=0, atol=2e-7)
        total, before = total + reward, grade
    assert bool(env.rows.done.all())
    torch.testing.assert_close(total, before - first, rtol=0, atol=1e-6)
    assert torch.equal(env.grades()[grader].double(), before) and len(before.unique()) > rows // 2
    assert not bool(signal.state.totals[:, GRADE_CHANGE].any())
