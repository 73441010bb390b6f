"""Spans of a walk-forward: which days are traded by which policy, and which days its training may know."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import pandas as pd

from vecenv.market.tape import MarketTape
from vecenv.tasks.experiment.markets import BySpans

YEAR = 365.25
"""Calendar days of a year."""


@dataclass(frozen=True)
class Span:
    """Days on which one policy trades, and those of its training, its validation included.

    Attributes:
        trained_from, trained_until: first and last day that the training knows.
        first: day at whose close the policy orders first.
        last: day at whose close the next policy takes over; the last one of the file, on which nothing is ordered.
    """

    trained_from: date
    trained_until: date
    first: date
    last: date


def spans_of(tape: MarketTape, split: BySpans) -> list[Span]:
    """Return the spans of a tape in their order; the last one ends with the tape, perhaps early.

    Raises:
        ValueError: there is no day to trade, or none to learn from, before the first test.
    """
    days = tape.dates.astype("datetime64[D]")
    usable = days[tape.first_day :]
    first = _first_test(usable, split)
    places = _starts(days, first, split)
    told = f"{tape.source}: its tradable days run from {usable[0]} to {usable[-1]}"
    if len(places) == 0 or not usable[0] < days[places[0]]:
        raise ValueError(f"{told}: no span begins with {first}")
    length = days[places[0]] - usable[0] if split.train_years is None else _years(split.train_years)
    spans = []
    for place, following in zip(places, [*places[1:], len(days) - 1], strict=True):
        begin = tape.first_day
        if split.train_window == "rolling":
            begin = int(np.searchsorted(days, days[place] - length))
        end = place - split.embargo - 1
        if begin < tape.first_day or end - begin < 1:
            asked = f"--train-years {split.train_years:g} and " if split.train_years is not None else ""
            raise ValueError(
                f"{told}: too few lie before {days[place]} for a training by {asked}--embargo {split.embargo}"
            )
        spans.append(Span(*(days[number].item() for number in (begin, end, place, following))))
    return spans


def _first_test(usable: np.ndarray, split: BySpans) -> np.datetime64:
    if split.first_test is not None:
        return np.datetime64(split.first_test)
    if split.train_years is None:
        return usable[len(usable) // 2]
    # The first window begins with the first tradable day.
    return usable[0] + _years(split.train_years)


def _years(number: float) -> np.timedelta64:
    return np.timedelta64(timedelta(days=round(number * YEAR)), "D")


def _starts(days: np.ndarray, first: np.datetime64, split: BySpans) -> list[int]:
    """Return the places of the first days of spans; each span has an order at least, which a last day has not."""
    if split.test_days is not None:
        return [*range(int(np.searchsorted(days, first)), len(days) - 1, split.test_days)]
    begin = pd.Timestamp(first)
    number = (days[-1] - first).astype(int) // 28 // split.test_months + 1
    dates = [begin + pd.DateOffset(months=split.test_months * count) for count in range(max(0, number))]
    places = np.unique(np.searchsorted(days, np.array(dates, dtype="datetime64[D]")))
    return places[places < len(days) - 1].tolist()
