"""A trained agent beside the baselines, on days that it has not been trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

import vecenv
from tasks.stock_trading_config import StockTradingConfig
from vecenv.env import VecEnv
from vecenv.learn.baselines import BASELINES, Agent, PolicyAgent
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.ppo import load_policy
from vecenv.market.tape import MarketTape
from vecenv.registry import task_class

TRAINED = "trained"
"""Name of the trained agent in tables and files."""


def rules_of(task: str) -> StockTradingConfig:
    """Return the default rules of a task.

    Raises:
        ValueError: there is no such task, or it is not one of stock trading, which the baselines need.
    """
    kind: Any = task_class(task)
    rules = kind.config_type()
    if not isinstance(rules, StockTradingConfig):
        raise ValueError(f"task {task!r} is not one of stock trading; make its environment with vecenv.make")
    return rules


def check_agents(names: Sequence[str]) -> None:
    """Refuse unknown baselines.

    Raises:
        ValueError: naming them and those there are.
    """
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise ValueError(f"unknown agents {', '.join(unknown)}; there are {', '.join(BASELINES)}")


def test_environment(task: str, tape: MarketTape, rules: StockTradingConfig, num_episodes: int) -> tuple[VecEnv, str]:
    """Make the environment of the test, one row per episode.

    Args:
        task: name of the task.
        tape: the days of the test.
        rules: of the task; episodes longer than the days are shortened to them.
        num_episodes: N.

    Returns:
        The environment, and a line that says so where episodes are shorter, else nothing.

    Raises:
        ValueError: there is no episode, or no day after the warm-up.
    """
    if num_episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {num_episodes}")
    longest = tape.num_days - tape.first_day - 1
    note = ""
    if rules.episode_length > longest >= 1:
        note = f"Test episodes have {longest} days instead of {rules.episode_length}: the test has {longest + 1}."
        shortest = min(rules.min_episode_length, longest)
        rules = replace(rules, episode_length=longest, min_episode_length=shortest)
    # Few steps are taken, fewer than would pay for compiling.
    return vecenv.make(task, num_episodes, market=tape, device=tape.device, compile=False, config=rules), note


def compare(env: VecEnv, checkpoint: Path | None, baselines: Sequence[str], seed: int) -> Evaluation:
    """Let a trained agent, if there is one, and baselines play the same episodes.

    Raises:
        ValueError: the checkpoint does not fit the environment, or there is no agent.
    """
    agents: dict[str, Agent] = {}
    if checkpoint is not None:
        agents[TRAINED] = PolicyAgent(load_policy(checkpoint, env))
    agents |= {name: BASELINES[name]() for name in baselines}
    return evaluate(env, agents, seed)


def check_fits(state: Mapping[str, Any], tape: MarketTape, rules: StockTradingConfig) -> None:
    """Refuse a market or rules whose observations and actions are not those that a checkpoint was trained on.

    Raises:
        ValueError: saying what differs.
    """
    trained = state["scenario"]
    symbols, features = trained["market"]["symbols"], trained["config"]["features"]
    if len(symbols) != tape.num_symbols:
        raise ValueError(
            f"the checkpoint was trained on {len(symbols)} symbols, but {tape.source} has {tape.num_symbols}; "
            f"choose as many with --symbols"
        )
    if list(features) != list(rules.features):
        raise ValueError(
            f"the checkpoint was trained on features {', '.join(features)}, not {', '.join(rules.features)}"
        )
    if trained["config"]["action"] != rules.action:
        raise ValueError(f"the checkpoint was trained on actions {trained['config']['action']!r}, not {rules.action!r}")


def wide_console() -> Console:
    """Return a console that does not fold tables where no terminal tells a width."""
    console = Console()
    return console if console.is_terminal else Console(width=150)
