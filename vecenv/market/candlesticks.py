"""Candlestick patterns as TA-Lib defines them, with its default settings.

Each function maps bars of shape (..., T, K, 5) to 1 where the pattern ends on that day and 0
elsewhere, shape (..., T, K), float. The body is ``|close - open|``, the range ``high - low``; the
averages that a bar is compared with are those of the days before it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN
from vecenv.market.rolling import lagged, rolling_mean


def doji(ohlcv: Tensor) -> Tensor:
    """Body at most a tenth of the mean range of the 10 days before (``CDLDOJI``).

    A bar without body is a doji, also where nothing moved at all.
    """
    return (_body(ohlcv) <= _mean_before(_range(ohlcv), 10, 0.1)).to(ohlcv.dtype)


def hammer(ohlcv: Tensor) -> Tensor:
    """Small body near the low of the day before, long lower and hardly any upper shadow (``CDLHAMMER``)."""
    day_range = _range(ohlcv)
    near = lagged(ohlcv[..., LOW] + _mean_before(day_range, 5, 0.2), 1)
    pattern = (
        _is_small_body(ohlcv)
        & (_body_bottom(ohlcv) - ohlcv[..., LOW] > _body(ohlcv))
        & (ohlcv[..., HIGH] - _body_top(ohlcv) < _mean_before(day_range, 10, 0.1))
        & (_body_bottom(ohlcv) <= near)
    )
    return pattern.to(ohlcv.dtype)


def shooting_star(ohlcv: Tensor) -> Tensor:
    """Small body above the one before, long upper and hardly any lower shadow (``CDLSHOOTINGSTAR``)."""
    pattern = (
        _is_small_body(ohlcv)
        & (ohlcv[..., HIGH] - _body_top(ohlcv) > _body(ohlcv))
        & (_body_bottom(ohlcv) - ohlcv[..., LOW] < _mean_before(_range(ohlcv), 10, 0.1))
        & (_body_bottom(ohlcv) > lagged(_body_top(ohlcv), 1))
    )
    return pattern.to(ohlcv.dtype)


def bullish_engulfing(ohlcv: Tensor) -> Tensor:
    """A rising body that covers the falling body of the day before (``CDLENGULFING`` > 0).

    The bodies may share one end but not both.
    """
    return (_engulfs(ohlcv) & (_rise(ohlcv) > 0) & (lagged(_rise(ohlcv), 1) < 0)).to(ohlcv.dtype)


def bearish_engulfing(ohlcv: Tensor) -> Tensor:
    """A falling body that covers the rising body of the day before (``CDLENGULFING`` < 0)."""
    return (_engulfs(ohlcv) & (_rise(ohlcv) < 0) & (lagged(_rise(ohlcv), 1) >= 0)).to(ohlcv.dtype)


def _rise(ohlcv: Tensor) -> Tensor:
    return ohlcv[..., CLOSE] - ohlcv[..., OPEN]


def _body(ohlcv: Tensor) -> Tensor:
    return _rise(ohlcv).abs()


def _body_top(ohlcv: Tensor) -> Tensor:
    return torch.maximum(ohlcv[..., OPEN], ohlcv[..., CLOSE])


def _body_bottom(ohlcv: Tensor) -> Tensor:
    return torch.minimum(ohlcv[..., OPEN], ohlcv[..., CLOSE])


def _range(ohlcv: Tensor) -> Tensor:
    return ohlcv[..., HIGH] - ohlcv[..., LOW]


def _mean_before(values: Tensor, window: int, factor: float) -> Tensor:
    return factor * lagged(rolling_mean(values, window), 1)


def _is_small_body(ohlcv: Tensor) -> Tensor:
    return _body(ohlcv) < _mean_before(_body(ohlcv), 10, 1.0)


def _engulfs(ohlcv: Tensor) -> Tensor:
    """Whether the body covers the one of the day before with at most one end in common."""
    top, bottom = _body_top(ohlcv), _body_bottom(ohlcv)
    top_before, bottom_before = lagged(top, 1), lagged(bottom, 1)
    covers = (top >= top_before) & (bottom <= bottom_before)
    return covers & ((top > top_before) | (bottom < bottom_before))
