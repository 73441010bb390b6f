"""Training on random subsets of the symbols: what trains on some, and what keeps all."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vecenv
from tests.tasks.commands.small_runs import settings_on
from vecenv.market.symbol_subsets import symbol_subsets
from vecenv.tasks.commands.fresh_paths import FreshPaths, first_round
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.stock_trading.config import StockTradingConfig

RULES = StockTradingConfig(features=("rsi_30",), episode_length=10, action="tilt")
GENERATED = TrainSettings(
    market="random_walk", num_paths=5, num_days=120, device="cpu", symbols=("A", "B", "C", "D"), compile=False,
    symbols_per_path=2, subsets_per_path=3, seed=6, validation_fraction=0.25, env=RULES,
)  # fmt: skip


def test_new_paths_are_subsets_too():
    settings, tape = first_round(GENERATED, RULES)
    whole = settings.training(tape)
    env = vecenv.make("stock_trading", 8, market=settings.subsets(whole), compile=False, config=RULES)
    assert env.scenario.tape.fingerprint() == symbol_subsets(whole, 2, 3, 6).fingerprint()
    assert (whole.num_paths, env.scenario.tape.num_paths, env.scenario.tape.num_symbols) == (3, 9, 2)
    assert settings.validation(tape).num_symbols == settings.test(tape).num_symbols == 4
    FreshPaths(settings, RULES, env, 1).before_update(1)
    other = replace(settings, symbols_per_path=None, market_seed=settings.market_seed + (1 << 40))
    expected = symbol_subsets(other.training_alone(RULES), 2, 3, 6)
    assert torch.equal(env.scenario.shared["close"], expected.price_ticks().flatten(0, 1))


def test_runs_without_subsets_train_on_the_whole_tape(place):
    settings = replace(GENERATED, symbols_per_path=None)
    whole = settings.training(settings.tape(RULES))
    assert settings.subsets(whole) is whole
    few = settings_on(place, symbols_per_path=4)
    with pytest.raises(ValueError, match="subsets of 4 symbols cannot be drawn: 3 of 3 trade on the training days"):
        few.subsets(few.training(few.tape(few.env)))
