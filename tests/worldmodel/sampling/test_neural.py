"""The neural market: densities without look-ahead, and paths that are the same in any block, chunk and thread."""

import threading
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.worldmodel.neural_market import TINY, extended, history_of, matrices_of, small_network, tiny_network
from vecenv.core.random import box_muller, episode_key, open_uniform, random_bits
from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.streams import NeuralStream
from vecenv.market.synthetic import synthetic_bars
from vecenv.testing.ranks import on_ranks
from vecenv.worldmodel.data.bar_moves import encode_bars
from vecenv.worldmodel.data.calendar import CALENDAR, calendar_features
from vecenv.worldmodel.data.correlation_level import LEVEL_STRIDE, with_level
from vecenv.worldmodel.data.features import observe_history
from vecenv.worldmodel.network import return_chain
from vecenv.worldmodel.network.bar_heads import BarHeads
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_chain import ReturnDraws
from vecenv.worldmodel.network.settings import CnnGruSettings
from vecenv.worldmodel.sampling import block_paths, neural
from vecenv.worldmodel.sampling.block_paths import Block, BlockPaths, DayDraws, Starts
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.rollout import RepeatedDay, in_threads, one_thread, run_all

NAN = float("nan")
PATHS, DAYS, SEED = 8, 12, 3
MARKET = NeuralMarket(small_network(), "india")


@pytest.fixture(scope="module")
def ragged() -> Bars:
    bars = history_of(3, 70)
    bars.ohlcv[0, 25:28, 0] = bars.ohlcv[0, :20, 1] = bars.ohlcv[0, 45, 2] = bars.ohlcv[0, 50] = NAN
    return bars


@pytest.mark.parametrize("antithetic", [False, True])
def test_numbers_of_a_day_are_those_of_its_streams(monkeypatch, antithetic):
    read, returns, bars = [], ReturnDraws.draw, BarHeads.draw
    monkeypatch.setattr(ReturnDraws, "draw", lambda *given: read.append(given[2].clone()) or returns(*given))
    monkeypatch.setattr(BarHeads, "draw", lambda *given: read.append(given[5]) or bars(*given))
    MARKET.draw_after(MARKET.starts(history_of(3)), 2, 2, 9, antithetic)
    key = episode_key(9, torch.arange(32)[:, None], 0)
    for day in (0, 1):
        position = day * block_paths.MAX_SYMBOLS + torch.arange(3)
        words = [random_bits(key, NeuralStream.DAY + stream, position) for stream in range(6)]
        uniform = [[open_uniform(word, torch.float32) for word in stream] for stream in words]
        *radial, first_angle, second_angle = (number[:, 0] for number in uniform.pop())
        pairs = [box_muller(*each) for each in zip(radial, (first_angle, second_angle), strict=True)]
        common = [*(pair[0] for pair in pairs), *(pair[1] for pair in pairs)]
        choice, radial, angular, state = uniform[0]
        if antithetic:
            angular, state = (angular + 0.5) % 1.0, 1.0 - state
        noise, of_bars = read[2 * day], read[2 * day + 1]
        assert torch.equal(noise, torch.stack([choice, radial, angular, state]))
        for quantity, (first, second, zero, shock) in enumerate(uniform[1:]):
            expected = [*box_muller(first, second), common[quantity], shock[:, 0]]
            assert all(torch.equal(part[quantity], each) for part, each in zip(of_bars.copula, expected, strict=True))
            assert torch.equal(of_bars.zero[quantity], zero)


