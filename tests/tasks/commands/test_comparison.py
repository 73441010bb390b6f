"""What agents are compared on."""

from __future__ import annotations

import pytest

import vecenv
from tests.small_env import small_tape
from vecenv.learn.evaluation import evaluate
from vecenv.tasks.commands import comparison
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.tiers.agents import BuyAndHold


@pytest.mark.parametrize(
    ("shortest", "longest", "expected"), [(60, 250, (39, 39)), (10, 250, (10, 39)), (0, 39, (0, 39))]
)
def test_episodes_fit_into_the_days_of_the_test(shortest, longest, expected):
    """Of forty days the last is there for the last value alone; the shortest episode is no longer than the longest."""
    tape = small_tape(40)
    config = StockTradingConfig(
        features=tape.feature_names, episode_length=longest, min_episode_length=shortest, random_start=True
    )
    env, note = comparison.held_out_environment("stock_trading", tape, config, 50)
    config = env.scenario.config
    assert (config.min_episode_length, config.episode_length) == expected
    lengths = env.state.end_day - env.state.start_day
    assert expected[0] <= int(lengths.min()) and int(lengths.max()) <= 39 and int(env.state.end_day.max()) == 39
    assert note == ("" if longest == 39 else "Test episodes have 39 days instead of 250: the test has 40.")


@pytest.mark.parametrize("action", ["discrete", "limit_weights"])
def test_a_validation_keeps_the_actions_of_the_policy(action):
    """And buy and hold plays beside it, by lists of orders."""
    options = {"num_paths": 2, "num_days": 260}
    made = vecenv.make("multi_stock_3", 2, market_options=options, action=action, max_orders=3, compile=False)
    env = comparison.validation_environment("multi_stock_3", made.scenario.tape, made.scenario.config, 4, False)
    assert env.action_spec.shape[1:] == made.action_spec.shape[1:] and env.scenario.config.max_orders == 3
    held = evaluate(env, {"buy_and_hold": BuyAndHold()})
    assert held.grades["buy_and_hold"]["calibrated"].mean == pytest.approx(0.5, abs=0.05)
