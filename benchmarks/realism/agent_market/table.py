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
import torch
from rich.console import Console
from rich.table import Table

from vecenv.benchmarks.realism.agent_market.recorded import (
    Recorded,
    lobster_events,
    simulated_sessions,
    standx_sessions,
)
from vecenv.benchmarks.realism.agent_market.statistics import STATISTICS, Statistic
from vecenv.benchmarks.realism.agent_market.zero_intelligence import zero_intelligence_sessions
from vecenv.benchmarks.result_files import RESULTS, plain, write_result
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.tasks.agent_market.trading import TradingConfig

GROUPS = 8
"""Groups of sessions whose spread gives the interval."""
STUDENT = 2.365
"""97.5% quantile of Student's distribution with one degree of freedom less than groups."""

DATA = "VECENV_DATA"
"""Environment variable of the folder with real books."""

MARKETS = ("default", "calibrated", "zero intelligence")


@dataclass(frozen=True)
class RealismConfig:
    """Settings of the realism table."""

    sessions: int = 64
    """Sessions of each simulated market; at least 8."""
    seconds: int = 7_200
    """Seconds of a session, after its warm-up."""
    seed: int = 2026
    """Seed of the sessions; the calibration used others."""
    preset: str = "calibrated_market"
    """Task preset of the second column, shipped or a path."""
    speed: float = 10.0
    """Minutes of the zero-intelligence model that pass in one of the grid: it has fewer events than the others."""
    threads: int = 1
    """CPU threads."""
    output: Path | None = RESULTS
    """Folder for the JSON; none is written without it."""

    def __post_init__(self) -> None:
        if self.sessions < GROUPS:
            raise ValueError(f"sessions must be at least {GROUPS}, got {self.sessions}")
        if self.seconds < 1_200:
            raise ValueError(f"seconds must be at least 1200, for autocorrelations of minutes, got {self.seconds}")
        if not self.speed > 0:
            raise ValueError(f"speed must be positive, got {self.speed}")


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
    """Simulate, read real books where they are, print the table and write it.

    Raises:
        ValueError: the preset does not fit.
    """
    torch.set_num_threads(config.threads)
    console = Console()
    path = preset_path("task", config.preset)
    calibrated = with_values(TradingConfig(), read_values(path), str(path), ())
    with console.status("Simulating …"):
        markets = {
            "default": simulated_sessions(TradingConfig(), config.sessions, config.seconds, config.seed),
            "calibrated": simulated_sessions(calibrated, config.sessions, config.seconds, config.seed),
            "zero intelligence": zero_intelligence_sessions(config.sessions, config.seconds, config.seed, config.speed)[
                0
            ],
        }
    markets = real_markets() | markets
    rows = {
        statistic.name: {
            name: estimated(statistic, sessions)
            for name, sessions in markets.items()
            if statistic.timeless or name != "AAPL 2012"
        }
        for statistic in STATISTICS
    }
    console.print(realism_table(rows, list(markets)))
    told = {name: nearer(rows, name) for name in ("default", "calibrated")}
    for name, (ahead, behind) in told.items():
        console.print(f"{name}: nearer to the range than zero intelligence in {ahead} rows, farther in {behind}")
    result = {
        "benchmark": "agent_market_realism",
        "config": plain(config),
        "preset": asdict(calibrated),
        "rows": {name: {market: list(found) for market, found in row.items()} for name, row in rows.items()},
        "ranges": {item.name: [item.low, item.high, item.source] for item in STATISTICS},
        "nearer_than_zero_intelligence": {name: list(counts) for name, counts in told.items()},
    }
    write_result(config.output, "agent-market-realism", _without_nan(result))
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
        own, other = (statistic.distance(rows[statistic.name][market].value) for market in (name, MARKETS[-1]))
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


def _without_nan(value: Any) -> Any:  # noqa: ANN401
    """Return JSON values with null for NaN."""
    if isinstance(value, dict):
        return {name: _without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value
