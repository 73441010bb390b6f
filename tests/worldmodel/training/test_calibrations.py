"""Calibrations of a market: what all keep to, and what each finds on hand-made markets."""

import math
from collections import namedtuple
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.worldmodel.neural_market import TINY, tiny_network
from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.commands import training_run
from vecenv.worldmodel.data.bar_moves import daily_returns
from vecenv.worldmodel.data.calendar import CALENDAR, calendar_features
from vecenv.worldmodel.data.correlation import DECAY, SHRINKAGE, matrices_over
from vecenv.worldmodel.data.correlation_level import LEVEL_SHARES, mean_correlation, with_level
from vecenv.worldmodel.network.gaussian_copula import CommonShocks, CopulaSums
from vecenv.worldmodel.network.market_network import DRIFT_SIZES, MarketNetwork
from vecenv.worldmodel.network.return_shocks import NO_SHOCK, STATES
from vecenv.worldmodel.sampling import training_market
from vecenv.worldmodel.sampling.stationary import WARM_UP, StationaryStart
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket, recent_years
from vecenv.worldmodel.training import calendar_moves, common_shocks, correlation_levels, correlations, coupling, drift
from vecenv.worldmodel.training.calendar_moves import CommonDays, calibrate_calendar, fitted
from vecenv.worldmodel.training.common_shocks import calibrate_shocks, most_likely
from vecenv.worldmodel.training.correlation_levels import calibrate_levels
from vecenv.worldmodel.training.correlations import calibrate_correlations
from vecenv.worldmodel.training.coupling import calibrate_coupling, shrunk_mean
from vecenv.worldmodel.training.drift import Effort, calibrate_drift

DAYS, STOP = 340, 330
Calibration = namedtuple("Calibration", "run buffers default nothing calls")
"""With markets that have nothing to calibrate, by symbols and end of validation, and the calls of its progress."""

ESTIMATES = ("decays", "shrinkages")
CALIBRATIONS = {
    "correlations": Calibration(calibrate_correlations, ESTIMATES, ([DECAY], [SHRINKAGE]), ((4, STOP), (6, 60)), 2),
    "levels": Calibration(calibrate_levels, ("level_shares",), (list(LEVEL_SHARES),), ((4, STOP), (6, 60)), 2),
    "shocks": Calibration(calibrate_shocks, ("return_shocks",), ([0.7] * len(STATES),), ((4, STOP), (6, 210)), 2),
    "coupling": Calibration(calibrate_coupling, ("couplings",), ([1.0],), ((4, STOP), (6, 210)), 4),
    "calendar": Calibration(calibrate_calendar, ("bars.calendar",), ([0.0] * len(CALENDAR),), ((4, STOP), (6, 130)), 1),
    "drift": Calibration(calibrate_drift, ("drifts",), ([0.0] * 4,), ((6, 200),), 4),
}

of_each = pytest.mark.parametrize("calibration", CALIBRATIONS.values(), ids=CALIBRATIONS)


@pytest.fixture(autouse=True)
def _little_effort(monkeypatch):
    """And no shrinking of couplings and days of the calendar: short years differ too much for any."""
    for module, few in (
        (correlations, {"HALF_LIVES": (100.0, 400.0), "SHRINKAGES": (0.0, 0.3), "CHOICES": 1}),
        (common_shocks, {"CHOICES": 1, "ITERATIONS": 100}),
        (correlation_levels, {"SHARES": (0.0, 0.6), "CHOICES": 1, "HORIZON": 20}),
        (coupling, {"LIMITS": (0.2, 5.0), "PATHS": 4, "shrunk_mean": np.mean}),
        (drift, {"EFFORTS": dict.fromkeys(DRIFT_SIZES, Effort(4, 16)), "DAYS": 5, "LIMIT": 1.0}),
        (calendar_moves, {"CHOICES": 1, "YEAR": 80, "NORMAL_QUANTILE": 0.0}),
        (training_market, {"YEAR": 80, "YEARS": 2}),
    ):
        for name, value in few.items():
            monkeypatch.setattr(module, name, value)


def bars_of(symbols: int) -> Bars:
    return synthetic_bars(1, DAYS, symbols, seed=3, regime="bear")


def market_of(bars: Bars, stop: int = STOP) -> TrainingMarket:
    return TrainingMarket.from_bars("us", bars, Split(stop - 20, stop - 15, stop))


