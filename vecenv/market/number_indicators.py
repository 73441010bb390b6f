"""Numeric indicators of momentum, trend, volatility, volume and range, and those of FinRL's stock tasks.

The latter are as the package ``stockstats`` defines them. Each function maps bars of shape (..., T, K, 5) to values of
shape (..., T, K). Prices must be positive and finite; values of the first bars are warm-up (see
``vecenv.market.indicators``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, EXCHANGE_DAYS, HIGH, LOW, OPEN, VOLUME
from vecenv.market.rolling import lagged, ratio, rolling_mean, rolling_mean_std, span_mean, wilder_mean, windows


def close_mean(ohlcv: Tensor, window: int) -> Tensor:
    """Simple moving average of the close, in price units (``close_<window>_sma``)."""
    return rolling_mean(ohlcv[..., CLOSE], window)


def bollinger_band(ohlcv: Tensor, window: int, width: float) -> Tensor:
    """A Bollinger band: mean of the close plus ``width`` sample standard deviations.

    Stockstats' ``boll_ub`` and ``boll_lb`` are widths +2 and -2 over 20 days. It divides the
    variance by window - 1, where Bollinger (2001) and TA-Lib divide by the window.
    """
    mean, std = rolling_mean_std(ohlcv[..., CLOSE], window)
    return mean + width * std


def macd(ohlcv: Tensor) -> Tensor:
    """MACD line, in price units: EMA(12) - EMA(26) of the close (Appel, 1979)."""
    close = ohlcv[..., CLOSE]
    return span_mean(close, 12) - span_mean(close, 26)


def relative_strength_index(ohlcv: Tensor, window: int) -> Tensor:
    """RSI in [0, 100]: share of the rises in Wilder's averages of rises and falls (Wilder, 1978).

    A close that has never moved gives 50.
    """
    close = ohlcv[..., CLOSE]
    change = close.diff(dim=-2, prepend=close[..., :1, :])
    rise, fall = wilder_mean(torch.stack([change.clamp(min=0.0), -change.clamp(max=0.0)]), window)
    return 100.0 * ratio(rise, rise + fall, 0.5)


def commodity_channel_index(ohlcv: Tensor, window: int) -> Tensor:
    """CCI: typical price minus its mean, over 0.015 mean absolute deviations (Lambert, 1980).

    The typical price is the mean of high, low and close. A flat window gives 0.
    """
    typical = (ohlcv[..., HIGH] + ohlcv[..., LOW] + ohlcv[..., CLOSE]) / 3.0
    history = windows(typical, window).unbind(-1)
    zero = torch.zeros_like(typical)
    # Summed as differences from today: exactly zero in a flat window, no ratio of two rounding errors.
    mean = typical + sum((past - typical for past in history), zero) / window
    deviation = sum(((past - mean).abs() for past in history), zero) / window
    return ratio(typical - mean, 0.015 * deviation, 0.0)


def directional_index(ohlcv: Tensor, window: float) -> Tensor:
    """DX in [0, 100]: ``100 |DI+ - DI-| / (DI+ + DI-)`` of Wilder's averages (Wilder, 1978).

    The average true range divides both DI and cancels. No directional movement at all gives 0. Stockstats
    took EMA(30) for Wilder's average until about 2021: ``dx_30`` of data files from then is window 15.5.
    """
    high, low = ohlcv[..., HIGH], ohlcv[..., LOW]
    up = high.diff(dim=-2, prepend=high[..., :1, :])
    down = -low.diff(dim=-2, prepend=low[..., :1, :])
    plus = torch.where(up > down, up.clamp(min=0.0), 0.0)
    minus = torch.where(down > up, down.clamp(min=0.0), 0.0)
    plus, minus = wilder_mean(torch.stack([plus, minus]), window)
    return 100.0 * ratio((plus - minus).abs(), plus + minus, 0.0)


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
