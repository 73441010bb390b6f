"""Stages of training: runs repeat themselves, read no later day and keep the best; the second changes bars alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.worldmodel.neural_market import TINY, small_network, tiny_network
from vecenv.market.bars import VOLUME
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
from vecenv.worldmodel.training import bar_stage
from vecenv.worldmodel.training.bar_stage import BarStageSettings, train_bars
from vecenv.worldmodel.training.fit import TrainingSettings, new_state, train_network, validate_network

SPLIT, BARS = Split(100, 110, 160), synthetic_bars(1, 160, 3, seed=4)
NETWORK = NetworkSettings(replace(TINY.trunk, dropout=0.1), TINY.head, ("m",))


def market_of(ohlcv: Tensor = BARS.ohlcv) -> TrainingMarket:
    return TrainingMarket.from_bars("m", replace(BARS, ohlcv=ohlcv), SPLIT)


class Run(NamedTuple):
    """A run of a stage: its network with the weights that are kept, its validations, and the steps it told."""

    network: MarketNetwork
    history: list[dict]
    told: list[int]

    @property
    def weights(self) -> dict[str, Tensor]:
        return self.network.state_dict()


def all_weights(market: TrainingMarket, steps: int = 4, every: int = 2, seed: int = 0) -> Run:
    settings = TrainingSettings(steps=steps, days=32, evaluate_every=every, learning_rate=3e-3, seed=seed)
    state, told = new_state(NETWORK, settings), []
    train_network(state, [market], settings, lambda state, loss: told.append(state.step), lambda *_: None)
    state.network.load_state_dict(state.best)
    return Run(state.network, state.history, told)


def bars_alone(market: TrainingMarket, steps: int = 4, every: int = 2, seed: int = 0) -> Run:
    network, told = tiny_network(NETWORK).requires_grad_(True), []
    settings = BarStageSettings(steps=steps, learning_rate=2e-2, stock_days=100, evaluate_every=every)
    history = train_bars(network, [market], settings, seed, on_step=lambda step, _: told.append(step))
    return Run(network, history, told)


@pytest.fixture(scope="module")
def market() -> TrainingMarket:
    return market_of()


@pytest.fixture(params=[all_weights, bars_alone])
def stage(request) -> Callable[..., Run]:
    return request.param


def test_a_run_repeats_itself_and_another_seed_does_not(stage, market):
    one, again, other = stage(market), stage(market), stage(market, seed=1)
    assert one.history == again.history and all(torch.equal(one.weights[name], again.weights[name])
                                                for name in one.weights)  # fmt: skip
    assert other.history[-1] != one.history[-1]


def test_no_day_after_those_of_training_is_learned_from(stage, market):
    """Other bars after the last day of training: the same weights after the last step."""
    changed = BARS.ohlcv.clone()
    changed[:, SPLIT.train :, :, :VOLUME] *= 1.3
    one, other = stage(market, every=4), stage(market_of(changed), every=4)
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert one.history[-1] != other.history[-1]
    assert any(
        not torch.equal(tensor, one.weights[name]) for name, tensor in tiny_network(NETWORK).state_dict().items()
    )


def test_the_last_step_is_validated_whatever_the_stride(stage, market):
    run = stage(market, steps=5)
    assert run.told == [1, 2, 3, 4, 5] and [entry["step"] for entry in run.history][-3:] == [2, 4, 5]


def test_the_weights_that_are_kept_are_those_of_the_best_validation(stage, market):
    """A learning rate that gains: the running mean after the last step, not the last step's own weights."""
    run = stage(market)
    kept = validate_network(run.network, market, SPLIT.validation, SPLIT.stop)
    best = run.history[-1]["m"]
    assert kept.shape == pytest.approx(best if stage is bars_alone else best["shape"], abs=1e-5)
    assert stage is bars_alone or kept._asdict() == pytest.approx(best)


@pytest.mark.parametrize("symbols", [1, 2])
def test_markets_of_few_symbols_are_trained_on(stage, symbols):
    """A single symbol's joint density is its own."""
    bars = synthetic_bars(1, 160, symbols, seed=1)
    market = TrainingMarket.from_bars("m", bars, SPLIT)
    network = stage(market, steps=2).network
    score = validate_network(network, market, SPLIT.validation, SPLIT.stop)
    assert (score.joint == pytest.approx(score.alone, abs=1e-6)) == (symbols == 1)


SETTINGS = BarStageSettings(steps=30, learning_rate=2e-2, stock_days=100, evaluate_every=10)


@cache
def markets() -> tuple[TrainingMarket, ...]:
    """Two markets, of which the first has more symbols."""
    return tuple(
        TrainingMarket.from_bars(name, synthetic_bars(1, 160, symbols, seed=symbols), Split(100, 110, 160))
        for name, symbols in (("india", 4), ("us", 2))
    )


@cache
def trained(settings: BarStageSettings = SETTINGS) -> tuple[MarketNetwork, list[dict[str, object]]]:
    network = small_network().requires_grad_(True)
    return network, train_bars(network, markets(), settings, 0)


