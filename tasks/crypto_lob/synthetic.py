"""Generator of order books with a signal in them, so that the task runs without data and there is something to learn.

A hidden pressure x decays with `PRESSURE_SECONDS` and pushes the mid by ``strength`` basis points a second for each of
its standard deviations, amid noise of `VOLATILITY` basis points a second that lasts in clusters. The book shows it:
pressure makes bids larger than asks, and buyers more frequent than sellers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vecenv.tasks.crypto_lob.snapshots import Snapshots, check_rows

START_PRICE, TICK = 50_000.0, 1.0
"""First mid, and the distance of prices, in currency."""

FIRST_MS = 1_704_067_200_000
"""Time of the first row: 2024-01-01, UTC."""

PRESSURE_SECONDS = 60.0
"""Time in which the pressure falls to 1/e."""

VOLATILITY = 0.8
"""Standard deviation of the mid's moves, in basis points a square root of a second."""

CLUSTER_SECONDS, CLUSTER_SPREAD = 600.0, 0.4
"""Time in which the logarithm of the volatility returns to 0 to 1/e, and its standard deviation."""

BEST_SIZE, TILT = 0.2, 0.5
"""Typical coins at the best price, and how much the logarithm of sizes leans with the pressure."""

TAKEN = 0.4
"""Coins that takers of a side take in a second, in the mean, without pressure."""


def synthetic_snapshots(
    hours: float = 24.0, step_gap: float = 1.0, levels: int = 10, strength: float = 0.1, seed: int = 0
) -> Snapshots:
    """Generate the snapshots of a coin, one every ``step_gap`` seconds; raises ValueError for an argument out of range.

    A standard deviation of the pressure moves the mid by ``strength`` basis points a second.
    """
    rows = round(hours * 3600 / step_gap)
    if rows < 2 or not step_gap > 0 or levels < 1:
        raise ValueError(
            f"a generated book needs two rows (synthetic_hours, step_gap) and a level, got {hours:g} hours, "
            f"{step_gap:g} s, {levels} levels"
        )
    check_rows(rows, levels, f"{rows:,} generated rows (synthetic_hours, step_gap) of {levels:,} levels")
    if not math.isfinite(strength):
        raise ValueError(f"strength must be finite, got {strength}")
    draw = np.random.Generator(np.random.Philox(key=seed))
    pressure = _autoregressive(draw.standard_normal(rows), step_gap / PRESSURE_SECONDS)
    calm = CLUSTER_SPREAD * _autoregressive(draw.standard_normal(rows), step_gap / CLUSTER_SECONDS)
    noise = VOLATILITY * math.sqrt(step_gap) * np.exp(calm - CLUSTER_SPREAD**2) * draw.standard_normal(rows)
    # The move to a row is due to the pressure that the row before has shown.
    drift = strength * step_gap * np.concatenate([[0.0], pressure[:-1]])
    mid = START_PRICE * np.exp(np.cumsum(drift + noise) * 1e-4)
    spread = TICK * (1 + draw.geometric(0.6, rows))
    best_bid = np.floor((mid - spread / 2) / TICK) * TICK
    sides: dict[str, Any] = {}
    for side, sign, best in (("bid", -1.0, best_bid), ("ask", 1.0, best_bid + spread)):
        steps = draw.geometric(0.5, (rows, levels)) * TICK
        steps[:, 0] = 0.0
        sides[f"{side}_price"] = best[:, None] + sign * np.cumsum(steps, axis=1)
        lean = -sign * TILT * pressure[:, None] + 0.7 * draw.standard_normal((rows, levels))
        size = BEST_SIZE * (1 + 0.5 * np.arange(levels)) * np.exp(lean)
        sides[f"{side}_size"] = np.maximum(np.round(size, 4), 1e-4)
    # What was taken up to a row, under the pressure of the row before.
    before = np.concatenate([[0.0], pressure[:-1]])
    bought, sold = (
        np.round(draw.gamma(0.5, 2 * TAKEN * step_gap * np.exp(sign * TILT * before)), 4) for sign in (1.0, -1.0)
    )
    return Snapshots(
        source="synthetic",
        symbol="SYNTHETIC",
        time=FIRST_MS + np.round(np.arange(rows) * step_gap * 1000).astype(np.int64),
        **sides,
        bought=bought,
        sold=sold,
        age=np.zeros(rows, np.int64),
        rows=np.arange(rows),
        columns={},
    )


def _autoregressive(shocks: np.ndarray, decay: float) -> np.ndarray:
    """Return a stationary first-order process of variance 1 that forgets at a rate ``decay`` a row. Shape: (R,)."""
    keep = math.exp(-decay)
    fresh = math.sqrt(1 - keep**2)
    values = np.empty_like(shocks)
    value = float(shocks[0])
    for row, shock in enumerate(shocks.tolist()):
        value = value if row == 0 else keep * value + fresh * shock
        values[row] = value
    return values
