"""How real the agent-based market is: with default and calibrated settings, beside real and random books."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from vecenv.benchmarks.result_files import StudyConfig, markdown
from vecenv.benchmarks.studies.book_sessions import Recorded, lobster_events, simulated_sessions, standx_sessions
from vecenv.benchmarks.studies.book_statistics import STATISTICS, Statistic
from vecenv.benchmarks.studies.zero_intelligence import zero_intelligence_sessions
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.system.settings import Within
from vecenv.tasks.agent_market.config import TradingConfig

GROUPS, STUDENT = 8, 2.365
"""Groups of sessions whose spread gives the interval; 97.5% quantile of Student's distribution of one degree less."""

SECONDS, SEED = 7_200, 2026
"""Seconds of a session, after its warm-up; and the seed of the sessions: the calibration used others."""
CONTROL = "zero intelligence"
SPEED = 10.0
"""Minutes of the zero-intelligence model that pass in one of the grid: it has fewer events than the others."""


@dataclass(frozen=True)
class RealismConfig(StudyConfig):
    """Settings of the realism table."""

    sessions: Annotated[int, Within(8)] = 64
    """Sessions of each simulated market; at least 8."""
    data: Path = Path(os.environ.get("VECENV_DATA", "data"))
    """Folder of real books, which are shown if they are there."""


def main(config: RealismConfig) -> dict[str, Any]:
    path = preset_path("task", "calibrated_market")
    calibrated = with_values(TradingConfig(), read_values(path), str(path), ())
    readers = {
        "BTC perpetual": (config.data / "standx_btcusd_500ms.parquet", standx_sessions),
        "AAPL 2012": (config.data / "lobster_aapl_l1_events.parquet", lobster_events),
    }
    markets = {name: read(file) for name, (file, read) in readers.items() if file.is_file()} | {
        "default": simulated_sessions(TradingConfig(), config.sessions, SECONDS, SEED),
        "calibrated": simulated_sessions(calibrated, config.sessions, SECONDS, SEED),
        CONTROL: zero_intelligence_sessions(config.sessions, SECONDS, SEED, SPEED),
    }
    rows = {
        statistic.name: {
            name: estimated(statistic, sessions)
            for name, sessions in markets.items()
            if statistic.timeless or name != "AAPL 2012"
        }
        for statistic in STATISTICS
    }
    lines = []
    for item in STATISTICS:
        span = "" if item.low is None else f"{item.low:g} … {item.high:g}"
        cells = (rows[item.name].get(name, (math.nan, math.nan)) for name in markets)
        lines.append([item.name, span, *(f"{value:.3g} ± {error:.2g}" for value, error in cells)])
    print(markdown(("statistic", "real markets", *markets), lines))
    nearness = {name: nearer(rows, name) for name in ("default", "calibrated")}
    print(f"rows nearer to the range than zero intelligence, and farther: {nearness}")
    ranges = {item.name: [item.low, item.high, item.source] for item in STATISTICS}
    found: dict[str, Any] = {
        "preset": asdict(calibrated),
        "rows": rows,
        "ranges": ranges,
        "nearer_than_zero_intelligence": nearness,
    }
    return config.written("agent-market-realism", **found)


def estimated(statistic: Statistic, sessions: Recorded) -> tuple[float, float]:
    """Return a statistic, and half the width of its 95% interval by batch means over `GROUPS` groups of sessions."""
    with warnings.catch_warnings():
        # Means of nothing are NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        value = statistic.of(sessions)
        if len(sessions.mid) < GROUPS:
            return value, math.nan
        parts = [statistic.of(Recorded(*(column[number::GROUPS] for column in sessions))) for number in range(GROUPS)]
    return value, STUDENT * float(np.std(parts, ddof=1)) / math.sqrt(GROUPS)


def nearer(rows: dict[str, dict[str, tuple[float, float]]], name: str) -> tuple[int, int]:
    """Return in how many rows a market is nearer to the range than zero intelligence, and in how many farther."""
    ahead = behind = 0
    for statistic in STATISTICS:
        if statistic.low is not None:
            own, other = (statistic.distance(rows[statistic.name][market][0]) for market in (name, CONTROL))
            # What cannot be computed is farther than anything that can.
            own, other = (math.inf if math.isnan(distance) else distance for distance in (own, other))
            ahead, behind = ahead + (own < other), behind + (own > other)
    return ahead, behind
