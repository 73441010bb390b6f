"""The plan of a training: its settings, checked before any work and resolved once into an experiment."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from vecenv.core.checks import device_named, warn_of_slow_bfloat16
from vecenv.core.compiling import toolchain_prepared
from vecenv.distributed.settings import world_size
from vecenv.learn.off_policy import OffPolicyConfig
from vecenv.learn.runs import MAY_CHANGE, differences
from vecenv.learn.shards import ranks
from vecenv.learn.trackers import check_tracker
from vecenv.system.files import WriteLock
from vecenv.system.memory import check_memory
from vecenv.system.preset_files import as_values
from vecenv.tasks.experiment.comparison import chosen_agents
from vecenv.tasks.experiment.experiment import Experiment
from vecenv.tasks.experiment.markets import OF_FILES, FileMarket, GeneratedMarket
from vecenv.tasks.experiment.progress import wide_console
from vecenv.tasks.experiment.seeds import check_folder
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings
from vecenv.tasks.experiment.splits import HEADROOM, Splits, TapeSplits, splits_of
from vecenv.tasks.experiment.trainers import Trainer, trainer_of

MAY_CHANGE_OF_RUN = (
    "seeds", "patience", "episodes", "agents", "combine", "sharpe_temperature", "beside", "device", "compile",
    "actors", "stall_seconds", "tracker",
)  # fmt: skip
"""Settings that a resumed run may have otherwise, beside the learner's `MAY_CHANGE`: how long it is, what it is
compared with at its end, and where it runs. Files may have been moved: the market is known by its content."""

_LEAST_BYTES = 64
"""Minimum bytes per step of a sub-environment: number, day, path, cash, reward, one holding."""


def plan(settings: TrainSettings, console: Console | None = None, splits: Splits | None = None) -> Experiment:
    """Check the settings of a training, and return its experiment, with its market made.

    It holds the lock of its folder until it is closed, as a context or by `Experiment.close`. Of several ranks the
    first writes, and compares what all have learned.

    Args:
        settings: of the training.
        console: for what is told, by default a wide one.
        splits: of an earlier experiment on the same market by the same rules, which is not made anew.

    Raises:
        ValueError: settings do not fit each other, the machine, the run to resume or the policies of other runs, or
            the market or its data are invalid.
        BlockingIOError: another run holds the folder's lock.
    """
    trainer, own = check_training(settings), ranks()
    first = own.leads
    console = (console or wide_console()) if first else Console(quiet=True)
    folder = settings.resume or settings.folder or Path("runs") / f"{settings.task}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = Path(own.told_by_first(str(folder)))
    with ExitStack() as held:
        lock = held.enter_context(WriteLock(folder)) if first else None
        if first:
            check_folder(settings, folder)
        splits = splits or _splits(settings, trainer.rules, console)
        if isinstance(splits, TapeSplits):
            # Later paths have the tick of the first ones, also when the run is resumed.
            settings = replace(settings, source=splits.market)
        return Experiment(settings, trainer, splits, folder, lock, console, held.pop_all())


def _splits(settings: TrainSettings, rules: Any, console: Console) -> Splits:  # noqa: ANN401
    # Reading bars from a file is over before the thread would be of use.
    drawn = isinstance(settings.source, GeneratedMarket) and device_named(settings.device).type == "cpu"
    headroom = 1.0 if settings.paths.refresh_every is None else HEADROOM
    parts = {"validation_fraction": settings.validation.validation_fraction, "drawn_symbols": settings.subsets.of}
    with toolchain_prepared(settings.compile and drawn):
        return splits_of(settings.record, settings.source, rules, settings.device, console, headroom, **parts)


def check_training(settings: TrainSettings) -> Trainer:
    """Return what trains; reject settings that can be seen to fail before the market is made.

    That is for lack of memory, a seed out of range, or a policy to train, start from or compare with that does not fit.
    """
    check_resumed(settings)
    _check_size(settings)
    chosen_agents(settings.task, settings.agents)
    check_tracker(settings.tracker)
    if getattr(settings.learner, "precision", None) == "bfloat16":
        warn_of_slow_bfloat16(device_named(settings.device), "--precision bfloat16")
    # The highest seed, which may be out of range.
    last = settings.seed + settings.runs.number - 1
    replace(settings.learner, seed=settings.learner.seed + last)
    trainer = trainer_of(settings)
    trainer.check()
    settings.check_processes(max(world_size(), settings.players.processes or 1))
    return trainer


def check_resumed(settings: TrainSettings) -> None:
    """Reject other settings than those of the run to resume, which decide what it learns and which policy it keeps."""
    if settings.resume is None:
        return
    recorded = type(settings).by_default({"resume": settings.resume})
    free: tuple[str, ...] = (*NOT_IN_FILES, *MAY_CHANGE_OF_RUN)
    if isinstance(settings.source, FileMarket) and isinstance(recorded.source, FileMarket):
        free += OF_FILES
    began, given = (as_values(one, free) for one in (recorded, settings))
    if told := differences(began, given, MAY_CHANGE):
        changing = ", ".join(name.replace("_", "-") for name in (*MAY_CHANGE, *MAY_CHANGE_OF_RUN))
        raise ValueError(
            f"{settings.resume} is a run with other {told[0]}, and goes on as it began; what may change is {changing}"
        )


def _check_size(settings: TrainSettings) -> None:
    """Reject rollout sizes beyond the memory before the market is made; the environment checks its own size."""
    rows = settings.batch.rows * (settings.runs.ensemble or 1)
    steps = getattr(settings.learner, "num_steps", 1)
    device = device_named(settings.device)
    check_memory(rows * steps * _LEAST_BYTES, device, f"{steps:,} steps of {rows:,} sub-environments")
    if isinstance(settings.learner, OffPolicyConfig):
        size = settings.learner.buffer_size
        check_memory(size * _LEAST_BYTES, device, f"{size:,} kept steps")
    check_memory(settings.episodes * _LEAST_BYTES, device, f"{settings.episodes:,} test episodes")
