"""Train an agent on a market and compare it with baselines on the days of the test."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from vecenv.core.checks import device_named
from vecenv.distributed.ranks import is_rank, joined, rank_device
from vecenv.tasks.experiment.checkpoints import checkpoint_path
from vecenv.tasks.experiment.planning import plan
from vecenv.tasks.experiment.settings import TrainSettings


def main(settings: TrainSettings) -> dict[str, Any]:
    """Train an agent on a market and compare it with baselines on the days of the test."""
    together: Any = nullcontext()
    if is_rank():
        device = rank_device(device_named(settings.device))
        if device.index is not None:
            settings = replace(settings, device=str(device))
        settings = _restarted(settings)
        together = joined(device, settings.players.stall_seconds)
    elif settings.learner.shards > 1:
        # As a rank, which adds as one thread does.
        torch.set_num_threads(1)
    with together, plan(settings) as experiment:
        experiment.show()
        experiment.fit()
        if not experiment.first:
            return {}
        experiment.compare()
        return experiment.write()


def _restarted(settings: TrainSettings) -> TrainSettings:
    """Return the settings of ranks that torchrun starts again after a failure: they go on from the last checkpoint."""
    if not int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) or settings.resume is not None:
        return settings
    if settings.folder is None:
        raise ValueError("ranks that are started again need the --folder that they wrote their checkpoint to")
    if not checkpoint_path(settings.folder).is_file():
        return settings
    return replace(settings, resume=settings.folder, folder=None)
