"""Real and simulated books on a grid of seconds, ranges that leave a recording out; simulated sessions."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from vecenv.benchmarks.studies import agent_market_realism as realism
from vecenv.benchmarks.studies.book_sessions import Recorded, real_books, simulated_sessions
from vecenv.benchmarks.studies.book_statistics import STATISTICS, autocorrelations, deviation
from vecenv.core.random import episode_key
from vecenv.tasks.agent_market.config import TradingConfig
from vecenv.tasks.agent_market.market import Market, layout_of, opened
from vecenv.tasks.agent_market.native import advanced_market
from vecenv.tasks.agent_market.rules import background_parameters, rules_of, tables_of
from vecenv.tasks.agent_market.scenario import nothings


def walk(seconds: int, seed: int = 0, sessions: int = 1) -> Recorded:
    steps = np.random.default_rng(seed).normal(0, 2.0, (sessions, seconds))
    mid = 100_000 + steps.cumsum(1)
    signs = np.sign(steps)
    return Recorded(mid, mid * 0 + 3, mid * 0 + 5, mid * 0 + 100, signs.clip(0), (-signs).clip(0), mid * 0 + 1)


def snapshots(symbol: str, rows: int) -> pd.DataFrame:
    columns = {"ts_ms": 1_000_000 + 500 * np.arange(rows), "symbol": symbol, "age_ms": 0}
    for level in range(10):
        columns |= {f"bid_px_{level}": 100.0 - 0.5 * level, f"ask_px_{level}": 101.5 + 0.5 * level}
        columns |= {f"bid_qty_{level}": 4.0, f"ask_qty_{level}": 6.0}
    return pd.DataFrame(columns | {"buy_qty": 1.0, "sell_qty": 0.5, "n_trades": 2.0})


def test_real_books_are_read_by_seconds(tmp_path):
    table = snapshots("X", 40)
    table.loc[10:11, "age_ms"] = 2_000
    table.loc[20:21, ["bid_px_0", "ask_px_0"]] += 0.5
    table.to_parquet(tmp_path / "hyperliquid_4coins_500ms.parquet")
    snapshots("Y", 40).to_parquet(tmp_path / "okcoin_btccny_20160303_500ms.parquet")
    events = pd.DataFrame({"ask_px": 585.2, "ask_qty": 10.0, "bid_px": 585.0, "bid_qty": 30.0}, index=range(50_000))
    events.loc[25_000:, "ask_px"] = 585.3
    events.to_parquet(tmp_path / "lobster_aapl_l1_events.parquet")
    books = real_books(tmp_path)
    assert {name: book.recording for name, book in books.items()} == {
        "X": "Hyperliquid 2025",
        "Y": "OKCoin 2016",
        "AAPL": "AAPL 2012",
    }
    own = books["X"].sessions
    # Seconds 1 to 18; ticks of 0.5; the fifth is stale, the tenth half a unit higher.
    assert own.mid.shape == (1, 18) and np.isnan(own.mid[0]).nonzero()[0].tolist() == [4]
    assert (own.mid[0, 0], own.mid[0, 9], own.spread[0, 0]) == (201.5, 202.5, 3.0)
    assert (own.touch[0, 0], own.depth[0, 0], own.bought[0, 0], own.sold[0, 0]) == (5.0, 100.0, 2.0, 1.0)
    # Trades that may be no trades are left out.
    assert np.isnan(books["Y"].sessions.bought).all() and not np.isnan(books["Y"].sessions.mid).any()
    stock = books["AAPL"]
    assert stock.minutes == 390 and np.round(stock.sessions.spread[0, [0, 11_699, 11_700, -1]]).tolist() == [
        20,
        20,
        30,
        30,
    ]


def test_statistics_of_a_random_walk():
    own = walk(40_000)
    # A step of 2 ticks of 100,000 is 0.2 basis points.
    assert deviation(own) == pytest.approx(0.2 * math.sqrt(60), rel=0.1)
    found = realism.figures(own)
    assert found["minute deviation by spread"][0] == pytest.approx(deviation(own) / 0.3, rel=0.01)
    assert abs(found["order signs, ACF at lag 1"][0]) < 0.02
    # The interval is that of the parts, and what is too short for a statistic has none of it.
    value, error = found["minute moves, deviation, basis points"]
    parts = [deviation(realism.eighths(own, number)) for number in range(8)]
    assert error == pytest.approx(2.365 * np.std(parts, ddof=1) / math.sqrt(8)) and 0 < error < value / 4
    short = realism.figures(own, minutes=20)
    assert math.isnan(short["minute returns, ACF at lag 1"][0]) and math.isnan(short["messages a second"][0])
    assert short["minute moves, deviation, basis points"] == found["minute moves, deviation, basis points"]
    assert np.isnan(autocorrelations(np.zeros((1, 3)), 2, 4)).any()
    half = realism.even_eighths(own)
    assert half.mid.shape == (4, 5_000) and (half.mid[0] == own.mid[0, 5_000:10_000]).all()


def test_ranges_leave_a_recording_out():
    spread = "spread, mean, basis points"
    values = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 8.0, "e": 1e6, "f": math.nan}
    real = {name: {item.name: (math.nan, math.nan) for item in STATISTICS} for name in values}
    for name, value in values.items():
        real[name][spread] = (value, 0.0)
    recordings = {name: "own" if name == "e" else "others" for name in values}
    found = realism.ranges(real, recordings, "own")
    # Logarithms of 1, 2, 4, 8: mean 1.5 ln 2, deviation sqrt(5/3) ln 2.
    centre, reach = 2**1.5, 2 ** (2 * math.sqrt(5 / 3))
    assert found == {spread: pytest.approx((centre / reach, centre * reach))}
    assert realism.ranges(real, recordings, "others") == {}
    assert realism.met(real["a"], found)["books"] == (1, 1) and realism.met(real["e"], found)["books"] == (0, 1)
    assert realism.met(real["f"], found) == {"books": (0, 0), "literature": (0, 0)}
    real["a"]["absolute minute returns, tail index"] = (7.0, 0.0)
    assert realism.met(real["a"], found)["literature"] == (0, 1)


def test_fields_of_a_simulated_market_share_no_memory():
    config = TradingConfig(session_seconds=120.0, num_noise=300)
    layout = layout_of(config, seats=1)
    rules = rules_of(background_parameters(config), tables_of(config))
    market = torch.vmap(lambda key: opened(key, rules, layout))(episode_key(5, torch.arange(2), 0))
    own = Market(**{name: market.get(name).clone() for name in Market.__annotations__}, batch_size=[2])
    orders = torch.vmap(lambda tick: nothings(tick, 1))(market.tick)

    def step(market, ticks):
        return torch.vmap(lambda market, orders: advanced_market(market, orders, rules, layout, ticks))(market, orders)

    own, _ = step(own, config.warm_up)
    own, seen = step(own, 1)
    found = simulated_sessions(config, 2, 20, 5)
    assert found.mid[:, 0].tolist() == ((seen.bid + seen.ask) / 2).tolist()
    for _ in range(19):
        own, seen = step(own, 1)
    assert found.mid[:, -1].tolist() == ((seen.bid + seen.ask) / 2).tolist()
    # Noise traders are served once each, by their wakes.
    assert (own.noise_served <= (own.noise_wakes < own.tick.unsqueeze(-1)).sum(-1)).all()
