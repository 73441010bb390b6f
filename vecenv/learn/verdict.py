"""Verdicts: whether an agent is better than a benchmark on the same episodes, worse, or not told from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.text import Text

    from vecenv.learn.evaluation import Evaluation
    from vecenv.learn.intervals import Interval

Word = Literal["better", "worse", "no difference", "unknown"]

STYLES: Mapping[Word, str] = {"better": "green", "worse": "red", "no difference": "yellow", "unknown": "magenta"}
"""Colours of the words on a terminal."""

UNITS: Mapping[str, tuple[float, int, str]] = {"grade": (1.0, 3, "of grade"), "excess_log_return": (100.0, 2, "points")}
"""Factor, decimals and name of the unit in which a difference of each measure is told."""

ABOVE = "validation_above_reference"
"""Metric of a validation: the difference to the reference by the measure that judges, with ``_low`` and ``_high``."""


@dataclass(frozen=True)
class Verdict:
    """What the paired difference of an agent to a benchmark says.

    Attributes:
        agent: name of the agent, or of several seeds, whose mean it is.
        benchmark: name of the agent that played the same episodes; empty without one.
        part: of the data that the episodes are of.
        episodes: their number; None of a validation.
        measure: ``grade`` in [0, 1], or ``excess_log_return``.
        difference: mean over episodes of the agent's measure less the benchmark's, with its 95% interval.
        looks: validations of each seed, of which the best one's policy was kept; None if that is not known.
        before: whether the benchmark is the agent's policy before its training.
        luck: what the difference was above what is told, by the choice of the best of so many looks.
        absent: name of the reference, where it did not play and there is no benchmark.
    """

    agent: str
    benchmark: str
    part: str
    episodes: int | None
    measure: str
    difference: Interval
    looks: int | None = None
    luck: float = 0.0
    before: bool = False
    absent: str = ""

    @property
    def word(self) -> Word:
        """``unknown`` without a finite interval, such as of one episode; else by which side of it zero is on."""
        mean, low, high = self.difference
        if not all(map(math.isfinite, (mean, low, high))):
            return "unknown"
        return "better" if low > 0 else "worse" if high < 0 else "no difference"

    def to_json(self) -> dict[str, Any]:
        # Here and below, as a list of runs tells verdicts without PyTorch.
        from vecenv.learn.intervals import interval_json

        return {
            "agent": self.agent,
            "benchmark": self.benchmark or None,
            "part": self.part or None,
            "episodes": self.episodes,
            "measure": self.measure,
            "word": self.word,
            "difference": interval_json(self.difference),
            "looks": self.looks,
            "luck": self.luck,
            "told": self.clause(),
        }

    def clause(self) -> str:
        """Return the end of the sentence about the agent."""
        if not self.benchmark:
            return "is not judged, as no benchmark played" + (f": add {self.absent} to --agents" if self.absent else "")
        factor, decimals, unit = UNITS[self.measure]
        # Without the sign of a zero.
        rounded = (round(factor * value, decimals) + 0.0 for value in self.difference)
        mean, low, high = (f"{value:+.{decimals}f}".replace("-", "−") for value in rounded)
        if self.word == "unknown":
            known = f" ({mean} {unit})" if math.isfinite(self.difference.mean) else ""
            return f"cannot be told from {self.benchmark}{known}: too few independent episodes for an interval"
        less = f", less {factor * self.luck:.{decimals}f} for luck" if self.luck else ""
        # Zero within an interval is no proof of equality: a wide one has gains and losses that matter.
        verb = {"better": "is better than", "worse": "is worse than"}.get(self.word, "cannot be told from")
        return f"{verb} {self.benchmark} ({mean} {unit}, {low} … {high}{less})"


def verdicts(
    evaluation: Evaluation,
    agents: Sequence[str],
    before: Sequence[str] = (),
    looks: int | None = None,
    beside: Sequence[str] = (),
) -> list[Verdict]:
    """Return the verdicts on the mean of agents by the reference, and by further benchmarks, of those that played.

    ``before`` are policies before the training of the agents, ``beside`` are others. Without any benchmark there is one
    verdict, ``unknown``. ``looks`` are as of `Verdict`.
    """
    from vecenv.learn.intervals import Interval

    shown = agents[0] if len(agents) == 1 else f"the mean of {len(agents)} seeds"
    found = [name for name in dict.fromkeys((evaluation.reference, *before, *beside)) if name in evaluation.records]
    where = (evaluation.part, evaluation.num_episodes, evaluation.judged_by)
    if not found:
        return [Verdict(shown, "", *where, Interval(*[math.nan] * 3), looks, absent=evaluation.reference)]
    return [
        Verdict(shown, name, *where, evaluation.above(agents, name), looks, before=name in before) for name in found
    ]


def validated_rows(history: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    """Return the metrics of the updates of a run that were validated."""
    return [row for row in history if math.isfinite(row.get("validation_reward", math.nan))]


def validation_verdict(
    agent: str,
    benchmark: str,
    measure: str,
    kept: Sequence[tuple[Sequence[Mapping[str, float]], int]],
    looks: int | None = None,
) -> Verdict | None:
    """Return the verdict on kept policies by their validations, given each seed's metrics and the update that it kept.

    The best of K validations looks better than it is. As in a sweep, what the best of K without a difference is
    expected to gain by luck, its standard error times `vecenv.learn.intervals.expected_maximum`, is taken off mean and
    bounds. Looks at one policy resemble each other, so rather too much is taken off than too little. Seeds are
    averaged, bounds too: they are validated on the same episodes. ``looks`` are K, by default a seed's validations.
    None if the validation of a kept policy is not in the metrics, such as in an old log.
    """
    from vecenv.learn.intervals import Interval, expected_maximum, standard_error

    found: list[tuple[float, ...]] = []
    most = 0
    for history, update in kept:
        looked = validated_rows(history)
        own = next((row for row in looked if row["update"] == update), {})
        if not math.isfinite(own.get(ABOVE, math.nan)):
            return None
        seen, number = Interval(*(own[f"{ABOVE}{bound}"] for bound in ("", "_low", "_high"))), looks or len(looked)
        luck = standard_error(seen) * expected_maximum(number) if math.isfinite(seen.low) else 0.0
        found.append((*(value - luck for value in seen), luck))
        most = max(most, number)
    *difference, luck = (sum(column) / len(found) for column in zip(*found, strict=True))
    return Verdict(agent, benchmark, "validation", None, measure, Interval(*difference), most, luck)


def verdict_text(told: Sequence[Verdict]) -> Text:
    """Return one sentence on verdicts of one agent and part, in colours by their words, and what follows from them."""
    from rich.text import Text

    first = told[0]
    part, where = first.part or "played", "" if first.episodes is None else f", {first.episodes:,} episodes"
    chosen = f" (the best of {first.looks} validations)" if first.looks else ""
    text = Text(f"Verdict   {part}{where}: {first.agent}{chosen} ")
    for number, verdict in enumerate(told):
        text.append(" and " if number else "").append(verdict.clause(), STYLES[verdict.word])
    if first.word == "no difference" and not first.before:
        text.append(f". Nothing learned beyond {first.benchmark} is seen")
    elif first.word == "better" and any(verdict.before and verdict.word == "no difference" for verdict in told):
        text.append(". No part of that is seen to be learned")
    return text
