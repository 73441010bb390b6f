"""GARCH-t: fit, filter, density, and what its two models generate."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from vecenv.core.random import episode_key
from vecenv.market.bars import Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.baselines.garch import (
    FIT_TOLERANCE,
    FilteredHistoricalSimulation,
    GarchParameters,
    GarchT,
    filter_variance,
    fit_garch,
    garch_log_density,
)
from vecenv.worldmodel.data.bar_moves import Move, encode_bars
from vecenv.worldmodel.data.training_days import TrainingDays

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


@pytest.fixture(scope="module")
def history() -> Bars:
    """Bars with two holes, a symbol listed late, and a market factor."""
    bars = synthetic_bars(1, 400, 4, seed=5, regime="bear")
    ohlcv = bars.ohlcv.clone()
    ohlcv[0, 100, 0] = ohlcv[0, 300:303, 1] = ohlcv[0, :40, 2] = float("nan")
    return replace(bars, ohlcv=ohlcv)


@pytest.fixture(scope="module")
def simulation(history) -> FilteredHistoricalSimulation:
    return FilteredHistoricalSimulation.fit(history)


def test_the_filter_and_the_density_equal_the_definition_day_by_day():
    """The variance starts from the long run's, and a day without a return leaves it as it is."""
    returns, valid = simulate(101, seed=3)
    density = garch_log_density(TRUTH, torch.where(valid, returns, 0.0), valid)
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


def test_no_other_parameters_are_more_likely():
    """A change of any fitted parameter, at the sample's variance, raises no symbol's log-likelihood."""
    returns, valid = simulate(1500, seed=2)
    fitted = fit_garch(returns, valid)
    deviation = fitted.long_run_variance().sqrt()
    sample = [float(returns[valid[:, symbol], symbol].std(correction=0)) for symbol in range(4)]
    assert deviation.tolist() == pytest.approx(sample)

    def total(alpha: float = 1.0, persistence: float = 1.0, freedom: float = 1.0, mean: float = 0.0) -> Tensor:
        # The distance from one is scaled, which keeps the sum of alpha and beta below it.
        both = 1 - (1 - fitted.alpha - fitted.beta) * persistence
        changed = GarchParameters(
            fitted.mean + mean * deviation,
            deviation.square() * (1 - both),
            fitted.alpha * alpha,
            both - fitted.alpha * alpha,
            2 + (fitted.freedom - 2) * freedom,
        )
        return torch.where(valid, garch_log_density(changed, returns, valid), 0.0).sum(0)

    best = total()
    for factor in (0.8, 0.93, 1.07, 1.25):
        for change in ({"alpha": factor}, {"persistence": factor}, {"freedom": factor}, {"mean": 0.4 * (factor - 1)}):
            assert bool((total(**change) < best + FIT_TOLERANCE).all()), change


def test_densities_of_models(simulation, history):
    garch = GarchT(history.symbols, simulation.parameters, TrainingDays.from_bars(history))
    density = garch.log_density(history)
    moves, valid = encode_bars(history.ohlcv).moves[0], encode_bars(history.ohlcv).valid[0]
    expected = garch_log_density(simulation.parameters, moves[..., Move.GAP] + moves[..., Move.BODY], valid)
    assert torch.equal(density.nan_to_num(7.0), expected.where(valid, 7.0)) and torch.equal(density.isfinite(), valid)
    assert torch.allclose(garch.joint_log_density(history)[50:], density[50:].nan_to_num(0.0).sum(-1))
    assert torch.equal(simulation.log_density(history).nan_to_num(0.0), density.nan_to_num(0.0))
    assert simulation.has_density and not simulation.has_joint_density
    with pytest.raises(NotImplementedError, match="no joint density"):
        simulation.joint_log_density(history)


@pytest.mark.parametrize("kind", [GarchT, FilteredHistoricalSimulation])
def test_days_are_drawn_by_the_recursion(kind, simulation, history):
    """Returns by the filter's volatility, which goes on from the history's end; gap and wicks of a training day."""
    model = kind(history.symbols, simulation.parameters, TrainingDays.from_bars(history))
    encoded, columns, key = (
        encode_bars(history.ohlcv),
        torch.tensor([2, 0]),
        episode_key(3, torch.arange(5)[:, None], 0),
    )
    some = replace(history, symbols=(history.symbols[2], history.symbols[0]), ohlcv=history.ohlcv[:, :, columns])
    moves, valid = encoded.moves[0], encoded.valid[0]
    variance = filter_variance(model.parameters, moves[..., 0] + moves[..., 1], valid)[-1][columns]
    mean, omega, alpha, beta, _ = (part[columns] for part in model.parameters)
    for day, drawn in enumerate(islice(model.draw(some, encode_bars(some.ohlcv), key), 4)):
        innovation, row = model.innovations(key, day, columns)
        expected = mean + variance.sqrt() * innovation
        rest, upper, lower, volume = model.shapes.table[row, columns].unbind(-1)
        gap = model.shapes.gap_share[columns] * expected + variance.sqrt() * rest
        parts = [gap, expected - gap, variance.sqrt() * upper, variance.sqrt() * lower, volume]
        assert torch.allclose(drawn, torch.stack(parts, dim=-1), rtol=1e-9, atol=1e-12)
        variance = omega + alpha * (expected - mean).square() + beta * variance
        assert kind is GarchT or torch.equal(innovation, model.residuals[row, columns])


def test_residuals_and_shapes_of_training_days(simulation, history):
    """Residuals of unit root mean square; what gaps do not share with returns, and wicks, by the day's volatility."""
    encoded = encode_bars(history.ohlcv)
    moves, valid = encoded.moves[0, 1:], encoded.valid[0, 1:]
    returns = moves[..., 0] + moves[..., 1]
    volatility = filter_variance(simulation.parameters, returns, valid)[:-1].sqrt()
    residuals = torch.where(valid, (returns - simulation.parameters.mean) / volatility, 0.0)
    residuals /= (residuals.square().sum(0) / valid.sum(0)).sqrt()
    share = (moves[..., Move.GAP] * returns).sum(0) / returns.square().sum(0)
    rest = (moves[..., Move.GAP] - share * returns) / volatility
    for found, expected in ((simulation.residuals, residuals), (simulation.shapes.table[..., 0], rest),
                            (simulation.shapes.table[..., 1], moves[..., Move.UPPER] / volatility)):  # fmt: skip
        assert torch.allclose(found[valid], expected[valid], rtol=1e-9)
