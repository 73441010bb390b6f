"""Statistics of the realism table on series with known answers, and the models that are compared."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from vecenv.benchmarks.realism.agent_market import table
from vecenv.benchmarks.realism.agent_market.recorded import Recorded, simulated_sessions, standx_sessions
from vecenv.benchmarks.realism.agent_market.statistics import (
    STATISTICS,
    absolute_autocorrelation,
    absolute_decay,
    autocorrelation,
    impact_exponent,
    impact_left,
    one_sided,
    power,
    return_autocorrelation,
    sign_autocorrelations,
    sign_decay,
    tail_index,
    volume_correlation,
)
from vecenv.benchmarks.realism.agent_market.zero_intelligence import (
    CANCELLATIONS,
    MARKET_ORDERS,
    limit_rates,
    zero_intelligence_sessions,
)
from vecenv.tasks.agent_market.trading import TradingConfig

SHAPE = (8, 6_000)


def sessions(**columns: np.ndarray) -> Recorded:
    """Sessions of which only the given columns mean something."""
    nothing = np.zeros(SHAPE)
    base = Recorded(nothing + 1_000.0, nothing + 1, nothing + 5, nothing + 50, nothing, nothing, nothing)
    return base._replace(**columns)


def of_returns(returns: np.ndarray) -> Recorded:
    """Sessions with given minute returns. Shape: (8, 100)."""
    closes = 1_000 * np.exp(np.cumsum(returns, 1))
    return sessions(mid=np.repeat(closes, 60, 1))


def correlated(weight: float, seed: int = 0) -> np.ndarray:
    """Series of the first-order autoregressive model. Shape: (8, 100)."""
    draw = np.random.default_rng(seed)
    values = np.zeros((8, 20_100))
    for step in range(1, values.shape[1]):
        values[:, step] = weight * values[:, step - 1] + draw.standard_normal(8)
    return values[:, 100:]


@pytest.mark.parametrize("weight", [-0.5, 0.0, 0.7])
def test_autocorrelations_are_those_of_the_model(weight):
    values = correlated(weight)
    for lag in (1, 2, 5):
        assert autocorrelation(values, lag) == pytest.approx(weight**lag, abs=0.02)
    gaps = values.copy()
    gaps[:, ::7] = np.nan
    assert autocorrelation(gaps, 1) == pytest.approx(weight, abs=0.02)


def test_returns_are_those_of_minutes():
    returns = np.tile([1e-3, -1e-3], (8, 50))
    assert return_autocorrelation(of_returns(returns)) == pytest.approx(-1, abs=0.02)
    assert abs(return_autocorrelation(of_returns(correlated(0.0)[:, :100] * 1e-3))) < 0.1


def test_the_tail_index_is_that_of_a_power_law():
    """Pareto sizes with exponent 3 and random signs."""
    draw = np.random.default_rng(1)
    found = [
        tail_index(of_returns(1e-4 * (1 + draw.pareto(3.0, (8, 100))) * draw.choice([-1, 1], (8, 100))))
        for _ in range(30)
    ]
    assert np.mean(found) == pytest.approx(3.0, rel=0.15)


def test_volatility_that_lasts_is_seen():
    """Volatility that doubles for forty minutes: absolute returns are correlated, returns are not."""
    draw = np.random.default_rng(2)
    level = np.where((np.arange(100) // 40) % 2 == 0, 1e-4, 4e-4)
    lasting = of_returns(draw.standard_normal((8, 100)) * level)
    assert absolute_autocorrelation(lasting) > 0.2 and 0 < absolute_decay(lasting) < 0.8
    assert abs(absolute_autocorrelation(of_returns(draw.standard_normal((8, 100)) * 1e-4))) < 0.05


def test_exponents_are_those_of_power_laws():
    size = np.array([0.5, 1.0, 2.0, 4.0, 0.0])
    assert power(size, 3 * size**0.6) == pytest.approx(0.6)
    assert math.isnan(power(np.array([1.0, 2.0]), np.array([1.0, 2.0])))


def test_order_signs_that_last_are_seen():
    """Runs of a sign whose lengths have a heavy tail: the correlation decays as a power law."""
    draw = np.random.default_rng(3)
    signs = np.stack([_runs(draw, SHAPE[1]) for _ in range(8)])
    found = sessions(bought=np.where(signs > 0, 10.0, 0), sold=np.where(signs < 0, 10.0, 0))
    values = sign_autocorrelations(found)
    assert values[0] > 0.5 and values[0] > values[9] > values[40] > 0
    assert 0.2 < sign_decay(found) < 1.0
    random = draw.choice([-1, 1], SHAPE)
    shuffled = sessions(bought=np.where(random > 0, 10.0, 0), sold=np.where(random < 0, 10.0, 0))
    assert abs(sign_autocorrelations(shuffled)[0]) < 0.02


def _runs(draw: np.random.Generator, length: int) -> np.ndarray:
    runs: list[int] = []
    while len(runs) < length:
        runs += [draw.choice([-1, 1])] * int(1 + draw.pareto(1.5))
    return np.array(runs[:length])


def test_volume_that_moves_prices_is_correlated_with_them():
    draw = np.random.default_rng(4)
    returns = draw.standard_normal((8, 100)) * 1e-3
    volume = np.repeat(np.abs(returns) * 1e6, 60, 1)
    found = of_returns(returns)._replace(bought=volume)
    assert volume_correlation(found) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("exponent", "left"), [(0.5, 1.0), (1.0, 0.5)])
def test_impact_is_that_of_the_trades(exponent, left):
    """Every 100 seconds a trade moves the mid by a power of its size, and a part of that is given back."""
    draw = np.random.default_rng(5)
    mid, net = np.full(SHAPE, 10_000.0), np.zeros(SHAPE)
    for second in range(50, SHAPE[1] - 100, 100):
        size, sign = draw.uniform(1, 20, 8), draw.choice([-1, 1], 8)
        net[:, second] = size * sign
        mid[:, second:] += (sign * size**exponent)[:, None]
        mid[:, second + 30 :] -= ((1 - left) * sign * size**exponent)[:, None]
    found = sessions(mid=mid, bought=np.maximum(net, 0), sold=np.maximum(-net, 0))
    assert impact_exponent(found) == pytest.approx(exponent, abs=0.02)
    assert impact_left(found) == pytest.approx(left, abs=0.02)


def test_empty_sides_are_counted():
    mid = np.full(SHAPE, 1_000.0)
    mid[:, :600] = np.nan
    assert one_sided(sessions(mid=mid)) == pytest.approx(0.1)


@pytest.mark.assembly
def test_zero_intelligence_has_the_rates_of_the_paper():
    """Counts of every distance, of market orders and of cancellations within their 99.9% intervals."""
    recorded, counted = zero_intelligence_sessions(8, 300, seed=1, speed=4.0, warm_up=60)
    for number, mean in [
        *zip(counted.limit, 2 * limit_rates() * counted.minutes, strict=True),
        (counted.market, 2 * MARKET_ORDERS * counted.minutes),
    ]:
        assert abs(number - mean) < 3.3 * math.sqrt(mean) + 1
    rate = counted.cancelled / counted.exposure
    assert min(CANCELLATIONS) < rate < max(CANCELLATIONS)
    events = counted.limit.sum() + counted.market + counted.cancelled
    assert recorded.messages.sum() == pytest.approx(events * 300 / 360, rel=0.1)
    assert np.nanmin(recorded.spread) >= 1 and not np.isnan(recorded.mid).any()


def test_sessions_are_those_of_their_seed():
    """Twice the same, others with another seed, and trades and messages as the market's own counts."""
    first, again, other = (simulated_sessions(TradingConfig(), 3, 60, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one, two, equal_nan=True) for one, two in zip(first, again, strict=True))
    assert not np.array_equal(first.mid, other.mid, equal_nan=True)
    assert 0.5 < first.messages.mean() < 2 and (first.bought + first.sold).sum() > 0
    with pytest.raises(ValueError, match=r"tick_seconds is 0\.5"):
        simulated_sessions(TradingConfig(tick_seconds=0.5), 3, 60, 1)


