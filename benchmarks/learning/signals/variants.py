"""What is compared in the study of scores: learners with and without them, by strength of the rule, and controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["ppo", "cppo"]

Score = Literal["sentiment", "risk"]

RiskForm = Literal["reward", "published", "trajectory"]


@dataclass(frozen=True)
class Batch:
    """Members that are trained as one batch: the same learner and observations, with several strengths of the rule.

    Attributes:
        score: which is shown, and has the rule.
        algorithm: of the learner.
        observed: whether the score is shown.
        shuffled: whether the scores stand in random order.
        strengths: of the rule, each with all seeds.
        form: of the rule of risk.
    """

    score: Score
    algorithm: Algorithm
    observed: bool
    shuffled: bool
    strengths: tuple[float, ...]
    form: RiskForm = "reward"

    def variants(self) -> Iterator[str]:
        """Return the names of what is compared, one for each strength."""
        for strength in self.strengths:
            parts = [f"{self.score} shown"] * self.observed + [f"rule {100 * strength:g}%"] * (strength > 0)
            parts += [self.form] * (strength > 0 and self.form == "published")
            told = ", ".join(parts) or "no scores"
            yield f"{self.algorithm.upper()}, {told}{', shuffled' if self.shuffled else ''}"


STRENGTHS = (0.001, 0.01, 0.05, 0.1)

ALL_STRENGTHS = (0.0, *STRENGTHS)


def _batches(score: Score, algorithm: Algorithm, form: RiskForm = "reward") -> tuple[Batch, ...]:
    """Return a learner without the score, with it in the rule, and shown; each with its shuffled control."""
    return (
        Batch(score, algorithm, observed=False, shuffled=False, strengths=ALL_STRENGTHS, form=form),
        Batch(score, algorithm, observed=False, shuffled=True, strengths=STRENGTHS, form=form),
        Batch(score, algorithm, observed=True, shuffled=False, strengths=ALL_STRENGTHS, form=form),
        Batch(score, algorithm, observed=True, shuffled=True, strengths=ALL_STRENGTHS, form=form),
    )


BATCHES: Mapping[Score, tuple[Batch, ...]] = {
    "sentiment": (*_batches("sentiment", "ppo"), *_batches("sentiment", "cppo")),
    "risk": (
        *_batches("risk", "ppo"),
        Batch("risk", "ppo", observed=False, shuffled=False, strengths=STRENGTHS, form="published"),
        *_batches("risk", "cppo", "trajectory"),
    ),
}
"""All that is trained, by score. The risk of PPO is in its rewards, that of CVaR-PPO in its trajectories."""
