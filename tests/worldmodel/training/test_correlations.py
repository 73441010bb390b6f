"""Decay and shrinkage of correlations: what is right on hand-made markets is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.data.bar_moves import encode_history
from vecenv.worldmodel.data.correlation import DECAY, SHRINKAGE
from vecenv.worldmodel.data.features import observe_history
from vecenv.worldmodel.data.quantity_correlations import correlations, matrices_over
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import correlations as calibration
from vecenv.worldmodel.training import recent
from vecenv.worldmodel.training.correlations import (
    EstimatorScore,
    best_estimator,
    calibrate_correlations,
    estimator_scores,
)
from vecenv.worldmodel.training.recent import recent_years

SYMBOLS, DAYS = 12, 1000
SMALL = NetworkSettings(
    trunk=TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8, dropout=0.0), head=16
)


@pytest.fixture(autouse=True)
def _small_grid(monkeypatch):
    monkeypatch.setattr(calibration, "HALF_LIVES", (30.0, 100.0, 400.0))
    monkeypatch.setattr(calibration, "SHRINKAGES", (0.0, 0.3, 1.0))
    monkeypatch.setattr(calibration, "CHOICES", 1)
    monkeypatch.setattr(recent, "YEARS", 3)


def gaussian_network(settings: NetworkSettings = SMALL) -> MarketNetwork:
    """Returns follow the matrix alone: the head adds nothing to the implied mean and scale."""
    torch.manual_seed(0)
    network = MarketNetwork(settings).requires_grad_(False).eval()
    network.returns.output.weight.zero_()
    network.returns.output.bias.zero_()
    return network


def market_of(matrices: Tensor, days: int = DAYS, seed: int = 1) -> TrainingMarket:
    """Bounded normal returns of 1% a day with a matrix for each of several equal stretches. Shape: (S, K, K)."""
    generator = torch.Generator().manual_seed(seed)
    count = matrices.shape[-1]
    factor = torch.linalg.cholesky(matrices).repeat_interleave(-(-days // len(matrices)), 0)[:days]
    white = torch.randn(days, count, 1, generator=generator, dtype=torch.float64)
    closes = (0.01 * (factor @ white.clamp(-2.0, 2.0)).squeeze(-1)).cumsum(0).exp() * 100.0
    ohlcv = torch.stack([*[closes] * 4, torch.full_like(closes, 1e6)], dim=-1)[None]
    bars = Bars(tuple(f"S{i}" for i in range(count)), business_days(days), ohlcv)
    return TrainingMarket.from_bars("us", bars, Split(days - 100, days - 80, days))


def sectors(seed: int, within: float = 0.75, across: float = 0.1) -> Tensor:
    """Three sectors of random members. Shape: (K, K)."""
    member = torch.randperm(SYMBOLS, generator=torch.Generator().manual_seed(seed)) % 3
    matrix = torch.where(member[:, None] == member, within, across).double()
    return matrix.fill_diagonal_(1.0)


def calibrated(market: TrainingMarket) -> tuple[float, float]:
    """Half-life in days and shrinkage."""
    network = gaussian_network()
    calibrate_correlations(network, market)
    assert network.estimator_of("india")[0] == DECAY and network.estimator_of("india")[1] == SHRINKAGE
    decay, shrinkage = network.estimator_of("us")
    return float(np.log(0.5) / decay.log()), float(shrinkage)


@pytest.mark.assembly
def test_lasting_sectors_ask_for_a_long_memory_and_no_shrinkage():
    half_life, shrinkage = calibrated(market_of(sectors(0)[None]))
    assert half_life == pytest.approx(400.0) and shrinkage == 0.0


@pytest.mark.assembly
def test_sectors_that_change_ask_for_a_short_memory():
    """Every 150 days the members change."""
    half_life, _ = calibrated(market_of(torch.stack([sectors(seed) for seed in range(7)])))
    assert half_life == pytest.approx(30.0)


@pytest.mark.assembly
def test_equal_correlations_ask_for_full_shrinkage():
    equal = torch.full((1, SYMBOLS, SYMBOLS), 0.4, dtype=torch.float64)
    equal[0].fill_diagonal_(1.0)
    _, shrinkage = calibrated(market_of(equal))
    assert shrinkage == 1.0


def test_errors_are_those_of_plain_formulas(monkeypatch):
    """One estimate and year: the Gaussian density by torch, the correlations by NumPy."""
    monkeypatch.setattr(calibration, "HALF_LIVES", (100.0,))
    monkeypatch.setattr(calibration, "SHRINKAGES", (0.2,))
    monkeypatch.setattr(recent, "YEARS", 1)
    market = market_of(sectors(3)[None], days=400)
    (year,) = recent_years(market)
    network = replace_density_by_normal(gaussian_network())
    (score,) = estimator_scores(network, market)
    returns = market.observed.scaled[0, ..., :2].sum(-1)
    matrices = correlations(returns, market.observed.valid[0], 0.5**0.01, 0.2)[torch.arange(400) // 10][
        year.start : year.stop
    ]
    zero = torch.zeros(SYMBOLS, dtype=torch.float64)
    law = torch.distributions.MultivariateNormal(zero, matrices)
    order = market.some(25, np.random.default_rng([0, 25]))
    today = returns[year.start : year.stop]
    expected = -float(law.log_prob(today.clamp(-4.0, 4.0)).sum()) / today.numel()
    assert bool((today.abs() < 4.0).all()), "limited returns have another density"
    assert score.nll == pytest.approx(expected, abs=1e-4) and sorted(order.tolist()) == list(range(SYMBOLS))
    # The exact correlations about zero, which is what the estimate is of.
    products = (today.T @ today).numpy()
    realised = products / np.sqrt(np.outer(np.diag(products), np.diag(products)))
    error = (matrices.mean(0).numpy() - realised)[np.triu_indices(SYMBOLS, 1)]
    assert score.rmse == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6)


def replace_density_by_normal(network: MarketNetwork) -> MarketNetwork:
    """Three equal components of standard normals: Gaussian mixtures with raw scales of 0."""
    torch.manual_seed(0)
    normal = MarketNetwork(replace(network.settings, density="gaussian")).requires_grad_(False).eval()
    normal.returns.output.weight.zero_()
    normal.returns.output.bias.zero_()
    return normal


def test_the_closest_correlations_win_among_the_densities_within_the_tolerance():
    scores = [
        EstimatorScore(100.0, 0.3, nll=1.0, rmse=0.09),
        EstimatorScore(100.0, 0.1, nll=1.0004, rmse=0.07),
        EstimatorScore(100.0, 0.0, nll=1.0006, rmse=0.05),
    ]
    assert best_estimator(scores) is scores[1]


@pytest.mark.parametrize(
    ("settings", "symbols", "days"),
    [(replace(SMALL, joint="none"), 12, 400), (replace(SMALL, joint="running mean"), 12, 400), (SMALL, 4, 400),
     (SMALL, 12, 60)],
    ids=["independent symbols", "running mean", "few symbols", "few days"],
)  # fmt: skip
def test_where_there_is_nothing_to_fit_the_defaults_stay(settings, symbols, days):
    network = MarketNetwork(settings).requires_grad_(False).eval()
    network.decays.fill_(0.9)
    network.shrinkages.fill_(0.7)
    bars = synthetic_bars(1, days, symbols, seed=3)
    calibrate_correlations(network, TrainingMarket.from_bars("us", bars, Split(days - 20, days - 15, days)))
    assert [float(value) for value in network.estimator_of("us")] == [DECAY, SHRINKAGE]
    assert [float(value) for value in network.estimator_of("india")] == [0.9, 0.7]


def test_a_market_keeps_the_calibrated_estimate_for_a_choice_of_its_symbols():
    market, network = market_of(sectors(4)[None], days=300), gaussian_network()
    decay, shrinkage = network.estimator_of("us")
    decay.fill_(0.97)
    shrinkage.fill_(0.4)
    fitted = market.estimated_by(network)
    assert torch.equal(fitted.matrices, matrices_over(market.observed, 0.97, 0.4).float())
    chosen = torch.tensor([5, 2, 9])
    few = Bars(("a", "b", "c"), business_days(300), market_bars(market)[:, :, chosen])
    expected = matrices_over(observe_history(encode_history(few)), 0.97, 0.4).float()
    assert torch.allclose(fitted.only(chosen).matrices, expected, atol=1e-6)
    assert not torch.allclose(fitted.matrices[-1, 0][chosen][:, chosen], expected[-1, 0], atol=1e-3)


def market_bars(market: TrainingMarket) -> Tensor:
    """Bars with the market's closes. Shape: (1, T, K, 5)."""
    closes = market.encoded.before.log_close.exp()
    last = market.encoded.last.log_close.exp()[:, None]
    closes = torch.cat([closes[:, 1:], last], dim=1)
    return torch.stack([*[closes] * 4, torch.full_like(closes, 1e6)], dim=-1)


def test_recent_years_end_with_validation_and_have_the_same_length(monkeypatch):
    bars = synthetic_bars(1, 1200, 2, seed=3)
    market = TrainingMarket.from_bars("us", bars, Split(900, 920, 1150))
    assert recent_years(market) == [range(394, 646), range(646, 898), range(898, 1150)]
    monkeypatch.setattr(recent, "YEARS", 9)
    assert [year.start for year in recent_years(market)] == [142, 394, 646, 898]
    early = replace(market, split=Split(100, 110, 200))
    assert recent_years(early) == [range(60, 200)]
    assert recent_years(replace(market, split=Split(40, 45, 60))) == []


def test_shares_of_the_work_sum_up_to_one():
    done: list[float] = []
    calibrate_correlations(gaussian_network(), market_of(sectors(3)[None], days=400), advance=done.append)
    assert len(done) == calibration.CHOICES * len(calibration.HALF_LIVES) and sum(done) == pytest.approx(1.0)
