"""Graders against their formulas in plain Python, at their thresholds, and what the calibrated grade promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vecenv.tasks.tiers.graders import (
    GRADERS,
    EpisodeRecord,
    calibrated,
    grade_function,
    seed_full,
    seed_portfolio,
    seed_single,
)

# An ordinary episode, half invested for 20 days and ahead of buy-and-hold, and the bounds of what is drawn.
FIELDS = {
    "days": (20, 0, 40),
    "tier_days": (20, 1, 40),
    "total_return": (0.03, -0.2, 0.3),
    "mean_return": (0.0015, -0.02, 0.02),
    "deviation": (0.01, 1e-4, 0.05),
    "max_drawdown": (0.02, 0.0, 0.4),
    "num_trades": (6, 0, 320),
    "mistakes": (1, 0, 60),
    "rule_breaks": (0, 0, 60),
    "closed_days": (0, 0, 20),
    "respected_days": (0, 0, 20),
    "exposure": (0.5, 0.001, 1.2),
    "traded": (2.0, 0.0, 50.0),
    "max_exposure": (1.0, 0.1, 1.0),
    "costs": (0.002, 0.0, 0.003),
    "benchmark_return": (0.02, -0.2, 0.2),
    "benchmark_traded": (1.0, 0.0, 1.0),
    "oracle_return": (0.10, 0.0, 0.5),
    "oracle_exposure": (0.5, 0.0, 1.0),
}


def record(**changes: float) -> EpisodeRecord:
    numbers = {name: usual for name, (usual, _, _) in FIELDS.items()} | changes
    return EpisodeRecord(**{name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()})


def drawn(count: int) -> EpisodeRecord:
    """Draw episodes, some of which have only zeros where they may."""
    rng, numbers = np.random.default_rng(0), {}
    for name, (_, low, high) in FIELDS.items():
        whole = isinstance(high, int)
        numbers[name] = rng.integers(low, high + 1, count) if whole else rng.uniform(low, high, count)
        if name in ("deviation", "exposure", "closed_days", "mistakes", "rule_breaks", "num_trades"):
            numbers[name] = np.where(rng.random(count) < 0.2, 0, numbers[name])
    numbers["respected_days"] = np.minimum(numbers["respected_days"], numbers["closed_days"])
    return EpisodeRecord(**{name: torch.from_numpy(column) for name, column in numbers.items()})


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
    return 0.4 + 0.4 * (ratio - 0.5) if ratio >= 0.5 else 0.3 + 0.2 * ratio


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


PLAIN = {
    seed_single: plain_single,
    seed_portfolio: plain_portfolio,
    seed_full: plain_full,
    calibrated: plain_calibrated,
}


def test_grades_equal_the_formulas():
    episodes = drawn(2_000)
    rows = [dict(zip(FIELDS, row, strict=True)) for row in torch.stack([x.double() for x in episodes], -1).tolist()]
    for function, plain in PLAIN.items():
        grades = function(episodes)
        assert grades.dtype == torch.float64
        assert grades.tolist() == pytest.approx([plain(row) for row in rows], abs=1e-12), plain.__name__


def test_what_grades_promise():
    """No grade falls when the return rises, and the calibrated one obeys its laws."""
    episodes = drawn(2_000)
    better = episodes._replace(total_return=episodes.total_return + torch.rand(2_000).double() / 5)
    for function in (seed_single, seed_full, calibrated):
        assert (function(better) >= function(episodes) - 1e-12).all()
    grades = calibrated(episodes)
    assert (grades >= 0.0).all() and (grades <= 1.0).all()
    assert (calibrated(episodes._replace(exposure=torch.zeros(2_000))) == 0.0).all()
    assert (calibrated(episodes._replace(rule_breaks=episodes.rule_breaks + 1)) <= grades).all()
    assert (calibrated(episodes._replace(exposure=episodes.exposure + 0.1)) >= grades).all()
    # The same return from more trades is less.
    assert (calibrated(episodes._replace(traded=episodes.traded + 1.0)) <= grades).all()


E = 1e-9
# Gain and that of the benchmark; halves and quarters, so that the ratio is exact.
SINGLE = {
    0.1: [(-0.05 - E, 0.02), (-0.05, 0.02)],
    0.2: [(-0.05 + E, 0.02)],
    0.3: [(0.0, 0.02), (0.0, -0.02), (E, 0.02)],
    0.4: [(0.0625 - E, 0.125), (0.0625, 0.125), (0.0005, 1e-6)],
    0.5: [(E, 0.0), (E, -0.02)],
    0.6: [(0.125 - E, 0.125), (0.125, 0.125)],
    0.8: [(0.1, -0.02), (0.5, -0.02), (0.1875 - E, 0.125), (0.1875, 0.125)],
    0.9: [(0.125 * 2.0, 0.125)],
    0.999: [(0.125 * 2.75, 0.125)],
}


def test_thresholds_of_the_seed_grades():
    """Of one symbol by its gain and that of the benchmark; of several by the trades a day over the tier's own days."""
    for expected, pairs in SINGLE.items():
        for gain, benchmark in pairs:
            grade = seed_single(record(total_return=gain, benchmark_return=benchmark)).item()
            assert grade == pytest.approx(expected, abs=1e-7), (gain, benchmark)
    # Days gone do not matter: half an episode is graded over all of its 20 days.
    active = [(0, 0.3), (1, 0.3), (2, 0.8 + 0.05 * 0.1), (20, 0.85), (80, 1.0), (100, 1.0), (101, 0.4)]
    for trades, expected in active:
        grade = seed_portfolio(record(deviation=0.0, mistakes=10, num_trades=trades, days=10)).item()
        assert grade == pytest.approx(0.6 * 0.3 + 0.15 * expected, abs=1e-12)


def test_graders_are_found_by_name_and_kind():
    kinds = {"single": seed_single, "portfolio": seed_portfolio, "full": seed_full}
    assert {kind: grade_function("seed", kind) for kind in kinds} == kinds
    assert GRADERS["calibrated"].grades == dict.fromkeys(kinds, calibrated)
    assert [grader.version for grader in GRADERS.values()] == [1, 1]
    with pytest.raises(ValueError, match=r"'sede'.*calibrated \(version 1\), seed \(version 1\)"):
        grade_function("sede", "single")
    with pytest.raises(ValueError, match=r"'seed'.*'double'.*single, portfolio, full"):
        grade_function("seed", "double")
