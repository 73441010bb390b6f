"""An evaluation of the baselines, whose pictures and report are tested."""

from __future__ import annotations

import pytest

import vecenv
from vecenv.learn.evaluation import evaluate
from vecenv.market.synthetic import synthetic_bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.agents import BASELINES


@pytest.fixture(scope="package")
def evaluation():
    tape = MarketTape.from_bars(synthetic_bars(num_paths=3, num_days=100, symbols=12, seed=1), ("rsi_14",))
    env = vecenv.make("stock_trading", 12, market=tape, compile=False, episode_length=30, initial_cash=1e5)
    return evaluate(env, {name: agent() for name, agent in BASELINES.items()}, seed=4)
