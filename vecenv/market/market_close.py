"""The time of day at which decisions are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MARKET_CLOSE = "16:00 America/New_York"
"""Close of the exchanges in New York, on days that do not end early."""


@dataclass(frozen=True)
class MarketClose:
    """Time of day, local in the exchange's zone, at which decisions are made, and days on which it is another."""

    at: time
    zone: ZoneInfo
    other: Mapping[date, time] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> MarketClose:
        """Read a close such as ``15:30 Asia/Kolkata``; ValueError if it has another form, or there is no such zone."""
        clock, _, zone = text.partition(" ")
        try:
            return cls(time.fromisoformat(clock), ZoneInfo(zone))
        except (ValueError, ZoneInfoNotFoundError, OSError) as error:
            raise ValueError(
                f"a market's close is written as {MARKET_CLOSE!r}, a time and a zone, got {text!r}"
            ) from error
