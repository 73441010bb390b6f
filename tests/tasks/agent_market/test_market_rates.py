"""How often agents of each class wake, and send messages, in the market of the default settings."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy.stats import poisson

from tests.tasks.agent_market.market_oracle import MAKER, NOISE
from tests.tasks.agent_market.random_markets_of_agents import Markets, markets_of
from vecenv.core.random import episode_key, random_bits
from vecenv.tasks.agent_market.background import CLASSES, BackgroundConfig, background_parameters
from vecenv.tasks.agent_market.fundamental import advanced
from vecenv.tasks.agent_market.market import rules_of, tables_of
from vecenv.tasks.agent_market.streams import MarketStream
from vecenv.tasks.agent_market.tables import arrival_thresholds

RATES = {"maker": 2 / 60, "value": 102 / 175.4, "momentum": 12 / 37, "noise": 1_000 / 23_400}
"""Wakes per second, from the settings of rmsc04."""

COUNT = 64


def default_markets(seed: int) -> Markets:
    return markets_of([BackgroundConfig()] * COUNT, 1, seed)


def within(name: str, number: int, seconds: int) -> bool:
    """Whether a number of Poisson events is in the interval that 95% of such numbers are in."""
    mean = RATES[name] * seconds
    return abs(number - mean) < 1.96 * math.sqrt(mean)


@pytest.mark.assembly
def test_as_many_wake_a_second_as_the_settings_say():
    ticks, markets, seeds = 1_000, default_markets(seed=1), 30
    outside = 0
    for kind, name in enumerate(CLASSES[:NOISE]):
        thresholds, total = markets.rules.arrivals[0, kind], 0
        for seed in range(seeds):
            key = episode_key(seed, torch.arange(COUNT)[:, None], 0)
            word = random_bits(key, MarketStream.ARRIVALS, torch.arange(ticks))[kind]
            woken = int((word.unsqueeze(-1) >= thresholds).sum())
            outside += not within(name, woken, COUNT * ticks)
            total += woken
        assert within(name, total, seeds * COUNT * ticks), name
    # One in twenty: more than 11 of 90 come about once in 500 times.
    assert outside <= 11
    assert within("noise", int((markets.state.noise_wakes < ticks).sum()), COUNT * ticks)


@pytest.mark.parametrize("rate", [0.0, 1 / 30, 0.58, 3.0, 40.0])
def test_thresholds_are_the_poisson_distribution(rate):
    thresholds = arrival_thresholds(rate, 60) / 2**32
    expected = torch.from_numpy(poisson.cdf(range(60), rate))
    assert torch.allclose(thresholds.double(), expected, atol=2**-31)


@pytest.mark.nightly
def test_ticks_have_the_messages_of_the_settings():
    """In the lists, which other tests hold the forms of the tick to."""
    ticks, oracles = 1_000, default_markets(seed=5).oracles
    for oracle in oracles:
        for _ in range(ticks):
            oracle.tick([])
    seen = sum((oracle.seen for oracle in oracles), Counter())
    for kind, name in enumerate(CLASSES):
        served = seen["requotes"] if kind == MAKER else seen[f"{name} messages"]
        waiting = sum(oracle.backlog[kind] for oracle in oracles)
        # All makers wait at the start.
        first = COUNT * oracles[0].layout.makers if kind == MAKER else 0
        assert within(name, served + waiting - first, COUNT * ticks), name
        assert waiting < 0.01 * served


def fundamentals(config: BackgroundConfig, count: int, ticks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fundamentals and logarithms of their volatility after each tick. Shape of each: (ticks, count)."""
    rules = rules_of(background_parameters(config), tables_of(config))
    markets = markets_of([config] * count, 1, seed=3)
    key, state = episode_key(3, torch.arange(count), 0), markets.state
    value, log, news, steps = state.fundamental, state.log_volatility, state.news, []
    for number in range(ticks):
        value, log, news = torch.vmap(lambda *parts, tick=number: advanced(*parts, torch.tensor(tick), rules))(
            value, log, news, key
        )
        steps.append((value, log))
    return tuple(torch.stack(column).double() for column in zip(*steps, strict=True))  # type: ignore[return-value]


@pytest.mark.assembly
def test_volatility_lasts_and_has_the_spread_and_the_mean_variance_of_the_settings():
    quiet = {"news_rate": 0.0, "shock_rate": 0.0, "reversion": 0.0, "num_noise": 0}
    config = BackgroundConfig(volatility=3.0, volatility_spread=0.5, volatility_seconds=40.0, **quiet)
    value, log = fundamentals(config, 4_000, 60)
    log = log / 2**20
    assert abs(float(log.mean())) < 0.03
    for tick in (0, 59):
        assert float(log[tick].std()) == pytest.approx(0.5, abs=0.02), "it does not start as it goes on"
    for lag in (10, 40):
        kept = float((log[:-lag] * log[lag:]).mean() / log.square().mean())
        assert kept == pytest.approx(math.exp(-lag / 40), abs=0.03)
    moves = (value[1:] - value[:-1]) / 2**16
    assert float(moves.square().mean()) == pytest.approx(9.0, rel=0.05)
    # A move is as large as the volatility before it says.
    scale = 3.0 * math.exp(-0.25) * log[:-1].exp()
    assert float((moves / scale).square().mean()) == pytest.approx(1.0, abs=0.02)


def test_without_spread_volatility_stays():
    _, log = fundamentals(BackgroundConfig(num_noise=0), 8, 5)
    assert not log.any()
