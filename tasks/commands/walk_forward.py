"""Train before each span of a file on earlier days alone, and trade the spans with one account."""

from __future__ import annotations

from typing import Any

from vecenv.tasks.experiment.progress import loading_torch
from vecenv.tasks.walk_forward.settings import WalkForwardSettings


def main(settings: WalkForwardSettings) -> dict[str, Any]:
    """Train before each span of a file on earlier days alone, and trade the spans with one account."""
    with loading_torch(f"walk forward on {getattr(settings.source, 'market', settings.task)}"):
        # It needs PyTorch, which settings do not.
        from vecenv.tasks.walk_forward.run import run

    return run(settings)
