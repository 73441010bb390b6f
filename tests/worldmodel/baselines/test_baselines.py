"""Baselines: what all keep to, geometric Brownian motion, the stationary bootstrap, and both kinds of GARCH."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from tests.worldmodel.neural_market import assert_valid_bars
from vecenv.core.random import episode_key
from vecenv.market.bars import HIGH, LOW, VOLUME, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.baselines import garch
from vecenv.worldmodel.baselines.garch import FilteredHistoricalSimulation, GarchParameters, GarchT, filter_variance
from vecenv.worldmodel.baselines.resampled import GeometricBrownianMotion, StationaryBootstrap, pairwise_correlation
from vecenv.worldmodel.data.bar_moves import Move, encode_bars
from vecenv.worldmodel.data.training_days import TrainingDays

NAN = float("nan")
NAMES = ["GBM", "bootstrap", "bootstrap, last 250 days", "GARCH-t", "FHS"]
SOME = [3, 0]


@pytest.fixture(scope="module")
def history() -> Bars:
    """Bars of more symbols than moves, with holes and one listed late, whose volume grows by a half percent a day."""
    bars = synthetic_bars(1, 400, 6, seed=8, regime="bear")
    bars.ohlcv[..., VOLUME] *= torch.arange(400)[:, None].mul(0.005).exp()
    bars.ohlcv[0, 100, 0] = bars.ohlcv[0, 300:303, 1] = bars.ohlcv[0, :40, 2] = NAN
    return bars


@pytest.fixture(scope="module")
def part(history) -> Bars:
    return replace(history, symbols=tuple(history.symbols[k] for k in SOME), ohlcv=history.ohlcv[:, :, SOME])


@pytest.fixture(scope="module")
def models(history) -> dict:
    plain, normal = GarchT.fit(history), GeometricBrownianMotion.fit(history)
    bootstraps = [StationaryBootstrap.fit(history, last_days=days) for days in (None, 250)]
    simulation = FilteredHistoricalSimulation(history.symbols, plain.parameters, TrainingDays.from_bars(history))
    return dict(zip(NAMES, [normal, *bootstraps, plain, simulation], strict=True))


def moves_of(history: Bars, generated: Tensor) -> Tensor:
    """Encode generated bars, with volumes from the level of the last bar before them. Shape: (P, T, K, 5)."""
    whole = torch.cat([history.ohlcv[:, -1:].expand(len(generated), -1, -1, -1), generated], dim=1)
    return encode_bars(whole).moves[:, 1:]


def returns_of(moves: Tensor) -> Tensor:
    return moves[..., Move.GAP] + moves[..., Move.BODY]


@pytest.mark.parametrize("name", NAMES)
def test_paths_depend_on_number_seed_and_history_alone(models, history, part, name):
    model = models[name]
    assert model.name == name
    few, many = model.generate(history, 2, 6, seed=4), model.generate(history, 9, 25, seed=4)
    # The product with the correlation's root may round by the number of paths.
    assert torch.allclose(few, many[:2, :6], rtol=1e-11 if name == "GBM" else 0.0, atol=0.0)
    other = model.generate(history, 2, 6, seed=4 + (1 << 40))
    assert not bool((few[0] == few[1]).any()) and not bool((few == other).all(-1).any())
    if name in ("bootstrap", "FHS"):
        assert torch.equal(model.generate(part, 2, 6, seed=4), few[:, :, SOME])
    drawn = model.generate_after(history, [299, 399], 3, 4, [7, 9])
    for day, seed, bars in zip([299, 399], [7, 9], drawn, strict=True):
        assert torch.equal(bars, model.generate(history.days(0, day + 1), 3, 4, seed))


@pytest.mark.parametrize("name", NAMES)
def test_days_are_valid_and_as_large_as_in_training(models, history, name):
    bars, encoded = models[name].generate(history, 60, 200, seed=5), encode_bars(history.ohlcv)
    assert bars.shape == (60, 200, 6, 5) and bool((bars[..., HIGH] > bars[..., LOW]).double().mean() > 0.99)
    assert_valid_bars(bars)
    distance = bars[..., VOLUME].log() - encoded.last.volume_level
    first, last = distance[:, 85:100].mean(1), distance[:, 185:].mean(1)
    assert float(last.mean().abs()) < 0.1 and float(last.std()) < 1.25 * float(first.std())
    days, drawn = encoded.moves[0][encoded.valid[0].all(-1)], moves_of(history, bars).flatten(0, 1)
    days = days[-250:] if name.endswith("250 days") else days
    sizes = [(returns_of(moves).std(0), moves[..., :2].std(0), moves[..., 2:4].mean(0)) for moves in (drawn, days)]
    assert all(0.8 < float((one / other).mean()) < 1.2 for one, other in zip(*sizes, strict=True))


def test_gaussian_parameters_densities_and_correlations(models, history, part):
    model, encoded = models["GBM"], encode_bars(history.ohlcv)
    returns, valid = returns_of(encoded.moves[0]), encoded.valid[0]
    own = returns[valid[:, 2], 2]
    assert torch.isclose(model.mean[2], own.mean()) and torch.isclose(model.volatility[2], own.std(correction=0))
    density, joint = model.log_density(history), model.joint_log_density(history)
    assert torch.equal(density.isfinite(), valid) and torch.equal(joint.isfinite(), valid.any(-1))
    assert torch.allclose(model.log_density(part), density[:, SOME], equal_nan=True)
    covariance = model.correlation * model.volatility * model.volatility.unsqueeze(-1)
    for day in (1, 100, 303, 399):
        here = valid[day]
        law = MultivariateNormal(model.mean[here], covariance[here][:, here])
        assert torch.isclose(joint[day], law.log_prob(returns[day, here]))
        expected = Normal(model.mean, model.volatility).log_prob(returns[day])
        assert torch.allclose(density[day, here], expected[here])
    drawn = returns_of(moves_of(history, model.generate(history, 300, 40, seed=1))).flatten(0, 1)
    assert torch.allclose(drawn.mean(0), model.mean, atol=0.04 * float(model.volatility.max()))
    assert torch.allclose(drawn.T.cov(), covariance, rtol=0.1, atol=0.03 * float(covariance.max()))
    generator = torch.Generator().manual_seed(0)
    returns = torch.randn(2000, 3, generator=generator, dtype=torch.float64) @ torch.ones(3, 3).double().triu()
    valid = torch.ones(2000, 3, dtype=torch.bool)
    valid[:1500, 2] = False
    late = returns[1500:, [0, 2]]
    expected = late.prod(-1).sum() / late.square().sum(0).prod().sqrt()
    assert torch.isclose(pairwise_correlation(returns * valid, valid)[0, 2], expected)
    few = torch.randn(10, 30, generator=generator, dtype=torch.float64)
    repaired = pairwise_correlation(few, torch.ones(10, 30, dtype=torch.bool))
    assert float(torch.linalg.eigvalsh(repaired)[0]) > 0.005
    never = torch.tensor([[True, False], [False, True]]).repeat(5, 1)
    assert torch.allclose(pairwise_correlation(few[:, :2] * never, never), torch.eye(2, dtype=torch.float64))


def drawn_rows(model, history: Bars, num_paths: int, num_days: int) -> Tensor:
    wicks = encode_bars(history.ohlcv).moves[0, ..., Move.UPPER : Move.LOWER + 1].flatten(1)
    drawn = moves_of(history, model.generate(history, num_paths, num_days))[..., Move.UPPER : Move.LOWER + 1].flatten(2)
    distance, row = (drawn[:, :, None] - wicks).abs().amax(-1).min(-1)
    assert float(distance.max()) < 1e-9
    return row


def test_the_bootstrap_repeats_whole_days_in_blocks_of_geometric_length():
    history = synthetic_bars(1, 300, 3, seed=11)
    row = drawn_rows(StationaryBootstrap.fit(history, mean_block=5), history, 60, 60)
    # Row 0 has no move: after the last row comes row 1.
    consecutive = row[:, 1:] == row[:, :-1] % 299 + 1
    assert int(row.min()) >= 1 and len(row.unique()) > 290 and len(row[:, 0].unique()) > 40
    assert float(consecutive.double().mean()) == pytest.approx(0.8, abs=0.03)
    assert bool(consecutive[row[:, :-1] == 299].any())
    assert StationaryBootstrap.fit(history).mean_block == 20
    # Of the last days, those at the end of the history given.
    row = drawn_rows(StationaryBootstrap.fit(history, last_days=100), history.days(0, 280), 30, 50)
    assert int(row.min()) >= 180 and len(row.unique()) == 100
    bars = synthetic_bars(1, 300, 2, seed=13)
    bars.ohlcv[0, 100:103, 0] = bars.ohlcv[0, :5, 0] = NAN
    days = TrainingDays.from_bars(bars)
    # The row of day d is d - 1. Symbol 0 has its first move on day 6, the last on day 299.
    source = days.source + 1
    assert source[99:102, 0].tolist() == [97, 98, 99]
    assert source[:5, 0].tolist() == [295, 296, 297, 298, 299]
    assert torch.equal(days.source[:, 1], torch.arange(299))
    own = days.valid[:, 0]
    assert torch.equal(days.source[own, 0], torch.arange(299)[own]) and bool(own[days.source[:, 0]].all())
    assert torch.equal(days.filled(days.moves)[99:102, 0], days.moves[96:99, 0])
    assert torch.allclose(days.moves[own, 0, Move.VOLUME].mean(), torch.zeros((), dtype=torch.float64), atol=1e-12)


def test_bad_requests_are_named(models, history):
    model, stranger = models["bootstrap"], replace(history, symbols=("XYZ", *history.symbols[1:]))
    ended, short, frozen = (replace(history, ohlcv=history.ohlcv.clone()) for _ in range(3))
    ended.ohlcv[0, -1, 3] = short.ohlcv[0, :150, 4] = NAN
    frozen.ohlcv[0, :, 1] = 10.0
    for bars, paths, days, seed, told in (
        (stranger, 1, 1, 0, "unknown symbols: XYZ; the model knows SYN00, SYN01"),
        (ended, 1, 1, 0, rf"no bar on {history.dates[-1]}: SYN03"),
        (replace(history, ohlcv=history.ohlcv.expand(2, -1, -1, -1)), 1, 1, 0, "one path, got 2"),
        (history, 0, 5, 0, "at least 1, got 0 and 5"),
        (history, 5, 0, 0, "at least 1, got 5 and 0"),
        (history, 1, 1, -1, "seed"),
    ):
        with pytest.raises(ValueError, match=told):
            model.generate(bars, paths, days, seed)
    assert [models[name].has_density for name in NAMES] == [True, False, False, True, True]
    for name in ("GBM", "GARCH-t", "FHS"):
        with pytest.raises(ValueError, match="unknown symbols: XYZ"):
            models[name].log_density(stranger)
    with pytest.raises(NotImplementedError, match="no density"):
        model.log_density(history)
    for kind in (GeometricBrownianMotion, StationaryBootstrap, GarchT):
        with pytest.raises(ValueError, match=r"too few daily returns, 250 are needed: SYN04 has 249"):
            kind.fit(short)
    short.ohlcv[0, 148, 4] = history.ohlcv[0, 148, 4]
    assert StationaryBootstrap.fit(short, mean_block=1, last_days=1).symbols == history.symbols
    with pytest.raises(ValueError, match="249 daily returns, 250 are needed"):
        models["bootstrap, last 250 days"].generate(history.days(150, 400), 1, 1)
    for told, bars, more in (
        ("the close never changes: SYN01", frozen, {}),
        ("mean_block", history, {"mean_block": 0.5}),
        ("last_days", history, {"last_days": 0}),
    ):
        with pytest.raises(ValueError, match=told):
            StationaryBootstrap.fit(bars, **more)


# Far from what a fit starts from.
TRUTH = GarchParameters(
    mean=torch.tensor([1e-3, 0.0, 5e-4, 0.0], dtype=torch.float64),
    omega=torch.tensor([8e-6, 2e-5, 4e-6, 3e-5], dtype=torch.float64),
    alpha=torch.tensor([0.30, 0.15, 0.02, 0.20], dtype=torch.float64),
    beta=torch.tensor([0.30, 0.80, 0.97, 0.20], dtype=torch.float64),
    freedom=torch.tensor([15.0, 3.0, 8.0, 30.0], dtype=torch.float64),
)


def simulate(num_days: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns by the textbook's loop with NumPy's Student-t numbers, and which of them count. Shape: (T, K)."""
    mean, omega, alpha, beta, freedom = (part.numpy() for part in TRUTH)
    rng = np.random.default_rng(seed)
    shocks = rng.standard_t(freedom, (num_days, len(mean))) * np.sqrt((freedom - 2) / freedom)
    variance, returns = omega / (1 - alpha - beta), np.empty_like(shocks)
    for day in range(num_days):
        returns[day] = mean + np.sqrt(variance) * shocks[day]
        variance = omega + alpha * (returns[day] - mean) ** 2 + beta * variance
    return torch.from_numpy(returns), torch.from_numpy(rng.random(returns.shape) > 0.1)


