"""Training of a neural market: splits, draws, which weights are kept, and what is learned."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.worldmodel.neural_market import TINY
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.sampling.training_market import TrainingMarket, split_by_date
from vecenv.worldmodel.training import fit
from vecenv.worldmodel.training.fit import (
    TrainingSettings,
    TrainingState,
    Validation,
    cosine_rate,
    drawn_symbols,
    judge_start,
    market_weights,
    new_state,
    train_network,
    validate_network,
)

NETWORK = NetworkSettings(replace(TINY.trunk, dropout=0.1), head=16, markets=("test",))
QUICK = TrainingSettings(steps=6, days=32, evaluate_every=2, learning_rate=3e-3)
BARS = synthetic_bars(1, 300, 5, seed=4)


def market_of(bars: Bars) -> TrainingMarket:
    split = split_by_date(bars.dates, str(bars.dates[199]), str(bars.dates[249]), 10, bars.source)
    return TrainingMarket.from_bars("test", bars, split)


@pytest.fixture(scope="module")
def market() -> TrainingMarket:
    return market_of(BARS)


def trained(market: TrainingMarket, settings: TrainingSettings, network: NetworkSettings = NETWORK) -> TrainingState:
    state = new_state(network, settings)
    train_network(state, [market], settings, lambda *_: None, lambda *_: None)
    return state


def test_days_of_training_and_validation_do_not_overlap():
    dates = business_days(100)
    assert split_by_date(dates, str(dates[59]), str(dates[79]), 5, "here") == (55, 60, 80)
    assert split_by_date(dates, str(dates[5]), str(dates[6]), 5, "here") == (1, 6, 7)
    for train, stop, embargo in (("1999-01-01", dates[79], 5), (dates[59], dates[59], 5), (dates[5], dates[6], 6)):
        with pytest.raises(ValueError, match=f"here: its days run from {dates[0]} to {dates[99]}; none are left"):
            split_by_date(dates, str(train), str(stop), embargo, "here")


def test_every_step_has_its_own_days_and_order(market, monkeypatch):
    drawn, log_prob = [], TrainingMarket.log_prob

    def recorded(self, network, first, stop, context, order, *others):
        drawn.append((first, stop - first, context, tuple(order.tolist())))
        return log_prob(self, network, first, stop, context, order, *others)

    monkeypatch.setattr(TrainingMarket, "log_prob", recorded)
    trained(market, replace(QUICK, evaluate_every=7))
    firsts, lengths, contexts, orders = zip(*drawn[: QUICK.steps], strict=True)
    assert min(len(set(firsts)), len(set(orders))) > QUICK.steps // 2
    assert set(lengths) == {32} and set(contexts) == {20}
    assert all(1 <= first <= market.split.train - QUICK.days for first in firsts)
    drawn.clear()
    trained(market, replace(QUICK, steps=1, days=1000))
    assert drawn[0][:2] == (1, market.split.train - 1)


def test_symbols_and_markets_are_drawn_by_their_shares(market):
    """A tenth of the choices has three symbols, all others all of five; markets by the root of their stock-days."""
    sizes = [drawn_symbols(market, np.random.default_rng(seed)).observed.valid.shape[2] for seed in range(200)]
    assert set(sizes) == {3, 5} and 10 <= sizes.count(3) <= 30
    few = market.only(torch.arange(2))
    assert market_weights([market, few]) == pytest.approx(np.sqrt([5, 2]) / (math.sqrt(5) + math.sqrt(2)))


def test_everything_that_an_update_reads_is_on_the_network_s_device(market):
    """The meta device refuses tensors of another one, and any number that is asked back."""
    elsewhere = TrainingMarket.from_bars("test", BARS, market.split, "meta").only(torch.tensor([3, 1, 0]))
    network = MarketNetwork(NETWORK).to("meta")
    scores, valid, volatility = elsewhere.log_prob(network, 40, 72, 20, torch.randperm(3))
    assert {part.device.type for part in (*scores, valid, volatility)} == {"meta"}
    sum(part.sum() for part in scores).backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_bfloat16_is_for_the_trunk_while_training_on_a_gpu(market):
    """Densities stay float32, near those of a float32 trunk; what is asked for holds on any device."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [QUICK.on(device).bf16 for device in (cpu, gpu)] == [False, True]
    assert not replace(QUICK, bf16=False).on(gpu).bf16 and replace(QUICK, bf16=True).on(cpu).bf16
    network, order = new_state(NETWORK, QUICK).network.eval(), torch.randperm(5)
    exact, rough = (market.log_prob(network, 60, 100, 20, order, bf16)[0] for bf16 in (False, True))
    for one, other in zip(exact, rough, strict=True):
        assert other.dtype == torch.float32 and not torch.equal(one, other)
        assert float((one - other).abs().mean()) < 0.01
    weights, half = (trained(market, replace(QUICK, steps=1, bf16=bf16)).average for bf16 in (False, True))
    assert all(tensor.dtype == weights[name].dtype for name, tensor in half.items())
    assert not all(torch.equal(tensor, weights[name]) for name, tensor in half.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_on_a_gpu_is_that_on_a_cpu_but_for_rounding(market):
    exact = replace(QUICK, bf16=False)
    moved = TrainingMarket.from_bars("test", BARS, market.split, "cuda")
    networks = new_state(NETWORK, exact).network, new_state(NETWORK, exact, "cuda").network
    networks[1].load_state_dict(networks[0].state_dict())
    scores = [validate_network(each, here, 200, 250) for each, here in zip(networks, (market, moved), strict=True)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    state = new_state(NETWORK, QUICK.on(torch.device("cuda")), "cuda")
    train_network(state, [moved], QUICK, lambda state, loss: None, lambda state, scores: None)
    assert state.step == QUICK.steps and all(bool(tensor.isfinite().all()) for tensor in state.best.values())


def told_scores(monkeypatch, *scores: Validation) -> None:
    told = iter(scores)
    monkeypatch.setattr(fit, "_validate_average", lambda *_: {"test": next(told)})


def test_training_stops_without_a_better_validation(market, monkeypatch):
    """After two that are no better; the loss weighs densities alone by a half and bars by three tenths."""
    assert Validation(1.0, 2.0, 10.0).loss(QUICK) == pytest.approx(2.0 + 0.5 + 3.0)
    told_scores(monkeypatch, *(Validation(0.0, joint, 0.0) for joint in (2.0, 1.0, 1.0, 3.0)))
    state = trained(market, replace(QUICK, steps=200, evaluate_every=1, patience=2))
    assert (state.step, state.bad_validations, state.best_step, state.best_loss) == (4, 2, 2, 1.0)
    assert [entry["step"] for entry in state.history] == [1, 2, 3, 4]
    assert any(not torch.equal(state.best[name], state.average[name]) for name in state.best)


def test_returns_are_never_less_likely_than_at_first(market, monkeypatch):
    """Not if the bars' shape gains more than the returns lose, alone or joint."""
    told_scores(monkeypatch, *(Validation(*score) for score in (
        (-3.0, -3.1, 1.0), (-2.99, -3.2, 0.0), (-3.2, -3.09, 0.0), (-3.0, -3.1, 0.9))))  # fmt: skip
    settings = replace(QUICK, steps=3, evaluate_every=1)
    state = new_state(NETWORK, settings)
    judge_start(state, [market], settings)
    assert (state.best_step, state.history[0]["loss"]) == (0, None)
    train_network(state, [market], settings, lambda *_: None, lambda *_: None)
    assert (state.best_step, state.bad_validations) == (3, 0) and state.history[3]["loss"] is not None


def test_a_run_that_is_stopped_validates_its_last_step(market):
    state, validated = new_state(NETWORK, QUICK), []
    train_network(state, [market], QUICK, lambda *_: None, lambda state, _: validated.append(state.step),
                  lambda: state.step == 3)  # fmt: skip
    assert validated == [2, 3] and state.step == 3


def test_the_learning_rate_rises_and_falls():
    """To the peak over the warm-up, then by a half cosine to a hundredth."""
    expected = {0.0: 0.01, 0.0005: 0.01, 0.05: 0.5, 0.1: 1.0, 0.55: 0.505, 1.0: 0.01}
    assert {at: cosine_rate(at, 0.1) for at in expected} == pytest.approx(expected)
    assert cosine_rate(0.325, 0.1) == pytest.approx(0.01 + 0.99 * 0.5 * (1 + math.sqrt(0.5)))


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
    market = TrainingMarket.from_bars("test", replace(bars, ohlcv=ohlcv), split)
    settings = replace(QUICK, steps=150, days=64, evaluate_every=50)
    before = validate_network(new_state(NETWORK, settings).network, market, 500, 700).alone
    state = trained(market, settings)
    state.network.load_state_dict(state.best)
    after = validate_network(state.network, market, 500, 700).alone
    known = volatility[500:, None].expand(-1, symbols)
    best = float(-torch.distributions.Normal(0.0, known).log_prob(returns[500:]).mean())
    assert after < before - 0.05
    assert after < best + 0.12
