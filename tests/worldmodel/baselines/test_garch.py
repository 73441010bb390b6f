"""GARCH-t: fit, filter, density, and what its two models generate."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from vecenv.core.random import episode_key, open_uniform, random_bits, student_t
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.baselines.garch import (
    FIT_TOLERANCE,
    FilteredHistoricalSimulation,
    GarchParameters,
    GarchT,
    filter_variance,
    fit_garch,
    garch_log_density,
    student_t_log_density,
)
from vecenv.worldmodel.data.bar_moves import Move, encode_bars

TRUTH = GarchParameters(
    mean=torch.tensor([1e-3, 0.0, 5e-4, 0.0], dtype=torch.float64),
    omega=torch.tensor([8e-6, 2e-5, 4e-6, 3e-5], dtype=torch.float64),
    alpha=torch.tensor([0.08, 0.15, 0.05, 0.20], dtype=torch.float64),
    beta=torch.tensor([0.90, 0.80, 0.93, 0.75], dtype=torch.float64),
    freedom=torch.tensor([5.0, 4.0, 8.0, 6.0], dtype=torch.float64),
)


def simulate(parameters: GarchParameters, num_days: int, seed: int) -> Tensor:
    """Simulate returns by the textbook's loop with NumPy's own Student-t numbers. Shape: (T, K)."""
    mean, omega, alpha, beta, freedom = (part.numpy() for part in parameters)
    rng = np.random.default_rng(seed)
    shocks = rng.standard_t(freedom, (num_days, len(mean))) * np.sqrt((freedom - 2) / freedom)
    variance, returns = omega / (1 - alpha - beta), np.empty_like(shocks)
    for day in range(num_days):
        returns[day] = mean + np.sqrt(variance) * shocks[day]
        variance = omega + alpha * (returns[day] - mean) ** 2 + beta * variance
    return torch.from_numpy(returns)


def plain_log_density(parameters: GarchParameters, returns: Tensor, valid: Tensor) -> Tensor:
    """The definition day by day in Python numbers; NaN where there is no return."""
    density = torch.full_like(returns, float("nan"))
    for symbol in range(returns.shape[1]):
        mean, omega, alpha, beta, freedom = (float(part[symbol]) for part in parameters)
        variance = omega / (1 - alpha - beta)
        for day in range(len(returns)):
            if not valid[day, symbol]:
                continue
            error = float(returns[day, symbol]) - mean
            constant = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
            constant -= 0.5 * math.log(math.pi * (freedom - 2) * variance)
            density[day, symbol] = constant - (freedom + 1) / 2 * math.log(1 + error**2 / variance / (freedom - 2))
            variance = omega + alpha * error**2 + beta * variance
    return density


def bars_of(seed: int = 5, num_days: int = 600, symbols: int = 6) -> Bars:
    """Bars with two holes, a symbol listed late, and a market factor."""
    bars = synthetic_bars(1, num_days, symbols, seed=seed, regime="bear")
    ohlcv = bars.ohlcv.clone()
    ohlcv[0, 100, 0] = ohlcv[0, 300:303, 1] = ohlcv[0, :40, 2] = float("nan")
    return replace(bars, ohlcv=ohlcv)


@pytest.fixture(scope="module")
def history() -> Bars:
    return bars_of()


@pytest.fixture(scope="module")
def garch(history) -> GarchT:
    return GarchT.fit(history)


@pytest.fixture(scope="module")
def simulation(history) -> FilteredHistoricalSimulation:
    return FilteredHistoricalSimulation.fit(history)


def correlations(returns: Tensor) -> Tensor:
    """Correlations of pairs of columns. Shapes: (..., K) -> (K (K - 1) / 2,)."""
    matrix = torch.corrcoef(returns.reshape(-1, returns.shape[-1]).T)
    return matrix[torch.triu_indices(*matrix.shape, offset=1).unbind()]


def returns_of(ohlcv: Tensor) -> Tensor:
    return ohlcv[..., CLOSE].log().diff(dim=-2)


def test_the_parameters_behind_simulated_returns_are_found():
    returns = simulate(TRUTH, 8000, seed=4)
    fitted = fit_garch(returns, torch.ones_like(returns, dtype=torch.bool))
    assert torch.allclose(fitted.alpha, TRUTH.alpha, atol=0.025)
    assert torch.allclose(fitted.beta, TRUTH.beta, atol=0.04)
    assert torch.allclose(fitted.freedom, TRUTH.freedom, rtol=0.2)
    assert torch.allclose(fitted.long_run_variance().sqrt(), TRUTH.long_run_variance().sqrt(), rtol=0.15)
    assert float(((fitted.mean - TRUTH.mean) / TRUTH.long_run_variance().sqrt()).abs().max()) < 0.03
    assert bool((fitted.alpha + fitted.beta < 1).all()) and bool((fitted.freedom > 2).all())


def test_no_other_parameters_are_more_likely():
    """A change of any fitted parameter, at the same long-run variance, raises no symbol's log-likelihood."""
    # Far from what a fit starts from.
    values = torch.tensor([[0.3, 0.15, 0.02, 0.2], [0.3, 0.8, 0.97, 0.2], [15.0, 3.0, 8.0, 30.0]], dtype=torch.float64)
    returns = simulate(TRUTH._replace(alpha=values[0], beta=values[1], freedom=values[2]), 1500, seed=2)
    valid = torch.rand(returns.shape, generator=torch.Generator().manual_seed(0)) > 0.1
    fitted = fit_garch(returns, valid)
    deviation = fitted.long_run_variance().sqrt()

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


