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

from vecenv.market import candlesticks as candles
from vecenv.market import number_indicators as numbers
from vecenv.market import state_indicators as states
from vecenv.market.bars import EXCHANGE_DAYS


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
    "macd": Indicator(numbers.macd, 25, price_unit=True, scale=64),
    "boll_ub": Indicator(partial(numbers.bollinger_band, window=20, width=2.0), 19, price_unit=True),
    "boll_lb": Indicator(partial(numbers.bollinger_band, window=20, width=-2.0), 19, price_unit=True),
    "rsi_30": Indicator(partial(numbers.relative_strength_index, window=30), 59, scale=1 / 64),
    "cci_30": Indicator(partial(numbers.commodity_channel_index, window=30), 29, scale=1 / 128),
    "dx_30": Indicator(partial(numbers.directional_index, window=30), 59, scale=1 / 32),
    "close_30_sma": Indicator(partial(numbers.close_mean, window=30), 29, price_unit=True),
    "close_60_sma": Indicator(partial(numbers.close_mean, window=60), 59, price_unit=True),
    "daily_change": Indicator(partial(numbers.momentum, window=1), 1, scale=64),
    "rsi_14": Indicator(partial(numbers.relative_strength_index, window=14), 27, scale=1 / 64),
    "macd_signal": Indicator(numbers.macd_signal, 33, price_unit=True, scale=64),
    "macd_hist": Indicator(numbers.macd_histogram, 33, price_unit=True, scale=128),
    "bollinger_position": Indicator(partial(numbers.bollinger_position, window=20), 19),
    "volume_ratio_20": Indicator(partial(numbers.volume_ratio, window=20), 19),
    "trend_10_30": Indicator(partial(numbers.exponential_trend, fast=10, slow=30), 29, scale=32),
    "volatility_20": Indicator(partial(numbers.volatility, window=20), 20, scale=4, annual=True),
    "momentum_10": Indicator(partial(numbers.momentum, window=10), 10, scale=16),
    "doji": Indicator(candles.doji, 10),
    "hammer": Indicator(candles.hammer, 10),
    "shooting_star": Indicator(candles.shooting_star, 10),
    "bullish_engulfing": Indicator(candles.bullish_engulfing, 1),
    "bearish_engulfing": Indicator(candles.bearish_engulfing, 1),
    "gap": Indicator(numbers.opening_gap, 1, scale=128),
    "range_expansion_20": Indicator(partial(numbers.range_expansion, window=20), 19),
    "regime_50_200": Indicator(partial(numbers.exponential_trend, fast=50, slow=200), 199, scale=8),
    "macd_state": Indicator(states.macd_state, 34),
    "trend_state": Indicator(states.trend_state, 29),
    "bollinger_zone": Indicator(states.bollinger_zone, 19),
    "volatility_level": Indicator(states.volatility_level, 20, annual=True),
    "regime_state": Indicator(states.regime_state, 199),
    "candle": Indicator(states.candle, 10),
    "gap_state": Indicator(states.gap_state, 1),
    "range_state": Indicator(states.range_state, 19),
}
"""All indicators by feature name."""


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
