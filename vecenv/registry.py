"""Task registry: task records by name, and `make` for environments.

Other packages add tasks as entry points of the group ``vecenv.tasks``; `register` adds one in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from vecenv.core.env import VecEnv
from vecenv.core.scenario import Scenario
from vecenv.market.account import MarketAccount
from vecenv.market.load import Market, MarketOptions, entry_points, fitting_symbols, load_market
from vecenv.market.tape import MarketTape
from vecenv.system.settings import refuse_unknown
from vecenv.text.recording import Recording
from vecenv.text.task_text import TaskText

GROUP = "vecenv.tasks"

Config = TypeVar("Config", bound=Any)

Split = Literal["train", "validation", "test"]
"""What episodes are for."""

BEST_RULE = "best_rule"
"""Name of the agent of `Task.best` in tables and files."""


@dataclass(frozen=True)
class NoConfig:
    """Empty config, the default of a task."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """Record of a task: name, version, and factories of scenario, config, agents and text interface.

    Attributes:
        name: identifier in `make` and in the metadata of results.
        version: changes when, and only when, behaviour does.
        scenario: makes the scenario from the config or, if the task has a market, from the tape and the config.
        config: returns the default config, a frozen dataclass of the task's settings.
        market: returns the `MarketOptions` of a config; None for a task without a market.
        generator: of the market that `make` draws by default.
        agents: factories of untrained (baseline) agents, without arguments, by name.
        scale: what values of the grade mean, in a sentence for tables.
        reference: name of the baseline agent to which others are compared.
        hindsight: name of the baseline agent that sees the future.
        outcomes: names of the episode outcomes among the entries of `Scenario.info`, most important first, with units:
            ``currency``, ``share`` or ``count``. The grade is implied.
        beside_account: outcomes that tables and results show beside the metrics of the account.
        account: reads the accounts of a trading task.
        bound: returns an upper bound of the cumulative return of the episodes at their start, shape (N,), or None.
        best: makes the agent `BEST_RULE` for an environment, whose market's best rule is known; None if it is not.
        compared: returns the config for comparisons of agents, independent of the one that they were trained under.
        smooth: returns the config of the same task with rewards that are differentiable in the actions; None if there
            is none.
        one_choice: whether an action may be a single choice under a config, as learners of action values need; what is
            taken for one and is none is refused once there is an environment.
        numbers: whether an action may be numbers within bounds under a config, as actors with critics of their actions
            need; likewise.
        shortened: returns a config whose episodes fit into a number of days.
        parted: returns the config of the episodes for ``train``, ``validation``, ``test`` or ``all``, of a task without
            a market that reads data of its own; others tell them apart by their random numbers alone.
        blocks: returns the step of time at which episodes began, given their states, shape (N,), int64: those of the
            same one are not independent. By default all are.
        trained: makes an agent from checkpoints, mostly one, of several an ensemble (`vecenv.learn.ensemble`), given
            their training config and the environment of a comparison; by default the trained policy or the ensemble.
        check_trained: checks that a checkpoint, given its training config, can be compared under another config.
        text: makes the `TaskText` of a scenario.
        spoken: returns the config for agents that act by text.
        text_config: returns the default config of agents that act by text, before `spoken`; `config` if None.
        figures: draws the family's pictures by file name, given the test environment, the compared agents and the seed.
        recording: of episodes; None for a task whose episodes are not recorded.
    """

    name: str
    version: str
    scenario: Callable[..., Scenario]
    config: Callable[[], Any] = NoConfig
    market: Callable[[Any], MarketOptions] | None = None
    generator: str = "synthetic"
    agents: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    scale: str = ""
    reference: str = "buy_and_hold"
    hindsight: str = "oracle"
    outcomes: Mapping[str, str] = field(default_factory=dict)
    beside_account: Sequence[str] = ()
    account: MarketAccount | None = None
    bound: Callable[[VecEnv], Tensor | None] | None = None
    best: Callable[[VecEnv], Any] = lambda env: None
    compared: Callable[[Any], Any] = lambda config: config
    smooth: Callable[[Any], Any] | None = None
    one_choice: Callable[[Any], bool] = lambda config: True
    numbers: Callable[[Any], bool] = lambda config: True
    shortened: Callable[[Any, int], Any] = lambda config, days: config
    parted: Callable[[Any, Any], Any] = lambda config, part: config
    blocks: Callable[[Any], Tensor] | None = None
    trained: Callable[[Sequence[Path], Any, VecEnv], Any] | None = None
    check_trained: Callable[[Mapping[str, Any], Any], None] = lambda trained, config: None
    text: Callable[[Any], TaskText] | None = None
    spoken: Callable[[Any], Any] = lambda config: config
    text_config: Callable[[], Any] | None = None
    figures: Callable[[VecEnv, Mapping[str, Any], int], Mapping[str, Any]] | None = None
    recording: Recording[Any, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a task that has a name by it, since its functions may have none."""
        try:
            known = task_named(self.name) is self
        except ValueError:
            known = False
        return (task_named, (self.name,)) if known else super().__reduce_ex__(2)  # type: ignore[return-value]

    def check_recording(self) -> Recording[Any, Any]:
        """Return the recording of the task's episodes; ValueError if they are not recorded."""
        if self.recording is None:
            raise ValueError(f"episodes of {self.name!r} are not recorded")
        return self.recording

    def check_text(self) -> None:
        """Raise ValueError unless the task has a text interface."""
        if self.text is None:
            raise ValueError(f"task {self.name!r} has no text")

    def default_text_config(self) -> Any:  # noqa: ANN401
        return (self.text_config or self.config)()

    def build(self, tape: MarketTape | None = None, config: Any = None) -> Scenario:  # noqa: ANN401
        """Return the scenario for a config, the default if None.

        Raises:
            ValueError: a required market is missing, the task takes none, or the config does not fit it.
        """
        if (tape is None) != (self.market is None):
            raise ValueError(f"task {self.name!r} has no market" if tape else f"task {self.name!r} needs a market")
        config = self.config() if config is None else config
        scenario = self.scenario(config) if tape is None else self.scenario(tape, config)
        scenario.name, scenario.version, scenario.task = self.name, self.version, self
        scenario.outcomes = self.outcomes
        if self.text is not None:
            scenario.text = self.text(scenario)
        return scenario