def calibrated(calibration: Calibration, market: TrainingMarket, network: MarketNetwork, **more) -> list[list[float]]:
    for name in calibration.buffers:
        attrgetter(name)(network).fill_(0.7)
    calibration.run(network, market, **more)
    rows = [attrgetter(name)(network).reshape(2, -1) for name in calibration.buffers]
    assert all(bool((row[0] == row.new_tensor(0.7)).all()) for row in rows), "another market's number has changed"
    return [row[1].tolist() for row in rows]


def flat(rows: Iterable[list[float]]) -> list[float]:
    return [number for row in rows for number in row]


@of_each
def test_days_after_validation_do_not_count(calibration):
    bars, done = bars_of(6), []
    one = calibrated(calibration, market_of(bars), tiny_network(), advance=done.append)
    bars.ohlcv[:, STOP + 1 :: 2, ::2, :VOLUME] *= 1.3
    bars.ohlcv[:, STOP::2, 1::2, :VOLUME] *= 1.2
    assert calibrated(calibration, market_of(bars), tiny_network()) == one
    assert len(done) == calibration.calls and sum(done) == pytest.approx(1.0)
    assert flat(one) != pytest.approx(flat(calibration.default))


def test_a_market_is_calibrated_in_turn(monkeypatch):
    """Each part by the estimates that are set before it, and each bar of progress comes to its end."""
    shares = dict.fromkeys(training_run.calibration_parts("us")[:-1], 0.0)

    def part(name):
        return nullcontext(lambda share: shares.update({name: shares[name] + share}))

    def calibration(name):
        return lambda *_, advance: (done.append(name), advance(0.25), advance(0.75))

    done, market = [], SimpleNamespace(name="us", estimated_by=lambda _: done.append("estimated") or market)
    for name in ("correlations", "levels", "shocks", "coupling", "calendar", "drift"):
        monkeypatch.setattr(training_run, f"calibrate_{name}", calibration(name))
    monkeypatch.setattr(StationaryStart, "learn", lambda *_: ((), None))
    found = training_run.calibrate(tiny_network(), [market], {"us": ()}, part)
    assert set(shares.values()) == {1.0}
    assert done == ["correlations", "estimated", "levels", "estimated", "shocks", "coupling", "calendar", "drift"]
    assert found == ({}, {})


@of_each
def test_where_there_is_nothing_to_calibrate_the_defaults_stay(calibration):
    for symbols, stop in calibration.nothing:
        found = calibrated(calibration, market_of(bars_of(symbols), stop), tiny_network())
        assert flat(found) == pytest.approx(flat(calibration.default))
    found = calibrated(calibration, market_of(bars_of(6)), tiny_network(replace(TINY, joint="none")))
    is_default = flat(found) == pytest.approx(flat(calibration.default))
    assert is_default == (calibration.run is not calibrate_drift)


SYMBOLS = 12


def matrix_market(days: int) -> TrainingMarket:
    member, generator = torch.arange(SYMBOLS) % 3, torch.Generator().manual_seed(1)
    matrix = torch.where(member[:, None] == member, 0.75, 0.1).double().fill_diagonal_(1.0)
    white = torch.randn(days, SYMBOLS, generator=generator, dtype=torch.float64).clamp(-2.0, 2.0)
    closes = (0.01 * white @ torch.linalg.cholesky(matrix).T).cumsum(0).exp() * 100.0
    ohlcv = torch.stack([*[closes] * 4, torch.full_like(closes, 1e6)], dim=-1)[None]
    bars = Bars(tuple(f"S{i}" for i in range(SYMBOLS)), business_days(days), ohlcv)
    return TrainingMarket.from_bars("us", bars, Split(days - 100, days - 80, days))


def plain_network() -> MarketNetwork:
    """The head adds nothing to the implied mean and scale: three equal components of standard normals."""
    network = tiny_network(replace(TINY, density="gaussian"))
    network.returns.output.weight.zero_()
    network.returns.output.bias.zero_()
    return network


