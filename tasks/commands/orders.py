"""Tell what an agent orders at the last close of a file for your account; nothing is sent anywhere."""

from __future__ import annotations

from typing import Any

from vecenv.tasks.backtest.settings import OrdersSettings
from vecenv.tasks.experiment.progress import loading_torch


def main(settings: OrdersSettings) -> dict[str, Any]:
    """Tell what an agent orders at the last close of a file for your account; nothing is sent anywhere."""
    with loading_torch(f"decide by {settings.checkpoint}"):
        # It needs PyTorch, which settings do not.
        from vecenv.tasks.backtest.todays_orders import run

    return run(settings)
