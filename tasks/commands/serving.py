"""What serves a task: rows of it for as many clients as there may be, and an address."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vecenv.adapters.guard import App
from vecenv.distributed.ray_session import ray_module
from vecenv.registry import task_named
from vecenv.tasks.experiment.progress import wide_console, working
from vecenv.tasks.experiment.splits import splits_of
from vecenv.text.interaction import Interaction
from vecenv.text.tensor_interaction import TensorInteraction

if TYPE_CHECKING:
    from vecenv.adapters.sessions.pool import RowPool
    from vecenv.tasks.commands.serve import HostSettings, ServeSettings

NEEDED = "the server needs OpenEnv: pip install 'vecenv[openenv]'"

TOKEN = "VECENV_TOKEN"
"""Environment variable of the bearer token, which process lists do not show."""

SPARE_ROWS = 2
"""Extra rows per split: for the web interface, and for a reset without a session."""


def served_to_openenv(settings: ServeSettings) -> dict[str, Any]:
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

        with pools_of(settings, console) as pools:
            service = TextService(settings.task, pools, settings.num_tasks, settings.seed)
            serve(app(service, limits, url, token), limits, bound, started)
    return {"task": settings.task, "splits": list(pools)}


@contextmanager
def pools_of(settings: HostSettings, console: Console) -> Iterator[Mapping[str, RowPool]]:
    """Within the context there is a pool of rows per split, ready to be lent.

    Raises:
        ActorError: no worker can be replaced any more.
    """
    if not (workers := settings.ray_workers):
        yield row_pools(settings, console)
        return
    # Before the market is made.
    ray_module()
    from vecenv.adapters.sessions.ray_workers import RayWorkers
    from vecenv.adapters.sessions.worker_pool import check_for_workers

    check_for_workers(task_named(settings.task).interaction)
    each = -(-(settings.limits.sessions + SPARE_ROWS) // workers)
    like = made_pools(replace(settings, device="cpu"), console, each)
    with working(console, "Starting the workers …"):
        started = RayWorkers(like, settings.seed, workers, lambda: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield started.pools
        if started.failure is not None:
            raise started.failure
    finally:
        started.close()


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