def test_filter_density_and_fit_by_their_definitions():
    returns, valid = simulate(101, seed=3)
    density = garch.garch_log_density(TRUTH, torch.where(valid, returns, 0.0), valid)
    filtered = filter_variance(TRUTH, torch.where(valid, returns, 0.0), valid)
    for symbol in range(4):
        mean, omega, alpha, beta, freedom = (float(part[symbol]) for part in TRUTH)
        variance, unit = omega / (1 - alpha - beta), math.sqrt((freedom - 2) / freedom)
        for day in range(101):
            assert float(filtered[day, symbol]) == pytest.approx(variance, rel=1e-12)
            if valid[day, symbol]:
                value = float(returns[day, symbol])
                law = stats.t(freedom, loc=mean, scale=unit * math.sqrt(variance))
                assert float(density[day, symbol]) == pytest.approx(law.logpdf(value), rel=1e-10)
                variance = omega + alpha * (value - mean) ** 2 + beta * variance
        assert float(filtered[101, symbol]) == pytest.approx(variance, rel=1e-12)
    # A change of any fitted parameter, at the sample's variance, raises no symbol's log-likelihood.
    returns, valid = simulate(1500, seed=2)
    fitted = garch.fit_garch(returns, valid)
    deviation = fitted.long_run_variance().sqrt()
    sample = [float(returns[valid[:, symbol], symbol].std(correction=0)) for symbol in range(4)]
    assert deviation.tolist() == pytest.approx(sample)

    def total(mean=0.0, alpha=1.0, left=1.0, freedom=1.0):
        # What is left below a sum of one is scaled, which keeps the sum of alpha and beta below it.
        alpha, left = alpha * fitted.alpha, left * (1 - fitted.alpha - fitted.beta)
        law = deviation.square() * left, alpha, 1 - left - alpha, 2 + freedom * (fitted.freedom - 2)
        changed = GarchParameters(fitted.mean + mean * deviation, *law)
        return torch.where(valid, garch.garch_log_density(changed, returns, valid), 0.0).sum(0)

    for factor in (0.8, 0.93, 1.07, 1.25):
        for change in ({"alpha": factor}, {"left": factor}, {"freedom": factor}, {"mean": 0.4 * (factor - 1)}):
            assert bool((total(**change) < total() + garch.FIT_TOLERANCE).all()), change


