"""Geometric Brownian motion, the stationary bootstrap, and what every baseline keeps to."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.sources import read_bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchT
from vecenv.worldmodel.baselines.resampled import (
    Baseline,
    GeometricBrownianMotion,
    StationaryBootstrap,
    pairwise_correlation,
)
from vecenv.worldmodel.data.bar_moves import Move, encode_bars
from vecenv.worldmodel.data.training_days import TrainingDays

NAN = float("nan")
NAMES = ["GBM", "bootstrap", "bootstrap, last 250 days", "GARCH-t", "FHS"]


@pytest.fixture(scope="module")
def history() -> Bars:
    """Bars with holes and a symbol listed late, whose volume grows by a half percent a day."""
    bars = synthetic_bars(1, 400, 5, seed=8, regime="bear")
    ohlcv = bars.ohlcv.clone()
    ohlcv[..., VOLUME] *= torch.arange(400)[:, None].mul(0.005).exp()
    ohlcv[0, 100, 0] = ohlcv[0, 300:303, 1] = ohlcv[0, :40, 2] = NAN
    return replace(bars, ohlcv=ohlcv)


@pytest.fixture(scope="module")
def models(history) -> dict[str, Baseline]:
    garch = GarchT.fit(history)
    fitted: list[Baseline] = [
        GeometricBrownianMotion.fit(history),
        StationaryBootstrap.fit(history),
        StationaryBootstrap.fit(history, last_days=250),
        garch,
        FilteredHistoricalSimulation(history.symbols, garch.parameters, TrainingDays.from_bars(history)),
    ]
    return {model.name: model for model in fitted}


@pytest.fixture(scope="module")
def paths(models, history) -> dict[str, Tensor]:
    """100 paths of 300 days of each model."""
    return {name: model.generate(history, 100, 300, seed=5) for name, model in models.items()}


def moves_of(history: Bars, generated: Tensor) -> Tensor:
    """Encode generated bars, with volumes from the level of the last bar before them. Shape: (P, T, K, 5)."""
    whole = torch.cat([history.ohlcv[:, -1:].expand(len(generated), -1, -1, -1), generated], dim=1)
    return encode_bars(whole).moves[:, 1:]


def returns_of(moves: Tensor) -> Tensor:
    return moves[..., Move.GAP] + moves[..., Move.BODY]


def correlations(returns: Tensor) -> Tensor:
    matrix = torch.corrcoef(returns.reshape(-1, returns.shape[-1]).T)
    return matrix[torch.triu_indices(*matrix.shape, offset=1).unbind()]


@pytest.mark.parametrize("name", NAMES)
def test_a_path_depends_on_its_number_and_the_seed_alone(models, history, name):
    few = models[name].generate(history, 2, 6, seed=4)
    many = models[name].generate(history, 9, 25, seed=4)
    # The product with the correlation's root may round by the number of paths.
    assert torch.allclose(few, many[:2, :6], rtol=1e-11 if name == "GBM" else 0.0, atol=0.0)
    other = models[name].generate(history, 2, 6, seed=4 + (1 << 40))
    assert not bool((few[0] == few[1]).any()) and not bool((few == other).all(-1).any())


@pytest.mark.parametrize("name", NAMES)
def test_thirty_thousand_days_of_valid_bars(paths, name):
    bars = paths[name]
    assert bars.shape == (100, 300, 5, 5) and bars.dtype == torch.float64
    assert bool(bars.isfinite().all()) and float(bars[..., :VOLUME].min()) > 0 and float(bars[..., VOLUME].min()) >= 1
    assert bool((bars[..., HIGH] >= bars[..., OPEN].maximum(bars[..., CLOSE])).all())
    assert bool((bars[..., LOW] <= bars[..., OPEN].minimum(bars[..., CLOSE])).all())
    assert bool((bars[..., HIGH] > bars[..., LOW]).double().mean() > 0.99)


@pytest.mark.parametrize("name", NAMES)
def test_volume_stays_about_its_level(paths, history, name):
    """Neither does its mean drift nor its spread grow without bound."""
    level = encode_bars(history.ohlcv[:, -100:]).last.volume_level
    distance = paths[name][..., VOLUME].log() - level
    first, last = distance[:, 125:150].mean(1), distance[:, 275:].mean(1)
    assert float(last.mean().abs()) < 0.1
    assert float(last.std()) < 1.2 * float(first.std())


@pytest.mark.parametrize("name", NAMES)
def test_returns_and_ranges_are_as_large_as_in_training(paths, history, name):
    """Deviation of the return, the gap and the body, and the mean wicks, within a fifth."""
    encoded = encode_bars(history.ohlcv)
    days = encoded.moves[0][encoded.valid[0].all(-1)]
    drawn = moves_of(history, paths[name]).flatten(0, 1)
    days = days[-250:] if name.endswith("250 days") else days
    for size in (
        lambda moves: returns_of(moves).std(0),
        lambda moves: moves[..., Move.GAP].std(0),
        lambda moves: moves[..., Move.BODY].std(0),
        lambda moves: moves[..., Move.UPPER].mean(0),
        lambda moves: moves[..., Move.LOWER].mean(0),
    ):
        assert 0.8 < float((size(drawn) / size(days)).mean()) < 1.2


@pytest.mark.parametrize("name, together", [("GBM", True), ("bootstrap", True), ("GARCH-t", False), ("FHS", True)])
def test_correlation_between_symbols(paths, history, name, together):
    encoded = encode_bars(history.ohlcv)
    real = correlations(returns_of(encoded.moves[0][encoded.valid[0].all(-1)]))
    drawn = correlations(returns_of(moves_of(history, paths[name])))
    assert float(real.mean()) > 0.2
    assert abs(float(drawn.mean() - (real.mean() if together else 0.0))) < (0.06 if together else 0.03)


@pytest.mark.assembly
def test_a_subset_of_the_symbols_in_another_order(models, history):
    """Each symbol keeps its own law: a symbol of three times the volatility keeps it."""
    wild = history.ohlcv.clone()
    wild[..., 3, :4] = wild[..., 3, :4].log().mul(3).exp() / 1e4
    bars = replace(history, ohlcv=wild)
    some = [3, 0]
    part = replace(bars, symbols=tuple(bars.symbols[k] for k in some), ohlcv=wild[:, :, some])
    model = GeometricBrownianMotion.fit(bars)
    whole, subset = (returns_of(moves_of(each, model.generate(each, 100, 20))).std((0, 1)) for each in (bars, part))
    assert torch.allclose(subset, whole[some], rtol=0.2) and float(subset[0]) > 2 * float(subset[1])
    assert torch.allclose(model.log_density(part), model.log_density(bars)[:, some], equal_nan=True)
    for kind in (StationaryBootstrap, FilteredHistoricalSimulation):
        # The drawn days do not depend on the symbols.
        joint = kind.fit(bars)
        assert torch.equal(joint.generate(part, 3, 10), joint.generate(bars, 3, 10)[:, :, some])


def test_gaussian_densities(models, history):
    """Against torch's own multivariate normal law of the symbols that have a return on the day."""
    model = models["GBM"]
    assert isinstance(model, GeometricBrownianMotion)
    encoded = encode_bars(history.ohlcv)
    returns, valid = returns_of(encoded.moves[0]), encoded.valid[0]
    density, joint = model.log_density(history), model.joint_log_density(history)
    assert torch.equal(density.isfinite(), valid) and torch.equal(joint.isfinite(), valid.any(-1))
    covariance = model.correlation * model.volatility * model.volatility.unsqueeze(-1)
    for day in (1, 100, 303, 399):
        here = valid[day]
        law = MultivariateNormal(model.mean[here], covariance[here][:, here])
        assert torch.isclose(joint[day], law.log_prob(returns[day, here]))
        own = -0.5 * ((returns[day] - model.mean) / model.volatility) ** 2
        expected = own - (model.volatility * math.sqrt(2 * math.pi)).log()
        assert torch.allclose(density[day, here], expected[here])
    assert float(joint[303:].mean()) > float(density[303:].sum(-1).mean())


