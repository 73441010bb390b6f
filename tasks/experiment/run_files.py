"""Names of the files of a run's folder that commands look for."""

from __future__ import annotations

from pathlib import Path

from vecenv.learn.settings.run import CHECKPOINT

SETTINGS = "settings.yaml"

SEED_FOLDER = "seed_{}"
"""Folder of a seed's run within that of all."""

WALK, SPAN_FOLDER = "walk_forward.json", "span_{}"
"""File, in the folder of a walk-forward, of its spans and in the end its results, and the folder of a span's run."""


def checkpoint_path(place: Path) -> Path:
    """Return the checkpoint of a run's folder, or the file itself."""
    return place / CHECKPOINT if place.is_dir() else place