def test_the_density_equals_the_definition_day_by_day():
    returns = simulate(TRUTH, 101, seed=3)
    valid = torch.rand(returns.shape, generator=torch.Generator().manual_seed(1)) > 0.2
    expected = plain_log_density(TRUTH, returns, valid)
    density = garch_log_density(TRUTH, torch.where(valid, returns, 0.0), valid)
    assert torch.allclose(density[valid], expected[valid], rtol=1e-12)


def test_the_density_integrates_to_one():
    grid = torch.linspace(-400, 400, 400001, dtype=torch.float64)[:, None].expand(-1, 2)
    density = student_t_log_density(grid, torch.tensor([3.0, 7.0], dtype=torch.float64)).exp()
    mass = torch.trapezoid(density, grid, dim=0)
    spread = torch.trapezoid(density * grid.square(), grid, dim=0)
    assert torch.allclose(mass, torch.ones(2, dtype=torch.float64), atol=1e-6)
    # With three degrees of freedom the tails beyond 400 still hold a little of the variance.
    assert abs(float(spread[1]) - 1) < 1e-6 and abs(float(spread[0]) - 1) < 0.01


def test_the_model_s_density_of_a_return_integrates_to_one(garch, history):
    """The last day's close is moved over a grid; the density is by log-return, whatever the volatility."""
    short = history.ohlcv[:, -8:]
    grid = torch.linspace(-0.4, 0.4, 161, dtype=torch.float64)
    density = []
    for move in grid:
        ohlcv = short.clone()
        ohlcv[0, -1, 0, :4] = short[0, -2, 0, CLOSE] * move.exp()
        density.append(garch.log_density(replace(history, ohlcv=ohlcv, dates=history.dates[-8:]))[-1, 0].exp())
    assert abs(float(torch.trapezoid(torch.stack(density), grid)) - 1) < 0.005


@pytest.mark.parametrize("freedom, quantile", [(3.0, 3.182446305), (5.0, 2.570581836), (30.0, 2.042272456)])
def test_drawn_numbers_follow_the_student_t_law(freedom, quantile):
    """The 97.5% quantile of the table, in units of the deviation, leaves out 5% on both sides together."""
    bits = random_bits(episode_key(0, torch.arange(200_000), 0), 7)
    drawn = student_t(open_uniform(bits[0]), open_uniform(bits[1]), torch.tensor(freedom, dtype=torch.float64))
    cut = quantile * math.sqrt((freedom - 2) / freedom)
    assert abs(float((drawn.abs() > cut).double().mean()) - 0.05) < 0.002
    assert abs(float((drawn > 0).double().mean()) - 0.5) < 0.005
    assert freedom < 4 or abs(float(drawn.square().mean()) - 1) < 0.03


def test_the_filter_starts_from_the_long_run_variance_and_keeps_it_on_days_without_a_return():
    returns = torch.full((3, 4), 0.1, dtype=torch.float64)
    valid = torch.tensor([True, False, True])[:, None].expand(3, 4)
    variance = filter_variance(TRUTH, returns, valid)
    assert torch.equal(variance[0], TRUTH.long_run_variance())
    assert torch.allclose(variance[1], TRUTH.next_variance(variance[0], returns[0]))
    assert torch.equal(variance[2], variance[1]) and bool((variance[3] > variance[2]).all())


