"""A server of agents for OpenEnv's clients: many sessions, each a row of one world; what servers have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from rich.console import Console
from tyro import conf

from vecenv.adapters.guard import App, Limits
from vecenv.distributed.ray_session import ray_module
from vecenv.registry import Split, task_named
from vecenv.system.settings import Count, Items, OpenShare, Seed, Settings, When, Within
from vecenv.tasks.experiment.comparison import compared_rules
from vecenv.tasks.experiment.kinds import OF_TENSORS, Engine, TaskSettings
from vecenv.tasks.experiment.markets import MARKETS, SPLITS, NoMarket, market_for
from vecenv.tasks.experiment.options import TaskOptions, chosen_options, given_options, refuse_elsewhere, with_preset
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.splits import VALIDATION, splits_of
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.interaction import Interaction
from vecenv.text.tensor_interaction import TensorInteraction

if TYPE_CHECKING:
    from vecenv.adapters.sessions.pool import RowPool

NEEDED = "the server needs OpenEnv: pip install 'vecenv[openenv]'"

TOKEN = "VECENV_TOKEN"
"""Environment variable of the bearer token, which process lists do not show."""

SPARE_ROWS = 2
"""Extra rows per split: for the web interface, and for a reset without a session."""


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

    def dialogue(self, world: Interaction) -> Dialogue:
        """Return the turns of the rows of a split's world."""
        return Dialogue(world, self.text)

    @contextmanager
    def pools(self, console: Console) -> Iterator[Mapping[str, RowPool]]:
        """Within the context there is a pool of rows per split, ready to be lent."""
        yield row_pools(self, console)

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.engine != "ray":
            return
        if self.workers > self.limits.sessions:
            raise ValueError(f"workers must be at most limits.sessions, {self.limits.sessions}, got {self.workers}")
        if self.device not in ("auto", "cpu"):
            raise ValueError(f"--engine ray plays on processors: device must be cpu, got {self.device!r}")

    @contextmanager
    def pools(self, console: Console) -> Iterator[Mapping[str, RowPool]]:
        """Raise ActorError if no worker can be replaced any more."""
        if self.engine == "process":
            yield row_pools(self, console)
            return
        # Before the market is made.
        ray_module()
        from vecenv.adapters.sessions.ray_workers import RayWorkers

        each = -(-(self.limits.sessions + SPARE_ROWS) // self.workers)
        like = made_pools(replace(self, device="cpu"), console, each)
        with working(console, "Starting the workers …"):
            workers = RayWorkers(like, self.seed, self.workers, lambda: os.kill(os.getpid(), signal.SIGTERM))
        try:
            yield workers.pools
            if workers.failure is not None:
                raise workers.failure
        finally:
            workers.close()


def main(settings: ServeSettings) -> dict[str, Any]:
    """Serve trading agents that read and write text, by OpenEnv's protocol, until interrupted."""
    try:
        from vecenv.adapters.openenv.server import build_app
    except ImportError as error:
        raise ImportError(NEEDED) from error
    hint = "; play it on {url}/web" if settings.web else ""
    return serve_http(settings, partial(build_app, web=settings.web), hint, settings.web)


def serve_http(settings: HostSettings, app: Callable[..., App], hint: str = "", web: bool = False) -> dict[str, Any]:
    """Serve a task by HTTP until interrupted.

    Args:
        settings: of the command.
        app: makes the application of a service, limits, a URL and a token.
        hint: what else to say of the address, ``{url}``.
        web: whether it has pages for browsers.
    """
    from vecenv.adapters.sessions.http_server import bound_socket, check_exposure, serve, served_url
    from vecenv.adapters.sessions.service import TextService
    from vecenv.system.interrupts import interruptible

    task_named(settings.task).check_talks()
    token = os.environ.get(TOKEN)
    check_exposure(settings.host, token, web)
    console, limits = wide_console(), settings.limits
    with interruptible(), bound_socket(settings.host, settings.port) as bound:
        url = served_url(bound)

        def started() -> None:
            told = f"Serving {settings.task} on {url}, at most {limits.sessions} sessions; Ctrl+C ends it"
            console.print(told + hint.format(url=url), soft_wrap=True)

        with settings.pools(console) as pools:
            service = TextService(settings.task, pools, settings.num_tasks, settings.seed)
            serve(app(service, limits, url, token), limits, bound, started)
    return {"task": settings.task, "splits": list(pools)}


def row_pools(settings: HostSettings, console: Console) -> dict[str, RowPool]:
    """Make the market and return a row pool per split, compiled and ready."""
    pools = made_pools(settings, console, settings.limits.sessions + SPARE_ROWS)
    for name, pool in pools.items():
        if isinstance(pool.dialogue.interaction, TensorInteraction):
            with working(console, f"Preparing the step of {name} …"):
                pool.prepare(settings.seed)
    return pools


def made_pools(settings: HostSettings, console: Console, rows: int) -> dict[str, RowPool]:
    """Make the market and return a pool of so many rows per split, whose steps are not compiled yet."""
    from vecenv.adapters.sessions.pool import RowPool

    record = task_named(settings.task)
    config = settings.source.fitted(record, settings.env)
    fraction = settings.validation.validation_fraction
    splits = splits_of(record, settings.source, config, settings.device, console, validation_fraction=fraction)
    served = {name: splits.served(name, rows, config, settings.seed, settings.compile) for name in settings.splits}
    splits.show(console, served, settings.seed)
    worlds = {name: env if isinstance(env, Interaction) else TensorInteraction(env) for name, env in served.items()}
    return {name: RowPool(settings.dialogue(world), splits.first[name]) for name, world in worlds.items()}
