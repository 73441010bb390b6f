"""Files of a run's folder: settings, checkpoint and metrics log."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import yaml

from vecenv.learn.checkpoints import load_checkpoint
from vecenv.learn.ppo import CHECKPOINT
from vecenv.learn.runs import METRICS, read_metrics
from vecenv.system.files import replacing
from vecenv.system.preset_files import as_values

SETTINGS = "settings.yaml"


def checkpoint_path(place: Path) -> Path:
    """Return the checkpoint of a run's folder, or the file itself."""
    return place / CHECKPOINT if place.is_dir() else place


def read_checkpoint(place: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, from a run's folder or a file, a ValueError if there is none or it is not one."""
    path = checkpoint_path(place)
    if not path.is_file():
        raise ValueError(f"{path}: there is no checkpoint")
    state = load_checkpoint(path, torch.device("cpu"))
    if not {"config", "scenario"} <= set(state):
        raise ValueError(f"{path}: not a checkpoint of vecenv")
    return state


def check_resumable_folder(folder: Path) -> None:
    """Raise a ValueError if a run folder lacks an undamaged checkpoint and log of metrics to resume from."""
    read_checkpoint(folder)
    if (folder / METRICS).exists():
        with warnings.catch_warnings():
            # A truncated last row is handled when the log is reopened.
            warnings.simplefilter("ignore")
            read_metrics(folder / METRICS)


def write_settings(folder: Path, settings: Any, without: Collection[str]) -> None:  # noqa: ANN401
    """Write settings as a preset, without those that only the command line may set."""
    with replacing(folder / SETTINGS) as partial:
        partial.write_text(yaml.safe_dump(as_values(settings, without), sort_keys=False))


def read_progress(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of every update of a run, those before a resumption included."""
    return read_metrics(folder / METRICS)