def test_densities_residuals_and_shapes(models, history):
    simulation, plain, encoded = models["FHS"], models["GARCH-t"], encode_bars(history.ohlcv)
    density, moves, valid = plain.log_density(history), encoded.moves[0], encoded.valid[0]
    expected = garch.garch_log_density(simulation.parameters, returns_of(moves), valid)
    assert torch.equal(density.nan_to_num(7.0), expected.where(valid, 7.0)) and torch.equal(density.isfinite(), valid)
    assert torch.allclose(plain.joint_log_density(history)[50:], density[50:].nan_to_num(0.0).sum(-1))
    assert torch.equal(simulation.log_density(history).nan_to_num(0.0), density.nan_to_num(0.0))
    assert simulation.has_density and not simulation.has_joint_density
    with pytest.raises(NotImplementedError, match="no joint density"):
        simulation.joint_log_density(history)
    moves, valid = moves[1:], valid[1:]
    returns = returns_of(moves)
    volatility = filter_variance(simulation.parameters, returns, valid)[:-1].sqrt()
    residuals = torch.where(valid, (returns - simulation.parameters.mean) / volatility, 0.0)
    residuals /= (residuals.square().sum(0) / valid.sum(0)).sqrt()
    share = (moves[..., Move.GAP] * returns).sum(0) / returns.square().sum(0)
    rest, upper = (moves[..., Move.GAP] - share * returns) / volatility, moves[..., Move.UPPER] / volatility
    assert torch.allclose(simulation.residuals[valid], residuals[valid], rtol=1e-9)
    assert torch.allclose(simulation.shapes.table[valid][:, 0], rest[valid], rtol=1e-9)
    assert torch.allclose(simulation.shapes.table[valid][:, 1], upper[valid], rtol=1e-9)