def test_errors_of_estimates_are_those_of_plain_formulas(monkeypatch):
    monkeypatch.setattr(correlations, "HALF_LIVES", (100.0,))
    monkeypatch.setattr(correlations, "SHRINKAGES", (0.2,))
    monkeypatch.setattr(training_market, "YEARS", 1)
    market, year = replace(matrix_market(400), level_shares=torch.zeros(4)), slice(320, 400)
    network = plain_network()
    (score,) = correlations.estimator_scores(network, market)
    returns = market.observed.scaled[0, ..., :2].sum(-1)
    matrices = correlations.correlations(returns, market.observed.valid[0], 0.5**0.01, 0.2)
    matrices, today = matrices[torch.arange(400) // 10][year], returns[year]
    law = torch.distributions.MultivariateNormal(torch.zeros(SYMBOLS, dtype=torch.float64), matrices)
    assert bool((today.abs() < 4.0).all()), "limited returns have another density"
    assert score.nll == pytest.approx(-float(law.log_prob(today).sum()) / today.numel(), abs=1e-4)
    # The exact correlations about zero, which is what the estimate is of.
    products = (today.T @ today).numpy()
    realised = products / np.sqrt(np.outer(np.diag(products), np.diag(products)))
    error = (matrices.mean(0).numpy() - realised)[np.triu_indices(SYMBOLS, 1)]
    assert score.rmse == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-6) and score[:2] == (100.0, 0.2)
    told = [(0.3, 1.0, 0.09), (0.1, 1.0005, 0.07), (0.0, 1.0006, 0.0)]
    scores = [correlations.EstimatorScore(50.0, *numbers) for numbers in told]
    assert correlations.closest(scores) is scores[1], "the closest among those within the tolerance"
    monkeypatch.setattr(correlations, "estimator_scores", lambda *_: scores)
    calibrate_correlations(network, market)
    assert [float(number) for number in network.estimator_of("us")] == pytest.approx([0.5**0.02, 0.1])
    market, network = matrix_market(200), tiny_network()
    for value, number in zip(network.estimator_of("us"), (0.97, 0.4), strict=True):
        value.fill_(number)
    fitted, chosen = market.estimated_by(network), torch.tensor([5, 2, 9])
    assert torch.equal(fitted.matrices, matrices_over(market.observed, 0.97, 0.4).float())
    few = fitted.only(chosen)
    assert torch.equal(few.matrices, matrices_over(few.observed, 0.97, 0.4).float())
    assert torch.equal(few.observed.scaled, market.observed.scaled[:, :, chosen])


