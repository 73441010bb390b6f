"""Acceptance bars of figures: what counts as good, and the verdict on a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from vecenv.learn.intervals import Interval

LEVERAGE_SHARE, LEVERAGE_LEAST = 0.5, 0.02
"""Largest distance of a model's leverage from the real one: a share of the real one, but no less than the latter. Over
two years of 25 NSE stocks the real one has an interval of ± 0.012."""

DRIFT_MARGIN = 2.0
"""Basis points a day by which a model's drift may be further from the real one than the reference's."""


class Verdict(Enum):
    """Verdict of a bar: undecided, and so not met, if the interval of the difference contains zero."""

    MET = "yes"
    MISSED = "no"
    UNDECIDED = "undecided"

    @staticmethod
    def of(met: bool) -> Verdict:
        return Verdict.MET if met else Verdict.MISSED


@dataclass(frozen=True)
class Case:
    """A model's figure beside the real days' or else a perfect model's, other models', and the paired differences."""

    figure: Interval
    real: Interval
    rivals: Mapping[str, float]
    differences: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return self.figure.mean

    @property
    def error(self) -> float:
        return abs(self.value - self.real.mean)

    @property
    def below_all(self) -> bool | None:
        """Whether the figure is below those of all other models; None without any."""
        return self.value < min(self.rivals.values()) if self.rivals else None


@dataclass(frozen=True)
class Bar:
    """Acceptance bar of a figure; `judge` returns None if the run cannot tell."""

    text: str
    judge: Callable[[Case], Verdict | None]


def bar(text: str, met: Callable[[Case], bool | None]) -> Bar:
    """Return a bar that a figure meets or not."""

    def judge(case: Case) -> Verdict | None:
        told = met(case)
        return None if told is None else Verdict.of(told)

    return Bar(text, judge)


def below(*names: str, margin: float = 0.0) -> Bar:
    """Return the bar of a figure below those of all named baselines, by a margin."""

    def met(case: Case) -> bool | None:
        if not all(name in case.rivals for name in names):
            return None
        return all(case.value < case.rivals[name] - margin for name in names)

    return bar((f"{margin:g} " if margin else "") + "below " + " and ".join(names), met)


def surely_below(*names: str) -> Bar:
    """Return the bar of a score below those of all named baselines by more than chance.

    Met if the whole interval of every paired difference is below zero, missed if one is above zero, else undecided. A
    single interval of the model's score is no help: days that are hard for one model are hard for all.
    """

    def judge(case: Case) -> Verdict | None:
        differences = [case.differences.get(name) for name in names]
        known = [each for each in differences if each is not None and not math.isnan(each.low)]
        if len(known) < len(names):
            return None
        if any(each.low > 0 for each in known):
            return Verdict.MISSED
        return Verdict.MET if all(each.high < 0 for each in known) else Verdict.UNDECIDED

    return Bar("surely below " + " and ".join(names), judge)


def least() -> Bar:
    """Return the bar of a figure below those of all other models."""
    return bar("below all", lambda case: case.below_all)


def within(low: float, high: float) -> Bar:
    """Return the bar of a figure between two bounds."""
    return bar(f"{low:g} to {high:g}", lambda case: low <= case.value <= high)


def surely_within(low: float, high: float) -> Bar:
    """Return the bar of a figure between two bounds by more than chance.

    Met if its whole interval lies between them, missed if no part of it does, else undecided.
    """

    def judge(case: Case) -> Verdict | None:
        _, lowest, highest = case.figure
        if math.isnan(lowest):
            return None
        if lowest > high or highest < low:
            return Verdict.MISSED
        return Verdict.MET if low <= lowest and highest <= high else Verdict.UNDECIDED

    return Bar(f"surely {low:g} to {high:g}", judge)


def near(tolerance: float) -> Bar:
    """Return the bar of a figure near the real one."""
    return bar(f"within {tolerance:g} of real", lambda case: case.error <= tolerance)


def near_share(share: float) -> Bar:
    """Return the bar of a figure whose distance from the real one is at most a share of it."""
    return bar(f"within {share:.0%} of real", lambda case: case.error <= share * abs(case.real.mean))


def half_to_double() -> Bar:
    """Return the bar of a positive figure from half to double the real one."""
    return bar("half to double of real", lambda case: case.real.mean / 2 <= case.value <= 2 * case.real.mean)


def at_most(limit: float) -> Bar:
    """Return the bar of a figure up to a limit."""
    return bar(f"at most {limit:g}", lambda case: case.value <= limit)


def small(limit: float) -> Bar:
    """Return the bar of a figure up to a limit, or below those of all other models."""
    return bar(f"at most {limit:g}, or below all", lambda case: True if case.value <= limit else case.below_all)


def at_least(limit: float) -> Bar:
    """Return the bar of a figure from a limit."""
    return bar(f"at least {limit:g}", lambda case: case.value >= limit)


def in_interval() -> Bar:
    """Return the bar of a figure within the real days' interval."""

    def met(case: Case) -> bool | None:
        return None if math.isnan(case.real.low) else case.real.low <= case.value <= case.real.high

    return bar("within real interval", met)


def near_leverage() -> Bar:
    """Return the bar of a leverage near the real one, by `LEVERAGE_SHARE` and `LEVERAGE_LEAST`."""
    return bar(
        f"within {LEVERAGE_SHARE:.0%} of real, or {LEVERAGE_LEAST:g}",
        lambda case: case.error <= max(LEVERAGE_SHARE * abs(case.real.mean), LEVERAGE_LEAST),
    )


def half_leverage() -> Bar:
    """Return the bar of a leverage of the real one's sign and at least half its size, however large."""
    return bar(
        "sign of real, half its size", lambda case: case.value * case.real.mean >= 0.5 * case.real.mean * case.real.mean
    )


def near_drift(reference: str) -> Bar:
    """Return the bar of a drift at most `DRIFT_MARGIN` further from the real one than a baseline's."""

    def met(case: Case) -> bool | None:
        if reference not in case.rivals:
            return None
        return case.error <= abs(case.rivals[reference] - case.real.mean) + DRIFT_MARGIN

    return bar(f"error at most that of {reference} + {DRIFT_MARGIN:g}", met)