@pytest.mark.parametrize("name", ["GARCH-t", "FHS"])
def test_days_are_drawn_by_the_recursion(models, history, part, name):
    model, encoded, columns = models[name], encode_bars(history.ohlcv), torch.tensor(SOME)
    key = episode_key(3, torch.arange(5)[:, None], 0)
    returns, valid = returns_of(encoded.moves[0]), encoded.valid[0]
    variance = filter_variance(model.parameters, returns, valid)[-1][columns]
    mean, omega, alpha, beta, _ = (number[columns] for number in model.parameters)
    for day, drawn in enumerate(islice(model.draw(part, encode_bars(part.ohlcv), key), 4)):
        innovation, row = model.innovations(key, day, columns)
        expected = mean + variance.sqrt() * innovation
        rest, upper, lower, volume = model.shapes.table[row, columns].unbind(-1)
        gap = model.shapes.gap_share[columns] * expected + variance.sqrt() * rest
        parts = [gap, expected - gap, variance.sqrt() * upper, variance.sqrt() * lower, volume]
        assert torch.allclose(drawn, torch.stack(parts, dim=-1), rtol=1e-9, atol=1e-12)
        variance = omega + alpha * (expected - mean).square() + beta * variance
        assert name == "GARCH-t" or torch.equal(innovation, model.residuals[row, columns])