def test_errors_of_shares_are_those_of_plain_formulas(monkeypatch):
    """Of returns after four origins: of each day with the level before its five days, and with that of a path."""
    monkeypatch.setattr(correlation_levels, "SHARES", (0.6,))
    monkeypatch.setattr(training_market, "YEARS", 1)
    market, year = matrix_market(400), range(320, 400)
    network = plain_network()
    (score,) = correlation_levels.share_scores(network, market)[0]
    today, levels = market.observed.quantities[0, year.start :, :, 0], market.observed.levels[0, :, 0]
    followed, drawn = [], []
    for day in year:
        after = day % 20
        matrix = market.matrices[(day - after) // 10, 0].double()
        mean, level = mean_correlation(matrix), levels[day - after]
        followed.append(with_level(matrix, 0.4 * mean + 0.6 * levels[day - day % 5], torch.tensor(1.0)))
        kept = 0.5 ** (0.4 * after / 45)
        drawn.append(with_level(matrix, mean + 0.6 * kept * (level - mean), torch.tensor(1.0)))
    law = torch.distributions.MultivariateNormal(torch.zeros(SYMBOLS, dtype=torch.float64), torch.stack(followed))
    assert score.nll == pytest.approx(-float(law.log_prob(today).sum()) / today.numel(), abs=1e-5)
    products = today.T @ today
    realised = products / products.diagonal().outer(products.diagonal()).sqrt()
    error = (torch.stack(drawn).mean(0) - realised)[tuple(np.triu_indices(SYMBOLS, 1))]
    assert score.rmse == pytest.approx(float(error.square().mean().sqrt()), rel=1e-4) and score.share == 0.6


def test_moving_together_the_mean_of_years_and_limits(monkeypatch):
    moves = [torch.tensor([[1.0, -1.0], [2.0, 4.0]]), torch.tensor([[1.0, 1.0, 1.0]])]
    expected = (0.0 + 3.0 + 1.0) / 3 / ((1 + 1 + 2 + 4 + 1 + 1 + 1) / 7)
    assert coupling._together(moves) == pytest.approx(expected) == coupling._together([3.0 * part for part in moves])
    values = 0.3 + 0.05 * math.sqrt(2.0) * np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    # Student's 97.5% quantile with four degrees of freedom is 2.7764; the standard error is 0.05.
    assert shrunk_mean(values) == pytest.approx(0.3 * (1.0 - (2.7764 * 0.05 / 0.3) ** 2), rel=5e-3)
    assert shrunk_mean(-values) == pytest.approx(-shrunk_mean(values))
    assert shrunk_mean(np.array([0.1, 0.1, 0.1])) == pytest.approx(0.1) and shrunk_mean(np.array([0.05, 0.2])) == 0.0
    monkeypatch.setattr(coupling, "LIMITS", (0.999, 1.001))
    monkeypatch.setattr(drift, "LIMIT", 1e-4)
    for name, center, limit in (("coupling", 1.0, 1e-3), ("drift", 0.0, 1e-4)):
        (found,) = calibrated(CALIBRATIONS[name], market_of(bars_of(6)), tiny_network())
        assert [abs(value - center) for value in found] == pytest.approx([limit] * len(found), rel=1e-3)
    monkeypatch.undo()
    market = market_of(bars_of(1))
    for stop, years, length in ((1320, 5, 252), (1319, 4, 252), (312, 1, 252), (311, 1, 251), (61, 1, 1), (60, 0, 0)):
        starts = [stop - length * (years - year) for year in range(years)]
        found = recent_years(replace(market, split=Split(40, 45, stop)))
        assert found == [range(start, start + length) for start in starts]


@pytest.mark.parametrize("moved", [(1.2, 1 / 1.2), (1.2, 1.2), (1.2, 1.201)], ids=["torn", "alike", "spread"])
def test_the_coupling_of_years(monkeypatch, moved):
    network, market, seeds = tiny_network(), market_of(bars_of(6)), set()
    real = dict(zip(recent_years(market), moved, strict=True))
    monkeypatch.setattr(coupling, "_real_moves", lambda _, year: real[year])
    of_us = network.coupling_of("us")
    monkeypatch.setattr(coupling, "_drawn_moves", lambda *given: seeds.add(given[3]) or float(of_us))
    monkeypatch.setattr(coupling, "_together", lambda sizes: sizes[0])
    monkeypatch.setattr(coupling, "shrunk_mean", shrunk_mean)
    calibrate_coupling(network, market, seed=3)
    # Log-linear interpolation between couplings 1 and 1.05.
    expected = 0.0 if moved[1] < 1.0 else shrunk_mean(np.log(moved) / math.log(1.05) * 0.05)
    assert float(network.coupling_of("us")) == pytest.approx(1.0 + expected, abs=1e-6) and seeds == {3, 4, 5, 6}


def test_the_drift_is_interpolated_between_two_rollouts(monkeypatch):
    """Returns that rise by 1.25 of the drift: it is what the known days' mean lacks, over that slope."""
    network, market, pairs = tiny_network(), market_of(bars_of(2)), []

    def returns(model, starts, count, seed):
        pairs.append(count)
        return torch.full((count,), 1.25 * float(network.drifts_of("us")[0]) + 1e-4, dtype=torch.float64)

    with monkeypatch.context() as patch:
        patch.setattr(drift, "_mean_returns", returns)
        patch.setattr(drift, "EFFORTS", {1: Effort(8, 65)})
        calibrate_drift(network, market)
    moves, valid = daily_returns(market.encoded)
    target = float(moves[:STOP][valid[:STOP]].mean())
    assert network.drifts_of("us").tolist() == pytest.approx([(target - 1e-4) / 1.25] * 4, rel=1e-4)
    # A quarter of the pairs, rounded up, is enough for the slope.
    assert pairs == [65, 17]

    class Rising:
        """Closes of two symbols that rise by the number of the path in percent a day, antithetic ones by ten more."""

        def draw_after(self, starts, paths, days, seed, antithetic):
            rate = 0.01 * (torch.arange(paths) + 10.0 * antithetic)
            closes = (rate[:, None] * torch.arange(days)).exp().double()
            return closes[:, :, None, None].expand(-1, -1, 2, 5)

    # Of a pair of paths: over the days between the first and the last close.
    assert drift._mean_returns(Rising(), None, 3, 0).tolist() == pytest.approx([0.05, 0.06, 0.07])
    network.drifts_of("us").copy_(torch.tensor([-0.02, 0.0, 0.01, 0.03]))
    known = {1: -0.02, 3: -0.02 + 0.02 * math.log(3, 5), 5: 0.0, 25: 0.01, 50: 0.02, 100: 0.03, 400: 0.03}
    assert {symbols: float(network.drift_of("us", symbols)) for symbols in known} == pytest.approx(known)
    with pytest.raises(ValueError, match="unknown market 'mars'"):
        network.drift_of("mars", 3)


def test_planted_days_of_the_calendar_are_found_among_shocks(monkeypatch):
    """Of ten years of six symbols; what days do not mean is shrunk to nothing, and what they mean hardly."""
    monkeypatch.undo()
    generator, days = torch.Generator().manual_seed(0), 2500
    calendar = calendar_features(business_days(days)).double()
    planted = torch.tensor([0.6, 1.5, -3.0, 0.0, 0.0, -0.3], dtype=torch.float64)
    shocks = CommonShocks.of_raw(torch.tensor([[0.5, -1.0, 0.2], [1.0, 1.0, -0.5]]).double())
    uniform, size = torch.rand(days, generator=generator), torch.randn(days, generator=generator)
    common = shocks.drawn(uniform.double(), size.double(), torch.zeros(days).double()) + calendar @ planted
    factor = torch.linalg.cholesky(0.2 + 0.8 * torch.eye(6, dtype=torch.float64))
    normal = torch.randn(days, 6, generator=generator).double() @ factor.T + common[:, None]
    sums = CopulaSums.of(factor.expand(days, -1, -1), normal, torch.ones_like(normal, dtype=torch.bool))
    known = CommonDays(CopulaSums(*(part[None] for part in sums)), calendar, shocks)
    moves = fitted(known)
    assert torch.allclose(moves, planted, atol=0.25) and not bool(moves[planted == 0].any())
    # A kind without a day keeps 0.
    never = known.calendar * (torch.arange(len(CALENDAR)) != 2)
    assert float(fitted(known._replace(calendar=never))[2]) == 0.0


def test_volumes_of_mondays_move_the_calendar():
    bars, found = bars_of(6), []
    mondays = calendar_features(bars.dates)[:, CALENDAR.index("monday")].bool()
    for factor in (1.0, 3.0):
        bars.ohlcv[0, mondays, :, VOLUME] *= factor
        network = tiny_network()
        calibrate_calendar(network, market_of(bars))
        found.append(float(network.bars.calendar[1, CALENDAR.index("monday")]))
    assert found[1] > found[0] + 0.3


def test_stretches_are_days_of_the_history(monkeypatch):
    monkeypatch.setattr(drift, "YEAR", 10)
    bars, chosen = bars_of(6), set()
    market, closes = market_of(bars), bars.ohlcv[0, ..., CLOSE]
    past = drift._recent_stretches(market, 2, 8, np.random.default_rng([0, 2]))
    for path in past.ohlcv[..., CLOSE]:
        found = torch.isclose(closes[:, :, None], path[0], rtol=1e-10)
        first = int(found.any(1).all(-1).nonzero()[0])
        one, other = found[first].long().argmax(0).tolist()
        assert one != other and len(path) == WARM_UP
        assert torch.allclose(path, closes[first : first + WARM_UP, [one, other]], rtol=1e-10)
        assert STOP - drift.YEARS * 10 - WARM_UP <= first <= STOP - WARM_UP
        chosen.add((one, other))
    assert len(chosen) > 4 and drift._recent_stretches(market, 7, 8, np.random.default_rng(0)) is None


def test_the_most_likely_states_are_the_maximum(monkeypatch):
    """Of a concave likelihood: no other state would gain (Kuhn and Tucker 1951), and planted ones are found."""
    monkeypatch.setattr(common_shocks, "ITERATIONS", 1_000)
    generator = torch.Generator().manual_seed(5)
    planted = torch.rand(4_000, generator=generator) < 0.2
    days = torch.randn(4_000, generator=generator).double() + 3.0 * planted
    means = torch.tensor([0.0, 1.5, 3.0, -3.0])
    density = torch.distributions.Normal(means[:, None].double(), 1.0).log_prob(days)
    found = most_likely(density)
    assert found.tolist() == pytest.approx([0.8, 0.0, 0.2, 0.0], abs=0.05) and float(found.sum()) == pytest.approx(1.0)
    likely = (density + found.log()[:, None]).logsumexp(0)
    gains = (density - likely).exp().mean(-1)
    assert float(gains.max()) < 1.01 and gains[found > 0].tolist() == pytest.approx(
        [1.0] * int((found > 0).sum()), abs=0.01
    )
    monkeypatch.setattr(common_shocks, "LEAST", 0.3)
    assert most_likely(density).tolist() == [1.0, 0.0, 0.0, 0.0], "what is too unlikely is left out, of the sum too"


def test_shocks_are_fitted_to_the_density_that_is_told():
    market, network = matrix_market(400), plain_network()
    years = recent_years(market)
    market.observed.valid[0, years[0].start : years[0].start + 9, 2] = False
    found = common_shocks._state_log_density(network, market, years[0])
    for state in (0, NO_SHOCK, len(STATES) - 1):
        shocks = network.return_shocks_of("us")
        shocks.zero_()
        shocks[state] = 1.0
        order = torch.arange(SYMBOLS)
        told, _, _ = market.log_prob(network, years[0].start, years[0].stop, network.settings.trunk.reach, order)
        assert torch.allclose(told.chained.sum(-1), found[state], rtol=1e-4, atol=1e-3)
