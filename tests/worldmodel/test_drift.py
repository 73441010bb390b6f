"""The drift: rolled-out days rise as fast as those of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vecenv.market.bars import CLOSE
from vecenv.market.synthetic import synthetic_bars
from worldmodel import drift
from worldmodel.bar_moves import daily_returns
from worldmodel.drift import calibrate_drift
from worldmodel.network import MarketNetwork, NetworkSettings
from worldmodel.neural import NeuralMarket
from worldmodel.training_market import Split, TrainingMarket
from worldmodel.transformer import TransformerSettings

DAYS = 400


def untrained_network() -> MarketNetwork:
    torch.manual_seed(0)
    trunk = TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0)
    return MarketNetwork(NetworkSettings(trunk=trunk, head=16)).requires_grad_(False).eval()


def market_of(train: int) -> TrainingMarket:
    bars = synthetic_bars(1, DAYS, 4, seed=3, regime="bear")
    return TrainingMarket.from_bars("us", bars, Split(train, train + 5, DAYS))


def test_rolled_out_days_have_the_mean_return_of_training(monkeypatch):
    """Of the draws that it was matched on: others differ by chance."""
    monkeypatch.setattr(drift, "PATHS", 128)
    monkeypatch.setattr(drift, "STARTS", 8)
    monkeypatch.setattr(drift, "DAYS", 10)
    monkeypatch.setattr(drift, "LIMIT", 1.0)
    network, market = untrained_network(), market_of(380)
    returns, valid = daily_returns(market.encoded)
    target = float(returns[:380][valid[:380]].mean())
    past = drift._training_stretches(market, np.random.default_rng([0, drift.STARTS]))
    assert past is not None

    def mean_return() -> float:
        closes = NeuralMarket(network, "us").generate(past, 128, 10)[..., CLOSE].log()
        return float((closes[:, -1] - closes[:, 0]).mean()) / 9.0

    before = mean_return()
    calibrate_drift(network, market)
    assert float(network.drift_of("india")) == 0.0
    # The untrained network is off by far more than the tolerance.
    assert abs(before - target) > 5e-4
    assert mean_return() == pytest.approx(target, abs=2e-4)


def test_a_market_of_too_few_days_keeps_no_drift():
    network = untrained_network()
    network.drifts.fill_(0.04)
    calibrate_drift(network, market_of(200))
    assert float(network.drift_of("us")) == 0.0


def test_drift_stays_within_its_limit(monkeypatch):
    monkeypatch.setattr(drift, "PATHS", 32)
    monkeypatch.setattr(drift, "STARTS", 4)
    monkeypatch.setattr(drift, "LIMIT", 1e-4)
    network = untrained_network()
    calibrate_drift(network, market_of(380))
    assert abs(float(network.drift_of("us"))) == pytest.approx(1e-4)


def test_stretches_are_days_of_the_history():
    market = market_of(380)
    bars = synthetic_bars(1, DAYS, 4, seed=3, regime="bear")
    past = drift._training_stretches(market, np.random.default_rng(0))
    assert past is not None
    symbols = [int(name) for name in past.symbols]
    closes = bars.ohlcv[0, :, symbols, CLOSE].float()
    for path in past.ohlcv[..., CLOSE].float():
        # Each starts on another day; levels go on from the history's own.
        (day,) = torch.isclose(closes, path[0]).all(-1).nonzero().flatten().tolist()
        assert torch.allclose(path, closes[day : day + len(path)], rtol=1e-6)
        assert day + len(path) <= market.split.train
