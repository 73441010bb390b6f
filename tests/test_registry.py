"""Importing is cheap; tasks are found by name, and mistakes in names are answered with the names there are."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

import vecenv
from tests.small_env import small_tape
from vecenv import registry
from vecenv.market.validation import MarketDataError
from vecenv.tasks.stock_trading.scenario import StockTrading, StockTradingConfig

SMALL = {"episode_length": 5, "features": ("macd",), "market_options": {"num_paths": 2, "num_days": 120}}
LOADED = """
import sys, torch
from vecenv import FusedCollector, MarketTape, VecEnv, make
heavy = ("pandas", "pyarrow", "matplotlib", "rich", "tyro")
print([name for name in heavy if name in sys.modules], torch.cuda.is_initialized())
"""


def make(**given):
    return vecenv.make("stock_trading", **{"compile": False} | SMALL | given)


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.assembly
def test_the_public_names_bring_no_reader_and_do_not_start_cuda():
    assert printed(LOADED) == "[] False\n"


def test_importing_alone_does_not_even_load_torch():
    assert printed("import sys, vecenv; print('torch' in sys.modules, vecenv.__version__)").startswith("False ")
    for name in vecenv.__all__:
        assert getattr(vecenv, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'VecEnvironment'"):
        _ = vecenv.VecEnvironment


def test_names_and_settings_are_checked(monkeypatch):
    for given, told in (
        ({"hmin": 1, "comission": 0.1}, r"unknown settings \['comission', 'hmin'\].*hmax.*commission"),
        ({"market_options": {"num_path": 2, "sed": 1}}, r"unknown market options num_path, sed; there are .*num_paths"),
        ({"hmax": 0.0}, "hmax must be positive"),
        ({"episode_length": 500}, r"120 days are fewer than the warm-up .* an episode of 500 days"),
    ):
        with pytest.raises(ValueError, match=told):
            make(**given)
    # Over the configuration, and market options over those of the task.
    options = {"num_paths": 1, "num_days": 120, "features": ("macd", "rsi_30")}
    config = StockTradingConfig(hmax=7.0, initial_cash=500.0, features=("macd",))
    scenario = make(config=config, hmax=9.0, market_options=options).scenario
    assert (scenario.config.hmax, scenario.config.initial_cash, scenario.config.episode_length) == (9.0, 500.0, 5)
    assert scenario.tape.feature_names == ("macd", "rsi_30")
    # Tasks are found by name.
    assert registry.task_named("stock_trading").scenario is StockTrading
    with pytest.raises(ValueError, match=r"unknown task 'stocktrading'; installed tasks: .*stock_trading"):
        vecenv.make("stocktrading")
    # Another package adds one.
    added = EntryPoint("added", "vecenv.tasks.stock_trading.task:STOCK_TRADING", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: (added,) if group == "vecenv.tasks" else ())
    assert vecenv.make("added", compile=False, **SMALL).num_envs == 1
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    with pytest.raises(ValueError, match="installed tasks: none"):
        make()


@pytest.mark.parametrize("compiled", [False, True])
def test_arguments_reach_the_environment(compiled):
    """What is asked for as ``compile`` is what the environment does, and what its collectors do."""
    env = make(num_envs=3, seed=12, compile=compiled, params={"hmax": torch.tensor([1.0, 2.0, 3.0])})
    assert env.compiled is compiled
    assert vecenv.FusedCollector(env, num_steps=1).mode == ("compiled" if compiled else "eager")
    assert env.seed_tensor.item() == 12 and env.scenario.varied == {"hmax"}
    assert env.scenario.tape.num_paths == 2 and env.scenario.tape.feature_names == ("macd",)


def test_the_gate_brings_its_series_to_the_market_and_a_tape_is_used_as_it_is():
    gated = make(gate="turbulence", market_options={"num_paths": 1, "num_days": 400})
    assert gated.scenario.tape.context_names == ("turbulence",)
    with pytest.raises(MarketDataError, match="unknown market series 'vix'"):
        make(gate="vix")
    tape = small_tape()
    env = vecenv.make("stock_trading", market=tape, episode_length=5, compile=False)
    assert env.scenario.tape.fingerprint() == tape.fingerprint()
