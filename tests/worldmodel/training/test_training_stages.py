"""What both stages of training keep to: runs repeat themselves, read no later day, and keep what was validated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.worldmodel.neural_market import TINY, tiny_network
from vecenv.market.bars import VOLUME
from vecenv.market.synthetic import synthetic_bars
from vecenv.worldmodel.network.market_network import MarketNetwork, NetworkSettings
from vecenv.worldmodel.sampling.training_market import Split, TrainingMarket
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
