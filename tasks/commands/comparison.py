"""Comparison of trained agents, alone or as an ensemble, with baselines on the days of the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

import vecenv
from vecenv.core.env import VecEnv
from vecenv.learn.agents import Agent, PolicyAgent
from vecenv.learn.domain import BEST_RULE, domain_of
from vecenv.learn.ensemble import (
    Combination,
    Diversity,
    Kind,
    NoEnsembleError,
    diversity,
    draws_actions,
    load_ensemble,
    validation_sharpes,
)
from vecenv.learn.policies import load_policy
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named, task_of
from vecenv.system.preset_files import with_values
from vecenv.system.settings import with_earlier
from vecenv.tasks.commands.run_folder import read_checkpoint

TRAINED = "trained"
"""Name of the trained agent in tables and files."""

UNTRAINED = "untrained"
"""Name in tables and files of the policy of the seed, which no run has changed."""

ENSEMBLE = "ensemble"
"""Name of the mean of several trained policies in tables and files."""

NAMED_SYMBOLS = 5
"""Largest number of symbols listed by name."""

COMPARING = "Comparing agents on {} episodes …"
"""Status message during the episodes of the test."""

SHOWN_BESIDE = ("equal_weight",)
"""Baselines shown on the worst days of an agent beside the reference."""

ALL = "all"
"""Stands for all baselines of a task."""

BY_SHARPE: tuple[Kind, ...] = ("weighted", "select")
"""Combinations by the Sharpe ratios of the validations."""


def config_of(task: str) -> Any:  # noqa: ANN401
    """Return the default config of a task, a dataclass; an unknown task is a ValueError."""
    return task_named(task).config()


def trained_config(scenario: Mapping[str, Any], source: str) -> Any:  # noqa: ANN401
    """Return the config in a checkpoint's metadata, a ValueError if it is not that of the installed task."""
    values = scenario.get("curriculum", scenario.get("config", {}))
    config = config_of(scenario["task"])
    return with_values(config, with_earlier(values, config), source)


def compared_config(task: str, config: Any = None) -> Any:  # noqa: ANN401
    """Return a config of a task, its default if None, as all agents are compared under it."""
    return task_named(task).domain.compared(config_of(task) if config is None else config)


def text_config(task: str, config: Any = None) -> Any:  # noqa: ANN401
    """Return a config of a task, its default for texts if None, as agents that act by text are compared under it."""
    record = task_named(task)
    return record.domain.compared(record.spoken(record.default_text_config() if config is None else config))


