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
    """A model's figure beside the real days' or else a perfect model's, the baselines', and the paired differences."""

    value: float
    real: Interval
    rivals: Mapping[str, float]
    differences: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class Bar:
    """Acceptance bar of a figure; `judge` returns None if the run cannot tell."""

    text: str
    judge: Callable[[Case], Verdict | None]


def below(*names: str, margin: float = 0.0) -> Bar:
    """Return the bar of a figure below those of all named baselines, by a margin."""

    def judge(case: Case) -> Verdict | None:
        if not all(name in case.rivals for name in names):
            return None
        return Verdict.of(all(case.value < case.rivals[name] - margin for name in names))

    return Bar((f"{margin:g} " if margin else "") + "below " + " and ".join(names), judge)


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
    """Return the bar of a figure below those of all baselines."""
    return Bar("below all", _below_all)


def within(low: float, high: float) -> Bar:
    """Return the bar of a figure between two bounds."""
    return Bar(f"{low:g} to {high:g}", lambda case: Verdict.of(low <= case.value <= high))


def near(tolerance: float) -> Bar:
    """Return the bar of a figure near the real one."""
    return Bar(f"within {tolerance:g} of real", lambda case: Verdict.of(abs(case.value - case.real.mean) <= tolerance))


def near_share(share: float) -> Bar:
    """Return the bar of a figure whose distance from the real one is at most a share of it."""
    return Bar(
        f"within {share:.0%} of real",
        lambda case: Verdict.of(abs(case.value - case.real.mean) <= share * abs(case.real.mean)),
    )


def half_to_double() -> Bar:
    """Return the bar of a positive figure from half to double the real one."""
    return Bar(
        "half to double of real", lambda case: Verdict.of(case.real.mean / 2 <= case.value <= 2 * case.real.mean)
    )


def at_most(limit: float) -> Bar:
    """Return the bar of a figure up to a limit."""
    return Bar(f"at most {limit:g}", lambda case: Verdict.of(case.value <= limit))


def small(limit: float) -> Bar:
    """Return the bar of a figure up to a limit, or below those of all baselines."""

    def judge(case: Case) -> Verdict | None:
        return Verdict.MET if case.value <= limit else _below_all(case)

    return Bar(f"at most {limit:g}, or below all", judge)


def at_least(limit: float) -> Bar:
    """Return the bar of a figure from a limit."""
    return Bar(f"at least {limit:g}", lambda case: Verdict.of(case.value >= limit))


def in_interval() -> Bar:
    """Return the bar of a figure within the real days' interval."""

    def judge(case: Case) -> Verdict | None:
        return None if math.isnan(case.real.low) else Verdict.of(case.real.low <= case.value <= case.real.high)

    return Bar("within real interval", judge)


def near_leverage() -> Bar:
    """Return the bar of a leverage near the real one, by `LEVERAGE_SHARE` and `LEVERAGE_LEAST`."""

    def judge(case: Case) -> Verdict:
        allowed = max(LEVERAGE_SHARE * abs(case.real.mean), LEVERAGE_LEAST)
        return Verdict.of(abs(case.value - case.real.mean) <= allowed)

    return Bar(f"within {LEVERAGE_SHARE:.0%} of real, or {LEVERAGE_LEAST:g}", judge)


def half_leverage() -> Bar:
    """Return the bar of a leverage of the real one's sign and at least half its size, however large."""
    return Bar(
        "sign of real, half its size",
        lambda case: Verdict.of(case.value * case.real.mean >= 0.5 * case.real.mean * case.real.mean),
    )


def near_drift(reference: str) -> Bar:
    """Return the bar of a drift at most `DRIFT_MARGIN` further from the real one than a baseline's."""

    def judge(case: Case) -> Verdict | None:
        if reference not in case.rivals:
            return None
        allowed = abs(case.rivals[reference] - case.real.mean) + DRIFT_MARGIN
        return Verdict.of(abs(case.value - case.real.mean) <= allowed)

    return Bar(f"error at most that of {reference} + {DRIFT_MARGIN:g}", judge)


def _below_all(case: Case) -> Verdict | None:
    return Verdict.of(case.value < min(case.rivals.values())) if case.rivals else None
