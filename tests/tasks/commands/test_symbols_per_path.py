"""Training on random subsets of the symbols by the command line: what trains on some, and what keeps all."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

import vecenv
from tests.tasks.commands.small_runs import train_args
from vecenv.market.symbol_subsets import symbol_subsets
from vecenv.tasks.commands import cli
from vecenv.tasks.commands.fresh_paths import FreshPaths, first_round
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.commands.train_settings import TrainSettings
from vecenv.tasks.stock_trading.config import StockTradingConfig

TILTS = ("--env.action", "tilt", "--ppo.policy", "symbol", "--episodes", "4")
SUBSETS = ("--symbols-per-path", "2", "--subsets-per-path", "5")
VALIDATED = ("--validation-fraction", "0.3", "--validation-episodes", "5", "--embargo", "2")
RULES = StockTradingConfig(features=("rsi_30",), episode_length=10, action="tilt")
GENERATED = TrainSettings(
    market="random_walk", num_paths=5, num_days=120, device="cpu", symbols=("A", "B", "C", "D"), compile=False,
    symbols_per_path=2, subsets_per_path=3, seed=6, validation_fraction=0.25, env=RULES,
)  # fmt: skip


@pytest.mark.parametrize("policy", ["symbol", pytest.param("attention", marks=pytest.mark.nightly)])
@pytest.mark.nightly
def test_some_symbols_train_and_all_validate_and_test(market_place, tmp_path, policy):
    folder = tmp_path / "run"
    words = (*TILTS, "--ppo.policy", policy, *SUBSETS, *VALIDATED, "--seed", "3", "--folder", str(folder))
    assert cli.main(train_args(market_place, *words)) == 0
    document = json.loads((folder / "metrics.json").read_text())
    trained, tested = document["training_market"], document["evaluation"]["market"]
    assert (trained["paths"], trained["symbols"]) == (5, ["*1", "*2"])
    assert (tested["paths"], tested["symbols"]) == (1, ["S0", "S1", "S2"])
    assert document["settings"]["symbols_per_path"] == 2 and document["settings"]["subsets_per_path"] == 5
    log = pd.read_csv(folder / "metrics.csv")
    assert log["validation_reward"].notna().all()
    assert read_checkpoint(folder)["best"]["score"] == log["validation_reward"].max()
    assert cli.main(["train", "--resume", str(folder), "--ppo.total-frames", "1536"]) == 0
    again = ("evaluate", "--checkpoint", str(folder), "--market", str(market_place / "market.parquet"))
    assert cli.main([*again, "--episodes", "4", "--folder", str(tmp_path / "evaluated")]) == 0


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


def test_runs_without_subsets_train_on_the_whole_tape():
    settings = replace(GENERATED, symbols_per_path=None)
    whole = settings.training(settings.tape(RULES))
    assert settings.subsets(whole) is whole


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--symbols-per-path", "0"), "symbols_per_path must be at least 1, got 0"),
        ((*SUBSETS[:2], "--subsets-per-path", "0"), "subsets_per_path must be at least 1, got 0"),
        (SUBSETS[2:], "--subsets-per-path belongs to --symbols-per-path"),
        ((*SUBSETS, "--ppo.policy", "flat"), "--ppo.policy symbol or attention, not flat"),
        (("--symbols-per-path", "4"), "subsets of 4 symbols cannot be drawn: 3 of 3 trade on the training days"),
    ],
)
def test_what_cannot_be_drawn_or_played_is_refused(market_place, tmp_path, capsys, words, told):
    folder = tmp_path / "run"
    assert cli.main(train_args(market_place, *TILTS, *words, "--folder", str(folder))) == cli.BAD_INPUT
    assert told in capsys.readouterr().err
    assert not folder.exists()


def test_tasks_of_named_symbols_are_refused(tmp_path, capsys):
    words = ["train", "--task", "portfolio", "--market", "synthetic", "--env.action", "limit_weights"]
    more = ["--ppo.policy", "symbol", "--symbols-per-path", "5", "--folder", str(tmp_path / "run")]
    assert cli.main([*words, *more]) == cli.BAD_INPUT
    assert "task 'portfolio' trades symbols by name" in capsys.readouterr().err
