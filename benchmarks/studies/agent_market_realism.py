"""The table of realism: the agent-based market, with default and calibrated settings, beside real and random books."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from vecenv.benchmarks.result_files import RESULTS, result_of, write_result
from vecenv.benchmarks.studies.book_sessions import Recorded, lobster_events, simulated_sessions, standx_sessions
from vecenv.benchmarks.studies.book_statistics import STATISTICS, Statistic
from vecenv.benchmarks.studies.zero_intelligence import zero_intelligence_sessions
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.tasks.agent_market.trading import TradingConfig

GROUPS = 8
"""Groups of sessions whose spread gives the interval."""
STUDENT = 2.365
"""97.5% quantile of Student's distribution with one degree of freedom less than groups."""

DATA = "VECENV_DATA"
"""Environment variable of the folder with real books."""

SECONDS, SEED = 7_200, 2026
"""Seconds of a session, after its warm-up; and the seed of the sessions: the calibration used others."""
CONTROL = "zero intelligence"
SPEED = 10.0
"""Minutes of the zero-intelligence model that pass in one of the grid: it has fewer events than the others."""


@dataclass(frozen=True)
class RealismConfig:
    """Settings of the realism table."""

    sessions: int = 64
    """Sessions of each simulated market; at least 8."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""


class Estimate(NamedTuple):
    """A statistic, and half the width of its 95% interval, NaN for one session."""

    value: float
    error: float


def estimated(statistic: Statistic, sessions: Recorded) -> Estimate:
    """Return a statistic with the interval of its batch means over `GROUPS` groups of sessions."""
    with warnings.catch_warnings():
        # Means of nothing are NaN, and shown as a dash.
        warnings.simplefilter("ignore", RuntimeWarning)
        value = statistic.of(sessions)
        if len(sessions.mid) < GROUPS:
            return Estimate(value, math.nan)
        parts = [statistic.of(Recorded(*(column[number::GROUPS] for column in sessions))) for number in range(GROUPS)]
    return Estimate(value, STUDENT * float(np.std(parts, ddof=1)) / math.sqrt(GROUPS))


def main(config: RealismConfig) -> dict[str, Any]:
    """Simulate, read real books where they are, print the table and write it."""
    path = preset_path("task", "calibrated_market")
    calibrated = with_values(TradingConfig(), read_values(path), str(path), ())
    markets = real_markets() | {
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
    Console().print(realism_table(rows, list(markets)))
    nearness = {name: nearer(rows, name) for name in ("default", "calibrated")}
    for name, (ahead, behind) in nearness.items():
        print(f"{name}: nearer to the range than zero intelligence in {ahead} rows, farther in {behind}")
    result = result_of(
        config,
        preset=asdict(calibrated),
        rows={name: {market: list(found) for market, found in row.items()} for name, row in rows.items()},
        ranges={item.name: [item.low, item.high, item.source] for item in STATISTICS},
        nearer_than_zero_intelligence=nearness,
    )
    write_result(config.output, "agent-market-realism", result)
    return result


def real_markets() -> dict[str, Recorded]:
    """Return the real books of the folder that `DATA` names, if they are there."""
    folder = Path(os.environ.get(DATA, ""))
    readers = {
        "BTC perpetual": (folder / "standx_btcusd_500ms.parquet", standx_sessions),
        "AAPL 2012": (folder / "lobster_aapl_l1_events.parquet", lobster_events),
    }
    return {name: read(path) for name, (path, read) in readers.items() if DATA in os.environ and path.is_file()}


def nearer(rows: Mapping[str, Mapping[str, Estimate]], name: str) -> tuple[int, int]:
    """Return in how many rows a market is nearer to the range than zero intelligence, and in how many farther."""
    ahead = behind = 0
    for statistic in STATISTICS:
        own, other = (statistic.distance(rows[statistic.name][market].value) for market in (name, CONTROL))
        if statistic.low is None:
            continue
        # What cannot be computed is farther than anything that can.
        own, other = (math.inf if math.isnan(distance) else distance for distance in (own, other))
        ahead, behind = ahead + (own < other), behind + (own > other)
    return ahead, behind


def realism_table(rows: Mapping[str, Mapping[str, Estimate]], markets: Sequence[str]) -> Table:
    """Return the table: green within the range of real markets, red outside."""
    table = Table(title="Realism of simulated order books, with 95% intervals")
    table.add_column("Statistic")
    table.add_column("Real markets", justify="right")
    for name in markets:
        table.add_column(name, justify="right")
    for statistic in STATISTICS:
        span = "" if statistic.low is None else f"{statistic.low:g} … {statistic.high:g}"
        cells = []
        for name in markets:
            found = rows[statistic.name].get(name)
            if found is None or math.isnan(found.value):
                cells.append("–")
                continue
            error = "" if math.isnan(found.error) else f" ± {found.error:.2g}"
            colour = "" if statistic.low is None else "green" if statistic.distance(found.value) == 0 else "red"
            text = f"{found.value:.3g}{error}"
            cells.append(f"[{colour}]{text}[/]" if colour else text)
        table.add_row(statistic.name, span, *cells)
    return table
