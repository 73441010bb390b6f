"""Tasks are found by name, and mistakes in names are answered with the names there are."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import torch

import vecenv
from tests.small_env import small_tape
from vecenv import registry
from vecenv.market.validation import MarketDataError
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

SMALL = {"episode_length": 5, "features": ("macd",), "market_options": {"num_paths": 2, "num_days": 120}}


def test_the_installed_task_is_found():
    assert registry.task_named("stock_trading").scenario is StockTrading


def test_an_unknown_task_is_answered_with_the_installed_ones():
    with pytest.raises(ValueError, match=r"unknown task 'stocktrading'; installed tasks: .*stock_trading"):
        vecenv.make("stocktrading")


def test_without_any_task_the_message_says_so(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    with pytest.raises(ValueError, match="installed tasks: none"):
        vecenv.make("stock_trading")


def test_another_package_adds_a_task(monkeypatch):
    added = EntryPoint("added", "vecenv.tasks.stock_trading.task:STOCK_TRADING", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (added,) if group == "vecenv.tasks" else ())
    assert vecenv.make("added", compile=False, **SMALL).num_envs == 1


def test_an_unknown_setting_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"unknown settings \['comission', 'hmin'\].*hmax.*commission"):
        vecenv.make("stock_trading", hmin=1, comission=0.1)


def test_an_unknown_market_option_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match=r"unknown market options num_path, sed; there are .*num_paths.*seed"):
        vecenv.make("stock_trading", market_options={"num_path": 2, "sed": 1})


def test_market_options_win_over_those_of_the_task():
    options = {"num_paths": 1, "num_days": 120, "features": ("macd", "rsi_30")}
    env = vecenv.make("stock_trading", compile=False, episode_length=5, features=("macd",), market_options=options)
    assert env.scenario.tape.feature_names == ("macd", "rsi_30")


def test_settings_are_checked_by_their_task():
    with pytest.raises(ValueError, match="hmax must be positive"):
        vecenv.make("stock_trading", hmax=0.0)
    with pytest.raises(ValueError, match=r"120 days are fewer than the warm-up .* an episode of 500 days"):
        vecenv.make("stock_trading", **(SMALL | {"episode_length": 500}))


def test_overrides_win_over_the_configuration():
    config = StockTradingConfig(hmax=7.0, initial_cash=500.0, features=("macd",))
    env = vecenv.make("stock_trading", config=config, **(SMALL | {"hmax": 9.0}))
    assert (env.scenario.config.hmax, env.scenario.config.initial_cash) == (9.0, 500.0)
    assert env.scenario.config.episode_length == 5


@pytest.mark.parametrize("compiled", [False, True])
def test_arguments_reach_the_environment(compiled):
    """What is asked for as ``compile`` is what the environment does, and what its collectors do."""
    env = vecenv.make(
        "stock_trading", 3, seed=12, compile=compiled, params={"hmax": torch.tensor([1.0, 2.0, 3.0])}, **SMALL
    )
    assert env.compiled is compiled
    assert vecenv.FusedCollector(env, num_steps=1).mode == ("compiled" if compiled else "eager")
    assert env.seed_tensor.item() == 12 and env.scenario.varied == {"hmax"}
    assert env.scenario.tape.num_paths == 2 and env.scenario.tape.feature_names == ("macd",)


def test_the_gate_brings_its_series_to_the_market():
    gated = vecenv.make(
        "stock_trading",
        gate="turbulence",
        compile=False,
        **(SMALL | {"market_options": {"num_paths": 1, "num_days": 400}}),
    )
    assert gated.scenario.tape.context_names == ("turbulence",)
    with pytest.raises(MarketDataError, match="unknown market series 'vix'"):
        vecenv.make("stock_trading", gate="vix", **SMALL)


def test_a_tape_is_used_as_it_is():
    tape = small_tape()
    env = vecenv.make("stock_trading", market=tape, episode_length=5, compile=False)
    assert env.scenario.tape.fingerprint() == tape.fingerprint()


def test_the_public_names_are_what_they_say():
    for name in vecenv.__all__:
        assert getattr(vecenv, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'VecEnvironment'"):
        _ = vecenv.VecEnvironment
