"""Tasks without a market of bars: validation and test have random numbers, or data, that no training has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from rich.console import Console

import vecenv
from vecenv.core.device import device_named
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
    split: Split,
    device: str,
    compile: bool = False,
) -> VecEnv:
    """Make an environment of episodes, one a row, of the split ``train``, ``validation`` or ``test``.

    Raises:
        ValueError: there is no episode, or more than the numbers suffice for, or the task's data are invalid.
    """
    if not 1 <= num_episodes <= VALIDATION:
        raise ValueError(f"episodes must be in 1 … {VALIDATION:,}, got {num_episodes:,}")
    ids = FIRST[split] + torch.arange(num_episodes)
    own = task_named(task).parted(config, split)
    # Starts are drawn by them too.
    return vecenv.make(task, num_episodes, device=device_named(device), compile=compile, config=own, env_ids=ids)


def show_simulation(console: Console, environments: Mapping[Split, VecEnv], seed: int) -> None:
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
        console.print(f"{SHOWN[split]:<9} {env.scenario.metadata()['part']['description']}", soft_wrap=True)
