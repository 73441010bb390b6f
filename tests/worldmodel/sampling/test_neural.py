"""The neural market: valid paths, densities without look-ahead, and days that are fed back as they are read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.worldmodel.neural_market import assert_valid_bars, extended, history_of, matrices_of, small_network
from vecenv.core.random import box_muller, episode_key, open_uniform, random_bits
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.streams import NeuralStream
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.data.features import FEATURES, observe_history
from vecenv.worldmodel.network.bar_heads import BarHeads
from vecenv.worldmodel.network.return_draw import ReturnDraws
from vecenv.worldmodel.sampling import block_paths, neural
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


def daily_returns(history: Bars, bars: Tensor) -> Tensor:
    """Log-returns of the first day of each path. Shape: (P, K)."""
    return torch.log(bars[:, 0, :, CLOSE] / history.ohlcv[:, -1, :, CLOSE])


def test_generated_bars_are_valid_and_new_every_day_and_symbol(market, ragged):
    """The history and the start are left alone: blocks of paths write to copies of the cache."""
    before = ragged.ohlcv.clone()
    bars = market.generate(ragged, 100, 30, seed=1)
    assert bars.shape == (100, 30, 3, 5)
    assert_valid_bars(bars)
    assert torch.equal(market.generate(ragged, 2, 30, seed=1), bars[:2])
    assert torch.equal(ragged.ohlcv.nan_to_num(), before.nan_to_num())
    returns = torch.log(bars[:, 1:, :, CLOSE] / bars[:, :-1, :, CLOSE])
    assert len(returns.flatten().unique()) == returns.numel()


@pytest.mark.parametrize("antithetic", [False, True])
def test_numbers_of_a_day_are_those_of_its_streams(market, monkeypatch, antithetic):
    """Five streams by symbol and day; shocks are those of the first symbol; antithetic angles turn by a half."""
    read, returns, bars = [], ReturnDraws.draw, BarHeads.draw
    monkeypatch.setattr(ReturnDraws, "draw", lambda *given: read.append(given[2].clone()) or returns(*given))
    monkeypatch.setattr(BarHeads, "draw", lambda *given: read.append(given[5]) or bars(*given))
    market.draw_after(market.starts(history_of(3)), 2, 2, 9, antithetic)
    key = episode_key(9, torch.arange(32)[:, None], 0)
    for day in (0, 1):
        position = day * block_paths.MAX_SYMBOLS + torch.arange(3)
        words = [random_bits(key, NeuralStream.DAY + stream, position) for stream in range(5)]
        uniform = [[open_uniform(word, torch.float32) for word in stream] for stream in words]
        choice, radial, angular, _ = uniform[0]
        angular = (angular + 0.5) % 1.0 if antithetic else angular
        noise, of_bars = read[2 * day], read[2 * day + 1]
        assert torch.equal(noise, torch.stack([choice, radial, angular]))
        for quantity, (first, second, zero, shock) in enumerate(uniform[1:]):
            normal, other = box_muller(first, second)
            assert torch.equal(of_bars.normal[quantity], normal) and torch.equal(of_bars.zero[quantity], zero)
            assert torch.equal(of_bars.shock[quantity], shock[:, 0])
            assert torch.equal(of_bars.shock_size[quantity], other[:, 0])


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


def test_bad_input_is_named(market, monkeypatch):
    history = history_of(3)
    ohlcv = history.ohlcv.clone()
    ohlcv[0, -1, 1] = NAN
    with pytest.raises(ValueError, match=f"no bar on {history.dates[-1]} for {history.symbols[1]}$"):
        market.generate(replace(history, ohlcv=ohlcv), 1, 1)
    with pytest.raises(ValueError, match="unknown market 'mars'; the network knows india, us"):
        NeuralMarket(market.network, "mars")
    monkeypatch.setattr(neural, "MAX_SYMBOLS", 2)
    with pytest.raises(ValueError, match="3 symbols, at most 2 are drawn jointly"):
        market.generate(history, 1, 1)


def test_densities_of_a_history(market, ragged):
    """Of log-returns, those of the network less the logarithm of the volatility; joint ones add up the chain's.

    The first symbol of a day has the same density alone and chained, and a single symbol's joint one is its own.
    """
    valid = encode_bars(ragged.ohlcv).valid[0]
    density, joint, parts = market.log_density(ragged), market.joint_log_density(ragged), market._densities(ragged)
    assert density.dtype == joint.dtype == torch.float64
    assert torch.equal(density.isfinite(), valid) and torch.equal(joint.isfinite(), valid.any(-1))
    assert torch.equal(density.isnan(), ~valid) and torch.equal(joint.isnan(), ~valid.any(-1))
    some = valid.any(-1)
    assert torch.allclose(joint[some], parts.chained[some].nansum(-1), rtol=1e-9)
    first = valid.int().argmax(-1, keepdim=True)
    one, other = (part.gather(1, first)[some] for part in (parts.alone, parts.chained))
    assert torch.allclose(one, other, atol=1e-5)
    assert float((parts.alone - parts.chained)[valid & (torch.arange(3) != first)].abs().mean()) > 0.01
    single = replace(ragged, symbols=ragged.symbols[:1], ohlcv=ragged.ohlcv[:, :, :1])
    expected = market.log_density(single)[:, 0]
    assert torch.allclose(market.joint_log_density(single), expected, atol=1e-5, equal_nan=True)
    history = history_of(3)
    start, bar = market.starts(history), market.generate(history, 1, 1)
    volatility = start.state.volatility[0]
    given = (matrices_of(market, history), start.state.scales.features()[0], volatility.float(), "india")
    scaled = observe_history(encode_bars(extended(history, bar).ohlcv)).scaled[:, -1].float()
    read = market.network.log_prob(start.known[0], scaled, torch.ones(1, 3, dtype=torch.bool), *given)
    found = market._densities(extended(history, bar))
    for mine, theirs in ((found.alone, read.alone), (found.chained, read.chained)):
        assert torch.allclose(mine[-1], theirs[0].double() - volatility.log(), atol=1e-4)
    still = history_of(2, 1)
    assert bool(market.log_density(still).isnan().all()) and market.log_density(still).shape == (1, 2)
    assert bool(market.joint_log_density(still).isnan().all()) and market.generate(still, 2, 3).shape == (2, 3, 2, 5)


@pytest.mark.parametrize("day", [22, 33])
def test_no_look_ahead_in_densities(market, ragged, monkeypatch, day):
    """Other bars from a day on change no density before it; other wicks and volumes none on it.

    The days are read in several chunks, which reach back as far as the layers do.
    """
    whole = market.log_density(ragged)
    monkeypatch.setattr(neural, "DAYS_PER_READ", 16)
    changed, wicks = ragged.ohlcv.clone(), ragged.ohlcv.clone()
    changed[:, day:] *= torch.tensor([1.1, 1.3, 1.05, 1.2, 3.0], dtype=torch.float64)
    wicks[:, day] *= torch.tensor([1.0, 1.3, 0.7, 1.0, 3.0], dtype=torch.float64)
    for density in (market.log_density, market.joint_log_density):
        base, later = density(ragged), density(replace(ragged, ohlcv=changed))
        assert torch.allclose(later[:day], base[:day], atol=1e-5, equal_nan=True)
        assert float((later[day] - base[day]).abs().min()) > 1e-3
        other = density(replace(ragged, ohlcv=wicks))
        assert torch.allclose(other[: day + 1], base[: day + 1], atol=1e-5, equal_nan=True)
        assert not torch.allclose(other[day + 1], base[day + 1], atol=1e-5, equal_nan=True)
    for days in (32, 49, 50, 70):
        assert torch.allclose(market.log_density(ragged.days(0, days)), whole[:days], atol=1e-5, equal_nan=True)


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
        observed = observe_history(encode_bars(extended(ragged, bars[path : path + 1]).ohlcv))
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
        daily_returns(history, each.generate(history, 4000, 1)) for each in (market, market.at_temperature(0.1))
    )
    assert float(cold.std() / base.std()) == pytest.approx(0.1, rel=1e-3)
    assert float(cold.mean()) == pytest.approx(float(base.mean()), abs=4 * float(base.std()) / math.sqrt(4000))
