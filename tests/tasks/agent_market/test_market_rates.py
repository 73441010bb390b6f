"""Numbers of the rules from settings, exact, and what follows: wakes, sizes of orders, volatility that lasts."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import poisson

from vecenv.tasks.agent_market.background import ARRIVALS, BackgroundConfig, background_parameters
from vecenv.tasks.agent_market.market import Layout, layout_of
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
