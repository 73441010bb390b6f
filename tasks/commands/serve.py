"""A server of agents for OpenEnv's clients: many sessions, each a row of one world; what servers have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from tyro import conf

from vecenv.adapters.guard import Limits
from vecenv.registry import Split, task_named
from vecenv.system.settings import Count, Items, OpenShare, Seed, Settings, When, Within
from vecenv.tasks.experiment.kinds import OF_TENSORS, Engine, TaskSettings
from vecenv.tasks.experiment.markets import MARKETS, SPLITS, NoMarket, market_for
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, given_options, refuse_elsewhere, with_preset
from vecenv.tasks.experiment.progress import loading_torch
from vecenv.tasks.experiment.rules import VALIDATION, compared_rules
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Interaction

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class NoSplit(Settings):
    """Of tasks whose splits are numbers."""

    owner: ClassVar[str] = "a task on a market of bars"

    validation_fraction: ClassVar[float] = 0.0


@dataclass(frozen=True, kw_only=True)
class ValidationSplit(Settings):
    """Of tasks whose splits are days or paths."""

    owner: ClassVar[str] = "a task on a market of bars"

    validation_fraction: OpenShare = 0.2
    """Share of the training days or paths for validation: the last."""


@dataclass(frozen=True, kw_only=True)
class HostSettings(TaskSettings):
    """Settings of commands whose clients have rows of a task."""

    task: str = "single_stock"
    """Installed task with text."""
    task_preset: str | None = None
    """Preset of the rules."""
    source: Annotated[Any, conf.arg(name="")] = field(default_factory=NoMarket)
    """Where the episodes come from."""
    host: str = "127.0.0.1"
    """Host address. Other than a loopback address requires a bearer token in the environment variable VECENV_TOKEN."""
    port: Annotated[int, Within(0, 2**16, below=True)] = 8000
    """Port; 0 for any that is free."""
    splits: Annotated[tuple[Split, ...], Items(1, distinct=True)] = ("train", "validation", "test")
    """Splits of the market to serve; the first is the default."""
    validation: Annotated[Any, conf.arg(name="")] = field(default_factory=NoSplit)
    """Size of the validation."""
    num_tasks: Annotated[int, Within(1, 2**32, below=True)] = 1000
    """Tasks per split; an index identifies an episode."""
    seed: Seed = 0
    """Default seed of the episodes."""
    compile: Annotated[bool, OF_TENSORS] = True
    """Compile the step of each split before serving."""
    limits: Limits = field(default_factory=Limits)
    """Limits of clients."""
    text: TextRules = field(default_factory=TextRules)
    """Reward and tool settings."""
    device: Annotated[str, OF_TENSORS] = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""
    env: Any
    """Rules of the task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.source, NoMarket) and self.num_tasks > VALIDATION:
            raise ValueError(f"num_tasks must be at most {VALIDATION:,} for {self.task}, got {self.num_tasks:,}")

    @property
    def ray_workers(self) -> int:
        """Workers on Ray that play the rows; 0 where the process that serves does."""
        return 0

    def dialogue(self, world: Interaction) -> Dialogue:
        """Return the turns of the rows of a split's world."""
        return Dialogue(world, self.text)

    @classmethod
    def defaults(cls, args: Sequence[str]) -> Self:
        given = chosen_options(TaskOptions, args)
        record = task_named(given.get("task", cls.task))
        env = with_preset(compared_rules(record, of_text=True), "task", given.get("task_preset"))
        source = market_for(record, env, given)
        own = NoSplit() if isinstance(source, NoMarket) else ValidationSplit()
        settings = cls(task=record.name, source=source, validation=own, env=env)
        refuse_elsewhere(settings, (*MARKETS, *SPLITS, ValidationSplit), given_options(args))
        return settings


@dataclass(frozen=True, kw_only=True)
class ServeSettings(HostSettings):
    """Settings of ``vecenv serve``."""

    web: bool = False
    """Offer OpenEnv's web interface at /web."""
    engine: Engine = "process"
    """What plays the rows: the process that serves, or ray, workers on Ray."""
    workers: Annotated[Count, When("engine", "ray", told="--engine ray")] = 2
    """Processes that play the rows, of which each session has one until it ends. What it is shown is the same with any
    number."""

    @property
    def ray_workers(self) -> int:
        return self.workers if self.engine == "ray" else 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine != "ray":
            return
        if self.workers > self.limits.sessions:
            raise ValueError(f"workers must be at most limits.sessions, {self.limits.sessions}, got {self.workers}")
        if self.device not in ("auto", "cpu"):
            raise ValueError(f"--engine ray plays on processors: device must be cpu, got {self.device!r}")


def main(settings: ServeSettings) -> dict[str, Any]:
    """Serve trading agents that read and write text, by OpenEnv's protocol, until interrupted."""
    with loading_torch(f"serve {settings.task}"):
        from vecenv.tasks.commands.serving import served_to_openenv

    return served_to_openenv(settings)
