"""Metrics of a run, one row per update, as CSV and for TensorBoard."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends metrics to ``metrics.csv`` in a folder and, if asked, to TensorBoard's event files there.

    Args:
        folder: of the run.
        after: rows of later updates, left by a run that was cut off after its last checkpoint, are dropped; 0 starts
            a new file.
        tensorboard: write event files too.

    Raises:
        ImportError: TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path, after: int = 0, tensorboard: bool = False) -> None:
        self._events: Any = None
        if tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("TensorBoard is not installed: pip install 'vecenv[tensorboard]'") from error
            self._events = SummaryWriter(str(folder), purge_step=after + 1)
        path = folder / "metrics.csv"
        kept: list[dict[str, str]] = []
        if after and path.exists():
            with path.open(newline="") as file:
                kept = [row for row in csv.DictReader(file) if int(row["update"]) <= after]
        self._file = path.open("w", newline="")
        self._writer: csv.DictWriter[str] | None = None
        for row in kept:
            self._write(row)

    def close(self) -> None:
        """Close the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def _write(self, row: Mapping[str, Any]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            self._writer.writeheader()
        self._writer.writerow(row)

    def write(self, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one update; ``"update"`` is its number."""
        self._write(metrics)
        self._file.flush()
        if self._events is not None:
            for name, value in metrics.items():
                if not math.isnan(value):
                    self._events.add_scalar(name, value, int(metrics["update"]))
