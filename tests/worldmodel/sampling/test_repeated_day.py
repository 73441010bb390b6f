"""A day that is captured once: repeated, it draws what days drawn one after the other do."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.worldmodel.neural_market import history_of, small_network
from vecenv.worldmodel.network import return_draw
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.sampling.block_paths import BlockPaths, Starts
from vecenv.worldmodel.sampling.blocks import Block
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.repeated_day import RepeatedDay

PATHS, DAYS, SEED = 8, 12, 3


def recurrent_network() -> MarketNetwork:
    torch.manual_seed(0)
    settings = NetworkSettings(CnnGruSettings(channels=8, width=12), head=16, joint="none", density="gaussian")
    return MarketNetwork(settings).requires_grad_(False)


def repeated(market: NeuralMarket, starts: Starts) -> RepeatedDay:
    paths = BlockPaths(market.network, starts, "india", Block(0, PATHS, PATHS), SEED, 1.0)
    cache = starts.cache.chosen(paths.rows).repeatable()
    assert cache is not None
    return RepeatedDay(paths, market.network.trunk, cache, DAYS)


@pytest.mark.parametrize("network", [small_network, recurrent_network])
@pytest.mark.nightly
def test_a_day_recorded_once_draws_all_days(network, monkeypatch):
    """The record holds operations on memory and fixed numbers alone, as a CUDA graph does; the window wraps around."""
    market, history = NeuralMarket(network(), "india"), history_of(3)
    drawn = market.generate(history, PATHS, DAYS, SEED)
    # The numbers of a chain's step are NumPy's on a CPU, which nothing records.
    monkeypatch.setattr(return_draw, "_light", lambda tensor: tensor)
    day = repeated(market, market.starts(history))
    record = make_fx(lambda: (day(), day.bars)[1])()
    for _ in range(DAYS - 1):
        record()
    torch.testing.assert_close(day.bars, drawn, rtol=1e-5, atol=0)


def test_a_day_asks_the_device_for_no_number():
    """It could not be captured if it did; the meta device has none to give, and takes no other device's tensors."""
    market, elsewhere = NeuralMarket(small_network(), "india"), torch.device("meta")
    known, cache, state, factor, bar_factors = market.starts(history_of(3))
    starts = Starts(
        known.to(elsewhere),
        cache._replace(keys=cache.keys.to(elsewhere), values=cache.values.to(elsewhere)),
        state.taken(lambda part: part.to(elsewhere)),
        factor.to(elsewhere),
        bar_factors.to(elsewhere),
    )
    day = repeated(NeuralMarket(market.network.to(elsewhere), "india"), starts)
    day()
    day()
    assert day.bars.device == elsewhere and day.bars.shape == (PATHS, DAYS, 3, 5)


def test_days_differ_until_the_window_is_full():
    market = NeuralMarket(small_network(), "india")
    window = market.network.settings.trunk.window
    for days in (window - 1, window):
        cache = market.starts(history_of(2).days(0, days)).cache.repeatable()
        assert (cache is None) == (days < window)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("network", [small_network, recurrent_network])
def test_captured_days_on_a_gpu_are_those_drawn_one_by_one(network):
    """Bit for bit, in one block and in several, and those of a CPU but for rounding."""
    history = history_of(3)
    market = NeuralMarket(network().cuda(), "india")
    many = market.generate(history, 300, DAYS, SEED)
    day = repeated(market, market.starts(history))
    for _ in range(DAYS):
        day()
    assert torch.equal(market.generate(history, PATHS, DAYS, SEED), many[:PATHS])
    torch.testing.assert_close(day.bars, many[:PATHS], rtol=1e-4, atol=0)
    drawn = NeuralMarket(network(), "india").generate(history, PATHS, 3, SEED)
    torch.testing.assert_close(many[:PATHS, :3].cpu(), drawn, rtol=1e-2, atol=0)
