"""Speed of reading and validating a market file, and of building its tape."""

from __future__ import annotations

import statistics
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from vecenv.benchmarks import device as machine
from vecenv.benchmarks.result_files import plain, write_result
from vecenv.market.bars import Bars
from vecenv.market.sources import read_bars
from vecenv.market.tape import MarketTape
from vecenv.market.validation import MarketDataWarning


@dataclass(frozen=True)
class MarketReadingConfig:
    """Settings of the market-reading benchmark."""

    market: tyro.conf.Positional[Path]
    """File or folder of daily bars."""
    repeats: int = 5
    """Timed readings."""
    out: Path | None = None
    """Folder of the result file; none is written by default."""


def main(config: MarketReadingConfig) -> dict[str, Any]:
    """Measure, print and write the figures.

    Raises:
        MarketDataError: the file is invalid.
        ValueError: ``repeats`` is below 1.
    """
    if config.repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {config.repeats}")
    bars = _read(config.market)
    cpu = torch.device("cpu")
    reading = statistics.median(machine.seconds_of(lambda: _read(config.market), cpu, config.repeats))
    making = statistics.median(machine.seconds_of(lambda: MarketTape.from_bars(bars), cpu, config.repeats))
    rows = int(bars.listed.sum())
    result = {
        "benchmark": "market_reading",
        "device": machine.device_name(cpu),
        "config": plain(config),
        "rows": rows,
        "seconds_to_read": reading,
        "rows_per_second": rows / reading,
        "seconds_to_make_the_tape": making,
    }
    print(
        f"{config.market}: {rows:,} rows read and checked in {reading:.2f} s ({rows / reading:,.0f} rows/s), "
        f"tape with indicators in {making:.2f} s"
    )
    write_result(config.out, f"market-reading-{config.market.stem.replace('_', '-')}", result)
    return result


def _read(market: Path) -> Bars:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MarketDataWarning)
        return read_bars(market)


if __name__ == "__main__":
    main(tyro.cli(MarketReadingConfig, prog="python -m vecenv.benchmarks.throughput.market_reading"))
