"""Numbers of the rules from settings, exact, and what follows: wakes, sizes of orders, volatility that lasts."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import poisson

from tests.tasks.agent_market.random_markets_of_agents import markets_of
from vecenv.core.random import episode_key
from vecenv.tasks.agent_market.background import ARRIVALS, BackgroundConfig, background_parameters
from vecenv.tasks.agent_market.fundamental import advanced
from vecenv.tasks.agent_market.market import Layout, layout_of, rules_of, tables_of
from vecenv.tasks.agent_market.tables import arrival_thresholds, growth_table, least_entries, normal_table, size_table

DEFAULT = {
    "session_ticks": 23_400, "mean_price": 100_000, "reversion": 45, "volatility": 103_547,
    "log_volatility_spread": 0, "log_volatility_noise": 0, "log_volatility_reversion": 298_096,
    "shock_chance": 12, "shock_mean": 1_000, "shock_spread": 224, "news_chance": 2_385_430, "news_magnitude": 60,
    "news_duration": 120, "level_spacing": 1, "first_spread": 10, "spread_alpha": 192, "share_of_volume": 1_638,
    "min_quote": 50, "price_skew": 4, "volume_ticks": 60, "observation_noise": 2_072_248,
    "aggressive_chance": 429_496_730, "depth_spread": 2, "momentum_every": 1, "maker_latency": 0, "value_latency": 0,
    "momentum_latency": 0, "noise_latency": 0, "fair_noise": 30, "candle_ticks": 1, "max_spread": 100,
    "take_spread": 20, "auction_spread": 10,
}  # fmt: skip
OTHER = {
    "tick_seconds": 0.5, "reversion": 0.1, "volatility": 2.0, "volatility_spread": 0.5, "volatility_seconds": 10.0,
    "shock_rate": 0.2, "news_rate": 0.4, "session_seconds": 100.0, "news_seconds": 7.0, "volume_seconds": 9.0,
    "num_makers": 3, "maker_seconds": 3.0, "num_value": 8, "value_seconds": 2.0, "num_momentum": 6,
    "momentum_seconds": 3.0,
}  # fmt: skip
# 2^28 (1 - e^-0.05), 2 e^-1/4 / sqrt 2, 2^20 / 2 sqrt(1 - e^-0.1), 2^32 (1 - e^-0.1) and (1 - e^-0.2).
OF_OTHER = DEFAULT | {
    "reversion": 13_091_752, "volatility": 72_181, "log_volatility_spread": 2**19, "log_volatility_noise": 161_735,
    "log_volatility_reversion": 13_091_752, "shock_chance": 408_720_177, "news_chance": 778_545_487,
    "session_ticks": 200, "news_duration": 14, "volume_ticks": 18,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "numbers", "rates"),
    [({}, DEFAULT, (2 / 60, 102 / 175.4, 12 / 37)), (OTHER, OF_OTHER, (0.5, 2.0, 1.0))],
)
def test_numbers_are_these(settings, numbers, rates):
    parameters = background_parameters(BackgroundConfig(**settings))
    tables = [parameters.pop(name) for name in ARRIVALS]
    assert {name: int(value) for name, value in parameters.items()} == numbers
    for table, rate in zip(tables, rates, strict=True):
        assert torch.equal(table, arrival_thresholds(rate, len(table)))
    # As many entries as the busiest class needs, the last of which a word reaches once in 2^32 at most.
    assert int(tables[1][-1]) >= 2**32 - 1 > int(tables[1][-2]) and least_entries(max(rates)) == len(tables[1])


def test_shapes_are_these():
    assert layout_of(BackgroundConfig(), 1) == Layout(1, 2, 102, 12, 1_000, 6, 10, 128, 0)
    assert layout_of(BackgroundConfig(clearing="auction"), 3) == Layout(3, 2, 102, 12, 1_000, 0, 0, 1, 256)
    assert BackgroundConfig().num_owners(3) == layout_of(BackgroundConfig(), 3).owners == 1_119
    assert BackgroundConfig().price_tick == 0.01


@pytest.mark.parametrize("rate", [0.0, 1 / 30, 0.58, 3.0, 40.0])
def test_thresholds_are_the_poisson_distribution(rate):
    expected = torch.from_numpy(poisson.cdf(range(60), rate))
    assert torch.allclose(arrival_thresholds(rate, 60) / 2**32, expected.float(), atol=2**-31)


def test_tables_are_quantiles_and_exponentials():
    normal, sizes, growth = normal_table(), size_table(128), growth_table()
    assert normal[[0, 2_047, 2_048, 4_095]].tolist() == [-240_446, -20, 20, 240_446]
    assert float(normal.double().square().mean()) == pytest.approx(2**32, rel=1e-6)
    # A fifth of the orders is lognormal; the others are round lots.
    assert sizes[[0, 100, 818, 819, 4_095]].tolist() == [1, 5, 784, 100, 1_000]
    assert [int((sizes == size).sum()) for size in (100, 200, 400, 900)] == [2_868, 247, 134, 1]
    assert int(size_table(2**22).max()) == 511, "sizes fit into a side"
    assert growth.tolist() == [round(math.exp(place / 64) * 2**16) for place in range(-512, 513)]


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


def test_volatility_lasts_and_has_the_spread_and_the_mean_variance_of_the_settings():
    quiet = {"news_rate": 0.0, "shock_rate": 0.0, "reversion": 0.0, "num_noise": 0}
    config = BackgroundConfig(volatility=3.0, volatility_spread=0.5, volatility_seconds=20.0, **quiet)
    value, log = fundamentals(config, 1_000, 40)
    log = log / 2**20
    assert abs(float(log.mean())) < 0.06
    for tick in (0, 39):
        assert float(log[tick].std()) == pytest.approx(0.5, abs=0.04), "it does not start as it goes on"
    for lag in (5, 20):
        kept = float((log[:-lag] * log[lag:]).mean() / log.square().mean())
        assert kept == pytest.approx(math.exp(-lag / 20), abs=0.06)
    moves = (value[1:] - value[:-1]) / 2**16
    assert float(moves.square().mean()) == pytest.approx(9.0, rel=0.1)
    # A move is as large as the volatility before it says.
    scale = 3.0 * math.exp(-0.25) * log[:-1].exp()
    assert float((moves / scale).square().mean()) == pytest.approx(1.0, abs=0.03)
    assert not fundamentals(BackgroundConfig(num_noise=0), 8, 5)[1].any(), "without spread volatility stays"
