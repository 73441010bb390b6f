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
from vecenv.tasks.agent_market.background import CLASSES, BackgroundConfig, arrival_thresholds
from vecenv.tasks.agent_market.streams import MarketStream

RATES = {"maker": 2 / 60, "value": 102 / 175.4, "momentum": 12 / 37, "noise": 1_000 / 23_400}
"""Wakes per second, from the settings of rmsc04."""

COUNT = 64


def default_markets(seed: int) -> Markets:
    return markets_of([BackgroundConfig()] * COUNT, 1, seed)


def within(name: str, number: int, seconds: int) -> bool:
    """Whether a number of Poisson events is in the interval that 95% of such numbers are in."""
    mean = RATES[name] * seconds
    return abs(number - mean) < 1.96 * math.sqrt(mean)


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


@pytest.mark.slow
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
