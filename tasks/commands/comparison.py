"""A trained agent beside the baselines, on days that it has not been trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent, PolicyAgent
from vecenv.learn.evaluation import Evaluation, evaluate
from vecenv.learn.ppo import load_policy
from vecenv.market.tape import MarketTape
from vecenv.registry import task_class
from vecenv.system.preset_files import with_values
from vecenv.tasks.commands.run_folder import read_checkpoint
from vecenv.tasks.stock_trading.agents import return_bound
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.scenario import StockTrading
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.curriculum_config import CurriculumConfig
from vecenv.tasks.tiers.order_list import MAX_ORDERS
from vecenv.tasks.tiers.scenario import TierTrading

TRAINED = "trained"
"""Name of the trained agent in tables and files."""

NAMED_SYMBOLS = 5
"""Largest number of symbols that are listed by name."""

COMPARING = "Comparing agents on {} episodes …"
"""Shown while agents play the held-out episodes."""

ALL = "all"
"""Stands for all baselines of a task."""


def rules_of(task: str) -> Any:  # noqa: ANN401
    """Return the default rules of a task, a dataclass.

    Raises:
        ValueError: there is no such task.
    """
    kind: Any = task_class(task)
    return kind.config_type()


def trained_rules(scenario: Mapping[str, Any], source: str) -> Any:  # noqa: ANN401
    """Return the rules of a training.

    Args:
        scenario: what a checkpoint says of it.
        source: the checkpoint, for the message.

    Raises:
        ValueError: the rules are not those of the installed task.
    """
    values = scenario.get("curriculum", scenario["config"])
    return with_values(rules_of(scenario["task"]), values, source)


def test_rules(rules: Any) -> Any:  # noqa: ANN401
    """Return the rules of a comparison: in the trading tiers lists of orders, as many a day as everyone may give.

    There the space and the number of orders that an agent was trained with are its own affair, and bind no other.
    """
    if not isinstance(rules, TierConfig | CurriculumConfig):
        return rules
    return replace(rules, action="orders", max_orders=max(MAX_ORDERS, rules.max_orders))


def chosen_agents(task: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of baselines, of all where it says so.

    Raises:
        ValueError: naming those that the task does not have, and those it has.
    """
    known = task_class(task).baselines()
    if tuple(names) == (ALL,):
        return tuple(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown agents {', '.join(unknown)}; there are {', '.join(known)}, or {ALL}")
    return tuple(names)


def test_environment(task: str, tape: MarketTape, rules: Any, num_episodes: int) -> tuple[VecEnv, str]:  # noqa: ANN401
    """Make the environment of the test, one row per episode.

    Args:
        task: name of the task.
        tape: the days of the test.
        rules: of `test_rules`; stock-trading episodes longer than the days are shortened to them.
        num_episodes: N.

    Returns:
        The environment, and a line that says so where episodes are shorter, else nothing.

    Raises:
        ValueError: there is no episode, no day after the warm-up, or another action space than that of `test_rules`.
    """
    if num_episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {num_episodes}")
    if rules.action != test_rules(rules).action:
        raise ValueError(f"agents of {task} are compared by their orders: env.action must be 'orders'")
    longest = tape.num_days - tape.first_day - 1
    note = ""
    if isinstance(rules, StockTradingConfig) and rules.episode_length > longest >= 1:
        note = f"Test episodes have {longest} days instead of {rules.episode_length}: the test has {longest + 1}."
        shortest = min(rules.min_episode_length, longest)
        rules = replace(rules, episode_length=longest, min_episode_length=shortest)
    # Few steps are taken, fewer than would pay for compiling.
    return vecenv.make(task, num_episodes, market=tape, device=tape.device, compile=False, config=rules), note


class TrainedOnTiers:
    """A policy of the trading tiers as an agent that gives lists of orders.

    Args:
        path: of the checkpoint.
        env: an environment with the policy's own space of actions, on the market of those that it will act in.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """

    def __init__(self, path: Path, env: VecEnv) -> None:
        assert isinstance(env.scenario, TierTrading)
        self.scenario, self.agent = env.scenario, PolicyAgent(load_policy(path, env))

    def act(self, env: VecEnv) -> Tensor:
        """Return the policy's orders, and HOLD for the others of the day. Shape: (N, M, 3), float32."""
        own = self.scenario

        def decoded(state: Any, action: Tensor) -> Tensor:  # noqa: ANN401
            return own.orders(state, action, own.params, own.market)

        orders = torch.vmap(decoded)(env.state, self.agent.act(env))
        return torch.nn.functional.pad(orders, (0, 0, 0, env.action_spec.shape[-2] - orders.shape[-2]))


def trained_agent(checkpoint: Path, env: VecEnv) -> Agent:
    """Return the agent of a checkpoint for an environment of a comparison.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """
    scenario = env.scenario
    if not isinstance(scenario, TierTrading):
        return PolicyAgent(load_policy(checkpoint, env))
    rules = trained_rules(read_checkpoint(checkpoint)["scenario"], str(checkpoint))
    own = {name: getattr(rules, name) for name in ("action", "max_orders")}
    settings = getattr(scenario, "settings", scenario.config)
    return TrainedOnTiers(
        checkpoint,
        vecenv.make(
            scenario.name, market=env.market, device=env.device, compile=False, config=replace(settings, **own)
        ),
    )


def agents_for(env: VecEnv, checkpoint: Path | None, baselines: Sequence[str]) -> dict[str, Agent]:
    """Return the trained agent, if there is one, and baselines, by name.

    Raises:
        ValueError: the checkpoint does not fit the environment.
    """
    trained = {} if checkpoint is None else {TRAINED: trained_agent(checkpoint, env)}
    return trained | baseline_agents(env, baselines)


def baseline_agents(env: VecEnv, names: Sequence[str]) -> dict[str, Agent]:
    """Return baselines of the environment's task, by name."""
    known = env.scenario.baselines()
    return {name: known[name]() for name in names}


def compare(env: VecEnv, agents: Mapping[str, Agent], seed: int) -> Evaluation:
    """Let agents play the same episodes.

    Raises:
        ValueError: there is no agent.
    """
    bounded = isinstance(env.scenario, StockTrading) and not env.scenario.config.shorting
    return evaluate(env, agents, seed, return_bound if bounded else None)


def check_fits(state: Mapping[str, Any], tape: MarketTape, rules: Any) -> None:  # noqa: ANN401
    """Refuse a market or rules whose observations and actions are not those that a checkpoint was trained on.

    Raises:
        ValueError: saying what differs.
    """
    trained = state["scenario"]
    symbols, config = trained["market"]["symbols"], trained["config"]
    traded = getattr(rules, "symbols", tape.symbols)
    if len(symbols) != len(traded):
        raise ValueError(
            f"the checkpoint was trained on {len(symbols)} symbols, but {len(traded)} are chosen of {tape.source}; "
            f"choose as many with --symbols"
        )
    for name in ("features", "context"):
        if name in config and list(config[name]) != list(getattr(rules, name)):
            raise ValueError(
                f"the checkpoint was trained on {name} {', '.join(config[name])}, not {', '.join(getattr(rules, name))}"
            )
    if not isinstance(rules, TierConfig | CurriculumConfig):
        if config["action"] != rules.action:
            raise ValueError(f"the checkpoint was trained on actions {config['action']!r}, not {rules.action!r}")
    elif config["max_orders"] > rules.max_orders:
        raise ValueError(
            f"the checkpoint was trained with {config['max_orders']} orders a day, more than {rules.max_orders}"
        )


def show_market(console: Console, tape: MarketTape, parts: Mapping[str, MarketTape]) -> None:
    """Print what is traded, and on which days."""
    paths = _paths(tape)
    named = ", ".join(tape.symbols) if tape.num_symbols <= NAMED_SYMBOLS else f"{tape.num_symbols} symbols"
    width = max(len("Training"), *map(len, parts))
    money = "" if tape.currency is None else f", prices in {tape.currency}"
    console.print(f"{'Market':<{width}}  {tape.source}: {named}{paths}{money}", soft_wrap=True)
    for name, part in parts.items():
        days = part.dates[part.first_day :]
        console.print(f"{name:<{width}}  {days[0]} to {days[-1]}, {len(days):,} days after the warm-up{_paths(part)}")


def _paths(tape: MarketTape) -> str:
    return "" if tape.num_paths == 1 else f", {tape.num_paths} paths"


def wide_console() -> Console:
    """Return a console that does not fold tables where no terminal tells a width."""
    console = Console()
    return console if console.is_terminal else Console(width=150)