def changed(network: MarketNetwork) -> set[str]:
    """The modules of which a weight is not what it was."""
    before, after = small_network().state_dict(), network.state_dict()
    return {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}


def test_bars_alone_change_and_gain_on_days_that_were_not_trained_on():
    """A validation is the mean density of the validation days, from the trunk's whole context."""
    network, history = trained()
    assert changed(network) == {"bars"} and [entry["step"] for entry in history] == [0, 10, 20, 30]
    for name in ("india", "us"):
        assert history[-1][name] < history[0][name] - 0.2
    with torch.no_grad():
        scores, valid, _ = markets()[0].log_prob(network, 110, 160, network.settings.trunk.reach, torch.arange(4))
    assert float(-scores.shape.sum() / valid.sum()) == pytest.approx(history[-1]["india"], abs=1e-4)


def test_the_best_validation_is_kept_though_later_ones_are_worse(monkeypatch):
    """Scores are told by another; an equal one is no better."""
    few = replace(SETTINGS, steps=3, evaluate_every=1)

    def kept(*scores: float) -> MarketNetwork:
        told = iter(scores)
        monkeypatch.setattr(bar_stage, "_validated", lambda *given: {"step": given[-1], "india": next(told), "us": 0.0})
        return trained.__wrapped__(few)[0]

    first, equal = kept(0.0, 1.0, 0.5, 3.0), kept(5.0, 5.0, 5.0, 5.0)
    second, third = kept(5.0, 6.0, 2.0, 3.0), kept(5.0, 4.0, 3.0, 1.0)
    assert changed(first) == changed(equal) == set() and changed(second) == changed(third) == {"bars"}
    assert not torch.equal(second.bars.mixing, third.bars.mixing)


def test_updates_read_training_days_of_choices_that_roll(monkeypatch):
    """Every training day and none after it, with the trunk's output before it, of a new choice after every 10 steps."""
    monkeypatch.setattr(bar_stage, "CHOICE_STEPS", 10)
    read, chosen, own, choice = [], [], TrainingMarket.bar_log_prob, bar_stage._choice

    def told(market: TrainingMarket, network: MarketNetwork, known: torch.Tensor, days: torch.Tensor):
        read.append((market, known.detach(), days))
        return own(market, network, known, days)

    monkeypatch.setattr(TrainingMarket, "bar_log_prob", told)
    monkeypatch.setattr(bar_stage, "_choice", lambda *given: chosen.append(given[1].name) or choice(*given))
    network = small_network().requires_grad_(True)
    train_bars(network, markets(), replace(SETTINGS, stock_days=400, evaluate_every=30), 0)
    assert sorted(chosen) == ["india"] * (bar_stage.CHOICES + 2) + ["us"] * (bar_stage.CHOICES + 2)
    updates = [(market, known, days) for market, known, days in read if int(days.max()) < 110]
    assert len(updates) == SETTINGS.steps
    assert set(torch.cat([days for _, _, days in updates]).tolist()) == set(range(1, 100))
    for market, known, days in updates[:3]:
        assert len(days) == 400 // market.observed.valid.shape[2]
        with torch.no_grad():
            before = [market.known(network, int(day), int(day) + 1, 60)[0] for day in days[:5]]
        torch.testing.assert_close(known[:5], torch.stack(before), atol=1e-4, rtol=1e-4)


def test_markets_are_drawn_by_their_weights_and_the_trunk_does_not_drop_out(monkeypatch):
    """Dropout would change the trunk's outputs, which are computed once for many updates."""
    read, modes, own = [], [], bar_stage._bar_loss
    monkeypatch.setattr(bar_stage, "market_weights", lambda markets: [0.0, 1.0])
    monkeypatch.setattr(bar_stage, "_bar_loss", lambda *given: read.append(given[1].name) or own(*given))
    network, few = small_network().requires_grad_(True).train(), replace(SETTINGS, steps=10)
    train_bars(network, markets(), few, 0, on_step=lambda *_: modes.append(network.training))
    assert read == ["us"] * 10 and modes == [False] * 10


def test_the_averaged_weights_are_validated_and_the_training_goes_on_from_its_own(monkeypatch):
    """So the last validation does not depend on earlier ones, and all depend on the decay of the average."""
    few = replace(SETTINGS, steps=6, evaluate_every=2)
    history = trained(few)[1]
    assert trained(replace(few, evaluate_every=6))[1][-1] == history[-1]
    monkeypatch.setattr(bar_stage, "AVERAGE_DECAY", 0.0)
    latest = trained.__wrapped__(few)[1]
    assert latest[0] == history[0] and latest[-1] != history[-1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": -1}, "bars.steps must be at least 0, got -1"),
        ({"stock_days": 0}, "bars.stock_days must be at least 1, got 0"),
        ({"evaluate_every": 0}, "bars.evaluate_every must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "bars.learning_rate must be positive, got 0.0"),
    ],
)
def test_bad_settings_are_named(wrong, message):
    BarStageSettings(steps=0, stock_days=1, evaluate_every=1)
    with pytest.raises(ValueError, match=message):
        BarStageSettings(**wrong)
