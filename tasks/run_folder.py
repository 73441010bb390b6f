"""What a run leaves behind: its settings beside its checkpoint, so that both can be found again."""

from __future__ import annotations

import csv
import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import yaml

from vecenv.learn.ppo import CHECKPOINT
from vecenv.preset_files import as_values

SETTINGS = "settings.yaml"
PROGRESS = "metrics.csv"


def checkpoint_path(place: Path) -> Path:
    """Return the checkpoint of a run's folder, or the file itself."""
    return place / CHECKPOINT if place.is_dir() else place


def read_checkpoint(place: Path) -> dict[str, Any]:
    """Read a checkpoint of a policy or a language model onto the CPU, from a run's folder or a file.

    Raises:
        ValueError: there is none, or the file is something else.
    """
    path = checkpoint_path(place)
    if not path.is_file():
        raise ValueError(f"{path}: there is no checkpoint")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: not a checkpoint, or a damaged one") from error
    if not isinstance(state, dict) or not {"config", "scenario"} <= set(state):
        raise ValueError(f"{path}: not a checkpoint of vecenv")
    return state


def write_settings(folder: Path, settings: Any, without: Collection[str]) -> None:  # noqa: ANN401
    """Write settings in the form of a preset, all of them but those that only the command line may set."""
    (folder / SETTINGS).write_text(yaml.safe_dump(as_values(settings, without), sort_keys=False))


def read_progress(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of every update of a run, also of the calls before it was resumed."""
    with (folder / PROGRESS).open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
