"""Training of a neural market: splits, draws, repeats, which weights are kept; the second stage changes bars alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.worldmodel.neural_market import TINY, small_network, tiny_network
from vecenv.market.bars import CLOSE, VOLUME
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.settings import NetworkSettings
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket, split_by_date
from vecenv.worldmodel.training import bar_stage, fit
from vecenv.worldmodel.training.bar_stage import train_bars
from vecenv.worldmodel.training.fit import Validation, new_state, train_network, validate_network
from vecenv.worldmodel.training.settings import BarStageSettings, TrainingSettings

NETWORK = NetworkSettings(replace(TINY.trunk, dropout=0.1), TINY.head, ("m",))
QUICK = TrainingSettings(steps=4, days=32, evaluate_every=2, learning_rate=3e-3)
BARS = synthetic_bars(1, 160, 5, seed=4)
SPLIT = Split(100, 110, 160)


def market_of(ohlcv: Tensor = BARS.ohlcv) -> TrainingMarket:
    return TrainingMarket.from_bars("m", replace(BARS, ohlcv=ohlcv), SPLIT)


MARKET = market_of()


def trained(market: TrainingMarket, settings: TrainingSettings = QUICK) -> fit.TrainingState:
    state = new_state(NETWORK, settings)
    train_network(state, [market], settings, lambda *_: None, lambda *_: None)
    return state


def test_splits_learning_rates_and_averages():
    dates = business_days(100)
    assert split_by_date(dates, str(dates[59]), str(dates[79]), 5, "here") == (55, 60, 80)
    assert split_by_date(dates, str(dates[5]), str(dates[6]), 5, "here") == (1, 6, 7)
    for train, stop, embargo in (("1999-01-01", dates[79], 5), (dates[59], dates[59], 5), (dates[5], dates[6], 6)):
        with pytest.raises(ValueError, match=f"here: its days run from {dates[0]} to {dates[99]}; none are left"):
            split_by_date(dates, str(train), str(stop), embargo, "here")
    # To the peak over the warm-up, then by a half cosine to a hundredth.
    expected = {0.0: 0.01, 0.0005: 0.01, 0.05: 0.5, 0.1: 1.0, 0.55: 0.505, 1.0: 0.01}
    assert {at: fit.cosine_rate(at, 0.1) for at in expected} == pytest.approx(expected)
    assert fit.cosine_rate(0.325, 0.1) == pytest.approx(0.01 + 0.99 * 0.5 * (1 + math.sqrt(0.5)))
    # The first of all steps takes the average nine tenths of the way; the weights are not replaced by it.
    start, state = new_state(NETWORK, QUICK).average, trained(MARKET, replace(QUICK, steps=1, learning_rate=1.0))
    assert state.optimizer.defaults["betas"] == (0.9, 0.98)
    for name, tensor in state.network.state_dict().items():
        torch.testing.assert_close(state.average[name], torch.lerp(start[name], tensor, 0.9), rtol=0, atol=1e-6)


def test_every_step_has_its_own_days_order_and_symbols(monkeypatch):
    drawn, log_prob = [], TrainingMarket.log_prob

    def recorded(self, network, first, stop, context, order, *others):
        drawn.append((first, stop - first, context, tuple(order.tolist())))
        return log_prob(self, network, first, stop, context, order, *others)

    monkeypatch.setattr(TrainingMarket, "log_prob", recorded)
    trained(MARKET, replace(QUICK, evaluate_every=7))
    firsts, lengths, contexts, orders = zip(*drawn[: QUICK.steps], strict=True)
    assert min(len(set(firsts)), len(set(orders))) > QUICK.steps // 2
    assert set(lengths) == {32} and set(contexts) == {20}
    assert all(1 <= first <= SPLIT.train - QUICK.days for first in firsts)
    drawn.clear()
    trained(MARKET, replace(QUICK, steps=1, days=1000))
    assert drawn[0][:2] == (1, SPLIT.train - 1)
    # A tenth of the choices has three symbols, all others all of five; markets by the root of their stock-days.
    sizes = [fit.drawn_symbols(MARKET, np.random.default_rng(seed)).observed.valid.shape[2] for seed in range(200)]
    assert set(sizes) == {3, 5} and 10 <= sizes.count(3) <= 30
    weights = fit.market_weights([MARKET, MARKET.only(torch.arange(2))])
    assert weights == pytest.approx(np.sqrt([5, 2]) / (math.sqrt(5) + math.sqrt(2)))


def test_updates_on_other_devices_and_in_bfloat16():
    elsewhere = TrainingMarket.from_bars("m", BARS, SPLIT, "meta").only(torch.tensor([3, 1, 0]))
    network = MarketNetwork(NETWORK).to("meta")
    scores, valid, volatility = elsewhere.log_prob(network, 40, 72, 20, torch.randperm(3))
    assert {part.device.type for part in (*scores, valid, volatility)} == {"meta"}
    sum(part.sum() for part in scores).backward()
    assert all(weight.grad is not None for weight in network.parameters())
    # Densities stay float32, near those of a float32 trunk; what is asked for holds on any device.
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [QUICK.on(device).bf16 for device in (cpu, gpu)] == [False, True]
    assert not replace(QUICK, bf16=False).on(gpu).bf16 and replace(QUICK, bf16=True).on(cpu).bf16
    network, order = new_state(NETWORK, QUICK).network.eval(), torch.randperm(5)
    exact, rough = (MARKET.log_prob(network, 60, 100, 20, order, bf16)[0] for bf16 in (False, True))
    for one, other in zip(exact, rough, strict=True):
        assert other.dtype == torch.float32 and not torch.equal(one, other)
        assert float((one - other).abs().mean()) < 0.01
    weights, half = (trained(MARKET, replace(QUICK, steps=1, bf16=bf16)).average for bf16 in (False, True))
    assert not all(torch.equal(tensor, weights[name]) for name, tensor in half.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_on_a_gpu_is_that_on_a_cpu_but_for_rounding():
    exact = replace(QUICK, bf16=False)
    moved = TrainingMarket.from_bars("m", BARS, SPLIT, "cuda")
    networks = new_state(NETWORK, exact).network, new_state(NETWORK, exact, "cuda").network
    networks[1].load_state_dict(networks[0].state_dict())
    pairs = zip(networks, (MARKET, moved), strict=True)
    scores = [validate_network(each, here, SPLIT.validation, SPLIT.stop) for each, here in pairs]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    state = new_state(NETWORK, QUICK.on(torch.device("cuda")), "cuda")
    train_network(state, [moved], QUICK, lambda state, loss: None, lambda state, scores: None)
    assert state.step == QUICK.steps and all(bool(tensor.isfinite().all()) for tensor in state.best.values())


def told_scores(monkeypatch, *scores):
    told = (Validation(*score) for score in scores)
    monkeypatch.setattr(fit, "_validate_average", lambda *_: {"m": next(told)})


def test_training_stops_without_a_better_validation(monkeypatch):
    assert Validation(1.0, 2.0, 10.0).loss(QUICK) == pytest.approx(2.0 + 0.5 + 3.0)
    told_scores(monkeypatch, *((0.0, joint, 0.0) for joint in (2.0, 1.0, 1.0, 3.0)))
    state = trained(MARKET, replace(QUICK, steps=200, evaluate_every=1, patience=2))
    assert (state.step, state.bad_validations, state.best_step, state.best_loss) == (4, 2, 2, 1.0)
    assert [entry["step"] for entry in state.history] == [1, 2, 3, 4]
    assert any(not torch.equal(state.best[name], state.average[name]) for name in state.best)
    # Returns are never less likely than at first, alone or joint, however much the bars' shape gains.
    told_scores(monkeypatch, (-3.0, -3.1, 1.0), (-2.99, -3.2, 0.0), (-3.2, -3.09, 0.0), (-3.0, -3.1, 0.9))
    settings, state = replace(QUICK, steps=3, evaluate_every=1), new_state(NETWORK, QUICK)
    fit.judge_start(state, [MARKET], settings)
    assert (state.best_step, state.history[0]["loss"]) == (0, None)
    train_network(state, [MARKET], settings, lambda *_: None, lambda *_: None)
    assert (state.best_step, state.bad_validations) == (3, 0) and state.history[3]["loss"] is not None


@pytest.mark.nightly
def test_a_network_learns_volatility_that_clusters():
    """Volatility switches between 1% and 3% every 40 days: the density comes near the one that knows it."""
    generator = torch.Generator().manual_seed(0)
    days, symbols = 700, 4
    volatility = torch.where((torch.arange(days) // 40) % 2 == 0, 0.01, 0.03).double()
    returns = torch.randn(days, symbols, generator=generator, dtype=torch.float64) * volatility[:, None]
    bars = synthetic_bars(1, days, symbols, seed=0)
    ohlcv = bars.ohlcv.clone()
    close = 100 * returns.cumsum(0).exp()
    opened = torch.cat([close[:1], close[:-1]])
    ohlcv[0, ..., 0], ohlcv[0, ..., CLOSE] = opened, close
    ohlcv[0, ..., 1], ohlcv[0, ..., 2] = opened.maximum(close) * 1.001, opened.minimum(close) * 0.999
    split = split_by_date(bars.dates, str(bars.dates[499]), str(bars.dates[699]), 10, "switching")
    market = TrainingMarket.from_bars("m", replace(bars, ohlcv=ohlcv), split)
    settings = replace(QUICK, steps=150, days=64, evaluate_every=50)
    before = validate_network(new_state(NETWORK, settings).network, market, 500, 700).alone
    state = trained(market, settings)
    state.network.load_state_dict(state.best)
    after = validate_network(state.network, market, 500, 700).alone
    known = volatility[500:, None].expand(-1, symbols)
    best = float(-torch.distributions.Normal(0.0, known).log_prob(returns[500:]).mean())
    assert after < before - 0.05
    assert after < best + 0.12


def all_weights(market, steps=4, every=2, seed=0, stop=None):
    """Run a stage; return its network with the weights that are kept, its validations, and the steps it told."""
    settings = replace(QUICK, steps=steps, evaluate_every=every, seed=seed)
    state, told = new_state(NETWORK, settings), []
    parts = (lambda state, _: told.append(state.step), lambda *_: None, lambda: state.step == stop)
    train_network(state, [market], settings, *parts)
    state.network.load_state_dict(state.best)
    return state.network, state.history, told


def bars_alone(market, steps=4, every=2, seed=0):
    network, told = tiny_network(NETWORK).requires_grad_(True), []
    settings = BarStageSettings(steps=steps, learning_rate=2e-2, stock_days=100, evaluate_every=every)
    history = train_bars(network, [market], settings, seed, on_step=lambda step, _: told.append(step))
    return network, history, told


@pytest.fixture(params=[all_weights, bars_alone])
def stage(request):
    return request.param


def different(one: MarketNetwork, other: MarketNetwork) -> set[str]:
    weights = other.state_dict()
    return {name.split(".")[0] for name, tensor in one.state_dict().items() if not torch.equal(tensor, weights[name])}


def test_a_run_repeats_itself_keeps_its_best_validation_and_reads_no_later_day(stage):
    (one, history, told), (again, same, _), (_, other, _) = (stage(MARKET, steps=5, seed=seed) for seed in (0, 0, 1))
    assert told == [1, 2, 3, 4, 5] and [entry["step"] for entry in history][-3:] == [2, 4, 5]
    assert history == same and other[-1] != history[-1] and not different(one, again)
    kept, best = validate_network(one, MARKET, SPLIT.validation, SPLIT.stop), history[-1]["m"]
    assert kept.shape == pytest.approx(best if stage is bars_alone else best["shape"], abs=1e-5)
    assert stage is bars_alone or kept._asdict() == pytest.approx(best)
    assert [entry["step"] for entry in all_weights(MARKET, stop=3)[1]] == [2, 3]
    later = BARS.ohlcv.clone()
    later[:, SPLIT.train :, :, :VOLUME] *= 1.3
    (one, history, _), (two, other, _) = (stage(market_of(bars), every=4) for bars in (BARS.ohlcv, later))
    assert not different(one, two) and history[-1] != other[-1] and different(one, tiny_network(NETWORK))


def test_a_single_symbol_is_trained_on(stage):
    market = TrainingMarket.from_bars("m", synthetic_bars(1, 160, 1, seed=1), SPLIT)
    score = validate_network(stage(market, steps=2)[0], market, SPLIT.validation, SPLIT.stop)
    assert score.joint == pytest.approx(score.alone, abs=1e-6)


SETTINGS = BarStageSettings(steps=30, learning_rate=2e-2, stock_days=100, evaluate_every=10)
MARKETS = tuple(
    TrainingMarket.from_bars(name, synthetic_bars(1, 160, symbols, seed=symbols), SPLIT)
    for name, symbols in (("india", 4), ("us", 2))
)


def trained_bars(settings: BarStageSettings = SETTINGS) -> tuple[MarketNetwork, list[dict[str, object]]]:
    network = small_network().requires_grad_(True)
    return network, train_bars(network, MARKETS, settings, 0)


def test_bars_alone_change_and_the_best_validation_is_kept(monkeypatch):
    network, history = trained_bars()
    assert different(network, small_network()) == {"bars"} and [entry["step"] for entry in history] == [0, 10, 20, 30]
    for name in ("india", "us"):
        assert history[-1][name] < history[0][name] - 0.2
    with torch.no_grad():
        scores, valid, _ = MARKETS[0].log_prob(network, 110, 160, network.settings.trunk.reach, torch.arange(4))
    assert float(-scores.shape.sum() / valid.sum()) == pytest.approx(history[-1]["india"], abs=1e-4)
    few, start = replace(SETTINGS, steps=3, evaluate_every=1), small_network()

    def kept(*scores: float) -> MarketNetwork:
        told = iter(scores)
        monkeypatch.setattr(bar_stage, "_validated", lambda *given: {"step": given[-1], "india": next(told), "us": 0.0})
        return trained_bars(few)[0]

    second, third = kept(5.0, 6.0, 2.0, 3.0), kept(5.0, 4.0, 3.0, 1.0)
    assert not different(kept(0.0, 1.0, 0.5, 3.0), start) and not different(kept(5.0, 5.0, 5.0, 5.0), start)
    assert different(second, start) == different(third, start) == different(second, third) == {"bars"}


def test_updates_read_training_days_of_choices_that_roll(monkeypatch):
    """Every training day and none after it, with the trunk's output before it, of a new choice after every 10 steps."""
    monkeypatch.setattr(bar_stage, "CHOICE_STEPS", 10)
    read, chosen, own, choice = [], [], TrainingMarket.bar_log_prob, bar_stage._choice
    monkeypatch.setattr(TrainingMarket, "bar_log_prob", lambda *given: read.append(given) or own(*given))
    monkeypatch.setattr(bar_stage, "_choice", lambda *given: chosen.append(given[1].name) or choice(*given))
    network = small_network().requires_grad_(True)
    train_bars(network, MARKETS, replace(SETTINGS, stock_days=400, evaluate_every=30), 0)
    assert sorted(chosen) == ["india"] * (bar_stage.CHOICES + 2) + ["us"] * (bar_stage.CHOICES + 2)
    updates = [(market, known, days) for market, _, known, days in read if int(days.max()) < 110]
    assert len(updates) == SETTINGS.steps
    assert set(torch.cat([days for _, _, days in updates]).tolist()) == set(range(1, 100))
    for market, known, days in updates[:3]:
        assert len(days) == 400 // market.observed.valid.shape[2]
        with torch.no_grad():
            before = [market.known(network, int(day), int(day) + 1, 60)[0] for day in days[:5]]
        torch.testing.assert_close(known[:5], torch.stack(before), atol=1e-4, rtol=1e-4)


