"""Records of episodes of rating symbols: texts, signals, moves and the portfolio by day."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv.text.records import EpisodeRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class RatedDay(StepRecord):
    """One day of an episode. Money is in the currency of the prices.

    Attributes:
        date: day at whose close the symbols were rated.
        signals: by symbol.
        moves: over the horizon, which the agent did not know, by symbol.
        portfolio_value: at the next close.
        traded: value bought and sold.
        costs: commission.
    """

    date: str
    signals: dict[str, int]
    moves: dict[str, float]
    portfolio_value: float
    traded: float
    costs: float


@dataclass(frozen=True, kw_only=True)
class RatedEpisode(EpisodeRecord):
    """One episode; its market is what `vecenv.text.recorded_markets` reproduces.

    Attributes:
        path: path of the market.
        dates: first day of the episode, and the day of its last portfolio value.
        start_value: portfolio value at the start, in currency.
        days: records by day.
        outcomes: of the episode so far, by name.
    """

    steps_field = "days"

    path: int
    dates: list[str]
    start_value: float
    days: list[RatedDay]
    outcomes: dict[str, float]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RatedEpisode:
        """Return a record from JSON values.

        Raises:
            ValueError: they are not a record.
        """
        try:
            record = cls(**{**values, "days": [RatedDay(**day) for day in values["days"]]})
            for day in record.days:
                _ = day.action
            return record
        except (TypeError, LookupError) as error:
            raise ValueError(f"not the record of an episode: {error}") from error


def day_rows(record: RatedEpisode) -> list[dict[str, Any]]:
    """Return the numbers of each day, by column: signals are ``signal/SYMBOL``, moves ``move/SYMBOL``."""
    names = ("portfolio_value", "traded", "costs", "reward", "valid")
    return [
        {"path": record.path, "day": number, "date": np.datetime64(day.date, "ns")}
        | {name: getattr(day, name) for name in names}
        | {f"signal/{symbol}": signal for symbol, signal in day.signals.items()}
        | {f"move/{symbol}": move for symbol, move in day.moves.items()}
        for number, day in enumerate(record.days, 1)
    ]