def test_a_density_knows_nothing_of_later_days(garch, history):
    changed = history.ohlcv.clone()
    changed[:, 500:, :, :4] *= 1.3
    before, after = garch.log_density(history), garch.log_density(replace(history, ohlcv=changed))
    assert torch.equal(before[:500].nan_to_num(7.0), after[:500].nan_to_num(7.0))
    assert not torch.equal(before[500:].nan_to_num(7.0), after[500:].nan_to_num(7.0))


@pytest.mark.assembly
def test_densities_of_models(garch, simulation, history):
    density = garch.log_density(history)
    assert torch.equal(density.isfinite(), encode_bars(history.ohlcv).valid[0])
    assert torch.allclose(garch.joint_log_density(history)[50:], density[50:].nan_to_num(0.0).sum(-1))
    assert torch.equal(simulation.log_density(history).nan_to_num(0.0), density.nan_to_num(0.0))
    assert simulation.has_density and not simulation.has_joint_density
    with pytest.raises(NotImplementedError, match="no joint density"):
        simulation.joint_log_density(history)


def test_the_simulation_keeps_correlation_and_garch_has_none(garch, simulation, history):
    real = correlations(returns_of(history.ohlcv[0, 303:]))
    kept = correlations(returns_of(simulation.generate(history, 120, 40, seed=1)))
    assert float(real.mean()) > 0.2
    assert abs(float(kept.mean() - real.mean())) < 0.07
    assert float(correlations(returns_of(garch.generate(history, 120, 40, seed=1))).abs().max()) < 0.04


@pytest.mark.parametrize("name", ["garch", "simulation"])
def test_volatility_starts_where_the_history_ends_and_returns_to_the_long_run(name, history, request):
    """The first five days after a calm and a stormy end differ; sixty days on the storm fades."""
    model = request.getfixturevalue(name)
    stormy = history.ohlcv.clone()
    factor = torch.tensor([1.08, 1 / 1.08], dtype=torch.float64).repeat(10)[:, None, None]
    stormy[0, -20:, :, :4] *= factor
    paths = [
        returns_of(model.generate(replace(history, ohlcv=ohlcv), 60, 120, seed=2)) for ohlcv in (history.ohlcv, stormy)
    ]
    training = returns_of(history.ohlcv[0, 303:]).std(0)
    early = [path[:, :5].std(dim=(0, 1)) / training for path in paths]
    late = [path[:, 60:].std(dim=(0, 1)) / training for path in paths]
    assert float(early[1].mean()) > 1.4 * float(early[0].mean())
    assert 0.8 < float(late[0].mean()) < 1.2
    assert float(late[1].mean()) < 0.85 * float(early[1].mean())


def test_a_simulated_day_is_a_training_day_scaled_by_volatility(simulation, history):
    """On the first day all symbols take the return, shape and volume of one row, each by its own volatility."""
    encoded = encode_bars(history.ohlcv)
    training, valid = encoded.moves[0], encoded.valid[0]
    returns = training[..., Move.GAP] + training[..., Move.BODY]
    volatility = filter_variance(simulation.parameters, returns, valid).sqrt()
    mean = simulation.parameters.mean
    residuals = torch.where(valid, (returns - mean) / volatility[:-1], 0.0)
    residuals /= (residuals.square().sum(0) / valid.sum(0)).sqrt()
    wicks = training[..., Move.UPPER] * volatility[-1] / volatility[:-1]
    generated = torch.cat([history.ohlcv.expand(20, -1, -1, -1), simulation.generate(history, 20, 1, seed=3)], dim=1)
    drawn = encode_bars(generated).moves[:, -1]
    distance, row = (drawn[:, None, :, Move.UPPER] - wicks).abs().amax(-1).min(-1)
    own = distance < 1e-12
    assert int(own.sum()) >= 15
    got = (drawn[..., Move.GAP] + drawn[..., Move.BODY])[own]
    assert torch.allclose(got, (mean + volatility[-1] * residuals[row])[own], rtol=1e-6, atol=1e-12)


def test_training_residuals_have_unit_size(simulation):
    assert torch.allclose(simulation.residuals.square().mean(0), torch.ones(6, dtype=torch.float64), atol=0.02)
