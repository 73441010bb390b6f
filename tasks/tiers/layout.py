"""Layout of the trading tiers' observation vector: parts, field names and units.

One `Account`; one number per series of the whole market; one `Quote` per symbol, symbol by symbol; then the numbers of
`Position`, each for all symbols.
"""

from __future__ import annotations

from typing import NamedTuple

VALUE_UNIT = 2.0**20
"""Currency per unit of the start value."""

PRICE_UNIT = 2.0**10
"""Currency per unit of a close."""


class Account(NamedTuple):
    """Account fields, first in the vector.

    Attributes:
        start_value: portfolio value at the start in units of 2²⁰ currency.
        total_return: portfolio value over the one at the start, less 1.
        cash: share of the portfolio value, like the exposure and the limits.
        drawdown: loss from the highest portfolio value.
        losing_sells: in a row.
        gate_closed: 0 or 1.
        share_down: share of symbols that closed lower.
        mean_change: mean change of all symbols on the day.
        max_trades: trades a day in hundreds.
    """

    days_gone: float
    num_days: float
    start_value: float
    total_return: float
    cash: float
    exposure: float
    drawdown: float
    losing_sells: float
    gate_closed: float
    share_down: float
    mean_change: float
    max_position: float
    max_exposure: float
    max_trades: float
    commission: float
    slippage: float


class Quote(NamedTuple):
    """A symbol's market numbers: the close in units of 2¹⁰ currency, 0 or 1, and the features ``TIER_FEATURES``."""

    close: float
    tradable: float
    daily_change: float
    rsi_14: float
    macd_state: float
    trend_state: float
    bollinger_zone: float
    volume_ratio_20: float
    volatility_level: float
    momentum_10: float
    regime_state: float
    candle: float
    gap_state: float
    range_state: float


class Position(NamedTuple):
    """A symbol's position: share of the portfolio value, close over average price less 1, and days held."""

    weight: float
    profit: float
    days_held: float


ACCOUNT_SCALES = {
    **{"days_gone": 1 / 16, "num_days": 1 / 32, "total_return": 16.0, "drawdown": 16.0, "mean_change": 64.0},
    **dict.fromkeys(("commission", "slippage"), 256.0),
}
"""Factors of account fields in a scaled observation, powers of two, where they are not 1 or depend on the task."""

POSITION_SCALES = Position(1.0, 32.0, 1 / 8)
"""Those of position fields; the weight's is the number of symbols too."""

ACCOUNT_SIZE, MARKET_SIZE, POSITION_SIZE = (len(part._fields) for part in (Account, Quote, Position))
