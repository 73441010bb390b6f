"""Technical indicators of daily bars, in batch over the days of all symbols and paths at once.

An indicator is a plain function of bars (P, T, K, 5) that returns values (P, T, K) and reads no bar
after the day of the value. ``compute_indicators`` handles different listing days: it shifts each
symbol's first bar to day 0, calls the functions, and shifts the values back.

Warm-up: a window indicator is valid once its window is full. An exponential mean has normalised
weights and is valid after its span, 2/alpha - 1 bars (N for EMA(N), 2N - 1 for Wilder's average
over N): earlier bars of a longer history would then weigh less than e⁻² = 13.5%.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vecenv.market.bars import EXCHANGE_DAYS
from vecenv.market.candlesticks import bearish_engulfing, bullish_engulfing, doji, hammer, shooting_star
from vecenv.market.number_indicators import (
    bollinger_band,
    bollinger_position,
    close_mean,
    commodity_channel_index,
    directional_index,
    exponential_trend,
    macd,
    macd_histogram,
    macd_signal,
    momentum,
    opening_gap,
    range_expansion,
    relative_strength_index,
    volatility,
    volume_ratio,
)
from vecenv.market.state_indicators import (
    bollinger_zone,
    candle,
    gap_state,
    macd_state,
    range_state,
    regime_state,
    trend_state,
    volatility_level,
)


@dataclass(frozen=True)
class Indicator:
    """A function of bars and its warm-up.

    Attributes:
        function: maps bars (P, T, K, 5), each symbol listed from day 0, to values (P, T, K).
        warmup: leading bars of a symbol with invalid values.
        price_unit: values are in the unit of the prices; divided by the close they are free of scale.
        scale: factor that makes values that are free of scale of order one on daily bars: a power of two.
        annual: values are of a year, whose number of bars the function also takes, as ``year``.
    """

    function: Callable[..., Tensor]
    warmup: int
    price_unit: bool = False
    scale: float = 1.0
    annual: bool = False


INDICATORS: dict[str, Indicator] = {
    "macd": Indicator(macd, 25, price_unit=True, scale=64),
    "boll_ub": Indicator(partial(bollinger_band, window=20, width=2.0), 19, price_unit=True),
    "boll_lb": Indicator(partial(bollinger_band, window=20, width=-2.0), 19, price_unit=True),
    "rsi_30": Indicator(partial(relative_strength_index, window=30), 59, scale=1 / 64),
    "cci_30": Indicator(partial(commodity_channel_index, window=30), 29, scale=1 / 128),
    "dx_30": Indicator(partial(directional_index, window=30), 59, scale=1 / 32),
    "close_30_sma": Indicator(partial(close_mean, window=30), 29, price_unit=True),
    "close_60_sma": Indicator(partial(close_mean, window=60), 59, price_unit=True),
    "daily_change": Indicator(partial(momentum, window=1), 1, scale=64),
    "rsi_14": Indicator(partial(relative_strength_index, window=14), 27, scale=1 / 64),
    "macd_signal": Indicator(macd_signal, 33, price_unit=True, scale=64),
    "macd_hist": Indicator(macd_histogram, 33, price_unit=True, scale=128),
    "bollinger_position": Indicator(partial(bollinger_position, window=20), 19),
    "volume_ratio_20": Indicator(partial(volume_ratio, window=20), 19),
    "trend_10_30": Indicator(partial(exponential_trend, fast=10, slow=30), 29, scale=32),
    "volatility_20": Indicator(partial(volatility, window=20), 20, scale=4, annual=True),
    "momentum_10": Indicator(partial(momentum, window=10), 10, scale=16),
    "doji": Indicator(doji, 10),
    "hammer": Indicator(hammer, 10),
    "shooting_star": Indicator(shooting_star, 10),
    "bullish_engulfing": Indicator(bullish_engulfing, 1),
    "bearish_engulfing": Indicator(bearish_engulfing, 1),
    "gap": Indicator(opening_gap, 1, scale=128),
    "range_expansion_20": Indicator(partial(range_expansion, window=20), 19),
    "regime_50_200": Indicator(partial(exponential_trend, fast=50, slow=200), 199, scale=8),
    "macd_state": Indicator(macd_state, 34),
    "trend_state": Indicator(trend_state, 29),
    "bollinger_zone": Indicator(bollinger_zone, 19),
    "volatility_level": Indicator(volatility_level, 20, annual=True),
    "regime_state": Indicator(regime_state, 199),
    "candle": Indicator(candle, 10),
    "gap_state": Indicator(gap_state, 1),
    "range_state": Indicator(range_state, 19),
}
"""All indicators by feature name."""

FINRL_INDICATORS = (
    "macd",
    "boll_ub",
    "boll_lb",
    "rsi_30",
    "cci_30",
    "dx_30",
    "close_30_sma",
    "close_60_sma",
)
"""FinRL's eight, in its order."""


def compute_indicators(ohlcv: Tensor, first: Tensor, names: Sequence[str], year: float = EXCHANGE_DAYS) -> Tensor:
    """Compute indicators of all symbols on all days, from bars up to the day.

    Args:
        ohlcv: bars without NaN from each symbol's first bar on (gaps filled with flat bars); earlier
            entries are not read. Shape: (P, T, K, 5).
        first: day of each symbol's first bar, int64; T if it never lists. Shape: (P, K).
        names: I feature names out of ``INDICATORS``.
        year: bars of a year.

    Returns:
        float64, NaN until the end of a symbol's warm-up. Shape: (P, T, K, I).

    Raises:
        ValueError: a name is unknown or the shapes do not fit.
    """
    unknown = [name for name in names if name not in INDICATORS]
    if unknown:
        raise ValueError(f"unknown indicators {', '.join(unknown)}; there are {', '.join(INDICATORS)}")
    paths, days, symbols, columns = ohlcv.shape
    if columns != 5 or first.shape != (paths, symbols):
        raise ValueError(
            f"ohlcv must be (P, T, K, 5) and first (P, K), got {tuple(ohlcv.shape)} and {tuple(first.shape)}"
        )
    day = torch.arange(days, device=ohlcv.device).unsqueeze(-1)
    # The days after the end repeat the last bar: no value of a real day depends on them.
    day_of_bar = (day + first.unsqueeze(1)).clamp(max=days - 1)
    bar_of_day = day - first.unsqueeze(1)
    aligned = ohlcv.double().gather(1, day_of_bar.unsqueeze(-1).expand_as(ohlcv))

    features = ohlcv.new_empty(paths, days, symbols, len(names), dtype=torch.float64)
    for i, name in enumerate(names):
        indicator = INDICATORS[name]
        values = indicator.function(aligned, **({"year": year} if indicator.annual else {}))
        values = values.gather(1, bar_of_day.clamp(min=0))
        features[..., i] = values.masked_fill(bar_of_day < indicator.warmup, torch.nan)
    return features
