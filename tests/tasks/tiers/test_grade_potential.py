"""The reward preset `grade_potential`: the grade so far, day by day."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

import vecenv
from tests.small_env import same_bits
from vecenv.core.env import VecEnv
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE, TierConfig
from vecenv.tasks.tiers.reward_components import GRADE_CHANGE
from vecenv.tasks.tiers.scenario import TierTrading

NUM_ENVS = 20


@cache
def market() -> MarketTape:
    options = {"num_paths": 4, "num_days": 400}
    return vecenv.make("full_autonomous", 1, market_options=options, compile=False).scenario.tape


def env_of(**changes) -> VecEnv:
    """Return an environment of all tiers in turn, on weights."""
    shared = TierConfig(symbols=TWENTY_FIVE, action="weights", **changes)
    scenario = TierTrading(market(), shared, list(TIERS.values()))
    rule = torch.arange(NUM_ENVS) % len(TIERS)
    return VecEnv(scenario, NUM_ENVS, 1, "cpu", False, params={"rule": rule})


def weights(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.rand(NUM_ENVS, 25, generator=generator) / 10


@pytest.mark.parametrize(("grader", "dtype"), [("calibrated", "float32"), ("seed", "float64")])
def test_the_rewards_of_an_episode_sum_to_its_grade(grader, dtype):
    """Each is the change of the grade so far; together, the final grade less the one at the start, in every tier."""
    env = env_of(reward="grade_potential", grader=grader, dtype=dtype)
    signal = env_of(reward="signal", grader=grader, dtype=dtype)
    first = before = env.grade().double()
    assert bool((first == 0).all()) == (grader == "calibrated")
    total = torch.zeros(NUM_ENVS, dtype=torch.float64)
    for step in range(40):
        if step < 6:
            # Neither hindsight nor the benchmark is shown: what is seen is that of another reward, bit for bit.
            assert same_bits(env.observations(), signal.observations())
            signal.advance(weights(step))
        reward, grade = env.advance(weights(step)).double(), env.grade().double()
        torch.testing.assert_close(reward, grade - before, rtol=0, atol=2e-7)
        total, before = total + reward, grade
    assert bool(env.rows.done.all())
    torch.testing.assert_close(total, before - first, rtol=0, atol=1e-6)
    torch.testing.assert_close(env.grades()[grader].double(), before, rtol=0, atol=0)
    assert len(before.unique()) > NUM_ENVS // 2
    assert not bool(signal.state.totals[:, GRADE_CHANGE].any())


def test_the_rewards_stop_with_the_account():
    """All is in one symbol whose price falls to nothing after a few days: the rewards sum to the grade on that day."""
    tape = market()
    rules = replace(TIERS["single_stock"], action="weights", reward="grade_potential")
    scenario = TierTrading(tape, rules)
    day = torch.arange(tape.num_days).repeat(tape.num_paths).unsqueeze(-1)
    scenario.shared = {**scenario.shared, "close": scenario.shared["close"] * (day < 6)}
    env, total = VecEnv(scenario, 8, 1, "cpu", False), torch.zeros(8)
    state = env.rows.state
    for name, number in {"day": 0, "start_day": 0, "end_day": 20}.items():
        state.get(name).fill_(number)
    held = torch.floor(state.portfolio_value / scenario.shared["close"][state.path * tape.num_days, 0].double())
    state.holdings[:, 0] = held.float()
    state.portfolio_value.copy_(held * scenario.shared["close"][state.path * tape.num_days, 0].double())
    state.cash.zero_()
    for _ in range(8):
        total += env.advance(torch.ones(8, 1))
    assert bool(env.rows.terminated.all()) and int(env.state.day.max()) == 6
    torch.testing.assert_close(total, env.grade(), rtol=0, atol=1e-6)
