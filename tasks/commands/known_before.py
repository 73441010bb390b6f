"""Market models that policies were trained on and that have learned from days of the test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console

from vecenv.market.load import generator_of, known_days
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import read_values
from vecenv.tasks.commands.run_folder import SETTINGS, checkpoint_path

FEWER = "judged"
"""Market whose model has learned from fewer days."""


def tell_known_before(console: Console, market: object, test: MarketTape, policies: Iterable[Path | None]) -> None:
    """Tell each such model of policies, None for no policy; nothing if the test is itself drawn by a generator."""
    if generator_of(market) is not None:
        return
    trained = {name for place in policies if place is not None for name in _markets(place)}
    for name in sorted(trained):
        try:
            last = _last_day(name, test)
        except (OSError, ValueError) as error:
            console.print(f"A policy was trained on paths of a model whose days are unknown: {error}", soft_wrap=True)
            continue
        if last and np.datetime64(last) >= test.dates[0]:
            told = (
                f"A policy was trained on paths of {name}, a model that has learned from days of these symbols up to "
                f"{last}: until then this is no test on unseen days"
            )
            if "" < (fewer := _last_day(FEWER, test)) < last:
                told += f"; --market {FEWER} has learned from none after {fewer}"
            console.print(told, soft_wrap=True)


def _last_day(market: str, test: MarketTape) -> str:
    """Return the last day of the test's symbols that a market has learned from, empty if there is none."""
    return max((day for symbol, day in known_days(market).items() if symbol in test.symbols), default="")


def _markets(place: Path) -> Iterator[str]:
    """Yield the market of a policy's run, and those of the runs that it started from, as far as they are there."""
    known: set[Path] = set()
    record = checkpoint_path(place).parent / SETTINGS
    while record.is_file() and record not in known:
        known.add(record)
        values = read_values(record)
        yield str(values.get("market"))
        if values.get("initial") is None:
            return
        record = checkpoint_path(Path(values["initial"])).parent / SETTINGS
