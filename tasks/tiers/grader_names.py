"""Graders of the tiers by name; `vecenv.tasks.tiers.graders` has their functions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grader:
    """Names of the grade functions by kind of tier; ``version`` rises when a grade changes."""

    version: int
    grades: dict[str, str]


GRADERS: dict[str, Grader] = {
    "calibrated": Grader(1, dict.fromkeys(("single", "portfolio", "full"), "calibrated")),
    "seed": Grader(1, {"single": "seed_single", "portfolio": "seed_portfolio", "full": "seed_full"}),
}
"""Graders by name."""
