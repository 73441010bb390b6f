"""Episode records: observations, texts, orders, fills and rewards, as JSONL and as a Parquet table.

A line of JSONL is one `RecordedEpisode`. It identifies its episode (seed, row and number) and its market, so that
``vecenv replay`` can reproduce it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vecenv.text.money import sign_of
from vecenv.text.records import EpisodeRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class RecordedDay(StepRecord):
    """One day of an episode. Money is in the currency of the prices.

    Attributes:
        date: day at whose close the orders were filled.
        orders: ``side``, ``symbol`` and ``fraction`` of each order, and ``shares``: bought, negative where sold.
        holdings: shares by symbol after the orders.
        cash: after the orders.
        portfolio_value: at the next close.
        traded: value bought and sold.
        costs: commissions and slippage.
        components: unweighted reward components, by name.
        weighted: weighted reward components, by name.
        mistakes: counts by name.
    """

    date: str
    orders: list[dict[str, Any]]
    holdings: dict[str, int]
    cash: float
    portfolio_value: float
    traded: float
    costs: float
    components: dict[str, float]
    weighted: dict[str, float]
    mistakes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class RecordedEpisode(EpisodeRecord):
    """One episode of a trading tier.

    Its market is the metadata of the market, and under ``origin`` the market and the `MarketOptions` by name that
    reproduce it.

    Attributes:
        curriculum: settings of the episode's curriculum, else empty.
        path: path of the market.
        symbols: symbols of the observation.
        dates: first day of the episode, and the day of its last portfolio value.
        start_value: portfolio value at the start, in currency.
        days: records by day.
        mistakes: counts by name.
    """

    steps_field = "days"

    curriculum: dict[str, Any]
    path: int
    symbols: list[str]
    dates: list[str]
    start_value: float
    days: list[RecordedDay]
    mistakes: dict[str, int]

    @property
    def shared(self) -> list[Any]:
        """What episodes must have in common to be replayed in one batch, JSON-able."""
        return [*super().shared, self.curriculum]

    @property
    def money_sign(self) -> str:
        """Prefix of amounts of money."""
        chosen = self.config.get("currency")
        return sign_of(self.market.get("currency")) if chosen is None else chosen

    @classmethod
    def from_json(cls, values: Any) -> RecordedEpisode:  # noqa: ANN401
        """Return a record from JSON values.

        Raises:
            ValueError: they are not a record.
        """
        try:
            record = cls(**{**values, "days": [RecordedDay(**day) for day in values["days"]]})
            for day in record.days:
                _ = day.action
            return record
        except (TypeError, LookupError) as error:
            raise ValueError(f"not the record of an episode: {error}") from error


def day_rows(record: RecordedEpisode) -> list[dict[str, Any]]:
    """Return the numbers of each day, by column.

    Components of the reward are ``component/NAME`` and ``weighted/NAME``, mistakes ``mistake/NAME``, positions
    ``shares/SYMBOL``.
    """
    amounts = ("cash", "portfolio_value", "traded", "costs", "reward")
    whole = {"path": record.path, "market": record.market["fingerprint"]}
    return [
        whole
        | {"day": number, "date": np.datetime64(day.date, "ns"), "valid": day.valid, "num_orders": len(day.orders)}
        | {name: getattr(day, name) for name in amounts}
        | {f"component/{name}": value for name, value in day.components.items()}
        | {f"weighted/{name}": value for name, value in day.weighted.items()}
        | {f"mistake/{name}": count for name, count in day.mistakes.items()}
        | {f"shares/{symbol}": day.holdings.get(symbol, 0) for symbol in record.symbols}
        for number, day in enumerate(record.days, 1)
    ]
