"""Task records: everything that learners, doors and commands know of a task, found by its name.

Another package adds its tasks as entry points of the group ``vecenv.tasks``; `register` adds one in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.market.account import MarketAccount
from vecenv.market.load import Market, load_market
from vecenv.market.tape import MarketTape
from vecenv.text.task_text import TaskText

GROUP = "vecenv.tasks"


@dataclass(frozen=True)
class NoSettings:
    """Settings of a task that has none."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a task is called, how it is made, and what there is to say of it.

    Attributes:
        name: by which it is made, and under which results are filed.
        version: changes when, and only when, behaviour does.
        scenario: makes the rules, from the settings alone or, if the task has a market, from the tape and the settings.
        settings: returns the default settings, a dataclass.
        market: returns the options of `load_market` that settings ask for; None for a task without a market.
        agents: agents that learn nothing, by name, each made by a call without arguments.
        reference: agent among them that others are measured against.
        hindsight: agent among them that knows what is to come.
        outcomes: unit of each outcome that is told of an episode, most important first: numbers of `Scenario.info`.
            Units are ``currency``, ``share`` and ``count``. The grade needs no mention.
        account: reads the accounts of a task that trades.
        bound: returns a cumulative return that no account can pass in the episodes that begin, shape (N,), or None.
        compared: returns the settings under which all agents are compared, whatever they were trained with.
        shortened: returns settings whose episodes fit into a number of days.
        trained: makes an agent of a checkpoint, the settings that it was trained under, and an environment of a
            comparison; by default the policy acts as it was trained.
        check_trained: refuses settings that a checkpoint, of whose settings it is told, cannot be compared under.
        text: makes what reads and writes the task's language.
        spoken: returns the settings under which agents that write text act.
        recorder: plays episodes with an agent and records some of them, see `vecenv.tasks.tiers.recorder`.
    """

    name: str
    version: str
    scenario: Callable[..., Scenario]
    settings: Callable[[], Any] = NoSettings
    market: Callable[[Any], Mapping[str, Any]] | None = None
    agents: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    reference: str = "buy_and_hold"
    hindsight: str = "oracle"
    outcomes: Mapping[str, str] = field(default_factory=dict)
    account: MarketAccount | None = None
    bound: Callable[[VecEnv], Tensor | None] | None = None
    compared: Callable[[Any], Any] = lambda settings: settings
    shortened: Callable[[Any, int], Any] = lambda settings, days: settings
    trained: Callable[[Path, Any, VecEnv], Any] | None = None
    check_trained: Callable[[Mapping[str, Any], Any], None] = lambda trained, settings: None
    text: Callable[[Any], TaskText] | None = None
    spoken: Callable[[Any], Any] = lambda settings: settings
    recorder: Callable[..., Sequence[Any]] | None = None

    def check_text(self) -> None:
        """Refuse a task whose agents cannot read and write text.

        Raises:
            ValueError: the task has no text.
        """
        if self.text is None:
            raise ValueError(f"task {self.name!r} has no text")

    def build(self, tape: MarketTape | None = None, settings: Any = None) -> Scenario:  # noqa: ANN401
        """Return the rules under settings, the defaults if None.

        Raises:
            ValueError: the task needs a market and got none, or the reverse, or the settings do not fit it.
        """
        if (tape is None) != (self.market is None):
            raise ValueError(f"task {self.name!r} has no market" if tape else f"task {self.name!r} needs a market")
        settings = self.settings() if settings is None else settings
        scenario = self.scenario(settings) if tape is None else self.scenario(tape, settings)
        scenario.name, scenario.version, scenario.task = self.name, self.version, self
        scenario.outcomes = self.outcomes
        if self.text is not None:
            scenario.text = self.text(scenario)
        return scenario


_registered: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Let a task be made by its name in this process, and return it.

    Raises:
        ValueError: another task has the name.
    """
    if _registered.get(task.name, task) != task or task.name in _announced():
        raise ValueError(f"there is a task {task.name!r} already")
    _registered[task.name] = task
    return task


def _announced() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=GROUP)}


def task_names() -> list[str]:
    """Return the names of all tasks, without importing any."""
    return sorted({*_announced(), *_registered})


def task_named(task: str | Task) -> Task:
    """Return the record of a task, by its name or as it is given.

    Raises:
        ValueError: there is no task of that name.
    """
    if isinstance(task, Task):
        return task
    if task in _registered:
        return _registered[task]
    announced = _announced()
    if task not in announced:
        raise ValueError(f"unknown task {task!r}; installed tasks: {', '.join(task_names()) or 'none'}")
    return announced[task].load()


def task_of(env: VecEnv) -> Task:
    """Return the record of an environment's task: of rules made without one, a record that knows their name alone."""
    scenario = env.scenario
    if scenario.task is not None:
        return scenario.task
    return Task(name=scenario.name, version=scenario.version, scenario=type(scenario))


def make(
    task: str | Task,
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
    """Make an environment of a task.

    Args:
        task: name of a task that is installed or registered, or its record.
        num_envs: number of sub-environments, N.
        market: path, long table, tape or generator's name; not looked at where the task has no market.
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
    record = task_named(task)
    settings = config if config is not None else record.settings()
    known = [item.name for item in fields(settings)]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"unknown settings {unknown} of task {record.name!r}; it has {', '.join(known) or 'none'}")
    settings = replace(settings, **overrides)
    tape = None
    if record.market is not None:
        options = {**record.market(settings), **(market_options or {})}
        tape = load_market(market, device=device, **options)
    return VecEnv(record.build(tape, settings), num_envs, seed, device, compile, params, env_ids)


def make_spoken(task: str | Task, num_envs: int = 1, **options: Any) -> VecEnv:  # noqa: ANN401
    """Make an environment for agents that read and write text: as `make`, eager unless asked otherwise.

    Raises:
        ValueError: as `make`, or the task has no text.
    """
    record = task_named(task)
    record.check_text()
    given = options.pop("config", None)
    settings = record.spoken(record.settings() if given is None else given)
    return make(record, num_envs, **{"compile": False, "config": settings} | options)
