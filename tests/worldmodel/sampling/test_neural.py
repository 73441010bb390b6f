"""The neural market: valid paths, normalised densities, and draws that follow them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worldmodel.neural_market import DAYS, history_of, matrices_of, small_network
from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import Move, encode_bars
from vecenv.worldmodel.data.features import FEATURES, ObservedHistory, observe_history
from vecenv.worldmodel.network.bar_heads import BarHeads
from vecenv.worldmodel.sampling import neural
from vecenv.worldmodel.sampling.neural import NeuralMarket

NAN = float("nan")


@pytest.fixture(scope="module")
def market() -> NeuralMarket:
    return NeuralMarket(small_network(), "india")


@pytest.fixture(scope="module")
def ragged() -> Bars:
    """Three symbols: one with holes, one listed late, all with a bar on the last day."""
    bars = history_of(3, 70)
    ohlcv = bars.ohlcv.clone()
    ohlcv[0, 25:28, 0] = ohlcv[0, :20, 1] = ohlcv[0, 45, 2] = ohlcv[0, 50] = NAN
    return replace(bars, ohlcv=ohlcv)


def extended(history: Bars, ohlcv: Tensor) -> Bars:
    """Append days to a history. Shape: (1, days, K, 5)."""
    days = ohlcv.shape[1]
    dates = np.concatenate([history.dates, history.dates[-1] + np.arange(1, days + 1)])
    return replace(history, dates=dates, ohlcv=torch.cat([history.ohlcv, ohlcv], dim=1))


def observed_next(history: Bars, bars: Tensor) -> ObservedHistory:
    """Observe a history with each path's days appended. Shape: (P, days, K, 5)."""
    return observe_history(encode_bars(torch.cat([history.ohlcv.expand(len(bars), -1, -1, -1), bars], dim=1)))


def daily_returns(history: Bars, bars: Tensor) -> Tensor:
    """Log-returns of the first day of each path. Shape: (P, K)."""
    return torch.log(bars[:, 0, :, CLOSE] / history.ohlcv[:, -1, :, CLOSE])


def test_paths_are_new_every_day_and_symbol(market):
    """No number of the generator is drawn twice: neither do days repeat nor symbols."""
    bars = market.generate(history_of(3), 200, 6)
    returns = torch.log(bars[:, 1:, :, CLOSE] / bars[:, :-1, :, CLOSE])
    assert len(returns.flatten().unique()) == returns.numel()
    follow = torch.corrcoef(returns.clamp(-0.1, 0.1).transpose(0, 1).flatten(1))
    assert float((follow - torch.eye(5)).abs().max()) < 0.5


def test_generated_bars_are_valid(market, ragged):
    bars = market.generate(ragged, 100, 30, seed=1)
    assert bars.shape == (100, 30, 3, 5) and bars.dtype == torch.float64
    assert bool(bars.isfinite().all()) and float(bars[..., :VOLUME].min()) > 0 and float(bars[..., VOLUME].min()) >= 1
    assert bool((bars[..., HIGH] >= bars[..., OPEN].maximum(bars[..., CLOSE])).all())
    assert bool((bars[..., LOW] <= bars[..., OPEN].minimum(bars[..., CLOSE])).all())


def test_generation_leaves_the_history_and_the_start_alone(market, ragged):
    """The blocks of paths write to copies of the cache."""
    before = ragged.ohlcv.clone()
    again = [market.generate(ragged, 3, 10, seed=2) for _ in range(2)]
    assert torch.equal(*again)
    assert torch.equal(ragged.ohlcv.nan_to_num(), before.nan_to_num())


def test_histories_are_read_in_parts_by_any_number_of_threads(monkeypatch):
    """Bit for bit in any number of threads, without gradients; parts of four rows, the last one shorter."""
    market, gradients = NeuralMarket(small_network(), "india"), set()
    prefill = market.network.trunk.prefill
    monkeypatch.setattr(
        market.network.trunk, "prefill", lambda part: gradients.add(torch.is_grad_enabled()) or prefill(part)
    )
    histories, before = synthetic_bars(5, 40, 2, seed=3), torch.get_num_threads()
    whole = market.starts(histories)
    monkeypatch.setitem(neural.PREFILL_ROWS, "cpu", 4)
    try:
        read = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            read.append(market.starts(histories))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for starts in read:
        torch.testing.assert_close(starts.known, whole.known)
        assert torch.equal(starts.known, read[0].known) and torch.equal(starts.cache.keys, read[0].cache.keys)
        assert starts.cache.keys.shape == whole.cache.keys.shape
    assert gradients == {False}