def chosen_agents(task: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the chosen baselines, with `ALL` expanded, a ValueError if some are unknown."""
    known = task_named(task).agents
    if tuple(names) == (ALL,):
        return tuple(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown agents {', '.join(unknown)}; there are {', '.join(known)}, or {ALL}")
    return tuple(names)


def comparison_environment(task: str, tape: MarketTape, config: Any, num_episodes: int) -> tuple[VecEnv, str]:  # noqa: ANN401
    """Make the test environment, one row per episode, and a note if episodes were shortened to fit the test.

    Raises:
        ValueError: there is no episode, no day after the warm-up, or the config does not support comparison.
    """
    if num_episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {num_episodes}")
    record = task_named(task)
    if config.action != record.domain.compared(config).action:
        raise ValueError(f"agents of {task} are compared by their orders: env.action must be 'orders'")
    longest = tape.num_days - tape.first_day - 1
    note = ""
    if longest >= 1 and (shortened := record.domain.shortened(config, longest)) != config:
        note = f"Test episodes have {longest} days instead of {config.episode_length}: the test has {longest + 1}."
        config = shortened
    # Too few steps to pay for compiling.
    return vecenv.make(task, num_episodes, market=tape, device=tape.device, compile=False, config=config), note


def validation_environment(task: str, tape: MarketTape, config: Any, num_episodes: int, compile: bool) -> VecEnv:  # noqa: ANN401
    """Make the environment of validations, one row per episode, under the compared rules with the policy's own actions.

    Raises:
        ValueError: there is no episode, no day after the warm-up, or the task is compared under rules of another kind.
    """
    if num_episodes < 1:
        raise ValueError(f"validation_episodes must be at least 1, got {num_episodes}")
    record, compared = task_named(task), compared_config(task, config)
    if type(compared) is not type(config):
        raise ValueError(f"task {task!r} cannot be validated during training: set --validation-fraction 0")
    # Both shape the policy's actions, or what becomes of them.
    kept = {name: getattr(config, name) for name in ("action", "max_orders") if hasattr(config, name)}
    own = replace(compared, **kept)
    fitting = record.domain.shortened(own, tape.num_days - tape.first_day - 1)
    return vecenv.make(task, num_episodes, market=tape, device=tape.device, compile=compile, config=fitting)


def trained_agent(checkpoint: Path, env: VecEnv) -> Agent:
    """Return the agent of a checkpoint for a comparison, a ValueError if it does not fit the environment."""
    return _ensemble_agent([checkpoint], env)


def trained_agents(
    checkpoints: Mapping[str, Path], env: VecEnv, combination: Combination | None = None
) -> dict[str, Agent]:
    """Return the agents of checkpoints by name, and of several `ENSEMBLE`, their combination.

    Without a combination it is the mean of their actions, or the vote, where there is one. A policy of the exact
    gradient may stand beside one of PPO, but not be in an ensemble with it.

    Raises:
        ValueError: a checkpoint does not fit the environment, several were trained under different rules, or the
            combination is not that of their actions.
    """
    agents = {name: trained_agent(path, env) for name, path in checkpoints.items()}
    paths = list(checkpoints.values())
    rules = [trained_config(read_checkpoint(path)["scenario"], str(path)) for path in paths]
    smooth = task_of(env).domain.smooth or (lambda config: config)
    for path, config in zip(paths, rules, strict=True):
        if type(config) is not type(rules[0]) or smooth(config) != smooth(rules[0]):
            raise ValueError(f"{path} was trained under other rules than {paths[0]}: they cannot be compared")
    if len(paths) > 1 and all(config == rules[0] for config in rules):
        with suppress(NoEnsembleError) if combination is None else nullcontext():
            agents[ENSEMBLE] = _ensemble_agent(paths, env, combination)
    return agents


def _ensemble_agent(checkpoints: Sequence[Path], env: VecEnv, combination: Combination | None = None) -> Agent:
    made = task_of(env).domain.trained
    if made is None:
        return PolicyAgent(load_ensemble(checkpoints, env, combination))
    if combination is not None:
        raise ValueError(f"policies of task {task_of(env).name!r} are combined by --combine mean alone")
    first = checkpoints[0]
    return made(checkpoints, trained_config(read_checkpoint(first)["scenario"], str(first)), env)


def asked_combination(kind: Kind, temperature: float) -> Combination | None:
    """Return the combination that is asked for, None for the mean, which is left out where there is none."""
    return None if kind == "mean" else Combination(kind, temperature)


def check_combination(combination: Combination | None, paths: Sequence[Path]) -> None:
    """Reject, before any work, too few checkpoints for a combination, or one without a validation's Sharpe ratio."""
    if combination is None:
        return
    if len(paths) < 2:
        raise ValueError(f"--combine {combination.kind} needs several checkpoints, got {len(paths)}")
    if combination.kind in BY_SHARPE:
        validation_sharpes(paths)


def policies_diversity(paths: Sequence[Path], env: VecEnv, seed: int) -> Diversity | None:
    """Return how much policies differ on episodes that all together play; the rows are overwritten.

    None of fewer than two, and of those whose actions are none of the environment's, or have no ensemble.
    """
    if len(paths) < 2 or task_of(env).domain.trained is not None:
        return None
    try:
        played = load_ensemble(paths, env)
    except NoEnsembleError:
        return None
    policies = [load_policy(path, env) for path in paths]
    return diversity(policies, played, env, seed, random=all(map(draws_actions, paths)))


def baseline_agents(env: VecEnv, names: Sequence[str]) -> dict[str, Agent]:
    """Return baselines of the environment's task, and the best rule if the market knows it, by name."""
    known, best = task_of(env).agents, domain_of(env).best(env)
    return {name: known[name]() for name in names} | ({} if best is None else {BEST_RULE: best})


def check_fits(state: Mapping[str, Any], tape: MarketTape, config: Any) -> None:  # noqa: ANN401
    """Raise a ValueError if a market's or config's observations or actions differ from a checkpoint's."""
    scenario = state["scenario"]
    symbols = scenario["market"]["symbols"]
    traded = getattr(config, "symbols", tape.symbols)
    # Policies of symbols play any number of them.
    flat = state["config"].get("policy", "flat") == "flat"
    if flat and len(symbols) != len(traded):
        raise ValueError(
            f"the checkpoint was trained on {len(symbols)} symbols, but {len(traded)} are chosen of {tape.source}; "
            f"choose as many with --symbols"
        )
    check_same_inputs(state, config)


def check_same_inputs(state: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401
    """Raise a ValueError if a config's features, context or actions differ from a checkpoint's."""
    scenario = state["scenario"]
    trained = scenario["config"]
    for name in ("features", "context"):
        if name in trained and list(trained[name]) != list(getattr(config, name)):
            chosen = ", ".join(getattr(config, name))
            raise ValueError(f"the checkpoint was trained on {name} {', '.join(trained[name])}, not {chosen}")
    task_named(scenario["task"]).domain.check_trained(trained, config)


def show_market(console: Console, tape: MarketTape, parts: Mapping[str, MarketTape], why: str = "") -> None:
    """Print a market, its features and the columns that nothing shows, and its parts, the last one with a reason."""
    paths = _paths(tape)
    named = ", ".join(tape.symbols) if tape.num_symbols <= NAMED_SYMBOLS else f"{tape.num_symbols} symbols"
    width = max(len("Training"), *map(len, parts))
    money = "" if tape.currency is None else f", prices in {tape.currency}"
    console.print(f"{'Market':<{width}}  {tape.source}: {named}{paths}{money}", soft_wrap=True)
    if tape.feature_names:
        console.print(f"{'Features':<{width}}  {', '.join(tape.feature_names)}", soft_wrap=True)
    if tape.left_out:
        console.print(f"{'Left out':<{width}}  {', '.join(tape.left_out)}: columns that no agent sees", soft_wrap=True)
    for name, part in parts.items():
        days = part.dates[part.first_day :]
        told = f"{name:<{width}}  {days[0]} to {days[-1]}, {len(days):,} days after the warm-up{_paths(part)}"
        console.print(told + (f": {why}" if why and part is [*parts.values()][-1] else ""), soft_wrap=True)


def _paths(tape: MarketTape) -> str:
    return "" if tape.num_paths == 1 else f", {tape.num_paths} paths"


def wide_console() -> Console:
    """Return a console that is wide enough for tables if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=150)
