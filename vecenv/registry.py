"""Task registry: task records by name, and `make` for environments.

Other packages add tasks as entry points of the group ``vecenv.tasks``; `register` adds one in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vecenv.finance.trading import Trading
from vecenv.learn.domain import Domain
from vecenv.market.generators import entry_points, fitting_symbols
from vecenv.market.options import MarketOptions
from vecenv.system.later import Record
from vecenv.system.settings import refuse_unknown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vecenv.core.env import VecEnv
    from vecenv.core.scenario import Scenario
    from vecenv.finance.programs import Strategies
    from vecenv.market.load import Market
    from vecenv.market.tape import MarketTape
    from vecenv.text.interaction import Interaction
    from vecenv.text.interface import TextInterface
    from vecenv.text.recording import Recording
    from vecenv.text.records import EpisodeRecord

GROUP = "vecenv.tasks"

Config = TypeVar("Config", bound=Any)

Actions = Literal["one choice", "numbers", "other", "any"]

Split = Literal["train", "validation", "test"]
"""What episodes are for."""


@dataclass(frozen=True)
class NoConfig:
    """Empty config, the default of a task."""


@dataclass(frozen=True, kw_only=True)
class Task(Record):
    """Record of a task: name, version, and factories of scenario, config, agents and text interface.

    What needs PyTorch is given by `later`, so that commands can tell of the task's settings without it.

    Attributes:
        name: identifier in `make` and in the metadata of results.
        version: changes when, and only when, behaviour does.
        scenario: makes the scenario from the config or, if the task has a market, from the tape and the config.
        interaction: in place of a scenario, makes the `Interaction` of a conversation without tensors from a number of
            rows and the config.
        config: returns the default config, a frozen dataclass of the task's settings.
        agents: factories of untrained (baseline) agents, without arguments, by name.
        outcomes: names of the episode outcomes among the entries of `Scenario.info`, most important first, with units:
            ``currency``, ``share`` or ``count``. The grade is implied.
        actions: returns what an action is under a config, for learners that need it: a single choice, numbers within
            bounds, or another one. By default any; what is not as it says is refused once there is an environment.
        domain: what episodes tell beside reward, grade and outcomes, what agents are compared with, and how.
        text: makes the `TextInterface` of a scenario.
        spoken: returns the config for agents that act by text.
        text_config: returns the default config of agents that act by text, before `spoken`; `config` if None.
        recording: of episodes; None for a task whose episodes are not recorded.
        programs: how programs of `vecenv.programs` play it; None if they do not.

    Raises:
        ValueError: it has neither a scenario nor an interaction, or both.
    """

    name: str
    version: str
    scenario: Callable[..., Scenario] | None = None
    interaction: Callable[[int, Any], Interaction] | None = None
    config: Callable[[], Any] = NoConfig
    agents: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    outcomes: Mapping[str, str] = field(default_factory=dict)
    actions: Callable[[Any], Actions] = lambda config: "any"
    domain: Domain = field(default_factory=Domain)
    text: Callable[[Any], TextInterface] | None = None
    spoken: Callable[[Any], Any] = lambda config: config
    text_config: Callable[[], Any] | None = None
    recording: Recording[Any, Any] | None = None
    programs: Strategies | None = None

    def __post_init__(self) -> None:
        if (vars(self)["scenario"] is None) == (not self.talks):
            raise ValueError(f"task {self.name!r} must have either a scenario or an interaction")

    @property
    def talks(self) -> bool:
        """Return whether it is a conversation without tensors; `interaction` is not imported for it."""
        return vars(self)["interaction"] is not None

    @property
    def speaks(self) -> bool:
        """Return whether it has tensors and a text interface, which is not imported for it."""
        return vars(self)["text"] is not None

    @property
    def is_recorded(self) -> bool:
        """Return whether its episodes are recorded by a `Recording`, which is not imported for it."""
        return vars(self)["recording"] is not None

    @property
    def market(self) -> Callable[[Any], MarketOptions] | None:
        """Return what returns the `MarketOptions` of a config; None for a task without a market."""
        return self.domain.market if isinstance(self.domain, Trading) else None

    @property
    def recorded_as_conversations(self) -> bool:
        """Return whether its episodes are recorded by what is said: without tensors, or on no market."""
        spoken = self.speaks and not self.is_recorded and self.market is None
        return spoken or self.talks

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

    def check_programs(self) -> Strategies:
        """Return how programs play the task; ValueError if they do not."""
        if self.programs is None:
            raise ValueError(f"task {self.name!r} is not played by programs")
        return self.programs

    def check_text(self) -> None:
        """Raise ValueError unless the task has tensors and a text interface."""
        self._check_tensors()
        if not self.speaks:
            raise ValueError(f"task {self.name!r} has no text")

    def _check_tensors(self) -> Callable[..., Scenario]:
        if self.scenario is None:
            raise ValueError(f"task {self.name!r} is a conversation and has no tensors: see make_interaction")
        return self.scenario

    def check_talks(self) -> None:
        """Raise ValueError unless agents can act by text, with or without tensors."""
        if not self.talks:
            self.check_text()

    def default_text_config(self) -> Any:  # noqa: ANN401
        """Return the config with which agents that act by text begin, before `spoken`."""
        return (self.text_config or self.config)()

    def build(self, tape: MarketTape | None = None, config: Any = None) -> Scenario:  # noqa: ANN401
        """Return the scenario for a config, the default if None.

        Raises:
            ValueError: a required market is missing, the task takes none, the config does not fit it, or the task is a
                conversation without tensors.
        """
        rules = self._check_tensors()
        if (tape is None) != (self.market is None):
            raise ValueError(f"task {self.name!r} has no market" if tape else f"task {self.name!r} needs a market")
        config = self.config() if config is None else config
        scenario = rules(config) if tape is None else rules(tape, config)
        scenario.name, scenario.version, scenario.task = self.name, self.version, self
        scenario.outcomes = self.outcomes
        if self.text is not None:
            scenario.text = self.text(scenario)
        return scenario

    def scenario_of(
        self, record: EpisodeRecord, market: str | None = None, device: torch.device | str = "cpu"
    ) -> Scenario:
        """Recreate the rules and the market of a record; ``market``, a file or generator, replaces the recorded one.

        Raises:
            ValueError: the rules are unknown or invalid, or the market cannot be made or is another one.
        """
        if self.market is None and market is not None:
            raise ValueError(f"{record.task} simulates its own market, so --market {market} cannot be used")
        from vecenv.finance.recorded_markets import check_same_market, recorded_market

        config = self.check_recording().config(record, self.config(), self.spoken)
        if self.market is None:
            return self.build(config=config)
        scenario = self.build(recorded_market(record.market, self.market(config), market, device), config)
        check_same_market(scenario.tape, record.market, market)  # type: ignore[attr-defined]
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
    """Return the names of all tasks, installed and registered, sorted, without importing them."""
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


def beside(task: str, other: str) -> bool:
    """Whether two tasks may have the same rules: those of packages have them only in one module, which is imported."""
    announced = _announced()
    return not {task, other} <= {*announced} or announced[task].module == announced[other].module


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
        market: path, long table, tape or generator's name, by default `Trading.generator`; ignored by tasks without a
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
        ValueError: unknown task, unknown setting or market option, invalid market data, or a task without tensors.
    """
    # Here and below, as commands tell of tasks without PyTorch.
    from vecenv.core.env import VecEnv
    from vecenv.market.load import load_market

    record = task_named(task)
    own = config is None
    config = _with_overrides(record, record.config() if own else config, overrides)
    tape = None
    if isinstance(record.domain, Trading):
        source = record.domain.generator if market is None else market
        if own and "symbols" not in overrides and "symbols" not in (market_options or {}):
            config = with_fitting_symbols(config, source)
        tape = load_market(source, record.domain.market(config).updated(market_options or {}), device)
    return VecEnv(record.build(tape, config), num_envs, seed, device, compile, params, env_ids)