def test_gaussian_parameters_are_those_of_the_training_days(models, paths, history):
    model = models["GBM"]
    assert isinstance(model, GeometricBrownianMotion)
    encoded = encode_bars(history.ohlcv)
    own = returns_of(encoded.moves[0])[encoded.valid[0][:, 2], 2]
    assert torch.isclose(model.mean[2], own.mean()) and torch.isclose(model.volatility[2], own.std(correction=0))
    generated = returns_of(moves_of(history, paths["GBM"]))
    assert torch.allclose(generated.std((0, 1)), model.volatility, rtol=0.03)
    assert torch.allclose(generated.mean((0, 1)), model.mean, atol=0.03 * float(model.volatility.max()))


def test_correlation_of_ragged_and_of_few_days_is_positive_definite():
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(2000, 1, generator=generator, dtype=torch.float64)
    returns = 0.6 * factor + 0.8 * torch.randn(2000, 3, generator=generator, dtype=torch.float64)
    valid = torch.ones(2000, 3, dtype=torch.bool)
    valid[:1500, 2] = False
    correlation = pairwise_correlation(returns * valid, valid)
    assert torch.allclose(correlation, torch.full((3, 3), 0.36, dtype=torch.float64).fill_diagonal_(1.0), atol=0.08)
    few = torch.randn(10, 30, generator=generator, dtype=torch.float64)
    repaired = pairwise_correlation(few, torch.ones(10, 30, dtype=torch.bool))
    assert torch.allclose(repaired.diagonal(), torch.ones(30, dtype=torch.float64))
    assert float(torch.linalg.eigvalsh(repaired)[0]) > 0.005
    never = torch.tensor([[True, False], [False, True]]).repeat(5, 1)
    assert torch.allclose(pairwise_correlation(few[:, :2] * never, never), torch.eye(2, dtype=torch.float64))


