"""The coupling: the market as a whole moves as much on days drawn as on days of training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vecenv.market.bars import CLOSE
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import coupling
from vecenv.worldmodel.training.coupling import calibrate_coupling

DAYS, SYMBOLS, TRAIN = 200, 8, 180
SMALL = NetworkSettings(
    trunk=TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8, dropout=0.0), head=16
)


def untrained_network(settings: NetworkSettings = SMALL) -> MarketNetwork:
    torch.manual_seed(0)
    return MarketNetwork(settings).requires_grad_(False).eval()


def market_of(symbols: int = SYMBOLS, train: int = TRAIN) -> TrainingMarket:
    bars = synthetic_bars(1, DAYS, symbols, seed=3)
    return TrainingMarket.from_bars("us", bars, Split(train, train + 5, DAYS))


def drawn_size(network: MarketNetwork, market: TrainingMarket, paths: int) -> float:
    """Mean size of the market's scaled move on days drawn one by one after the real days before."""
    bars = synthetic_bars(1, DAYS, SYMBOLS, seed=3)
    sizes = []
    for day in range(coupling.FIRST_DAY, TRAIN, 6):
        history = bars.days(0, day)
        drawn = NeuralMarket(network, "us").generate(history, paths, 1, seed=day)
        closes = torch.cat([history.ohlcv[:, -1:, :, CLOSE].expand(paths, -1, -1), drawn[..., CLOSE]], 1).log()
        volatility = market.observed.volatility[0, day]
        sizes.append((closes.diff(dim=1)[:, 0] / volatility).mean(-1).abs().mean())
    return float(torch.stack(sizes).mean())


@pytest.mark.slow
def test_the_market_moves_as_much_as_in_training(monkeypatch):
    """Measured by whole days that are generated, not by the draws that it was matched on."""
    monkeypatch.setattr(coupling, "LIMITS", (0.2, 5.0))
    network, market = untrained_network(), market_of()
    calibrate_coupling(network, market)
    matched = float(network.coupling_of("us"))
    assert float(network.coupling_of("india")) == 1.0
    moves = log_return(market.observed.scaled[0, coupling.FIRST_DAY : TRAIN]).mean(-1)
    target = float(moves.abs().mean())
    gaps = {}
    for value in (1.0, matched):
        network.coupling_of("us").fill_(value)
        gaps[value] = abs(drawn_size(network, market, 256) / target - 1.0)
    assert gaps[1.0] > 0.1, "the untrained network is off by more than the tolerance"
    assert gaps[matched] < 0.04


def test_later_days_do_not_count(monkeypatch):
    monkeypatch.setattr(coupling, "LIMITS", (0.2, 5.0))
    market = market_of()
    scaled = market.observed.scaled.clone()
    scaled[:, TRAIN:] *= 3.0
    later = replace(market, observed=market.observed._replace(scaled=scaled))
    couplings = []
    for history in (market, later):
        network = untrained_network()
        calibrate_coupling(network, history)
        couplings.append(float(network.coupling_of("us")))
    assert couplings[0] == couplings[1] not in (1.0, *coupling.LIMITS)


@pytest.mark.parametrize(
    ("settings", "symbols", "train"),
    [(replace(SMALL, joint="none"), SYMBOLS, TRAIN), (SMALL, coupling.FEWEST - 1, TRAIN), (SMALL, SYMBOLS, 50)],
    ids=["independent symbols", "few symbols", "few days"],
)
def test_where_there_is_nothing_to_match_symbols_follow_as_the_network_says(settings, symbols, train):
    network = untrained_network(settings)
    network.couplings.fill_(1.1)
    calibrate_coupling(network, market_of(symbols, train))
    assert float(network.coupling_of("us")) == 1.0
    assert float(network.coupling_of("india")) == pytest.approx(1.1)


def test_a_choice_of_symbols_that_never_move_on_the_same_day_is_left_out(monkeypatch):
    monkeypatch.setattr(coupling, "LIMITS", (0.2, 5.0))
    market = market_of()
    valid = market.encoded.valid.clone()
    valid[:, ::2, 0], valid[:, 1::2, 1] = False, False
    patchy = replace(
        market, encoded=market.encoded._replace(valid=valid), observed=market.observed._replace(valid=valid)
    )
    choices = iter([torch.tensor([0, 1, 2]), *[torch.arange(2, SYMBOLS)] * (coupling.CHOICES - 1)])
    monkeypatch.setattr(TrainingMarket, "some", lambda *_: next(choices))
    network = untrained_network()
    calibrate_coupling(network, patchy)
    assert next(choices, None) is None and float(network.coupling_of("us")) != 1.0


def test_the_coupling_stays_within_its_limits(monkeypatch):
    monkeypatch.setattr(coupling, "LIMITS", (0.999, 1.001))
    network = untrained_network()
    calibrate_coupling(network, market_of())
    assert abs(float(network.coupling_of("us")) - 1.0) == pytest.approx(1e-3, rel=1e-3)


def test_shares_of_the_work_sum_up_to_one():
    done: list[float] = []
    calibrate_coupling(untrained_network(), market_of(), advance=done.append)
    assert len(done) == 2 * coupling.CHOICES and sum(done) == pytest.approx(1.0)
