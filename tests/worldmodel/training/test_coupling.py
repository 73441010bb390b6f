"""The coupling: symbols move together on days drawn as on the days of recent years."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import log_return
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import coupling, recent
from vecenv.worldmodel.training.coupling import calibrate_coupling, shrunk_mean
from vecenv.worldmodel.training.recent import recent_years

DAYS, SYMBOLS, STOP = 200, 8, 180
SMALL = NetworkSettings(
    trunk=TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8, dropout=0.0), head=16
)


def untrained_network(settings: NetworkSettings = SMALL) -> MarketNetwork:
    torch.manual_seed(0)
    return MarketNetwork(settings).requires_grad_(False).eval()


@pytest.fixture(autouse=True)
def _short_years(monkeypatch):
    """Four years up to the last day of validation."""
    monkeypatch.setattr(recent, "YEAR", 30)


def market_of(symbols: int = SYMBOLS, stop: int = STOP) -> TrainingMarket:
    bars = synthetic_bars(1, DAYS, symbols, seed=3)
    return TrainingMarket.from_bars("us", bars, Split(stop - 30, stop - 20, stop))


def together(moves: Tensor) -> float:
    """Size of the mean of the symbols' scaled moves over that of their own. Shape: (D, K)."""
    return float(moves.mean(-1).abs().mean() / moves.abs().mean())


def drawn_moves(network: MarketNetwork, market: TrainingMarket, paths: int) -> Tensor:
    """Scaled moves of days drawn one by one after the real days before. Shape: (D, K)."""
    bars = synthetic_bars(1, DAYS, SYMBOLS, seed=3)
    moves = []
    for day in range(recent.FIRST_DAY, STOP, 6):
        history = bars.days(0, day)
        drawn = NeuralMarket(network, "us").generate(history, paths, 1, seed=day)
        closes = torch.cat([history.ohlcv[:, -1:, :, CLOSE].expand(paths, -1, -1), drawn[..., CLOSE]], 1).log()
        moves.append(closes.diff(dim=1)[:, 0] / market.observed.volatility[0, day])
    return torch.cat(moves)


@pytest.fixture
def plain_mean(monkeypatch):
    """The short years of these histories differ too much for any coupling."""
    monkeypatch.setattr(coupling, "shrunk_mean", np.mean)


@pytest.mark.nightly
@pytest.mark.usefixtures("plain_mean")
def test_symbols_move_together_as_they_did(monkeypatch):
    """Measured by whole days that are generated, not by the draws that it was matched on."""
    monkeypatch.setattr(coupling, "LIMITS", (0.2, 5.0))
    network, market = untrained_network(), market_of()
    calibrate_coupling(network, market)
    matched = float(network.coupling_of("us"))
    assert float(network.coupling_of("india")) == 1.0
    target = together(log_return(market.observed.scaled[0, recent.FIRST_DAY : STOP]))
    gaps = {}
    for value in (1.0, matched):
        network.coupling_of("us").fill_(value)
        gaps[value] = abs(together(drawn_moves(network, market, 256)) / target - 1.0)
    assert gaps[1.0] > 0.1, "the untrained network is off by more than the tolerance"
    assert gaps[matched] < 0.04


@pytest.mark.usefixtures("plain_mean")
@pytest.mark.assembly
def test_volatility_is_not_made_up_by_the_coupling(monkeypatch):
    """Twice the moves of all symbols leave the coupling as it is."""
    monkeypatch.setattr(coupling, "LIMITS", (0.2, 5.0))
    moves, couplings = coupling._real_moves, []
    for factor in (1.0, 2.0):
        monkeypatch.setattr(coupling, "_real_moves", lambda *given, times=factor: times * moves(*given))
        network = untrained_network()
        calibrate_coupling(network, market_of())
        couplings.append(float(network.coupling_of("us")))
    assert couplings[0] == pytest.approx(couplings[1], rel=1e-5) and couplings[0] != 1.0