def test_any_number_of_threads_reads_and_draws_the_same(monkeypatch):
    """A day is drawn in one; the caller's number stays what it was, also after an error. Parts are of four rows."""
    market, gradients, used, draw = NeuralMarket(small_network(), "india"), set(), [], DayDraws.draw
    trunk, prefill = market.network.trunk, market.network.trunk.prefill
    monkeypatch.setattr(trunk, "prefill", lambda part: gradients.add(torch.is_grad_enabled()) or prefill(part))
    monkeypatch.setattr(DayDraws, "draw", lambda *given: used.append(torch.get_num_threads()) or draw(*given))
    histories, history, before = synthetic_bars(5, 40, 2, seed=3), history_of(25), torch.get_num_threads()
    whole, read, drawn = market.starts(histories), [], []
    monkeypatch.setitem(neural.PREFILL_ROWS, "cpu", 4)
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            read.append(market.starts(histories))
            drawn.append(market.generate(history, 70, 3))
            with pytest.raises(ValueError, match="seed"):
                market.generate(history, 70, 4, seed=-1)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(read[0].known, whole.known)
    assert read[0].cache.keys.shape == whole.cache.keys.shape
    for starts, bars in zip(read, drawn, strict=True):
        assert torch.equal(starts.known, read[0].known) and torch.equal(starts.cache.keys, read[0].cache.keys)
        assert torch.equal(bars, drawn[0])
    assert gradients == {False} and set(used) == {1}


def test_densities_of_a_history(ragged):
    """Of log-returns, those of the network less the logarithm of the volatility; joint ones add up the chain's."""
    valid = encode_bars(ragged.ohlcv).valid[0]
    some, first = valid.any(-1), valid.int().argmax(-1, keepdim=True)
    density, joint, parts = MARKET.log_density(ragged), MARKET.joint_log_density(ragged), MARKET._densities(ragged)
    assert density.dtype == joint.dtype == torch.float64
    assert torch.equal(density.isfinite(), valid) and torch.equal(density.isnan(), ~valid)
    assert torch.equal(joint.isfinite(), some) and torch.equal(joint.isnan(), ~some)
    assert torch.allclose(joint[some], parts.chained[some].nansum(-1), rtol=1e-9)
    one, other = (part.gather(1, first)[some] for part in (parts.alone, parts.chained))
    assert torch.allclose(one, other, atol=1e-5)
    assert float((parts.alone - parts.chained)[valid & (torch.arange(3) != first)].abs().mean()) > 0.01
    single = replace(ragged, symbols=ragged.symbols[:1], ohlcv=ragged.ohlcv[:, :, :1])
    expected = MARKET.log_density(single)[:, 0]
    assert torch.allclose(MARKET.joint_log_density(single), expected, atol=1e-5, equal_nan=True)
    history = history_of(3)
    start, longer = MARKET.starts(history), extended(history, MARKET.generate(history, 1, 1))
    volatility = start.state.volatility[0]
    calendar = calendar_features(longer.dates[-1:])[0]
    given = (matrices_of(MARKET, history), start.state.scales.features()[0], calendar, volatility.float(), "india")
    scaled = observe_history(encode_bars(longer.ohlcv)).scaled[:, -1].float()
    read = MARKET.network.log_prob(start.known[0], scaled, torch.ones(1, 3, dtype=torch.bool), *given)
    mine, scale = MARKET._densities(longer), volatility.log()
    for one, other, less in zip(mine, read, (scale, scale, 0.0), strict=True):
        assert torch.allclose(one[-1], other[0].double() - less, atol=1e-4)
    still = history_of(2, 1)
    assert bool(MARKET.log_density(still).isnan().all()) and MARKET.log_density(still).shape == (1, 2)
    assert bool(MARKET.joint_log_density(still).isnan().all()) and MARKET.generate(still, 2, 3).shape == (2, 3, 2, 5)
    returns = []
    for model in (MARKET, MARKET.at_temperature(0.1)):
        bars = model.generate(history_of(1), 4000, 1)[:, 0, 0, CLOSE]
        returns.append((bars / history_of(1).ohlcv[0, -1, 0, CLOSE]).log())
    # A scale of a day is one of its means too.
    assert float(returns[1].std() / returns[0].std()) == pytest.approx(0.1, rel=1e-2)
    assert float(returns[1].mean()) == pytest.approx(float(returns[0].mean()), abs=4 * float(returns[0].std()) / 63)