def _with_overrides(record: Task, config: Config, overrides: Mapping[str, Any]) -> Config:
    refuse_unknown(f"settings of task {record.name!r}:", sorted(overrides), [item.name for item in fields(config)])
    return replace(config, **overrides)


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


def make_interaction(
    task: str | Task,
    num_rows: int = 1,
    *,
    config: Any = None,  # noqa: ANN401
    **options: Any,  # noqa: ANN401
) -> Interaction:
    """Make the world of agents that act by text: of a conversation by its own interaction, else by `make_spoken`.

    A `Dialogue` takes turns in it.

    Args:
        task: name of an installed or registered task, or its record.
        num_rows: number of conversations at a time, N.
        config: of the task, its default for texts if None.
        **options: fields of the config, and for a task of tensors further arguments of `make`.

    Raises:
        ValueError: unknown task, unknown setting or market option, invalid market data, or a task without a text.
    """
    from vecenv.text.tensor_interaction import TensorInteraction

    record = task_named(task)
    config = record.default_text_config() if config is None else config
    world: Interaction
    if record.interaction is None:
        world = TensorInteraction(make_spoken(record, num_rows, config=config, **options))
        options = {item.name: options[item.name] for item in fields(config) if item.name in options}
    config = _with_overrides(record, config, options)
    if record.interaction is not None:
        world = record.interaction(num_rows, config)
    world.task, world.config = record, config
    return world
