"""What is compared in the study of scores: learners with and without them, by strength of the rule, and controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["ppo", "cppo"]


@dataclass(frozen=True)
class Batch:
    """Members that are trained as one batch: the same learner and observations, with several strengths of the rule.

    Attributes:
        algorithm: of the learner.
        observed: whether sentiment is shown.
        shuffled: whether the scores stand in random order.
        strengths: of the rule that sentiment moves actions, each with all seeds.
    """

    algorithm: Algorithm
    observed: bool
    shuffled: bool
    strengths: tuple[float, ...]

    def variants(self) -> Iterator[str]:
        """Return the names of what is compared, one for each strength."""
        for strength in self.strengths:
            parts = ["sentiment shown"] * self.observed + [f"rule {100 * strength:g}%"] * (strength > 0)
            told = ", ".join(parts) or "no scores"
            yield f"{self.algorithm.upper()}, {told}{', shuffled' if self.shuffled else ''}"


STRENGTHS = (0.001, 0.01, 0.05, 0.1)

BATCHES = (
    Batch("ppo", observed=False, shuffled=False, strengths=(0.0, *STRENGTHS)),
    Batch("ppo", observed=False, shuffled=True, strengths=STRENGTHS),
    Batch("ppo", observed=True, shuffled=False, strengths=(0.0, 0.1)),
    Batch("ppo", observed=True, shuffled=True, strengths=(0.0, 0.1)),
    Batch("cppo", observed=False, shuffled=False, strengths=(0.0, *STRENGTHS)),
    Batch("cppo", observed=True, shuffled=False, strengths=(0.0, 0.1)),
    Batch("cppo", observed=True, shuffled=True, strengths=(0.0, 0.1)),
)
"""All that is trained."""
