"""Rollouts: paths are the same in any block, chunk and thread, drawn day by day or as one captured day repeated."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.worldmodel.neural_market import TINY, history_of, small_network, tiny_network
from vecenv.market.bars import CLOSE
from vecenv.worldmodel.network import return_draw
from vecenv.worldmodel.network.cnn_gru import CnnGruSettings
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.sampling import blocks
from vecenv.worldmodel.sampling.block_paths import BlockPaths, DayDraws, Starts
from vecenv.worldmodel.sampling.blocks import Block
from vecenv.worldmodel.sampling.interleave import Steps, in_threads, run_all
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.rollout import RepeatedDay

PATHS, DAYS, SEED = 8, 12, 3


@pytest.fixture(scope="module")
def market() -> NeuralMarket:
    return NeuralMarket(small_network(), "india")


@pytest.mark.parametrize("symbols", [3, 30])
def test_a_path_depends_on_its_number_and_the_seed_alone(market, symbols):
    """Bit for bit, whatever the days and paths: part of a chunk, several ones, a block, and one path more."""
    history = history_of(symbols)
    first, second, third = blocks.blocks_of(market.device, symbols, 300)[:3]
    many = market.generate(history, third.first + 1, 3, seed=3)
    for paths in (1, first.chunk, 40, second.first, second.first + 1, second.first + second.chunk + 1, third.first):
        assert torch.equal(market.generate(history, paths, 3, seed=3), many[:paths])
    assert torch.equal(market.generate(history, 2, 1, seed=3), many[:2, :1])
    assert len(many[:, 0, 0, CLOSE].unique()) == len(many)
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


def test_a_path_is_the_same_with_any_number_of_threads(market, monkeypatch):
    """A day is drawn in one thread, and the number of the caller's stays what it was, also after an error."""
    used, draw = [], DayDraws.draw
    monkeypatch.setattr(DayDraws, "draw", lambda *given: used.append(torch.get_num_threads()) or draw(*given))
    history, before = history_of(25), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = market.generate(history, 70, 3)
        for threads in (2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(market.generate(history, 70, 3), alone)
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


def test_what_cannot_be_drawn_is_refused_before_any_work(market):
    assert blocks.blocks_of(torch.device("cpu"), 25, 200) == [(0, 32, 16), (32, 32, 16), (64, 64, 16), (128, 128, 16)]
    text = r"1,000,000 paths of 100,000 days of 2 symbols need 16,000.0 GB of memory or more, and cpu has"
    for paths, days, told in ((1_000_000, 100_000, text), (0, 1, "num_paths must be at least 1, got 0"),
                              (1, 0, "num_days must be at least 1, got 0")):  # fmt: skip
        with pytest.raises(ValueError, match=told):
            market.generate(history_of(2), paths, days)


def recurrent_network() -> MarketNetwork:
    trunk = CnnGruSettings(channels=8, width=12)
    return tiny_network(replace(TINY, trunk=trunk, joint="none", density="gaussian"))


def repeated(market: NeuralMarket, starts: Starts) -> RepeatedDay:
    paths = BlockPaths(market.network, starts, "india", Block(0, PATHS, PATHS), SEED, 1.0)
    cache = starts.cache.chosen(paths.rows).repeatable()
    assert cache is not None
    return RepeatedDay(paths, market.network.trunk, cache, DAYS)


@pytest.mark.assembly
@pytest.mark.parametrize("network", [small_network, recurrent_network])
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


def computation(number: int, days: int, seen: list[tuple[int, int, int]]) -> Steps:
    """Yield three works a day; the result is the sum of what they wrote."""
    total = torch.zeros(3)

    def work(place: int, day: int) -> None:
        total[place] += (number + 1) * 10**day

    for day in range(days):
        assert bool((total == (number + 1) * (10**day // 9)).all()), "a work was not done"
        seen.append((number, day, threading.get_ident()))
        yield [lambda place=place, day=day: work(place, day) for place in range(3)]
    return total


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_results_are_those_of_one_after_the_other(threads, at_once):
    seen: list[tuple[int, int, int]] = []
    lengths = [3, 0, 5, 1, 4, 2]
    results = run_all([computation(number, days, seen) for number, days in enumerate(lengths)], threads, at_once)
    for number, (days, result) in enumerate(zip(lengths, results, strict=True)):
        assert bool((result == (number + 1) * (10**days // 9)).all())
    assert {thread for _, _, thread in seen} == {threading.get_ident()}
    begun, done, most = set(), {1}, 0
    for number, day, _ in seen:
        begun.add(number)
        if day + 1 == lengths[number]:
            done.add(number)
        most = max(most, len(begun - done))
    assert most <= min(threads, at_once)
    if threads > 1 and at_once > 1:
        assert [number for number, _, _ in seen] != sorted(number for number, _, _ in seen), "none ran in turn"


@pytest.mark.parametrize("threads", [1, 3])
def test_results_of_works_come_in_their_order_and_errors_are_raised(threads):
    def failing() -> Steps:
        yield [lambda: None, lambda: 1 / 0]
        raise AssertionError("went on after a failed work")

    assert in_threads([lambda number=number: number**2 for number in range(5)], threads) == [0, 1, 4, 9, 16]
    with pytest.raises(ZeroDivisionError):
        run_all([failing(), failing()], threads, 2)
    with pytest.raises(ZeroDivisionError):
        in_threads([lambda: 0, lambda: 1 // 0], threads)


def test_works_run_with_one_thread_each():
    inside: list[int] = []

    def asking() -> Steps:
        yield [lambda: inside.append(torch.get_num_threads())]
        return torch.zeros(())

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        run_all([asking(), asking()], 2, 2)
        assert inside == in_threads([torch.get_num_threads] * 2, 2) == [1, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