def drawn_rows(model: Baseline, history: Bars, num_paths: int, num_days: int) -> Tensor:
    """Find the training day of each generated one by its wicks, which are drawn as they are. Shape: (P, T)."""
    training = encode_bars(history.ohlcv)
    wicks = training.moves[0, ..., Move.UPPER : Move.LOWER + 1].flatten(1)
    drawn = moves_of(history, model.generate(history, num_paths, num_days))[..., Move.UPPER : Move.LOWER + 1].flatten(2)
    distance, row = (drawn[:, :, None] - wicks).abs().amax(-1).min(-1)
    assert float(distance.max()) < 1e-9
    return row


@pytest.mark.assembly
def test_the_bootstrap_repeats_whole_days_in_blocks_of_geometric_length():
    history = synthetic_bars(1, 300, 3, seed=11)
    row = drawn_rows(StationaryBootstrap.fit(history, mean_block=5), history, 100, 100)
    assert int(row.min()) >= 1
    assert len(row.unique()) == 299 and len(row[:, 0].unique()) > 60
    # Row 0 has no move: after the last row comes row 1.
    consecutive = row[:, 1:] == row[:, :-1] % 299 + 1
    assert abs(float(consecutive.double().mean()) - 0.8) < 0.02
    assert bool(consecutive[row[:, :-1] == 299].any())


def test_the_recent_bootstrap_draws_from_the_end_of_the_history_given():
    history = synthetic_bars(1, 400, 3, seed=12)
    model = StationaryBootstrap.fit(history, last_days=100)
    assert int(drawn_rows(model, history, 50, 50).min()) >= 300
    shorter = replace(history, ohlcv=history.ohlcv[:, :300], dates=history.dates[:300])
    row = drawn_rows(model, shorter, 50, 50)
    assert int(row.min()) >= 200 and len(row.unique()) == 100


def test_a_day_without_a_bar_repeats_the_days_before_it():
    """A run of L days takes the L days before it, in order; before the first day come the last days."""
    bars = synthetic_bars(1, 300, 2, seed=13)
    ohlcv = bars.ohlcv.clone()
    ohlcv[0, 100:103, 0] = ohlcv[0, :5, 0] = NAN
    days = TrainingDays.from_bars(replace(bars, ohlcv=ohlcv))
    # The row of day d is d - 1. Symbol 0 has its first move on day 6, the last on day 299.
    source = days.source + 1
    assert source[99:102, 0].tolist() == [97, 98, 99]
    assert source[:5, 0].tolist() == [295, 296, 297, 298, 299]
    assert torch.equal(days.source[:, 1], torch.arange(299))
    own = days.valid[:, 0]
    assert torch.equal(days.source[own, 0], torch.arange(299)[own]) and bool(own[days.source[:, 0]].all())
    filled = days.filled(days.moves)
    assert torch.equal(filled[99:102, 0], days.moves[96:99, 0])
    assert torch.allclose(days.moves[own, 0, Move.VOLUME].mean(), torch.zeros((), dtype=torch.float64), atol=1e-12)


