"""Train an agent on a market and compare it with baselines on the days of the test."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenv.distributed.settings import is_rank
from vecenv.learn.settings.run import CHECKPOINT
from vecenv.system.files import why_unwritten
from vecenv.tasks.experiment.kinds import RankProcesses
from vecenv.tasks.experiment.progress import loading_torch
from vecenv.tasks.experiment.settings import TrainSettings

if TYPE_CHECKING:
    from vecenv.learn.shards import Ranks

STARTED_BY = "started_by"
"""File in a run's folder with the name of the agent that started its ranks."""


def main(settings: TrainSettings) -> dict[str, Any] | None:
    """Train an agent on a market and compare it with baselines on the days of the test."""
    market = getattr(settings.source, "market", None)
    place = settings.task if market is None else f"{settings.task}, market {market}"
    with loading_torch(f"train {settings.algorithm} on {place}"):
        # Here and below, as settings are parsed and told of without PyTorch.
        import torch

        from vecenv.core.checks import device_named
        from vecenv.distributed.command import as_started
        from vecenv.learn.shards import as_rank
        from vecenv.tasks.experiment import planning  # noqa: F401

    if isinstance(settings.players, RankProcesses):
        with as_started(settings.players, device_named(settings.device), settings.learner.shards) as own:
            if not is_rank():
                return _trained(settings)
            generators = getattr(settings.players, "generators", 0)
            with as_rank(own.apart(generators) if generators else own):
                return _trained(_restarted(settings, own))
    if is_rank():
        raise ValueError(
            "several ranks train a policy without --engine ray, or a language model: start this training by itself"
        )
    if getattr(settings.learner, "shards", 1) > 1:
        torch.set_num_threads(1)
    return _trained(settings)


def _trained(settings: TrainSettings) -> dict[str, Any] | None:
    """Train, and on the first rank compare and write; None on the others."""
    from vecenv.learn.shards import ALONE, as_rank
    from vecenv.tasks.experiment.planning import plan

    with plan(settings) as experiment:
        if experiment.first and is_rank():
            _note(experiment.folder / STARTED_BY)
        experiment.show()
        experiment.fit()
        if not experiment.first:
            return None
        with as_rank(ALONE):
            # The others have ended.
            experiment.compare()
            return experiment.write()


def _restarted(settings: TrainSettings, own: Ranks) -> TrainSettings:
    """Return the settings of ranks that torchrun has started, perhaps again: then they go on from the last checkpoint.

    The first rank decides, by the folder: one of another start is not gone on with.
    """
    folder = settings.folder
    if folder is None or settings.resume is not None:
        return settings
    name = folder / STARTED_BY
    begun = own.leads and name.is_file() and name.read_text() == _agent() and any(folder.rglob(CHECKPOINT))
    return replace(settings, resume=folder, folder=None) if own.told_by_first(str(begun)) == "True" else settings


def _note(file: Path) -> None:
    """Write which agent has started this rank; OSError of one sentence if the file cannot be written."""
    try:
        file.write_text(_agent())
    except OSError as error:
        raise OSError(f"{file}: {why_unwritten(error)}") from error


def _agent() -> str:
    """Return the name of the process that has started this one as a rank, and starts it again after a failure."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {socket.gethostname()} {os.getppid()}"
