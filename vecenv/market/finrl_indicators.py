"""The indicators of FinRL's stock tasks, as the package ``stockstats`` defines them.

Each function maps bars of shape (..., T, K, 5) to values of shape (..., T, K). Prices must be
positive and finite; values of the first bars are warm-up (see ``vecenv.market.indicators``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW
from vecenv.market.rolling import ratio, rolling_mean, rolling_mean_std, span_mean, wilder_mean, windows


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
