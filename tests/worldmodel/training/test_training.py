"""Training of a neural market: splits, learning, early stopping, and runs that go on."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from vecenv.market.bars import CLOSE, VOLUME, Bars
from vecenv.market.synthetic import business_days, synthetic_bars
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.network.transformer import TransformerSettings
from vecenv.worldmodel.sampling.training_market import TrainingMarket, split_by_date
from vecenv.worldmodel.training.fit import TrainingSettings, cosine_rate, new_state, train_network, validate_network

NETWORK = NetworkSettings(
    TransformerSettings(layers=1, width=16, heads=2, hidden=32, window=8, dropout=0.1), head=16, markets=("test",)
)
QUICK = TrainingSettings(steps=6, days=32, evaluate_every=2, learning_rate=3e-3)


def market_of(bars: Bars) -> TrainingMarket:
    dates = bars.dates
    split = split_by_date(dates, str(dates[199]), str(dates[249]), 10, bars.source)
    return TrainingMarket.from_bars("test", bars, split)


@pytest.fixture(scope="module")
def market() -> TrainingMarket:
    return market_of(synthetic_bars(1, 300, 5, seed=4))


class EnoughError(Exception):
    """Interrupts a training."""


def trained(market, settings, stop_at=None):
    """Train; with ``stop_at`` until the validation after so many steps alone."""
    state = new_state(NETWORK, settings)

    def on_validation(state, scores):
        if state.step == stop_at:
            raise EnoughError

    with contextlib.suppress(EnoughError):
        train_network(state, [market], settings, lambda state, loss: None, on_validation)
    return state


def test_days_of_training_and_validation_do_not_overlap():
    dates = business_days(100)
    split = split_by_date(dates, str(dates[59]), str(dates[79]), 5, "here")
    assert split == (55, 60, 80)
    with pytest.raises(ValueError, match="here: its days run from"):
        split_by_date(dates, "1999-01-01", str(dates[79]), 5, "here")
    with pytest.raises(ValueError, match="here"):
        split_by_date(dates, str(dates[59]), str(dates[59]), 5, "here")


def test_training_reads_no_day_after_its_split(market):
    """Other bars after the last day of training: the same weights before the first validation is looked at."""
    bars = synthetic_bars(1, 300, 5, seed=4)
    changed = bars.ohlcv.clone()
    changed[:, market.split.train :, :, :VOLUME] *= 1.3
    settings = replace(QUICK, steps=4, evaluate_every=4)
    one = trained(market, settings).average
    other = trained(market_of(replace(bars, ohlcv=changed)), settings).average
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_goes_on_repeats_one_that_was_not_interrupted(market):
    whole = trained(market, QUICK)
    state = trained(market, QUICK, stop_at=2)
    assert state.step == 2
    train_network(state, [market], QUICK, lambda state, loss: None, lambda state, scores: None)
    assert state.step == 6 and state.best_loss == whole.best_loss
    assert all(torch.equal(state.average[name], whole.average[name]) for name in whole.average)


def test_every_step_has_its_own_days_and_order(market, monkeypatch):
    drawn, log_prob = [], TrainingMarket.log_prob

    def recorded(self, network, first, stop, context, order, *others):
        drawn.append((first, tuple(order.tolist())))
        return log_prob(self, network, first, stop, context, order, *others)

    monkeypatch.setattr(TrainingMarket, "log_prob", recorded)
    trained(market, replace(QUICK, evaluate_every=7), stop_at=None)
    steps = drawn[: QUICK.steps]
    assert [len(set(column)) > QUICK.steps // 2 for column in zip(*steps, strict=True)] == [True] * 2
    assert all(1 <= first <= market.split.train - QUICK.days for first, *_ in steps)


def test_everything_that_an_update_reads_is_on_the_network_s_device(market):
    """The meta device refuses tensors of another one, and any number that is asked back."""
    bars = synthetic_bars(1, 300, 5, seed=4)
    elsewhere = TrainingMarket.from_bars("test", bars, market.split, "meta").only(torch.tensor([3, 1, 0]))
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
    weights, half = (trained(market, replace(QUICK, bf16=bf16)).average for bf16 in (False, True))
    assert all(tensor.dtype == weights[name].dtype for name, tensor in half.items())
    assert not all(torch.equal(tensor, weights[name]) for name, tensor in half.items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_training_on_a_gpu_is_that_on_a_cpu_but_for_rounding(market):
    exact = replace(QUICK, bf16=False)
    bars = synthetic_bars(1, 300, 5, seed=4)
    moved = TrainingMarket.from_bars("test", bars, market.split, "cuda")
    networks = new_state(NETWORK, exact).network, new_state(NETWORK, exact, "cuda").network
    networks[1].load_state_dict(networks[0].state_dict())
    scores = [validate_network(each, here, 200, 250) for each, here in zip(networks, (market, moved), strict=True)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    state = new_state(NETWORK, QUICK.on(torch.device("cuda")), "cuda")
    train_network(state, [moved], QUICK, lambda state, loss: None, lambda state, scores: None)
    assert state.step == QUICK.steps and all(bool(tensor.isfinite().all()) for tensor in state.best.values())


def test_the_best_weights_are_kept_and_training_stops_without_a_better_one(market):
    """A learning rate that wrecks the network: the first validation stays the best."""
    settings = replace(QUICK, steps=200, evaluate_every=2, patience=2, learning_rate=0.5, warm_up=0.05)
    state = trained(market, settings)
    assert state.step < 200 and state.bad_validations == 2
    assert any(not torch.equal(state.best[name], state.average[name]) for name in state.best)


def test_the_weights_that_are_kept_are_those_that_were_validated(market):
    """The running mean and not the last step's."""
    state = trained(market, replace(QUICK, steps=2))
    assert all(torch.equal(state.best[name], state.average[name]) for name in state.best)
    weights = state.network.state_dict()
    assert not all(torch.equal(state.best[name], weights[name]) for name in state.best)
    state.network.load_state_dict(state.best)
    kept = validate_network(state.network, market, market.split.validation, market.split.stop)
    assert state.history[-1]["test"] == pytest.approx(kept._asdict())


def test_the_learning_rate_rises_and_falls():
    rates = [cosine_rate(progress, 0.1) for progress in np.linspace(0, 1, 101)]
    assert max(rates) == pytest.approx(1.0) and int(np.argmax(rates)) == 10
    assert rates[-1] == pytest.approx(0.01) and all(rate > 0 for rate in rates)


def test_features_of_a_choice_of_symbols_are_of_these_alone(market):
    chosen = market.only(torch.tensor([3, 1]))
    bars = synthetic_bars(1, 300, 5, seed=4)
    two = replace(bars, symbols=(bars.symbols[3], bars.symbols[1]), ohlcv=bars.ohlcv[:, :, [3, 1]])
    assert torch.equal(chosen.observed.features, market_of(two).observed.features)
    # Own moves are the same, the market's mean is another.
    assert torch.equal(chosen.observed.scaled, market.observed.scaled[:, :, [3, 1]])
    assert not torch.equal(chosen.observed.features[..., 8], market.observed.features[:, :, [3, 1], 8])


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
    dates = bars.dates
    split = split_by_date(dates, str(dates[499]), str(dates[699]), 10, "switching")
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
