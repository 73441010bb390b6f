"""Find tasks by name through the entry-point group ``vecenv.tasks``, so that other packages can add theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from importlib.metadata import entry_points
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.market.load import Market, load_market

GROUP = "vecenv.tasks"


def task_class(name: str) -> type[Scenario]:
    """Return the scenario class of a task.

    Raises:
        ValueError: no installed package has a task of that name.
    """
    known = {point.name: point for point in entry_points(group=GROUP)}
    if name not in known:
        raise ValueError(f"unknown task {name!r}; installed tasks: {', '.join(sorted(known)) or 'none'}")
    return known[name].load()


def make(
    task: str,
    num_envs: int = 1,
    *,
    market: Market = "synthetic",
    seed: int = 0,
    device: torch.device | str = "cpu",
    compile: bool = True,
    config: Any = None,  # noqa: ANN401
    market_options: Mapping[str, Any] | None = None,
    params: Mapping[str, Tensor] | None = None,
    env_ids: Tensor | None = None,
    **overrides: Any,  # noqa: ANN401
) -> VecEnv:
    """Make an environment of a registered task.

    Args:
        task: name in the entry-point group ``vecenv.tasks``.
        num_envs: number of sub-environments, N.
        market: path, long table, tape or generator's name.
        seed: names all episodes.
        device: where all tensors live.
        compile: compile the steps.
        config: settings of the task, its defaults if None.
        market_options: further arguments of `load_market`.
        params: parameters that differ per sub-environment, each with a leading dimension of N.
        env_ids: identity of each row in random draws; row numbers by default. Shape: (N,).
        **overrides: fields of the task's settings.

    Raises:
        ValueError: unknown task, unknown setting, or a fault in the market.
    """
    scenario_type: Any = task_class(task)
    settings = config if config is not None else scenario_type.config_type()
    known = [item.name for item in fields(settings)]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"unknown settings {unknown} of task {task!r}; it has {', '.join(known)}")
    settings = replace(settings, **overrides)
    options = {"features": settings.features, "context": settings.context} | dict(market_options or {})
    if named := getattr(settings, "market_symbols", ()):
        options.setdefault("symbols", named)
    tape = load_market(market, device=device, **options)
    return VecEnv(scenario_type(tape, settings), num_envs, seed, device, compile, params, env_ids)