def test_markets_are_drawn_by_their_weights_and_the_averaged_weights_are_validated(monkeypatch):
    few = replace(SETTINGS, steps=6, evaluate_every=2)
    history = trained_bars(few)[1]
    assert trained_bars(replace(few, evaluate_every=6))[1][-1] == history[-1]
    monkeypatch.setattr(bar_stage, "AVERAGE_DECAY", 0.0)
    latest = trained_bars(few)[1]
    assert latest[0] == history[0] and latest[-1] != history[-1]
    # Dropout would change the trunk's outputs, which are computed once for many updates.
    read, modes, own = [], [], bar_stage._bar_loss
    monkeypatch.setattr(bar_stage, "market_weights", lambda markets: [0.0, 1.0])
    monkeypatch.setattr(bar_stage, "_bar_loss", lambda *given: read.append(given[1].name) or own(*given))
    network = small_network().requires_grad_(True).train()
    train_bars(network, MARKETS, few, 0, on_step=lambda *_: modes.append(network.training))
    assert read == ["us"] * 6 and modes == [False] * 6
    BarStageSettings(steps=0, stock_days=1, evaluate_every=1)
    for name, wrong in (("steps", -1), ("stock_days", 0), ("evaluate_every", 0), ("learning_rate", math.nan)):
        with pytest.raises(ValueError, match=rf"^{name} must .*, got {wrong}"):
            BarStageSettings(**{name: wrong})
