"""Records of episodes in the agent-based market: texts, orders, fills, the account and the book at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vecenv.text.records import EpisodeRecord, StepRecord


@dataclass(frozen=True, kw_only=True)
class MarketStep(StepRecord):
    """One step, after which everything is told. Prices in the book are in price ticks, money is in currency.

    Attributes:
        tick: ticks since the episode began.
        orders: ``kind``, ``price`` (null where it has none) and ``shares`` of each order that was carried out.
        bought: shares in the step.
        sold: shares in the step.
        shares: held.
        cash: of the seat.
        equity: at the mid.
        mid: of the market.
        quotes: price and shares of the best own bid and ask, zeros without.
        ladder: prices and shares of the best levels of bids and asks.
        outcomes: of the episode so far, by name.
    """

    tick: int
    orders: list[dict[str, Any]]
    bought: int
    sold: int
    shares: int
    cash: float
    equity: float
    mid: float
    quotes: list[list[int]]
    ladder: list[list[list[int]]]
    outcomes: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class MarketEpisode(EpisodeRecord):
    """One episode; its market is that of its rules, its seed and its row.

    Attributes:
        start: mid at the start, in currency.
        parent: sign and shares of the order to execute, zeros without.
        turns: the steps.
    """

    steps_field = "turns"

    start: float
    parent: list[int]
    turns: list[MarketStep]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MarketEpisode:
        """Return a record from JSON values.

        Raises:
            ValueError: they are not a record.
        """
        try:
            record = cls(**{**values, "turns": [MarketStep(**turn) for turn in values["turns"]]})
            for turn in record.turns:
                _ = turn.action
            return record
        except (TypeError, LookupError) as error:
            raise ValueError(f"not the record of an episode: {error}") from error

    @property
    def price_tick(self) -> float:
        """In currency."""
        return self.config["price_tick"]


def step_rows(record: MarketEpisode) -> list[dict[str, Any]]:
    """Return the numbers of each step, by column: outcomes of the task are ``outcome/NAME``."""
    names = ("tick", "bought", "sold", "shares", "cash", "equity", "mid", "valid", "reward")
    return [
        {"step": number, "num_orders": len(turn.orders)}
        | {name: getattr(turn, name) for name in names}
        | {f"outcome/{name}": value for name, value in turn.outcomes.items()}
        for number, turn in enumerate(record.turns, 1)
    ]
