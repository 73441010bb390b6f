"""Numeric indicators of momentum, trend, volatility, volume and range.

Each function maps bars of shape (..., T, K, 5) to values of shape (..., T, K). Prices must be
positive and finite; values of the first bars are warm-up (see ``vecenv.market.indicators``).
"""

from __future__ import annotations

import math

from torch import Tensor

from vecenv.market.bars import CLOSE, EXCHANGE_DAYS, HIGH, LOW, OPEN, VOLUME
from vecenv.market.finrl_indicators import macd
from vecenv.market.rolling import lagged, ratio, rolling_mean, rolling_mean_std, span_mean


def macd_signal(ohlcv: Tensor) -> Tensor:
    """Signal line of the MACD, in price units: EMA(9) of the MACD line (Appel, 1979)."""
    return span_mean(macd(ohlcv), 9)


def macd_histogram(ohlcv: Tensor) -> Tensor:
    """MACD line minus its signal line, in price units (Aspray, 1986)."""
    line = macd(ohlcv)
    return line - span_mean(line, 9)


def bollinger_position(ohlcv: Tensor, window: int) -> Tensor:
    """Bollinger's %b: 0 at the lower band, 1 at the upper (Bollinger, 2001).

    The bands lie two population standard deviations from the mean. A flat window gives 0.5.
    """
    close = ohlcv[..., CLOSE]
    mean, std = rolling_mean_std(close, window, correction=0)
    return 0.5 + ratio(close - mean, 4.0 * std, 0.0)


def volume_ratio(ohlcv: Tensor, window: int) -> Tensor:
    """Volume over its mean of the last ``window`` days, today included; 1 where nothing was traded."""
    volume = ohlcv[..., VOLUME]
    return ratio(volume, rolling_mean(volume, window), 1.0)


def range_expansion(ohlcv: Tensor, window: int) -> Tensor:
    """High minus low over its mean of the last ``window`` days, today included; 1 where nothing moved."""
    day_range = ohlcv[..., HIGH] - ohlcv[..., LOW]
    return ratio(day_range, rolling_mean(day_range, window), 1.0)


def exponential_trend(ohlcv: Tensor, fast: int, slow: int) -> Tensor:
    """EMA(fast) / EMA(slow) - 1 of the close: positive in a rising market, 0 in a flat one."""
    close = ohlcv[..., CLOSE]
    return span_mean(close, fast) / span_mean(close, slow) - 1.0


def volatility(ohlcv: Tensor, window: int, year: float = EXCHANGE_DAYS) -> Tensor:
    """Annualised sample standard deviation of the last ``window`` log returns, of ``year`` bars a year."""
    log_close = ohlcv[..., CLOSE].log()
    log_returns = log_close - lagged(log_close, 1)
    _, std = rolling_mean_std(log_returns, window)
    return std * math.sqrt(year)


def momentum(ohlcv: Tensor, window: int) -> Tensor:
    """Return of the close over ``window`` days (TA-Lib's ``ROCP``)."""
    close = ohlcv[..., CLOSE]
    return close / lagged(close, window) - 1.0


def opening_gap(ohlcv: Tensor) -> Tensor:
    """Return from the close before to the open."""
    return ohlcv[..., OPEN] / lagged(ohlcv[..., CLOSE], 1) - 1.0
