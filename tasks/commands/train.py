"""Train an agent on a market and compare it with baselines on the days of the test."""

from __future__ import annotations

from typing import Any

from vecenv.tasks.experiment.planning import plan
from vecenv.tasks.experiment.settings import TrainSettings


def main(settings: TrainSettings) -> dict[str, Any]:
    """Train an agent on a market and compare it with baselines on the days of the test."""
    with plan(settings) as experiment:
        experiment.show()
        experiment.fit()
        experiment.compare()
        return experiment.write()
