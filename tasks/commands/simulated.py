"""Tasks that simulate their own market: their held-out episodes have random numbers that no training has."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from rich.console import Console

import vecenv
from vecenv.core.device import device_named
from vecenv.core.env import VecEnv
from vecenv.registry import task_named
from vecenv.tasks.commands.market_settings import MarketSettings

VALIDATION, TEST = 2**30, 2**31
"""First numbers of sub-environments of validations and tests; those of a training begin at 0."""

FIRST = {"train": 0, "validation": VALIDATION, "test": TEST}
"""First numbers by split."""

OWNER = "a task on a market of bars"
"""What settings of the market belong to."""


def is_simulated(task: str) -> bool:
    """Whether a task simulates its own market, instead of trading one of bars.

    Raises:
        ValueError: there is no such task.
    """
    return task_named(task).market is None


def without_effect() -> dict[str, str]:
    """Return the market settings, which simulated tasks do not have, with what they belong to."""
    return {item.name: OWNER for item in fields(MarketSettings) if item.name != "device"}


def held_out_simulation(
    task: str,
    config: Any,  # noqa: ANN401
    num_episodes: int,
    first: int,
    device: str,
    compile: bool = False,
) -> VecEnv:
    """Make an environment of held-out episodes, one a row.

    Args:
        task: its name.
        config: of the task.
        num_episodes: N.
        first: `VALIDATION` or `TEST`.
        device: of the tensors.
        compile: compile the step.

    Raises:
        ValueError: there is no episode, or more than the numbers suffice for.
    """
    if not 1 <= num_episodes <= VALIDATION:
        raise ValueError(f"episodes must be in 1 … {VALIDATION:,}, got {num_episodes:,}")
    ids = first + torch.arange(num_episodes)
    # Starts are drawn by them too.
    return vecenv.make(task, num_episodes, device=device_named(device), compile=compile, config=config, env_ids=ids)


def show_simulation(console: Console, task: str, episodes: int, seed: int) -> None:
    """Print what is played, and that the test's episodes are held out."""
    console.print(f"Task      {task}, simulated, seed {seed}", soft_wrap=True)
    console.print(
        f"Test      {episodes:,} episodes with random numbers of their own, which no training sees", soft_wrap=True
    )
