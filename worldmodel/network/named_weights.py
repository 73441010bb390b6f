"""Weights that are shipped, by name, beside checkpoints of the user's own."""

from __future__ import annotations

from pathlib import Path

WEIGHTS_FOLDER = Path(__file__).parents[1] / "weights"

JUDGED = WEIGHTS_FOLDER / "judged.safetensors"
"""Trained up to the split, for tests on the days after it. See ``model_card.md`` beside it."""

SHIPPED = WEIGHTS_FOLDER / "shipped.safetensors"
"""The default: the same recipe on all days that there are."""

NAMES = ("shipped", "judged")


def weights_named(name: str) -> Path:
    """Return the file of named weights; raise ValueError if there are none of that name."""
    if name not in NAMES:
        raise ValueError(f"unknown weights {name!r}; there are {', '.join(NAMES)}")
    return SHIPPED if name == "shipped" else JUDGED


def model_file(model: str | Path) -> Path:
    """Return the file of a model, given by the name of weights or by its path."""
    return weights_named(str(model)) if str(model) in NAMES else Path(model)


def is_named(file: Path) -> bool:
    """Whether a file is one of those that are shipped."""
    return file in (JUDGED, SHIPPED)
