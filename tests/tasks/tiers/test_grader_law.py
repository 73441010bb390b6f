"""The law of the calibrated grader on real and on planted markets: nothing but skill raises a grade."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent
from vecenv.learn.evaluation import evaluate
from vecenv.learn.metrics import Interval, independent_groups
from vecenv.learn.significance import bootstrap_interval
from vecenv.market.load import MarketOptions, load_market
from vecenv.market.planted import planted_bars
from vecenv.market.state_indicators import TIER_FEATURES
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.agents import AGENTS, orders_for, rule_column, shares_for
from vecenv.tasks.tiers.blind_agents import BLIND_AGENTS
from vecenv.tasks.tiers.config import TIERS, TWENTY_FIVE
from vecenv.tasks.tiers.tasks import SINGLE_STOCK

NUM_EPISODES = 200


class FollowSignal:
    """Buys up to the limits on a positive signal, and sells all on a negative one. Shape of it: (P, T, K)."""

    def __init__(self, signal: Tensor) -> None:
        self.signal = signal

    def act(self, env: VecEnv) -> Tensor:
        held, shown = env.state.holdings.double(), self.signal[env.state.path, env.state.day]
        wanted = shares_for(env, rule_column(env, "max_position") * env.state.portfolio_value.unsqueeze(-1))
        return orders_for(env, torch.where(shown < 0, -held, torch.where(held > 0, 0.0, wanted)))


class Grades:
    """Calibrated grades of agents that played the same episodes, and intervals of their means."""

    def __init__(self, tape: MarketTape, task: str, agents: dict[str, Callable[[], Agent]]) -> None:
        config = replace(TIERS[task], action="orders")
        env = VecEnv(SINGLE_STOCK.build(tape, config), NUM_EPISODES, compiled=False)
        played = evaluate(env, {name: make() for name, make in agents.items()})
        self.groups = independent_groups(played.market.path, played.market.start_day, config.days)[0]
        self.of = {name: record.grades["calibrated"] for name, record in played.records.items()}

    def mean(self, name: str) -> float:
        return float(self.of[name].mean())

    def interval(self, name: str) -> Interval:
        return bootstrap_interval(self.of[name], self.groups)

    def lead(self, name: str, other: str) -> Interval:
        """Return the interval of the mean difference between two agents' grades."""
        return bootstrap_interval(self.of[name] - self.of[other], self.groups)


@cache
def real_tape() -> MarketTape:
    path = Path(os.environ["VECENV_DATA"]) / "india_nifty109.parquet"
    return load_market(path, MarketOptions(symbols=TWENTY_FIVE, end="2021-12-31", features=TIER_FEATURES))


@pytest.mark.nightly
@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
@pytest.mark.parametrize("task", TIERS)
def test_the_law_holds_on_real_prices(task):
    grades = Grades(real_tape(), task, AGENTS | BLIND_AGENTS)
    assert grades.mean("hold") <= 0.10 and grades.mean("invalid") <= 0.10
    assert grades.mean("random") <= 0.35
    assert grades.lead("buy_and_hold", "random").low >= 0.10
    assert 0.45 <= grades.mean("buy_and_hold") <= 0.55
    assert grades.mean("oracle") >= 0.90
    for name in BLIND_AGENTS:
        assert grades.lead(name, "buy_and_hold").low <= 0.0, name


def planted_grades(task: str, strength: float) -> Grades:
    bars = planted_bars(num_paths=16, num_days=320, symbols=TIERS[task].symbols, strength=strength)
    tape = MarketTape.from_bars(bars, features=TIER_FEATURES)
    signal = bars.columns["signal"]
    return Grades(tape, task, {"signal": lambda: FollowSignal(signal), "buy_and_hold": AGENTS["buy_and_hold"]})


QUICK = pytest.mark.parametrize(
    "task", [pytest.param(task, marks=() if task == "multi_stock_3" else pytest.mark.nightly) for task in TIERS]
)


@QUICK
def test_who_uses_a_planted_signal_stands_above_buy_and_hold_and_who_follows_noise_does_not(task):
    grades = planted_grades(task, strength=0.01)
    assert grades.interval("signal").low > grades.interval("buy_and_hold").high
    assert grades.lead("signal", "buy_and_hold").low > 0.0
    noise = planted_grades(task, strength=0.0)
    if TIERS[task].commission:
        assert noise.lead("signal", "buy_and_hold").high < 0.0
