"""Graders against their formulas in plain Python, at their thresholds, and what the calibrated grade promises."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vecenv.tasks.tiers.graders import (
    GRADERS,
    EpisodeRecord,
    calibrated,
    grade_function,
    seed_full,
    seed_portfolio,
    seed_single,
)

QUICK = settings(deadline=None, max_examples=150, derandomize=True)
GRADE_FUNCTIONS = [seed_single, seed_portfolio, seed_full, calibrated]

# An ordinary episode: half invested for 20 days, ahead of buy-and-hold.
ORDINARY = {
    "days": 20,
    "tier_days": 20,
    "total_return": 0.03,
    "mean_return": 0.0015,
    "deviation": 0.01,
    "max_drawdown": 0.02,
    "num_trades": 6,
    "mistakes": 1,
    "rule_breaks": 0,
    "closed_days": 0,
    "respected_days": 0,
    "exposure": 0.5,
    "traded": 2.0,
    "max_exposure": 1.0,
    "costs": 0.002,
    "benchmark_return": 0.02,
    "benchmark_traded": 1.0,
    "oracle_return": 0.10,
    "oracle_exposure": 0.5,
}


def record(**changes: float) -> EpisodeRecord:
    return EpisodeRecord(**{name: torch.tensor(x, dtype=torch.float64) for name, x in (ORDINARY | changes).items()})


def grade(function, **changes: float) -> float:
    result = function(record(**changes))
    assert result.shape == () and result.dtype == torch.float64
    return result.item()


def returns(low: float = -1.0, high: float = 1.0) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


RECORDS = st.fixed_dictionaries(
    {
        "days": st.integers(0, 40),
        "tier_days": st.integers(1, 40),
        "total_return": returns(-0.2, 0.3),
        "mean_return": returns(-0.02, 0.02),
        "deviation": st.one_of(st.just(0.0), st.floats(1e-4, 0.05)),
        "max_drawdown": st.floats(0.0, 0.4),
        "num_trades": st.integers(0, 320),
        "mistakes": st.integers(0, 60),
        "rule_breaks": st.integers(0, 60),
        "closed_days": st.integers(0, 20),
        "respected_days": st.integers(0, 20),
        "exposure": st.one_of(st.just(0.0), st.floats(0.001, 1.2)),
        "traded": st.floats(0.0, 50.0),
        "max_exposure": st.floats(0.1, 1.0),
        "costs": st.sampled_from([0.0, 0.001, 0.002, 0.003]),
        "benchmark_return": returns(-0.2, 0.2),
        "benchmark_traded": st.floats(0.0, 1.0),
        "oracle_return": st.floats(0.0, 0.5),
        "oracle_exposure": st.floats(0.0, 1.0),
    }
).map(lambda r: r | {"respected_days": min(r["respected_days"], r["closed_days"])})


def bounded(x: float) -> float:
    return min(max(x, 0.001), 0.999)


def plain_sharpe_score(r: dict[str, float], flat: float) -> float:
    if r["deviation"] == 0:
        return flat
    return min(max((math.sqrt(252) * r["mean_return"] / r["deviation"] + 1) / 4, 0), 1)


def plain_single(r: dict[str, float]) -> float:
    a, b = r["total_return"], r["benchmark_return"]
    if a <= -0.05:
        return 0.1
    if a <= 0:
        return bounded(0.2 + 2 * (a + 0.05))
    if b <= 0:
        return bounded(min(0.8, 0.5 + 3 * a))
    ratio = a / max(b, 0.001)
    if ratio >= 1.5:
        return bounded(0.8 + 0.2 * (ratio - 1.5))
    if ratio >= 1:
        return 0.6 + 0.4 * (ratio - 1)
    if ratio >= 0.5:
        return 0.4 + 0.4 * (ratio - 0.5)
    return 0.3 + 0.2 * ratio


def plain_portfolio(r: dict[str, float]) -> float:
    daily = r["num_trades"] / r["tier_days"]
    active = 0.3 if daily < 0.1 else 0.4 if daily > 5 else 0.8 + min(0.2, 0.05 * daily)
    return bounded(0.6 * plain_sharpe_score(r, 0.3) + 0.25 * max(0, 1 - 0.1 * r["mistakes"]) + 0.15 * active)


def plain_full(r: dict[str, float]) -> float:
    gain = min(max((r["total_return"] + 0.05) / 0.15, 0), 1)
    respect = r["respected_days"] / r["closed_days"] if r["closed_days"] else 1
    risk = (max(0, 1 - 0.05 * r["mistakes"]) + max(0, 1 - r["max_drawdown"] / 0.15)) / 2
    return bounded(0.35 * gain + 0.25 * plain_sharpe_score(r, 0.2) + 0.25 * respect + 0.15 * risk)


def plain_calibrated(r: dict[str, float]) -> float:
    if r["exposure"] == 0:
        return 0.0
    extra = max(0, 0.002 - r["costs"])
    a, b = r["total_return"] - extra * r["traded"], r["benchmark_return"] - extra * r["benchmark_traded"]
    up = max(r["oracle_return"] - b, 0.02)
    placed = min(1, 0.5 + 0.5 * (a - b) / up) if a >= b else max(0, 0.5 + (a - b) / up)
    taken = min(1, r["exposure"] / max(r["oracle_exposure"], 0.1 * r["max_exposure"]))
    return taken * placed * max(0.5, 1 - 0.02 * r["rule_breaks"])


PLAIN = list(zip(GRADE_FUNCTIONS, [plain_single, plain_portfolio, plain_full, plain_calibrated], strict=True))


@given(RECORDS)
@example(ORDINARY | {"days": 0, "total_return": 0.0, "deviation": 0.0, "exposure": 0.0, "oracle_exposure": 0.0})
@QUICK
def test_grades_equal_the_formulas(numbers):
    for function, plain in PLAIN:
        assert grade(function, **numbers) == pytest.approx(plain(numbers), abs=1e-12)
    # Numbers of any type are graded in double precision.
    mixed = record()._replace(days=torch.tensor(20), mistakes=torch.tensor(1), exposure=torch.tensor(0.5))
    for function in GRADE_FUNCTIONS:
        assert function(mixed).dtype == torch.float64 and function(mixed).item() == grade(function)


BELOW, ABOVE = -1e-9, 1e-9


SINGLE = (
    (-0.05 + BELOW, 0.02, 0.1),
    (-0.05, 0.02, 0.1),
    (-0.05 + ABOVE, 0.02, 0.2),
    (0.0, 0.02, 0.3),
    (0.0, -0.02, 0.3),
    (ABOVE, 0.02, 0.3),
    (ABOVE, 0.0, 0.5),
    (ABOVE, -0.02, 0.5),
    (0.1, -0.02, 0.8),
    (0.5, -0.02, 0.8),
    # Halves and quarters, so that the ratio is exact.
    (0.0625 + BELOW, 0.125, 0.4),
    (0.0625, 0.125, 0.4),
    (0.125 + BELOW, 0.125, 0.6),
    (0.125, 0.125, 0.6),
    (0.1875 + BELOW, 0.125, 0.8),
    (0.1875, 0.125, 0.8),
    (0.125 * 2.0, 0.125, 0.9),
    (0.125 * 2.75, 0.125, 0.999),
    (0.0005, 1e-6, 0.4),
)


def test_thresholds_of_the_seed_grades():
    """Of one symbol by its gain and that of the benchmark; of several by the trades a day over the tier's own days."""
    for gain, benchmark, expected in SINGLE:
        assert grade(seed_single, total_return=gain, benchmark_return=benchmark) == pytest.approx(expected, abs=1e-7)
    # Days gone do not matter: half an episode is graded over all of its 20 days.
    active = [(0, 0.3), (1, 0.3), (2, 0.8 + 0.05 * 0.1), (20, 0.85), (80, 1.0), (100, 1.0), (101, 0.4)]
    for trades, expected in active:
        changes = {"deviation": 0.0, "mistakes": 10, "num_trades": trades, "days": 10}
        assert grade(seed_portfolio, **changes) == pytest.approx(0.6 * 0.3 + 0.15 * expected, abs=1e-12)