def test_the_bootstrap_says_that_it_has_no_density(models, history):
    assert [models[name].has_density for name in NAMES] == [True, False, False, True, True]
    with pytest.raises(NotImplementedError, match="no density"):
        models["bootstrap"].log_density(history)


@pytest.mark.parametrize("name", NAMES)
def test_days_drawn_after_several_days_are_those_after_each(models, history, name):
    """Bit for bit, also after the last day; later days are not seen."""
    days, seeds = [299, 350, 399], [7, 8, 9]
    drawn = list(models[name].generate_after(history, days, 3, 4, seeds))
    assert len(drawn) == 3
    for day, seed, bars in zip(days, seeds, drawn, strict=True):
        assert torch.equal(bars, models[name].generate(history.days(0, day + 1), 3, 4, seed))


@pytest.mark.parametrize("name", NAMES)
def test_bad_requests(models, history, name):
    model = models[name]
    stranger = replace(history, symbols=("XYZ", *history.symbols[1:]))
    with pytest.raises(ValueError, match="unknown symbols: XYZ; the model knows SYN00, SYN01"):
        model.generate(stranger, 1, 1)
    ended = history.ohlcv.clone()
    ended[0, -1, 3] = NAN
    with pytest.raises(ValueError, match=rf"no bar on {history.dates[-1]}: SYN03"):
        model.generate(replace(history, ohlcv=ended), 1, 1)
    with pytest.raises(ValueError, match="one path, got 2"):
        model.generate(replace(history, ohlcv=history.ohlcv.expand(2, -1, -1, -1)), 1, 1)
    with pytest.raises(ValueError, match="at least 1, got 0 and 5"):
        model.generate(history, 0, 5)
    with pytest.raises(ValueError, match="seed"):
        model.generate(history, 1, 1, seed=-1)
    if model.has_density:
        with pytest.raises(ValueError, match="unknown symbols: XYZ"):
            model.log_density(stranger)


@pytest.mark.assembly
def test_histories_that_are_too_short(models, history):
    short = history.ohlcv.clone()
    short[0, :200, 4] = NAN
    for model in (GeometricBrownianMotion, StationaryBootstrap, GarchT, FilteredHistoricalSimulation):
        with pytest.raises(ValueError, match=r"too few daily returns, 250 are needed: SYN04 has 199"):
            model.fit(replace(history, ohlcv=short))
    frozen = history.ohlcv.clone()
    frozen[0, :, 1] = 10.0
    with pytest.raises(ValueError, match="the close never changes: SYN01"):
        GarchT.fit(replace(history, ohlcv=frozen))
    recent = replace(history, ohlcv=history.ohlcv[:, -60:], dates=history.dates[-60:])
    with pytest.raises(ValueError, match="59 daily returns, 250 are needed"):
        models["bootstrap, last 250 days"].generate(recent, 1, 1)
    for settings, message in ({"mean_block": 0.5}, "mean_block"), ({"last_days": 0}, "last_days"):
        with pytest.raises(ValueError, match=message):
            StationaryBootstrap.fit(history, **settings)


@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
@pytest.mark.filterwarnings("ignore::vecenv.market.validation.MarketDataWarning")
@pytest.mark.assembly
def test_on_nse_stocks_garch_beats_brownian_motion():
    path = Path(os.environ["VECENV_DATA"]) / "india_nifty109.parquet"
    training, whole = (read_bars(path, end=end) for end in ("2021-12-31", "2024-12-31"))
    test = torch.from_numpy(whole.dates >= np.datetime64("2023-01-01"))
    models = [kind.fit(training) for kind in (GeometricBrownianMotion, StationaryBootstrap, GarchT)]
    assert all(bool(model.generate(training, 2, 20).isfinite().all()) for model in models)
    nll = {}
    for model in models:
        if model.has_density:
            density = model.log_density(whole)[test]
            assert float(density.isfinite().double().mean()) > 0.999
            nll[model.name] = -float(density[density.isfinite()].mean())
    assert -2.8 < nll["GARCH-t"] < nll["GBM"] - 0.1
