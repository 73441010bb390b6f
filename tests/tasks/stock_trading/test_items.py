"""Observations split into symbols: free of prices and of the account's size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vecenv
from vecenv.market.bars import Bars
from vecenv.market.indicators import INDICATORS
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape

BARS = synthetic_bars(num_paths=2, num_days=260, symbols=3, seed=5)


def items_of(bars: Bars, features: tuple[str, ...], cash: float):
    tape = MarketTape.from_bars(bars, features, tick_size=1e-4)
    env = vecenv.make(
        "stock_trading", 4, market=tape, compile=False, features=features, action="weights", initial_cash=cash,
        episode_length=20, whole_shares=False, dtype="float64", commission=0.0,
    )  # fmt: skip
    env.advance(torch.tensor([[0.5, 0.25, 0.0]] * 4))
    return env, env.scenario.items(env.observations())


def test_weights_and_cash_are_shares_of_the_account():
    env, items = items_of(BARS, ("rsi_14",), 1e5)
    state, info = env.state, env.info()
    price = env.scenario.tape.ohlcv[state.path, state.day][..., 3].double()
    expected = 3 * state.holdings * price / info["portfolio_value"].unsqueeze(-1)
    torch.testing.assert_close(items.features[..., 1], expected.float(), rtol=1e-4, atol=1e-5)
    share = (info["cash"] / info["portfolio_value"]).float().unsqueeze(-1)
    torch.testing.assert_close(items.shared, share, rtol=1e-4, atol=1e-5)
    assert float(items.features[..., 1].max()) > 1.0 and env.scenario.item_features == ("rsi_14", "weight")


@pytest.mark.parametrize("name", [name for name in INDICATORS if not name.endswith("_state")])
def test_features_do_not_know_the_unit_of_the_prices(name):
    """All prices and the account ten times as large: every indicator is marked right, in price units or not."""
    dearer = replace(BARS, ohlcv=BARS.ohlcv * torch.tensor([10.0, 10.0, 10.0, 10.0, 1.0], dtype=torch.float64))
    (_, plain), (_, scaled) = items_of(BARS, (name,), 1e5), items_of(dearer, (name,), 1e6)
    torch.testing.assert_close(
        scaled.features, plain.features, rtol=2e-3, atol=2e-3 * float(plain.features.abs().max())
    )
