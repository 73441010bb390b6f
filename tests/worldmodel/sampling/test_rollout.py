"""Rollouts: paths are the same in any block, chunk and thread, and stay finite."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.worldmodel.neural_market import history_of, small_network
from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME
from vecenv.worldmodel.network.return_chain import COMPONENTS
from vecenv.worldmodel.sampling import blocks
from vecenv.worldmodel.sampling.day_draw import DayDraws
from vecenv.worldmodel.sampling.neural import NeuralMarket


@pytest.fixture(scope="module")
def market() -> NeuralMarket:
    return NeuralMarket(small_network(), "india")


def test_a_path_depends_on_its_number_and_the_seed_alone(market):
    """Bit for bit, over several blocks of paths, whatever the number of paths and of days."""
    history = history_of(30)
    many = market.generate(history, 150, 4, seed=3)
    for paths, days in ((1, 4), (2, 3), (70, 1)):
        assert torch.equal(market.generate(history, paths, days, seed=3), many[:paths, :days])
    assert len(many[:, 0, 0, CLOSE].unique()) == 150
    for seed in (4, 3 + (1 << 40)):
        assert not bool((market.generate(history, 2, 2, seed=seed) == many[:2, :2]).any())


def test_days_drawn_after_several_days_are_those_after_each(market):
    """Bit for bit; a history shorter than what reaches the trunk's output is one of them."""
    history = history_of(3)
    days, seeds = [1, 20, len(history.dates) - 1], [5, 6, 7]
    for day, seed, bars in zip(days, seeds, market.generate_after(history, days, 3, 4, seeds), strict=True):
        assert torch.equal(bars, market.generate(history.days(0, day + 1), 3, 4, seed))
    holed = history.ohlcv.clone()
    holed[0, 20, 1] = float("nan")
    with pytest.raises(ValueError, match=rf"no bar on {history.dates[20]} for {history.symbols[1]}"):
        next(market.generate_after(replace(history, ohlcv=holed), days, 3, 4, seeds))


def test_antithetic_paths_reflect_the_noise_of_returns_alone(market):
    """On the first day a pair's mean is a component's location: as many values as components, of many draws."""
    starts = market.starts(history_of(1))
    close = float(history_of(1).ohlcv[0, -1, 0, CLOSE].log())
    drawn, reflected = (market.draw_after(starts, 200, 1, 5, antithetic)[:, 0, 0] for antithetic in (False, True))
    returns = torch.stack([drawn, reflected])[..., CLOSE].log() - close
    assert len(returns[0].unique()) == 200 and float(returns.std(1).min()) > 0.002
    locations = (returns.mean(0) * 1e6).round().unique()
    assert 2 <= len(locations) <= COMPONENTS
    assert torch.equal(drawn, market.draw_after(starts, 200, 1, 5)[:, 0, 0])


@pytest.mark.parametrize("symbols", [3, 25])
def test_a_path_is_the_same_in_any_part_of_a_block(market, symbols):
    """One path, several chunks of a block, a whole one, and one path more, of the first block and of later ones."""
    history = history_of(symbols)
    first, second, third = blocks.blocks_of(market.device, symbols, 300)[:3]
    many = market.generate(history, third.first + 1, 3)
    assert len(many) == third.first + 1
    for paths in (1, first.chunk, 40, second.first, second.first + 1, second.first + second.chunk + 1, third.first):
        assert torch.equal(market.generate(history, paths, 3), many[:paths])


@pytest.mark.assembly
def test_a_path_is_the_same_with_any_number_of_threads(market, monkeypatch):
    """A day is drawn in one thread, and the number of the caller's stays what it was, also after an error."""
    used = []
    draw = DayDraws.draw
    monkeypatch.setattr(DayDraws, "draw", lambda *given: used.append(torch.get_num_threads()) or draw(*given))
    history, before = history_of(25), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = market.generate(history, 70, 4)
        for threads in (2, 3, 6):
            torch.set_num_threads(threads)
            assert torch.equal(market.generate(history, 70, 4), alone)
            assert torch.get_num_threads() == threads
            with pytest.raises(ValueError, match="seed"):
                market.generate(history, 70, 4, seed=-1)
            assert torch.get_num_threads() == threads
        assert set(used) == {1}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("symbols", [1, 3, 16, 25, 109, 4096])
def test_blocks_are_whole_chunks_and_hold_all_paths(device, symbols):
    limits = blocks.LIMITS[device]
    whole = blocks.blocks_of(torch.device(device), symbols, 1000)
    for paths in (1, 63, 64, 65, 256, 257, 1000):
        some = blocks.blocks_of(torch.device(device), symbols, paths)
        assert some == whole[: len(some)]
        assert some[-1].first < paths <= some[-1].first + some[-1].paths
    after = 0
    for block in whole:
        assert block.first == after and block.paths % block.chunk == 0
        assert block.chunk == 1 or block.chunk * symbols <= limits.chunk_rows
        after = block.first + block.paths


def test_what_does_not_fit_in_memory_is_refused_before_any_work(market):
    text = r"1,000,000 paths of 100,000 days of 2 symbols need 16,000.0 GB of memory or more, and cpu has"
    with pytest.raises(ValueError, match=text):
        market.generate(history_of(2), 1_000_000, 100_000)


@pytest.mark.nightly
def test_prices_stay_finite_and_positive_for_ever(market, monkeypatch):
    """Ten thousand paths of a thousand days of a network whose weights are random, not trained; all in one block."""
    monkeypatch.setitem(blocks.LIMITS, "cpu", blocks.BlockLimits(10_000, 2, *[10_000] * 4))
    bars = market.generate(history_of(1), 10_000, 1000)
    assert bars.shape == (10_000, 1000, 1, 5)
    assert bool(bars.isfinite().all()) and float(bars[..., :VOLUME].min()) > 0
    assert bool((bars[..., HIGH] >= bars[..., OPEN].maximum(bars[..., CLOSE])).all())
    assert bool((bars[..., LOW] <= bars[..., OPEN].minimum(bars[..., CLOSE])).all())
