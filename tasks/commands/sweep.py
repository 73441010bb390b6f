"""Try settings of a training that vary, end the worse trials early, and play the best one on the test."""

from __future__ import annotations

from functools import partial
from typing import Any

from vecenv.tasks.commands.importing import import_files, imported
from vecenv.tasks.sweep.settings import SweepSettings


def main(settings: SweepSettings) -> dict[str, Any]:
    """Try settings of a training that vary, end the worse trials early, and play the best one on the test."""
    # It needs Optuna, which is an extra.
    from vecenv.tasks.sweep.run import run_sweep

    return run_sweep(settings, partial(import_files, tuple(imported)))
