"""Numbers of the random streams of generated markets, apart from those of episodes (`vecenv.core.random`).

Every number is the first of 2^24, most of which are drawn from one per symbol. A market has one generator: those of
different generators may be the same.
"""

from __future__ import annotations

from enum import IntEnum


class SyntheticStream(IntEnum):
    """Streams of a path of the synthetic market."""

    REGIME = 0x1000_0000
    MARKET = 0x1100_0000
    SECTOR = 0x1200_0000
    TRAITS = 0x1300_0000
    SHOCK = 0x1400_0000
    RANGE = 0x1500_0000


class PlantedStream(IntEnum):
    """Streams of a path of the planted market and of the random walk."""

    SIGNAL = 0x2000_0000
    BAR = 0x2100_0000
    MARKET = 0x2200_0000
    """Regime and noise of the whole market."""


class NewsStream(IntEnum):
    """Streams of a path of the market of synthetic news."""

    DIRECTION = 0x2000_0000
    BAR = 0x2100_0000
    DANGER = 0x2200_0000
    NEWS = 0x2300_0000


class BaselineStream(IntEnum):
    """Streams of a path of the market models that the neural market is compared with."""

    SYMBOL = 0x2000_0000
    ROW = 0x2100_0000


class NeuralStream(IntEnum):
    """Streams of a path of the neural market."""

    DAY = 0x2000_0000
    """One for the returns, four for the bars, one for what the bars of all symbols have in common."""
    START = 0x2100_0000
    """Which start a path goes on from."""


class PortfolioStream(IntEnum):
    """Streams of random portfolios of a market's symbols."""

    SHARES = 0x3000_0000
