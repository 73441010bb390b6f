"""Play one account over all days of a file: equity by date, orders, trades, and a report."""

from __future__ import annotations

from typing import Any

from vecenv.tasks.backtest.settings import BacktestSettings
from vecenv.tasks.experiment.progress import loading_torch


def main(settings: BacktestSettings) -> dict[str, Any]:
    """Play one account over all days of a file: equity by date, orders, trades, and a report."""
    with loading_torch(f"backtest {settings.checkpoint}"):
        # It needs PyTorch, which settings do not.
        from vecenv.tasks.backtest.run import run

    return run(settings)