def test_shocks_are_those_of_the_market():
    """The other market's volumes jump on every day."""
    history, network = history_of(2), small_network()
    before = {name: NeuralMarket(network, name).generate(history, 3, 2) for name in ("india", "us")}
    network.bars.shocks.raw[1, 3, 0] = torch.tensor([100.0, 3.0, -5.0])
    after = {name: NeuralMarket(network, name).generate(history, 3, 2) for name in ("india", "us")}
    assert torch.equal(before["india"], after["india"])
    assert bool((after["us"][:, 0, :, VOLUME] > before["us"][:, 0, :, VOLUME]).all())


def test_numbers_of_shocks_are_not_those_of_a_symbol(market, monkeypatch):
    read, draw = [], BarHeads.draw
    monkeypatch.setattr(BarHeads, "draw", lambda *given: read.append(given[5]) or draw(*given))
    market.generate(history_of(3), 400, 2)
    noise = [torch.cat([day[place].flatten(2) if place < 2 else day[place] for day in read], 1) for place in range(4)]
    normal, zero, shock, size = noise
    for symbol in range(3):
        for quantity in range(4):
            for mine, theirs in ((zero, shock), (normal, size), (zero, size), (normal, shock)):
                both = torch.stack([mine[quantity, :, symbol], theirs[quantity]])
                assert abs(float(torch.corrcoef(both)[0, 1])) < 0.15


def test_the_history_counts(market):
    """As far back as the layers reach; the last close sets the level."""
    history = history_of(2)
    ohlcv = history.ohlcv.clone()
    ohlcv[0, -12, 0, :VOLUME] *= 1.1
    assert not torch.equal(market.generate(history, 1, 1), market.generate(replace(history, ohlcv=ohlcv), 1, 1))
    doubled = replace(history, ohlcv=history.ohlcv * torch.tensor([2.0, 2.0, 2.0, 2.0, 1.0]))
    one, other = market.generate(history, 5, 5), market.generate(doubled, 5, 5)
    assert torch.allclose(one[..., CLOSE] * 2, other[..., CLOSE], rtol=1e-4)


def test_a_given_correlation_replaces_that_of_the_histories(market):
    """The factor of every start is its Cholesky factor; what the trunk has read stays."""
    histories = synthetic_bars(2, DAYS, 3, seed=7)
    given = torch.tensor([[1.0, 0.8, -0.3], [0.8, 1.0, 0.1], [-0.3, 0.1, 1.0]]).expand(4, -1, -1)
    own, starts = market.starts(histories), market.starts(histories, given)
    assert starts.factor.shape == (2, 3, 3)
    torch.testing.assert_close(starts.factor, torch.linalg.cholesky(given[0]).expand(2, -1, -1))
    assert float((own.factor - starts.factor).abs().amax((1, 2)).min()) > 0.1
    assert float((own.bar_factors - starts.bar_factors).abs().amax((2, 3)).min()) > 0.02
    assert torch.equal(own.known, starts.known)
    drawn = market.draw_after(starts, 1, 1)
    assert not torch.equal(drawn, market.draw_after(own, 1, 1))


def test_markets_differ(market):
    history = history_of(2)
    other = NeuralMarket(market.network, "us")
    assert not torch.equal(market.generate(history, 1, 1), other.generate(history, 1, 1))
    assert not torch.equal(market.log_density(history)[1:], other.log_density(history)[1:])


def test_bad_input_is_named(market):
    history = history_of(3)
    ohlcv = history.ohlcv.clone()
    ohlcv[0, -1, 1] = NAN
    with pytest.raises(ValueError, match=f"no bar on {history.dates[-1]} for {history.symbols[1]}$"):
        market.generate(replace(history, ohlcv=ohlcv), 1, 1)
    with pytest.raises(ValueError, match="unknown market 'mars'; the network knows india, us"):
        NeuralMarket(market.network, "mars")


def test_densities_have_the_shape_of_the_returns(market, ragged):
    valid = encode_bars(ragged.ohlcv).valid[0]
    density, joint = market.log_density(ragged), market.joint_log_density(ragged)
    assert density.dtype == joint.dtype == torch.float64
    assert torch.equal(density.isfinite(), valid) and torch.equal(density.isnan(), ~valid)
    assert torch.equal(joint.isfinite(), valid.any(-1)) and torch.equal(joint.isnan(), ~valid.any(-1))


def test_a_history_of_one_day_has_no_density(market):
    history = history_of(2, 1)
    assert bool(market.log_density(history).isnan().all()) and market.log_density(history).shape == (1, 2)
    assert bool(market.joint_log_density(history).isnan().all())
    assert market.generate(history, 2, 3).shape == (2, 3, 2, 5)


