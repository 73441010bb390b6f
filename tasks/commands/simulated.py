"""Tasks without a market of bars: validation and test have random numbers, or data, that no training has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import torch
from rich.console import Console

import vecenv
from vecenv.core.checks import device_named
from vecenv.core.env import VecEnv
from vecenv.registry import Split, task_named
from vecenv.tasks.commands.market_settings import MarketSettings

VALIDATION, TEST = 2**30, 2**31
"""First numbers of sub-environments of validations and tests; those of a training begin at 0."""

FIRST: dict[Split, int] = {"train": 0, "validation": VALIDATION, "test": TEST}
"""First numbers by split."""

SHOWN: dict[Split, str] = {"train": "Training", "validation": "Validation", "test": "Test"}
"""Names of the splits in messages."""

OWNER = "a task on a market of bars"
"""What settings of the market belong to."""


def is_simulated(task: str) -> bool:
    """Whether a task simulates its own market or reads data of its own, instead of trading a market of bars."""
    return task_named(task).market is None


def without_effect() -> dict[str, str]:
    """Return the market settings, which simulated tasks do not have, with what they belong to."""
    return {item.name: OWNER for item in fields(MarketSettings) if item.name != "device"}


def split_environment(
    task: str,
    config: Any,  # noqa: ANN401
    num_episodes: int,
    split: Split | Literal["all"],
    device: str,
    compile: bool = False,
) -> VecEnv:
    """Make an environment of episodes, one a row, of the split ``train``, ``validation`` or ``test``.

    Of a task that reads data, ``all`` plays them whole.

    Raises:
        ValueError: there is no episode, or more than the numbers suffice for, or the task's data are invalid.
    """
    if not 1 <= num_episodes <= VALIDATION:
        raise ValueError(f"episodes must be in 1 … {VALIDATION:,}, got {num_episodes:,}")
    ids = FIRST["test" if split == "all" else split] + torch.arange(num_episodes)
    own = task_named(task).domain.parted(config, split)
    # Starts are drawn by them too.
    return vecenv.make(task, num_episodes, device=device_named(device), compile=compile, config=own, env_ids=ids)


def unknown_to(scenarios: Sequence[Mapping[str, Any]], env: VecEnv) -> bool:
    """Whether policies, given by the metadata of their trainings, were trained on no time of the data of ``env``.

    False without policies, of tasks without data, and where another share of the test is asked for than they had.
    """
    own = json.loads(json.dumps(env.scenario.metadata()))
    if not scenarios or "part" not in own:
        return False
    asked = [
        name for name in ("test_fraction", "test_hours") if own["config"].get(name) != scenarios[0]["config"].get(name)
    ]
    first, last = own["market"]["first"], own["market"]["last"]
    seen = [one for one in scenarios if one["part"]["first"] <= last and first <= one["part"]["last"]]
    return not asked and not seen


def show_simulation(console: Console, environments: Mapping[Split, VecEnv], seed: int, why: str = "") -> None:
    test = environments["test"]
    metadata = test.scenario.metadata()
    if "market" not in metadata:
        console.print(f"Task      {test.scenario.name}, simulated, seed {seed}", soft_wrap=True)
        told = f"{test.num_envs:,} episodes with random numbers of their own, which no training sees"
        console.print(f"Test      {told}", soft_wrap=True)
        return
    console.print(f"Task      {test.scenario.name}, seed {seed}", soft_wrap=True)
    console.print(f"Market    {metadata['market']['description']}", soft_wrap=True)
    for split, env in environments.items():
        told = env.scenario.metadata()["part"]["description"] + (f": {why}" if why else "")
        console.print(f"{SHOWN[split]:<9} {told}", soft_wrap=True)
