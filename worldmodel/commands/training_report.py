"""What the commands that train a neural market show about their validations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table

from vecenv.worldmodel.training.fit import Validation

TRAINING_PART = "training"
"""Name of the training among the parts of a command."""

BARS_PART = "bars"
"""Name of the second stage of the training."""


def told_scores(scores: Mapping[str, Validation]) -> str:
    """Return the scores of markets in one line."""
    return "  ".join(f"{name}: {score.alone:.4f} alone, {score.joint:.4f} joint" for name, score in scores.items())


def validation_table(history: Iterable[Mapping[str, object]]) -> Table:
    """Return the scores of all validations, in nats per stock-day."""
    table = Table(title="Validation: negative log-density, nats per stock-day (lower is better)")
    for heading in ("step", "loss", "market", "alone", "joint", "shape"):
        table.add_column(heading, justify="right")
    for entry in history:
        markets = {name: scores for name, scores in entry.items() if isinstance(scores, dict)}
        loss = "–" if entry["loss"] is None else f"{entry['loss']:.3f}"
        for name, scores in markets.items():
            numbers = (f"{scores[key]:.4f}" for key in Validation._fields)
            table.add_row(str(entry["step"]), loss, name, *numbers)
    return table
