"""The drift: rolled-out days rise as fast as real ones did, however many symbols are drawn together."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from vecenv.market.bars import CLOSE, VOLUME
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import daily_returns
from vecenv.worldmodel.network.market_network import DRIFT_SIZES, MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import WARM_UP
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import drift
from vecenv.worldmodel.training.drift import Effort, calibrate_drift

DAYS, SYMBOLS = 400, 6
SMALL = NetworkSettings(
    trunk=TransformerSettings(layers=2, width=16, heads=2, hidden=32, window=8, dropout=0.0), head=16
)


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch):
    monkeypatch.setattr(drift, "EFFORTS", dict.fromkeys(DRIFT_SIZES, Effort(starts=8, pairs=64)))
    monkeypatch.setattr(drift, "DAYS", 10)
    monkeypatch.setattr(drift, "YEAR", 10)


def untrained_network(settings: NetworkSettings = SMALL) -> MarketNetwork:
    torch.manual_seed(0)
    return MarketNetwork(settings).requires_grad_(False).eval()


def market_of(train: int) -> TrainingMarket:
    bars = synthetic_bars(1, DAYS, SYMBOLS, seed=3, regime="bear")
    return TrainingMarket.from_bars("us", bars, Split(train, train + 5, train + 10))


def stretches_of(market: TrainingMarket, symbols: int):
    return drift._recent_stretches(market, symbols, 8, np.random.default_rng([0, symbols]))


@pytest.mark.nightly
def test_rolled_out_days_have_the_mean_return_of_the_known_days(monkeypatch):
    """For every number of symbols, of the draws that it was matched on: others differ by chance."""
    monkeypatch.setattr(drift, "LIMIT", 1.0)
    network, market = untrained_network(), market_of(380)
    returns, valid = daily_returns(market.encoded)
    target = float(returns[:390][valid[:390]].mean())

    def mean_return(symbols: int) -> float:
        model = NeuralMarket(network, "us")
        starts = model.starts(stretches_of(market, symbols))
        both = [model.draw_after(starts, 64, 10, antithetic=reflected)[..., CLOSE].log() for reflected in (False, True)]
        return float(torch.stack([closes[:, -1] - closes[:, 0] for closes in both]).mean()) / 9.0

    before = {symbols: mean_return(symbols) for symbols in (1, 5)}
    calibrate_drift(network, market)
    one, five, *more = network.drifts_of("us").tolist()
    assert one != five and more == [five, five], "there are six symbols: what holds for five holds for more"
    assert not bool(network.drifts_of("india").any())
    for symbols, unmatched in before.items():
        # The untrained network is off by far more than the tolerance.
        assert abs(unmatched - target) > 5e-4
        assert mean_return(symbols) == pytest.approx(target, abs=1e-4)


def test_the_mean_return_of_a_pair_is_that_of_both_paths_over_the_days_between_the_first_and_the_last_close():
    class Rising:
        """Closes of two symbols that rise by the number of the path in percent a day, antithetic ones by ten more."""

        def draw_after(self, starts: None, paths: int, days: int, seed: int, antithetic: bool) -> torch.Tensor:
            rate = 0.01 * (torch.arange(paths) + 10.0 * antithetic)
            closes = (rate[:, None] * torch.arange(days)).exp().double()
            return closes[:, :, None, None].expand(-1, -1, 2, 5)

    found = drift._mean_returns(Rising(), None, 3, 0)
    assert found.tolist() == pytest.approx([0.05, 0.06, 0.07])


def test_between_two_numbers_of_symbols_the_drift_is_on_a_line_in_their_logarithm():
    network = untrained_network()
    network.drifts_of("us").copy_(torch.tensor([-0.02, 0.0, 0.01, 0.03]))
    known = [float(network.drift_of("us", symbols)) for symbols in DRIFT_SIZES]
    assert known == pytest.approx([-0.02, 0.0, 0.01, 0.03])
    assert float(network.drift_of("us", 3)) == pytest.approx(-0.02 + 0.02 * math.log(3, 5))
    assert float(network.drift_of("us", 50)) == pytest.approx(0.02)
    assert float(network.drift_of("us", 400)) == pytest.approx(0.03)
    with pytest.raises(ValueError, match="unknown market 'mars'"):
        network.drift_of("mars", 3)


@pytest.mark.assembly
def test_days_after_validation_do_not_move_the_drift():
    """Prices that explode from the first day after it on."""
    bars = synthetic_bars(1, DAYS, SYMBOLS, seed=3, regime="bear")
    after = torch.ones(DAYS, dtype=torch.float64)
    after[390:] = 1.1 ** torch.arange(1, DAYS - 390 + 1)
    ohlcv = bars.ohlcv.clone()
    ohlcv[..., :VOLUME] *= after[:, None, None]
    split, drifts = Split(380, 385, 390), []
    for each in (bars, replace(bars, ohlcv=ohlcv)):
        network = untrained_network(replace(SMALL, joint="none"))
        calibrate_drift(network, TrainingMarket.from_bars("us", each, split))
        drifts.append(network.drifts_of("us").clone())
    assert torch.equal(*drifts) and bool(drifts[0].any())


def test_independent_symbols_have_one_drift():
    network = untrained_network(replace(SMALL, joint="none"))
    calibrate_drift(network, market_of(380))
    drifts = network.drifts_of("us")
    assert float(drifts[0]) != 0.0 and bool((drifts == drifts[0]).all())


def test_a_market_of_too_few_days_keeps_no_drift():
    network = untrained_network()
    network.drifts.fill_(0.04)
    calibrate_drift(network, market_of(200))
    assert not bool(network.drifts_of("us").any())


@pytest.mark.assembly
def test_drift_stays_within_its_limit(monkeypatch):
    monkeypatch.setattr(drift, "LIMIT", 1e-4)
    network = untrained_network()
    calibrate_drift(network, market_of(380))
    assert network.drifts_of("us").abs().tolist() == pytest.approx([1e-4] * len(DRIFT_SIZES))


def test_stretches_are_days_of_the_history():
    market = market_of(380)
    bars = synthetic_bars(1, DAYS, SYMBOLS, seed=3, regime="bear")
    past = stretches_of(market, 2)
    closes = bars.ohlcv[0, ..., CLOSE]
    chosen = set()
    for path in past.ohlcv[..., CLOSE]:
        # Each starts on another day, of other symbols; levels go on from the history's own.
        found = torch.stack([torch.isclose(closes, price, rtol=1e-10) for price in path[0]])
        first = int(found.any(-1).all(0).nonzero()[0])
        symbols = tuple(int(each.nonzero()[0]) for each in found[:, first])
        assert symbols[0] != symbols[1]
        assert torch.allclose(path, closes[first : first + len(path), list(symbols)], rtol=1e-10)
        assert market.split.stop - drift.YEARS * drift.YEAR - WARM_UP <= first <= market.split.stop - len(path)
        chosen.add(symbols)
    assert len(chosen) > 4


@pytest.mark.parametrize("joint", ["correlations", "none"])
@pytest.mark.assembly
def test_shares_of_the_work_sum_up_to_one(joint):
    done: list[float] = []
    calibrate_drift(untrained_network(replace(SMALL, joint=joint)), market_of(380), advance=done.append)
    assert len(done) == (4 if joint == "correlations" else 2) and sum(done) == pytest.approx(1.0)