def test_the_first_symbol_of_a_day_has_the_same_density_alone_and_chained(market, ragged):
    """And for a single symbol the joint density is its own."""
    parts = market._densities(ragged)
    valid = encode_bars(ragged.ohlcv).valid[0]
    first = valid.int().argmax(-1, keepdim=True)
    some = valid.any(-1)
    one, other = (part.gather(1, first)[some] for part in (parts.alone, parts.chained))
    assert torch.allclose(one, other, atol=1e-5)
    later = valid & (torch.arange(3) != first)
    assert float((parts.alone - parts.chained)[later].abs().mean()) > 0.01
    single = replace(ragged, symbols=ragged.symbols[:1], ohlcv=ragged.ohlcv[:, :, :1])
    joint = market.joint_log_density(single)
    assert torch.allclose(joint, market.log_density(single)[:, 0], atol=1e-5, equal_nan=True)


def test_the_joint_density_is_the_sum_of_the_chained_ones(market, ragged):
    chained = market._densities(ragged).chained
    joint = market.joint_log_density(ragged)
    for day in (1, 26, 46, 51, 69):
        here = chained[day][chained[day].isfinite()]
        assert len(here) >= 2 and math.isclose(float(joint[day]), sum(here.tolist()), rel_tol=1e-9)


@pytest.mark.parametrize("day", [22, 33, 60])
def test_no_look_ahead_in_densities(market, ragged, monkeypatch, day):
    """Other bars from a day on change no density before it; other wicks and volumes none on it.

    The days are read in several chunks.
    """
    monkeypatch.setattr(neural, "DAYS_PER_READ", 16)
    changed, wicks = ragged.ohlcv.clone(), ragged.ohlcv.clone()
    changed[:, day:] *= torch.tensor([1.1, 1.3, 1.05, 1.2, 3.0], dtype=torch.float64)
    wicks[:, day] *= torch.tensor([1.0, 1.3, 0.7, 1.0, 3.0], dtype=torch.float64)
    for density in (market.log_density, market.joint_log_density):
        base = density(ragged)
        assert torch.allclose(density(replace(ragged, ohlcv=changed))[:day], base[:day], atol=1e-5, equal_nan=True)
        assert float((density(replace(ragged, ohlcv=changed))[day] - base[day]).abs().min()) > 1e-3
        other = density(replace(ragged, ohlcv=wicks))
        assert torch.allclose(other[: day + 1], base[: day + 1], atol=1e-5, equal_nan=True)
        assert not torch.allclose(other[day + 1], base[day + 1], atol=1e-5, equal_nan=True)


def test_a_density_does_not_depend_on_the_days_read_with_it(market, ragged, monkeypatch):
    """The last day alone of a chunk, or among many: the chunks reach back as far as the layers do."""
    whole = market.log_density(ragged)
    monkeypatch.setattr(neural, "DAYS_PER_READ", 16)
    for days in (32, 49, 50, 70):
        part = replace(ragged, dates=ragged.dates[:days], ohlcv=ragged.ohlcv[:, :days])
        assert torch.allclose(market.log_density(part), whole[:days], atol=1e-5, equal_nan=True)


class ReturnGrid:
    """Next returns of one symbol by x = sinh(u) volatilities, with the density that the model gives to each.

    Args:
        market: the model.
        history: of one symbol.
    """

    def __init__(self, market: NeuralMarket, history: Bars) -> None:
        volatility = float(observe_history(encode_bars(history.ohlcv)).last.volatility)
        u = torch.linspace(-6.0, 6.0, 121, dtype=torch.float64)
        self.returns = volatility * u.sinh()
        self.width = volatility * u.cosh() * (u[1] - u[0])
        bar = history.ohlcv[:, -1:].clone()
        density = []
        for each in self.returns:
            bar[..., CLOSE] = history.ohlcv[:, -1:, :, CLOSE] * each.exp()
            density.append(market.log_density(extended(history, bar))[-1, 0])
        self.density = torch.stack(density).exp()

    def mean_of(self, values: Tensor) -> float:
        return float((self.density * self.width * values).sum())


@pytest.fixture(scope="module")
def grid(market) -> ReturnGrid:
    return ReturnGrid(market, history_of(1, 20))


@pytest.mark.assembly
def test_the_density_of_the_next_return_is_normalised(grid):
    """In the log-return itself, not in units of the volatility."""
    assert grid.mean_of(torch.ones(121)) == pytest.approx(1.0, abs=2e-3)