def test_volumes_move_on_their_days_of_the_calendar():
    """The third day after a Wednesday is a Monday."""
    history, volumes = history_of(3).days(0, 38), []
    for move in (0.0, 5.0):
        market = NeuralMarket(small_network(), "india")
        market.network.bars.calendar[0] = move * torch.eye(len(CALENDAR))[CALENDAR.index("monday")]
        volumes.append(market.generate(history, 8, 3, SEED)[..., VOLUME])
    plain, moved = volumes
    assert torch.equal(plain[:, :2], moved[:, :2]) and bool((moved[:, 2] > plain[:, 2]).all())


@pytest.mark.parametrize("day", [22, 33])
def test_no_look_ahead_in_densities(ragged, monkeypatch, day):
    """Other bars from a day on change no density before it; other wicks and volumes none on it. Chunks are read."""
    whole = MARKET.log_density(ragged)
    monkeypatch.setattr(neural, "DAYS_PER_READ", 16)
    changed, wicks = ragged.ohlcv.clone(), ragged.ohlcv.clone()
    changed[:, day:] *= torch.tensor([1.1, 1.3, 1.05, 1.2, 3.0], dtype=torch.float64)
    wicks[:, day] *= torch.tensor([1.0, 1.3, 0.7, 1.0, 3.0], dtype=torch.float64)
    for density in (MARKET.log_density, MARKET.joint_log_density):
        base, later = density(ragged), density(replace(ragged, ohlcv=changed))
        assert torch.allclose(later[:day], base[:day], atol=1e-5, equal_nan=True)
        assert float((later[day] - base[day]).abs().min()) > 1e-3
        other = density(replace(ragged, ohlcv=wicks))
        assert torch.allclose(other[: day + 1], base[: day + 1], atol=1e-5, equal_nan=True)
        assert not torch.allclose(other[day + 1], base[day + 1], atol=1e-5, equal_nan=True)
    for days in (32, 49, 50, 70):
        assert torch.allclose(MARKET.log_density(ragged.days(0, days)), whole[:days], atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("symbols", [3, 30])
def test_a_path_depends_on_its_number_and_the_seed_alone(symbols):
    history = history_of(symbols)
    first, second, third = block_paths.blocks_of(MARKET.device, symbols, 300)[:3]
    many = MARKET.generate(history, third.first + 1, 3, seed=3)
    for paths in (1, first.chunk, 40, second.first, second.first + 1, second.first + second.chunk + 1, third.first):
        assert torch.equal(MARKET.generate(history, paths, 3, seed=3), many[:paths])
    assert torch.equal(MARKET.generate(history, 2, 1, seed=3), many[:2, :1])
    assert len(many[:, 0, 0, CLOSE].unique()) == len(many)
    for seed in (4, 3 + (1 << 40)):
        assert not bool((MARKET.generate(history, 2, 2, seed=seed) == many[:2, :2]).any())


def test_ranks_draw_together_what_one_draws():
    starts = MARKET.starts(history_of(3))
    whole = MARKET.draw_after(starts, 70, 3, SEED)
    with one_thread():
        # Alone each draws its own; fewer paths than ranks all of them.
        for paths in (70, 2):
            for drawn in on_ranks(3, lambda _, paths=paths: MARKET.draw_together(starts, paths, 3, SEED)):
                assert torch.equal(drawn, whole[:paths])
        shares = on_ranks(3, lambda _: neural.own_paths(70))
    assert [*shares[0], *shares[1], *shares[2]] == list(range(70)) and len(shares[1]) == 23


def test_days_drawn_after_several_days_are_those_after_each():
    history = history_of(3)
    days, seeds = [1, 20, len(history.dates) - 1], [5, 6, 7]
    for day, seed, bars in zip(days, seeds, MARKET.generate_after(history, days, 3, 4, seeds), strict=True):
        assert torch.equal(bars, MARKET.generate(history.days(0, day + 1), 3, 4, seed))
    holed = history.ohlcv.clone()
    holed[0, 20, 1] = float("nan")
    with pytest.raises(ValueError, match=rf"no bar on {history.dates[20]} for {history.symbols[1]}"):
        next(MARKET.generate_after(replace(history, ohlcv=holed), days, 3, 4, seeds))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("symbols", [1, 3, 25, 109, 4096])
def test_blocks_are_whole_chunks_and_hold_all_paths(device, symbols):
    few = [(0, 32, 16), (32, 32, 16), (64, 64, 16), (128, 128, 16)]
    assert block_paths.blocks_of(torch.device("cpu"), 25, 200) == few
    whole, after = block_paths.blocks_of(torch.device(device), symbols, 1000), 0
    for paths in (1, 63, 64, 65, 256, 257, 1000):
        some = block_paths.blocks_of(torch.device(device), symbols, paths)
        assert some == whole[: len(some)] and some[-1].first < paths <= some[-1].first + some[-1].paths
    for block in whole:
        assert block.first == after and block.paths % block.chunk == 0
        assert block.chunk == 1 or block.chunk * symbols <= block_paths.LIMITS[device].chunk_rows
        after = block.first + block.paths


def test_what_cannot_be_drawn_is_refused_before_any_work(monkeypatch):
    text = r"1,000,000 paths of 100,000 days of 2 symbols need 16,000.0 GB of memory or more, and cpu has"
    history, holed = history_of(3), history_of(3)
    holed.ohlcv[0, -1, 1] = NAN
    for bars, paths, days, told in (
        (history_of(2), 1_000_000, 100_000, text),
        (history, 0, 1, "num_paths must be at least 1, got 0"),
        (history, 1, 0, "num_days must be at least 1, got 0"),
        (holed, 1, 1, f"no bar on {history.dates[-1]} for {history.symbols[1]}$"),
    ):
        with pytest.raises(ValueError, match=told):
            MARKET.generate(bars, paths, days)
    with pytest.raises(ValueError, match="unknown market 'mars'; the network knows india, us"):
        NeuralMarket(MARKET.network, "mars")
    monkeypatch.setattr(neural, "MAX_SYMBOLS", 2)
    with pytest.raises(ValueError, match="3 symbols, at most 2 are drawn jointly"):
        MARKET.generate(history, 1, 1)


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
    market, history = NeuralMarket(network(), "india"), history_of(3)
    drawn = market.generate(history, PATHS, DAYS, SEED)
    # The numbers of a chain's step are NumPy's on a CPU, which nothing records.
    monkeypatch.setattr(return_chain, "_light", lambda tensor: tensor)
    day = repeated(market, market.starts(history))
    record = make_fx(lambda: (day(), day.bars)[1])()
    for number in range(1, DAYS):
        day.paths.renew(number)
        record()
    torch.testing.assert_close(day.bars, drawn, rtol=1e-5, atol=0)


def test_after_a_renewal_days_are_drawn_as_with_samplers_made_anew():
    network, starts = MARKET.network, MARKET.starts(history_of(3))
    paths = BlockPaths(network, starts, "india", Block(0, PATHS, PATHS), SEED, 1.0)
    for day in range(LEVEL_STRIDE):
        paths.observe(paths.draw(day)[0])
    (before, _), first = paths.draw(LEVEL_STRIDE), paths._draws.copula.variances.clone()
    paths.renew(LEVEL_STRIDE)
    renewed, _ = paths.draw(LEVEL_STRIDE)
    matrices = with_level(starts.matrices, paths._state.common.level(), network.level_shares_of("india"))
    paths._draws = paths._draws._replace(returns=network.draws(torch.linalg.cholesky(matrices[:, 0]), "india"))
    assert torch.equal(renewed, paths.draw(LEVEL_STRIDE)[0]) and not bool((renewed == before).all((0, 1)).any())
    # The bars' numbers have the correlations of the density: those of a sum of independent parts.
    factor, (estimated, own, common) = paths._draws.copula.factor, paths._draws.copula.variances[..., None, None]
    drawn = estimated * factor @ factor.mT + own * torch.eye(3) + common
    expected = network.bars.factors(matrices[:, 1:], torch.ones(3, dtype=torch.bool), 0)
    torch.testing.assert_close(drawn, expected @ expected.mT, atol=1e-5, rtol=0)
    assert float((paths._draws.copula.variances - first).abs().amax((0, 1)).min()) > 1e-3


def test_paths_without_a_level_are_those_of_a_level_of_which_nothing_is_mixed_in():
    """Bit for bit, as old weights draw them, and without new factors."""
    market, history = NeuralMarket(small_network(), "india"), history_of(3)
    market.network.level_shares.zero_()
    starts = market.starts(history)
    paths = BlockPaths(market.network, starts, "india", Block(0, PATHS, PATHS), SEED, 1.0)
    paths._network = None
    paths.renew(LEVEL_STRIDE)
    mixed = market.draw_after(starts._replace(follows=True), PATHS, DAYS, SEED)
    assert not starts.follows and torch.equal(market.draw_after(starts, PATHS, DAYS, SEED), mixed)


def test_a_day_asks_the_device_for_no_number():
    market, elsewhere = NeuralMarket(small_network(), "india"), torch.device("meta")
    known, cache, state, matrices, weekday, follows, _ = market.starts(history_of(3))
    cache = cache._replace(keys=cache.keys.to(elsewhere), values=cache.values.to(elsewhere))
    state = state.taken(lambda part: part.to(elsewhere))
    window = market.network.settings.trunk.window
    for days in (window - 1, window):
        # Days differ until the window is full.
        assert (market.starts(history_of(2).days(0, days)).cache.repeatable() is None) == (days < window)
    starts = Starts(known.to(elsewhere), cache, state, matrices.to(elsewhere), weekday.to(elsewhere), follows)
    day = repeated(NeuralMarket(market.network.to(elsewhere), "india"), starts)
    day()
    day()
    assert day.bars.device == elsewhere and day.bars.shape == (PATHS, DAYS, 3, 5)


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


def computation(number, days, seen):
    total, caller = torch.zeros(3), threading.get_ident()

    def work(place, day):
        total[place] += (number + 1) * 10**day

    for day in range(days):
        assert bool((total == (number + 1) * (10**day // 9)).all()), "a work was not done"
        assert threading.get_ident() == caller
        seen.append((number, day))
        yield [lambda place=place, day=day: work(place, day) for place in range(3)]
    return total


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_results_are_those_of_one_after_the_other(threads, at_once):
    seen, lengths = [], [3, 0, 5, 1, 4, 2]
    results = run_all([computation(number, days, seen) for number, days in enumerate(lengths)], threads, at_once)
    assert [result.tolist() for result in results] == [[(n + 1) * (10**d // 9)] * 3 for n, d in enumerate(lengths)]
    begun, done, most = set(), {1}, 0
    for number, day in seen:
        begun.add(number)
        if day + 1 == lengths[number]:
            done.add(number)
        most = max(most, len(begun - done))
    order = [number for number, _ in seen]
    assert most <= min(threads, at_once) and (min(threads, at_once) == 1) == (order == sorted(order))


def test_works_run_with_one_thread_each_and_their_errors_are_raised():
    inside, before = [], torch.get_num_threads()

    def works(*parts):
        yield parts
        assert parts[0] == asking, "went on after a failed work"
        return torch.zeros(())

    def asking():
        inside.append(torch.get_num_threads())

    try:
        torch.set_num_threads(3)
        run_all([works(asking), works(asking)], 2, 2)
        assert inside == in_threads([torch.get_num_threads] * 2, 2) == [1, 1] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    for threads in (1, 3):
        assert in_threads([lambda number=number: number**2 for number in range(5)], threads) == [0, 1, 4, 9, 16]
        with pytest.raises(ZeroDivisionError):
            run_all([works(lambda: 0, lambda: 1 / 0) for _ in range(2)], threads, 2)
        with pytest.raises(ZeroDivisionError):
            in_threads([lambda: 0, lambda: 1 // 0], threads)
