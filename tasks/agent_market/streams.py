"""Random streams of the market: one for each purpose, so that no two share a number."""

from __future__ import annotations

from enum import IntEnum


class MarketStream(IntEnum):
    """Streams of an episode's key; see the rules."""

    NOISE_WAKES = 16
    ARRIVALS = 17
    FUNDAMENTAL = 18
    NEWS = 19
    MAKER = 20
    TRADER = 21
    TRADER_PRICE = 22
    PARENT = 23
    VOLATILITY = 24
    FIRST_VOLATILITY = 25
    AUCTION = 2**12


SLOTS_A_TICK = 256
"""Indices of slots that each tick has, however many slots there are."""

AGENTS_A_STREAM = 512
"""Agents of an auction that share a stream: index tick × 512 + number; the next ones have the next stream."""
