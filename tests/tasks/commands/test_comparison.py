"""What agents are compared on, which policies can play there, and how several become one agent."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import vecenv
from tests.small_env import small_tape
from tests.tasks.commands.small_runs import TILTS, made_run, settings_on
from vecenv.learn.agents import PolicyAgent
from vecenv.learn.combination import Combination
from vecenv.learn.ensemble import MeanPolicy, NoEnsembleError
from vecenv.learn.evaluation import evaluate
from vecenv.tasks.commands.comparison import (
    asked_combination,
    baseline_agents,
    check_combination,
    check_fits,
    check_same_inputs,
    chosen_agents,
    held_out_environment,
    policies_diversity,
    show_market,
    trained_agents,
    validation_environment,
    wide_console,
)
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.stock_trading.agents import BASELINES
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
    env, note = held_out_environment("stock_trading", tape, config, 50)
    config = env.scenario.config
    assert (config.min_episode_length, config.episode_length) == expected
    lengths = env.state.end_day - env.state.start_day
    assert expected[0] <= int(lengths.min()) and int(lengths.max()) <= 39 and int(env.state.end_day.max()) == 39
    assert note == ("" if longest == 39 else "Test episodes have 39 days instead of 250: the test has 40.")
    assert env.num_envs == 50 and not env.compiled
    validated = validation_environment("stock_trading", tape, replace(config, episode_length=longest or 1), 3, False)
    assert validated.num_envs == 3 and validated.scenario.config.episode_length == 39


@pytest.mark.parametrize("action", ["discrete", "limit_weights"])
def test_a_validation_keeps_the_actions_of_the_policy(action):
    """And buy and hold plays beside it, by lists of orders."""
    options = {"num_paths": 2, "num_days": 260}
    made = vecenv.make("multi_stock_3", 2, market_options=options, action=action, max_orders=3, compile=False)
    tape, config = made.scenario.tape, made.scenario.config
    env = validation_environment("multi_stock_3", tape, config, 4, False)
    assert env.action_spec.shape[1:] == made.action_spec.shape[1:] and env.scenario.config.max_orders == 3
    held = evaluate(env, {"buy_and_hold": BuyAndHold()})
    assert held.grades["buy_and_hold"]["calibrated"].mean == pytest.approx(0.5, abs=0.05)
    with pytest.raises(ValueError, match=r"multi_stock_3 are compared by their orders: env\.action must be 'orders'"):
        held_out_environment("multi_stock_3", tape, config, 4)
    with pytest.raises(ValueError, match=r"^validation_episodes must be at least 1, got 0"):
        validation_environment("multi_stock_3", tape, config, 0, False)
    with pytest.raises(ValueError, match=r"^episodes must be at least 1, got 0"):
        held_out_environment("multi_stock_3", tape, config, 0)


def test_baselines_are_chosen_by_name():
    assert chosen_agents("stock_trading", ("all",)) == tuple(BASELINES)
    assert chosen_agents("stock_trading", ("hold", "buy_and_hold")) == ("hold", "buy_and_hold")
    with pytest.raises(ValueError, match=r"unknown agents nobody, all; there are .*buy_and_hold.*, or all"):
        chosen_agents("stock_trading", ("hold", "nobody", "all"))


def test_the_best_rule_plays_where_the_market_knows_it(place):
    options = {"market_options": {"num_paths": 1, "num_days": 60}, "features": (), "compile": False}
    env = vecenv.make("stock_trading", 2, market="planted", episode_length=20, action="tilt", commission=0.0, **options)
    assert list(baseline_agents(env, ("hold",))) == ["hold", "best_rule"]
    assert list(baseline_agents(test_of(place), ("hold",))) == ["hold"]


def test_of(place, count: int = 4):
    """The test of the small market, for tilts."""
    settings = settings_on(place)
    return held_out_environment("stock_trading", settings.test(settings.tape(TILTS)), TILTS, count)[0]


test_of.__test__ = False


def checkpoints(place, *names):
    return {name: place / name / "checkpoint.pt" for name in names}


def test_policies_of_the_same_rules_play_alone_and_as_their_mean(place, tmp_path):
    env = test_of(place)
    other = made_run(tmp_path / "other", settings_on(place, seed=5))
    paths = checkpoints(place, "tilts") | {"other": other / "checkpoint.pt"}
    assert list(trained_agents(checkpoints(place, "tilts"), env)) == ["tilts"]
    agents = trained_agents(paths, env)
    assert list(agents) == ["tilts", "other", "ensemble"] and isinstance(agents["ensemble"].policy, MeanPolicy)
    actions = [agents[name].act(env) for name in agents]
    torch.testing.assert_close(actions[2], (actions[0] + actions[1]) / 2)
    assert not torch.equal(actions[0], actions[1])
    voted = trained_agents(paths, env, Combination("vote"))["ensemble"].act(env)
    assert not torch.equal(voted, actions[2])
    differing = policies_diversity(list(paths.values()), env, 0)
    assert differing.distance > 0 and len(differing.divergence) == 2 and differing.divergence[0][0] == 0
    assert policies_diversity([other / "checkpoint.pt"], env, 0) is None


def test_the_exact_gradient_stands_beside_ppo_but_not_in_an_ensemble(place, tmp_path):
    env = test_of(place)
    assert list(trained_agents(checkpoints(place, "tilts", "exact"), env)) == ["tilts", "exact"]
    assert all(isinstance(agent, PolicyAgent) for agent in trained_agents(checkpoints(place, "exact"), env).values())
    other = made_run(tmp_path / "other", settings_on(place, env=replace(TILTS, tilt_gain=3.0)))
    with pytest.raises(ValueError, match=r"other.checkpoint.pt was trained under other rules than .*tilts.checkpoint"):
        trained_agents(checkpoints(place, "tilts") | {"other": other / "checkpoint.pt"}, env)


def test_tasks_with_agents_of_their_own_combine_by_the_mean_alone(place, monkeypatch):
    """Lists of orders have no mean: with nothing asked for there is no ensemble."""
    env = test_of(place)
    own = replace(env.scenario.task, trained=lambda paths, config, env: (list(paths), config))
    monkeypatch.setattr(env.scenario, "task", own)
    paths = checkpoints(place, "tilts")
    again = paths | {"again": paths["tilts"]}
    assert trained_agents(again, env)["ensemble"] == (list(again.values()), TILTS)
    assert policies_diversity(list(again.values()), env, 0) is None
    with pytest.raises(ValueError, match="policies of task 'stock_trading' are combined by --combine mean alone"):
        trained_agents(again, env, Combination("vote"))

    def no_mean(paths, config, env):
        if len(paths) > 1:
            raise NoEnsembleError("no mean")
        return "alone"

    monkeypatch.setattr(env.scenario, "task", replace(own, trained=no_mean))
    assert trained_agents(again, env) == {"tilts": "alone", "again": "alone"}


def test_combinations_that_are_asked_for(place, tmp_path):
    one = place / "tilts" / "checkpoint.pt"
    assert asked_combination("mean", 0.0) is None and asked_combination("vote", 2.0) == Combination("vote", 2.0)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        asked_combination("weighted", 0)
    check_combination(None, [one])
    check_combination(Combination("vote"), [one, one])
    with pytest.raises(ValueError, match=r"^--combine vote needs several checkpoints, got 1$"):
        check_combination(Combination("vote"), [one])
    for kind in ("select", "weighted"):
        with pytest.raises(ValueError, match="holds no Sharpe ratio of a validation"):
            check_combination(Combination(kind), [one, one])


def test_inputs_that_differ_from_those_of_a_training_are_named(place):
    state, settings = read_checkpoint(place / "tilts"), settings_on(place)
    tape = settings.tape(TILTS)
    check_fits(state, tape, TILTS)
    two = settings_on(place, symbols=("S0", "S1"))
    told = f"3 symbols, but 2 are chosen of {tape.source}; choose as many with --symbols"
    with pytest.raises(ValueError, match=re.escape(f"the checkpoint was trained on {told}")):
        check_fits(state, two.tape(TILTS), TILTS)
    # Policies of symbols play any number of them.
    check_fits(state | {"config": {"policy": "symbol"}}, two.tape(TILTS), TILTS)
    check_fits(read_checkpoint(place / "exact"), two.tape(TILTS), TILTS)
    for change, told in (
        ({"features": ("macd",)}, "features rsi_30, not macd"),
        ({"action": "weights"}, "actions 'tilt', not 'weights'"),
    ):
        with pytest.raises(ValueError, match=f"^the checkpoint was trained on {told}$"):
            check_same_inputs(state, replace(TILTS, **change))


def test_the_market_is_shown_with_its_spans():
    out = StringIO()
    console = Console(file=out, width=200)
    part = SimpleNamespace(dates=["a", "b", "c"], first_day=1, num_paths=4)
    tape = SimpleNamespace(symbols=tuple("ABCDE"), num_symbols=5, num_paths=1, currency="USD", source="bars.csv")
    show_market(console, tape, {"Test": part, "Validation": part})
    shown = [line.rstrip() for line in out.getvalue().splitlines()]
    assert shown == [
        "Market      bars.csv: A, B, C, D, E, prices in USD",
        "Test        b to c, 2 days after the warm-up, 4 paths",
        "Validation  b to c, 2 days after the warm-up, 4 paths",
    ]
    tape = SimpleNamespace(symbols=tuple("ABCDEF"), num_symbols=6, num_paths=3, currency=None, source="planted")
    show_market(console, tape, {"Test": part})
    assert "Market    planted: 6 symbols, 3 paths\nTest      b to c" in out.getvalue()
    assert wide_console().width == 150
