"""How real the agent-based market is: default and calibrated settings beside all real books, and beside random orders.

The range of a statistic is what real books say of one more: their mean and two standard deviations between them, of
logarithms where ratios count. A market that was fitted to a book, and each book itself, is held against the ranges of
the other recordings: books of one recording share their minutes.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from vecenv.benchmarks.result_files import StudyConfig, markdown
from vecenv.benchmarks.studies.book_sessions import Recorded, real_books, simulated_sessions
from vecenv.benchmarks.studies.book_statistics import STATISTICS, Statistic
from vecenv.benchmarks.studies.zero_intelligence import zero_intelligence_sessions
from vecenv.system.preset_files import preset_path, read_values, with_values
from vecenv.system.settings import Within
from vecenv.tasks.agent_market.config import TradingConfig

GROUPS, STUDENT = 8, 2.365
"""Groups of sessions, or parts of a book, whose spread gives the interval; 97.5% quantile of Student's distribution of
one degree less."""
FEWEST, DEVIATIONS = 4, 2.0
"""Books that a range needs, and standard deviations between them on either side of their mean."""

SECONDS, SEED = 7_200, 2026
"""Seconds of a session, after its warm-up; and the seed of the sessions: calibrations used others."""
CONTROL = "zero intelligence"
SPEED = 10.0
"""Minutes of the zero-intelligence model that pass in one of the grid: it has fewer events than the others."""
FITTED = {"calibrated_market": "BTC-USD.standx", "liquid_crypto": "BTC-USD.standx", "liquid_stock": "AAPL"}
"""Books that presets were fitted to."""

KINDS = ("books", "literature")
"""Kinds of ranges."""

Figures = dict[str, tuple[float, float]]
"""A value and half the width of its interval, by statistic; NaN where there is none."""


@dataclass(frozen=True)
class RealismConfig(StudyConfig):
    """Settings of the realism table."""

    sessions: Annotated[int, Within(8)] = 64
    """Sessions of each simulated market; at least 8."""
    data: Path = Path(os.environ.get("VECENV_DATA", "data"))
    """Folder of real books, which are shown if they are there."""


def main(config: RealismConfig) -> dict[str, Any]:
    books = real_books(config.data)
    presets = {name: with_preset(name) for name in FITTED}
    markets = {
        name: simulated_sessions(settings, config.sessions, SECONDS, SEED)
        for name, settings in ({"default": TradingConfig()} | presets).items()
    } | {CONTROL: zero_intelligence_sessions(config.sessions, SECONDS, SEED, SPEED)}
    real = {name: figures(book.sessions, book.minutes) for name, book in books.items()}
    shown = {name: figures(sessions) for name, sessions in markets.items()}
    recordings = {name: book.recording for name, book in books.items()}
    counted = {
        name: met(own, ranges(real, recordings, recordings.get(FITTED.get(name, name))))
        for name, own in (real | shown).items()
    }
    parts_of_fitted = {
        name: figures(even_eighths(books[name].sessions), books[name].minutes / 2)
        for name in dict.fromkeys(FITTED.values())
        if name in books
    }
    print(page(real, shown, ranges(real, recordings), counted, parts_of_fitted))
    return config.written(
        "agent-market-realism",
        presets={name: asdict(settings) for name, settings in presets.items()},
        books={name: {"recording": book.recording, "minutes": book.minutes} for name, book in books.items()},
        figures=real | shown,
        even_eighths=parts_of_fitted,
        ranges_of_books=ranges(real, recordings),
        ranges_of_literature={item.name: [item.low, item.high, item.source] for item in STATISTICS if item.source},
        met=counted,
    )


def with_preset(name: str) -> TradingConfig:
    path = preset_path("task", name)
    return with_values(TradingConfig(), read_values(path), str(path), ())


def figures(sessions: Recorded, minutes: float = math.inf) -> Figures:
    """Return the statistics of a simulated market, or those that mean something in a real book of so many minutes."""
    return {
        item.name: estimated(item, sessions) if item.minutes <= minutes else (math.nan, math.nan) for item in STATISTICS
    }


def estimated(statistic: Statistic, sessions: Recorded) -> tuple[float, float]:
    """Return a statistic, and half the width of its 95% interval by batch means.

    The batches are `GROUPS` groups of sessions, or as many parts of a single session in turn.
    """
    groups = (
        [eighths(sessions, number) for number in range(GROUPS)]
        if len(sessions.mid) == 1
        else [Recorded(*(column[number::GROUPS] for column in sessions)) for number in range(GROUPS)]
    )
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Means of nothing are NaN.
        warnings.simplefilter("ignore", RuntimeWarning)
        parts = [statistic.of(group) for group in groups]
        return statistic.of(sessions), STUDENT * float(np.std(parts, ddof=1)) / math.sqrt(GROUPS)


def eighths(session: Recorded, first: int, step: int = GROUPS) -> Recorded:
    """Return the eighths of a single session from one on, in steps, as sessions."""
    length = session.mid.shape[1] // GROUPS
    return Recorded(*(column[:, : GROUPS * length].reshape(GROUPS, length)[first::step] for column in session))


def even_eighths(session: Recorded) -> Recorded:
    """Return the second, fourth, sixth and eighth eighth of a book, which tell how much it differs from itself."""
    return eighths(session, 1, 2)


def ranges(
    real: Mapping[str, Figures], recordings: Mapping[str, str], without: str | None = None
) -> dict[str, tuple[float, float]]:
    """Return the range of each statistic that enough books have, of the recordings but one."""
    found = {}
    for item in STATISTICS:
        values = np.array([own[item.name][0] for name, own in real.items() if recordings[name] != without])
        values = values[~np.isnan(values)]
        if len(values) >= FEWEST and item.ranged:
            values = np.log(values) if item.scaled else values
            ends = values.mean() + np.array([-DEVIATIONS, DEVIATIONS]) * values.std(ddof=1)
            low, high = (np.exp(ends) if item.scaled else ends).tolist()
            found[item.name] = (low, high)
    return found


def met(own: Figures, of_books: Mapping[str, tuple[float, float]]) -> dict[str, tuple[int, int]]:
    """Return how many ranges a market is within, and of how many; what cannot be computed does not count."""
    of_literature = {item.name: (item.low, item.high) for item in STATISTICS if item.source}
    counts = {}
    for kind, bounds in zip(KINDS, (of_books, of_literature), strict=True):
        within = [low <= own[name][0] <= high for name, (low, high) in bounds.items() if not math.isnan(own[name][0])]
        counts[kind] = (sum(within), len(within))
    return counts


def page(
    real: Mapping[str, Figures],
    shown: Mapping[str, Figures],
    of_books: Mapping[str, tuple[float, float]],
    counted: Mapping[str, Mapping[str, tuple[int, int]]],
    parts_of_fitted: Mapping[str, Figures],
) -> str:
    """Return the tables: markets with the ranges, and real books; values within the range of books are in bold."""
    beside = {name: real[name] for name in parts_of_fitted} | {
        f"{name}, even eighths": own for name, own in parts_of_fitted.items()
    }
    columns = beside | dict(shown)
    lines = []
    for item in STATISTICS:
        low, high = of_books.get(item.name, (math.nan, math.nan))
        read = f"{item.low:g} … {item.high:g}" if item.source else ""
        cells = [_cell(own[item.name], low, high) for own in columns.values()]
        lines.append([item.name, "" if math.isnan(low) else f"{low:.2g} … {high:.2g}", read, *cells])
    lines += [
        [f"ranges of {kind} met", "", "", *(_counted(counted.get(name), kind) for name in columns)] for kind in KINDS
    ]
    tables = [markdown(("statistic", "range of books", "of the literature", *columns), lines)]
    kept = [item.name for item in STATISTICS if item.name in of_books]
    lines = [
        [
            name,
            *(_cell(own[item], *of_books[item]) for item in kept),
            *(_counted(counted[name], kind) for kind in KINDS),
        ]
        for name, own in real.items()
    ]
    if kept:
        tables.append(markdown(("book", *kept, *KINDS), lines))
    return "\n\n".join(tables)


def _cell(value: tuple[float, float], low: float, high: float) -> str:
    number = value[0]
    if math.isnan(number):
        return "–"
    shown = f"{number:.2g}" if abs(number) < 100 else f"{number:.0f}"
    return f"**{shown}**" if low <= number <= high else shown


def _counted(counts: Mapping[str, tuple[int, int]] | None, kind: str) -> str:
    return "" if counts is None else "{} of {}".format(*counts[kind])
