"""A trained agent beside the baselines, on days that it has not been trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

import vecenv
from tasks.stock_trading import StockTrading
from tasks.stock_trading_config import StockTradingConfig
from vecenv.env import VecEnv
from vecenv.learn.baselines import Agent, PolicyAgent, return_bound
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.ppo import load_policy
from vecenv.market.tape import MarketTape
from vecenv.registry import task_class

TRAINED = "trained"
"""Name of the trained agent in tables and files."""

ALL = "all"
"""Stands for all baselines of a task."""


def rules_of(task: str) -> Any:  # noqa: ANN401
    """Return the default rules of a task, a dataclass.

    Raises:
        ValueError: there is no such task.
    """
    kind: Any = task_class(task)
    return kind.config_type()


def chosen_agents(task: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of baselines, of all where it says so.

    Raises:
        ValueError: naming those that the task does not have, and those it has.
    """
    known = task_class(task).baselines
    if tuple(names) == (ALL,):
        return tuple(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown agents {', '.join(unknown)}; there are {', '.join(known)}, or {ALL}")
    return tuple(names)


def test_environment(task: str, tape: MarketTape, rules: Any, num_episodes: int) -> tuple[VecEnv, str]:
    """Make the environment of the test, one row per episode.

    Args:
        task: name of the task.
        tape: the days of the test.
        rules: of the task; stock-trading episodes longer than the days are shortened to them.
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
    if isinstance(rules, StockTradingConfig) and rules.episode_length > longest >= 1:
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
    agents |= {name: env.scenario.baselines[name]() for name in baselines}
    bounded = isinstance(env.scenario, StockTrading) and not env.scenario.config.shorting
    return evaluate(env, agents, seed, return_bound if bounded else None)


def check_fits(state: Mapping[str, Any], tape: MarketTape, rules: Any) -> None:  # noqa: ANN401
    """Refuse a market or rules whose observations and actions are not those that a checkpoint was trained on.

    Raises:
        ValueError: saying what differs.
    """
    trained = state["scenario"]
    symbols, config = trained["market"]["symbols"], trained["config"]
    if isinstance(rules, StockTradingConfig) and len(symbols) != tape.num_symbols:
        raise ValueError(
            f"the checkpoint was trained on {len(symbols)} symbols, but {tape.source} has {tape.num_symbols}; "
            f"choose as many with --symbols"
        )
    for name in ("features", "context"):
        if name in config and list(config[name]) != list(getattr(rules, name)):
            raise ValueError(
                f"the checkpoint was trained on {name} {', '.join(config[name])}, not {', '.join(getattr(rules, name))}"
            )
    if config["action"] != rules.action:
        raise ValueError(f"the checkpoint was trained on actions {config['action']!r}, not {rules.action!r}")


def show_market(console: Console, tape: MarketTape, parts: Mapping[str, MarketTape]) -> None:
    """Print what is traded, and on which days."""
    paths = "" if tape.num_paths == 1 else f", {tape.num_paths} paths"
    console.print(f"Market    {tape.source}: {tape.num_symbols} symbols{paths}", soft_wrap=True)
    for name, part in parts.items():
        days = part.dates[part.first_day :]
        console.print(f"{name:<8}  {days[0]} to {days[-1]}, {len(days):,} days after the warm-up")


def wide_console() -> Console:
    """Return a console that does not fold tables where no terminal tells a width."""
    console = Console()
    return console if console.is_terminal else Console(width=150)