@pytest.mark.usefixtures("plain_mean")
@pytest.mark.assembly
def test_later_days_do_not_count(monkeypatch):
    """After validation symbols move against each other."""
    monkeypatch.setattr(coupling, "LIMITS", (0.2, 5.0))
    bars = synthetic_bars(1, DAYS, SYMBOLS, seed=3)
    ohlcv = bars.ohlcv.clone()
    ohlcv[:, STOP + 1 :: 2, ::2] *= 1.1
    ohlcv[:, STOP::2, 1::2] *= 1.1
    couplings = []
    for history in (bars, replace(bars, ohlcv=ohlcv)):
        network = untrained_network()
        calibrate_coupling(network, TrainingMarket.from_bars("us", history, market_of().split))
        couplings.append(float(network.coupling_of("us")))
    assert couplings[0] == couplings[1] not in (1.0, *coupling.LIMITS)


@pytest.mark.parametrize(
    ("settings", "symbols", "stop"),
    [(replace(SMALL, joint="none"), SYMBOLS, STOP), (SMALL, coupling.FEWEST - 1, STOP), (SMALL, SYMBOLS, 110)],
    ids=["independent symbols", "few symbols", "a single year"],
)
def test_where_there_is_nothing_to_match_symbols_follow_as_the_network_says(settings, symbols, stop):
    network = untrained_network(settings)
    network.couplings.fill_(1.1)
    calibrate_coupling(network, market_of(symbols, stop))
    assert float(network.coupling_of("us")) == 1.0
    assert float(network.coupling_of("india")) == pytest.approx(1.1)


@pytest.mark.usefixtures("plain_mean")
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


@pytest.mark.usefixtures("plain_mean")
def test_the_coupling_stays_within_its_limits(monkeypatch):
    monkeypatch.setattr(coupling, "LIMITS", (0.999, 1.001))
    network = untrained_network()
    calibrate_coupling(network, market_of())
    assert abs(float(network.coupling_of("us")) - 1.0) == pytest.approx(1e-3, rel=1e-3)


def test_a_mean_of_years_is_drawn_toward_zero_by_its_error():
    """Means 0.3 with a standard error of 0.05 of five years, one without, and one within its error."""
    values = 0.3 + 0.05 * math.sqrt(2.0) * np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    # Student's 97.5% quantile with four degrees of freedom is 2.7764.
    assert shrunk_mean(values) == pytest.approx(0.3 * (1.0 - (2.7764 * 0.05 / 0.3) ** 2), rel=5e-3)
    assert shrunk_mean(-values) == pytest.approx(-shrunk_mean(values))
    assert shrunk_mean(np.array([0.1, 0.1, 0.1])) == pytest.approx(0.1)
    assert shrunk_mean(np.array([0.05, 0.2])) == 0.0


@pytest.mark.parametrize(
    "moved", [(1.2, 1 / 1.2, 1.2, 1 / 1.2), (1.2, 1.2, 1.2, 1.2), (1.2, 1.3, 1.2, 1.3)], ids=["torn", "alike", "spread"]
)
def test_the_coupling_of_years(monkeypatch, moved):
    """Drawn symbols move together as the coupling says, real ones by ``moved`` in four years."""
    monkeypatch.setattr(coupling, "LIMITS", (0.2, 5.0))
    network, market = untrained_network(), market_of()
    real = dict(zip(recent.recent_years(market), moved, strict=True))
    monkeypatch.setattr(coupling, "_real_moves", lambda _, year: real[year])
    monkeypatch.setattr(coupling, "_drawn_moves", lambda network, *_: float(network.coupling_of("us")))
    monkeypatch.setattr(coupling, "_together", lambda sizes: sizes[0])
    calibrate_coupling(network, market)
    # Log-linear interpolation between couplings 1 and 1.05.
    steps = np.log(moved) / math.log(1.05) * 0.05
    expected = 0.0 if moved[1] < 1.0 else shrunk_mean(steps)
    assert float(network.coupling_of("us")) == pytest.approx(1.0 + expected, abs=1e-6)


def test_shares_of_the_work_sum_up_to_one():
    done: list[float] = []
    market = market_of()
    calibrate_coupling(untrained_network(), market, advance=done.append)
    assert len(done) == 2 * len(recent_years(market)) and sum(done) == pytest.approx(1.0)