def test_a_real_book_is_put_on_the_grid(tmp_path):
    """Two rows a second: the last fresh one counts, trades add up, a second with old books alone is unknown."""
    rows = 2 * 7
    names = [f"{side}_{what}_{level}" for side in ("bid", "ask") for what in ("px", "qty") for level in range(10)]
    values = {name: np.full(rows, 1.0, np.float32 if "qty" in name else np.float64) for name in names}
    values["bid_px_0"], values["ask_px_0"] = 100.0 + np.arange(rows), 100.2 + np.arange(rows)
    frame = pd.DataFrame(values).assign(
        ts_ms=500 * np.arange(rows) + 10_000, buy_qty=2.0, sell_qty=1.0, n_trades=1.0, age_ms=0
    )
    frame.loc[6:7, "age_ms"] = 5_000
    frame.loc[9, "age_ms"] = 5_000
    frame.to_parquet(tmp_path / "book.parquet")
    found = standx_sessions(tmp_path / "book.parquet", seconds=5)
    assert found.mid.shape == (1, 5)
    expected = [1_031.0, 1_051.0, math.nan, 1_081.0, 1_111.0]
    assert np.allclose(found.mid[0], expected, equal_nan=True)
    assert found.bought[0].tolist() == [4.0] * 5 and found.sold[0].tolist() == [2.0] * 5
    assert np.nanmax(found.spread) == 2


@pytest.mark.nightly
def test_the_table_is_written(tmp_path, monkeypatch):
    """Small sessions: every statistic of every simulated market, and how many rows are nearer."""
    monkeypatch.delenv(table.DATA, raising=False)
    config = table.RealismConfig(sessions=8, seconds=1_200, speed=1.0, output=tmp_path)
    result = table.main(config)
    written = json.loads((tmp_path / "agent-market-realism.json").read_text())
    assert set(written["rows"]) == {statistic.name for statistic in STATISTICS}
    assert all(list(row) == list(table.MARKETS) for row in written["rows"].values())
    assert set(result["nearer_than_zero_intelligence"]) == {"default", "calibrated"}
    assert all(math.isfinite(found[0]) for found in result["rows"]["spread, mean, basis points"].values())


def test_nearer_counts_distances_from_the_range():
    rows = {
        statistic.name: {
            "default": table.Estimate(statistic.low or 0.0, 0.0),
            "zero intelligence": table.Estimate((statistic.high or 0.0) + 1, 0.0),
        }
        for statistic in STATISTICS
    }
    ranged = sum(statistic.low is not None for statistic in STATISTICS)
    assert table.nearer(rows, "default") == (ranged, 0)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"sessions": 7}, "at least 8"), ({"seconds": 100}, "at least 1200"), ({"speed": 0}, "positive")],
)
def test_settings_out_of_range_are_refused(change, told):
    with pytest.raises(ValueError, match=told):
        table.RealismConfig(**change)
