"""A server of trading agents for OpenEnv's clients: many sessions, each a row of one market."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import torch
from rich.console import Console

import vecenv
from vecenv.adapters.guard import Limits
from vecenv.core.checks import device_named
from vecenv.market.tape import MarketTape
from vecenv.registry import Split, make_interaction, task_named
from vecenv.system.settings import Items, OpenShare, Seed, Within
from vecenv.tasks.commands.comparison import show_market, text_config, wide_console
from vecenv.tasks.commands.market_settings import MarketSettings, default_market
from vecenv.tasks.commands.options import TextTaskOptions, early_options, with_preset
from vecenv.tasks.commands.progress import working
from vecenv.tasks.commands.simulated import FIRST, OWNER, VALIDATION, is_simulated, without_effect
from vecenv.text.dialogue import Dialogue, TextRules
from vecenv.text.tensor_interaction import TensorInteraction

if TYPE_CHECKING:
    from vecenv.adapters.openenv.pool import RowPool

TaskConfig = TypeVar("TaskConfig")

NEEDED = "the server needs OpenEnv: pip install 'vecenv[openenv]'"

TOKEN = "VECENV_TOKEN"
"""Environment variable of the bearer token, which process lists do not show."""

SPARE_ROWS = 2
"""Extra rows per split: for the web interface, and for a reset without a session."""


@dataclass(frozen=True)
class ServeSettings(MarketSettings, TextTaskOptions, Generic[TaskConfig]):
    """Settings of ``vecenv serve``."""

    host: str = "127.0.0.1"
    """Host address. Other than a loopback address requires a bearer token in the environment variable VECENV_TOKEN."""
    port: Annotated[int, Within(0, 2**16, below=True)] = 8000
    """Port; 0 for any that is free."""
    splits: Annotated[tuple[Split, ...], Items(1, distinct=True)] = ("train", "validation", "test")
    """Splits of the market to serve; the first is the default."""
    validation_fraction: OpenShare = 0.2
    """Share of the training days, or of a generator's paths, for validation, the last ones."""
    num_tasks: Annotated[int, Within(1, 2**32, below=True)] = 1000
    """Tasks per split; an index identifies an episode."""
    seed: Seed = 0
    """Default seed of the episodes."""
    compile: bool = True
    """Compile the step of each split before serving."""
    web: bool = False
    """Offer OpenEnv's web interface at /web."""
    limits: Limits = field(default_factory=Limits)
    """Limits of clients."""
    text: TextRules = field(default_factory=TextRules)
    """Reward and tool settings."""
    env: TaskConfig = field(kw_only=True)
    """Rules of the task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_simulated(self.task) and self.num_tasks > VALIDATION:
            raise ValueError(f"num_tasks must be at most {VALIDATION:,} for {self.task}, got {self.num_tasks:,}")

    def inapplicable(self) -> dict[str, str]:
        if is_simulated(self.task):
            return without_effect() | {"validation_fraction": OWNER}
        names = super().inapplicable()
        if tuple(self.splits) == ("test",):
            names["validation_fraction"] = "the splits train and validation"
        elif names.get("embargo") != "a split by days":
            # The embargo also separates training and validation.
            names.pop("embargo", None)
        return names

    @classmethod
    def defaults(cls, args: Sequence[str]) -> ServeSettings:
        options = early_options(TextTaskOptions, args)
        return cls(
            task=options.task,
            market=default_market(options.task),
            env=with_preset(text_config(options.task), "task", options.task_preset),
        )

    def parts(self, tape: MarketTape) -> dict[Split, MarketTape]:
        """Return the markets of the splits to serve, a ValueError if one of them would be empty."""
        training = self.training(tape)
        parts: dict[Split, MarketTape] = {}
        for split in self.splits:
            if split == "test":
                parts[split] = self.test(tape)
            else:
                parts[split] = self.split(training, self.validation_fraction)[split == "validation"]
        return parts


def main(settings: ServeSettings) -> dict[str, Any]:
    """Serve trading agents that read and write text, by OpenEnv's protocol, until interrupted."""
    task_named(settings.task).check_talks()
    try:
        from vecenv.adapters.openenv.server import bound_socket, build_app, check_exposure, serve, served_url
        from vecenv.adapters.openenv.service import MarketService
        from vecenv.system.interrupts import interruptible
    except ImportError as error:
        raise ImportError(NEEDED) from error
    token = os.environ.get(TOKEN)
    check_exposure(settings.host, token, settings.web)
    console, limits = wide_console(), settings.limits
    with interruptible(), bound_socket(settings.host, settings.port) as bound:
        url = served_url(bound)

        def started() -> None:
            told = f"Serving {settings.task} on {url}, at most {limits.sessions} sessions; Ctrl+C ends it"
            console.print(f"{told}; play it on {url}/web" if settings.web else told, soft_wrap=True)

        pools = row_pools(settings, console)
        service = MarketService(settings.task, pools, settings.num_tasks, settings.seed)
        serve(build_app(service, limits, url, token, settings.web), limits, bound, started)
    return {"task": settings.task, "splits": list(pools)}


def row_pools(settings: ServeSettings, console: Console) -> dict[str, RowPool]:
    """Make the market and return a row pool per split, compiled and ready."""
    from vecenv.adapters.openenv.pool import RowPool

    if task_named(settings.task).interaction is not None:
        return conversation_pools(settings)
    simulated = is_simulated(settings.task)
    markets: dict[Split, dict[str, Any]] = {name: {"device": device_named(settings.device)} for name in settings.splits}
    config = settings.env
    if not simulated:
        config = settings.with_symbols(settings.env)
        with working(console, f"Making the market {settings.market} …"):
            tape = settings.tape(config)
        parts = settings.parts(tape)
        show_market(console, tape, {name.capitalize(): part for name, part in parts.items()})
        markets = {name: {"market": part, "device": part.device} for name, part in parts.items()}
    pools: dict[str, RowPool] = {}
    for name, market in markets.items():
        env = vecenv.make(
            settings.task,
            settings.limits.sessions + SPARE_ROWS,
            **market,
            seed=settings.seed,
            compile=settings.compile,
            config=task_named(settings.task).domain.parted(config, name),
        )
        dialogue = Dialogue(TensorInteraction(env), settings.text)
        with working(console, f"Preparing the step of {name} …"):
            # The first step and the first look at the rows compile; sessions reset their rows later.
            env.advance(env.action_spec.zero(), torch.zeros(env.num_envs, dtype=torch.bool, device=env.device))
            dialogue.begin([0])
        pools[name] = RowPool(dialogue, FIRST[name] if simulated else 0)
    return pools


def conversation_pools(settings: ServeSettings) -> dict[str, RowPool]:
    """Return a row pool per split of a task without tensors, whose splits are different episodes."""
    from vecenv.adapters.openenv.pool import RowPool

    rows, pools = settings.limits.sessions + SPARE_ROWS, {}
    for name in settings.splits:
        world = make_interaction(settings.task, rows, config=settings.env)
        pools[name] = RowPool(Dialogue(world, settings.text), FIRST[name])
    return pools