def test_drawn_returns_follow_the_density(market, grid):
    """Mean, deviation and the whole distribution of twenty thousand paths of one day."""
    history = history_of(1, 20)
    drawn = daily_returns(history, market.generate(history, 20_000, 1, seed=5))[:, 0]
    mean = grid.mean_of(grid.returns)
    deviation = math.sqrt(grid.mean_of((grid.returns - mean) ** 2))
    assert float(drawn.mean()) == pytest.approx(mean, abs=4 * deviation / math.sqrt(20_000))
    assert float(drawn.std()) == pytest.approx(deviation, rel=0.05)
    mass = grid.density * grid.width
    distribution = mass.cumsum(0) - 0.5 * mass
    share = torch.searchsorted(drawn.sort().values, grid.returns, right=True) / 20_000
    assert float((share - distribution).abs().max()) < 1.95 / math.sqrt(20_000)


@pytest.mark.assembly
def test_drawn_correlation_is_that_of_the_chained_density(market):
    """Of two symbols, from the joint density of a grid of both returns."""
    history = synthetic_bars(1, DAYS, 2, seed=9, regime="crisis")
    bars = market.generate(history, 20_000, 1, seed=6)
    volatility = observe_history(encode_bars(history.ohlcv)).last.volatility[0]
    drawn = torch.asinh(daily_returns(history, bars) / volatility)
    start = market.starts(history)
    u = torch.linspace(-6.0, 6.0, 161, dtype=torch.float64)
    pairs = torch.cartesian_prod(u, u)
    scaled = torch.zeros(len(pairs), 2, 5)
    scaled[..., Move.BODY] = pairs.sinh()
    everyone = torch.ones(len(pairs), 2, dtype=torch.bool)
    given = (matrices_of(market, history), start.state.scales.features()[0], volatility.float(), "india")
    read = market.network.log_prob(start.known[0], scaled, everyone, *given)
    mass = (read.chained.double().sum(-1) + pairs.cosh().log().sum(-1)).exp() * (u[1] - u[0]) ** 2
    assert float(mass.sum()) == pytest.approx(1.0, abs=5e-3)
    # With u = asinh(return over volatility), which no single draw dominates.
    expected = torch.cov(pairs.T, aweights=mass)
    together = expected[0, 1] / expected.diagonal().prod().sqrt()
    assert float(together.abs()) > 0.15
    assert torch.allclose(torch.corrcoef(drawn.T)[0, 1], together, atol=0.025)
    assert torch.allclose(drawn.mean(0), mass @ pairs, atol=0.03)
    bar = bars[:1]
    joint = market.joint_log_density(extended(history, bar))[-1]
    scaled[:1] = observed_next(history, bar).scaled[:, -1].float()
    again = market.network.log_prob(start.known[0], scaled[:1], everyone[:1], *given)
    assert float(joint) == pytest.approx(float(again.chained.sum() - volatility.log().sum()), abs=1e-4)


def test_generated_days_are_fed_back_as_history_is_read(market, ragged, monkeypatch):
    """What the trunk sees of generated days is what it sees when their bars are appended and read again."""
    seen, known = [], []
    step = market.network.trunk.step

    def recording(inputs: Tensor, *given: object) -> object:
        hidden, after = step(inputs, *given)
        seen.append(inputs.clone())
        known.append(hidden.clone())
        return hidden, after

    monkeypatch.setattr(market.network.trunk, "step", recording)
    bars = market.generate(ragged, 2, 21, seed=4)
    assert len(seen) == 20
    for path in range(2):
        observed = observed_next(ragged, bars[path : path + 1])
        rows = slice(3 * path, 3 * path + 3)
        fed = torch.stack([inputs[rows, : len(FEATURES)] for inputs in seen])
        assert torch.allclose(fed, observed.features[0, -21:-1], atol=1e-4)
        for day in (0, 7, 8, 19):
            again = market.starts(extended(ragged, bars[path : path + 1, : day + 1]))
            assert torch.allclose(known[day][rows], again.known[0], atol=1e-3)


def test_temperature_shrinks_and_spreads_returns(market):
    """About the mean of each law: at a tenth the returns are a tenth as wide."""
    history = history_of(1)
    base, cold = (
        daily_returns(history, NeuralMarket(market.network, "india", temperature=each).generate(history, 4000, 1))
        for each in (1.0, 0.1)
    )
    assert float(cold.std() / base.std()) == pytest.approx(0.1, rel=1e-3)
    assert float(cold.mean()) == pytest.approx(float(base.mean()), abs=4 * float(base.std()) / math.sqrt(4000))