_registered: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Register a task by its name in this process, and return it; ValueError if another task has the name."""
    if _registered.get(task.name, task) != task or task.name in _announced():
        raise ValueError(f"there is a task {task.name!r} already")
    _registered[task.name] = task
    return task


def _announced() -> dict[str, Any]:
    return {point.name: point for point in entry_points(group=GROUP)}


def task_names() -> list[str]:
    """Return the names of all tasks, without importing them."""
    return sorted({*_announced(), *_registered})


def task_named(task: str | Task) -> Task:
    """Return the record of a task, given the record or its name; ValueError of an unknown one."""
    if isinstance(task, Task):
        return task
    if task in _registered:
        return _registered[task]
    announced = _announced()
    if task not in announced:
        raise ValueError(f"unknown task {task!r}; installed tasks: {', '.join(task_names()) or 'none'}")
    return announced[task].load()


def task_of(env: VecEnv) -> Task:
    """Return the record of an environment's task; for a scenario without one, a record of name and version."""
    scenario = env.scenario
    if scenario.task is not None:
        return scenario.task
    return Task(name=scenario.name, version=scenario.version, scenario=type(scenario))


def make(
    task: str | Task,
    num_envs: int = 1,
    *,
    market: Market | None = None,
    seed: int | Tensor = 0,
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
        task: name of an installed or registered task, or its record.
        num_envs: number of sub-environments, N.
        market: path, long table, tape or generator's name, by default `Task.generator`; ignored by tasks without a
            market.
        seed: of all episodes, or a tensor with one per row. Shape: (N,), int64.
        device: of all tensors.
        compile: compile the steps.
        config: of the task, its default if None.
        market_options: fields of `MarketOptions` that replace those of the task.
        params: parameters that differ per sub-environment, each with a leading dimension of N.
        env_ids: identity of each row in random draws; row numbers by default. Shape: (N,).
        **overrides: fields of the task's config.

    Raises:
        ValueError: unknown task, unknown setting or market option, or invalid market data.
    """
    record = task_named(task)
    own = config is None
    config = record.config() if own else config
    refuse_unknown(f"settings of task {record.name!r}:", sorted(overrides), [item.name for item in fields(config)])
    config = replace(config, **overrides)
    tape = None
    if record.market is not None:
        source = record.generator if market is None else market
        if own and "symbols" not in overrides and "symbols" not in (market_options or {}):
            config = with_fitting_symbols(config, source)
        tape = load_market(source, record.market(config).updated(market_options or {}), device)
    return VecEnv(record.build(tape, config), num_envs, seed, device, compile, params, env_ids)


def with_fitting_symbols(config: Config, market: object) -> Config:
    """Return a task's default config with a generator's own symbols, if it names symbols that the generator lacks."""
    wanted = getattr(config, "symbols", ())
    return replace(config, symbols=fitting_symbols(market, wanted)) if wanted else config


def make_spoken(task: str | Task, num_envs: int = 1, **options: Any) -> VecEnv:  # noqa: ANN401
    """Make an environment for agents that act by text: as `make`, but eager by default; ValueError without a text."""
    record = task_named(task)
    record.check_text()
    given = options.pop("config", None)
    config = record.spoken(record.default_text_config() if given is None else given)
    return make(record, num_envs, **{"compile": False, "config": config} | options)