@given(RECORDS, st.floats(0.0, 0.2))
@QUICK
def test_what_grades_promise(numbers, more):
    """No grade falls when the return rises, and the calibrated one obeys its laws."""
    better = numbers | {"total_return": numbers["total_return"] + more}
    for function in (seed_single, seed_full, calibrated):
        assert grade(function, **better) >= grade(function, **numbers) - 1e-12
    value = grade(calibrated, **numbers)
    assert 0.0 <= value <= 1.0
    assert grade(calibrated, **numbers | {"exposure": 0.0}) == 0.0
    assert grade(calibrated, **numbers | {"rule_breaks": numbers["rule_breaks"] + 1}) <= value
    assert grade(calibrated, **numbers | {"exposure": numbers["exposure"] + 0.1}) >= value
    # The same return from more trades is less.
    assert grade(calibrated, **numbers | {"traded": numbers["traded"] + 1.0}) <= value


def test_graders_are_found_by_name_and_kind():
    assert grade_function("seed", "portfolio") is seed_portfolio
    assert grade_function("calibrated", "full") is calibrated
    kinds = ["single", "portfolio", "full"]
    assert all(list(grader.grades) == kinds and grader.version >= 1 for grader in GRADERS.values())
    with pytest.raises(ValueError, match=r"'sede'.*calibrated \(version 1\), seed \(version 1\)"):
        grade_function("sede", "single")
    with pytest.raises(ValueError, match=r"'seed'.*'double'.*single, portfolio, full"):
        grade_function("seed", "double")
