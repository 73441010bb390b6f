"""Categorical indicators: a few state codes per indicator, and the label of each code.

Each function of bars maps (..., T, K, 5) to codes (..., T, K), small whole numbers as floats. RSI, volume
ratio and momentum stay numbers; the functions of ``LEVELS`` map a number to its label's code.
Thresholds without a source are chosen for daily bars of large stocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from vecenv.market import number_indicators as numbers
from vecenv.market.bars import EXCHANGE_DAYS
from vecenv.market.candlesticks import bearish_engulfing, bullish_engulfing, doji, hammer, shooting_star
from vecenv.market.rolling import lagged

RSI_OVERSOLD, RSI_OVERBOUGHT = 30.0, 70.0
"""Wilder (1978)."""

VOLUME_LOW, VOLUME_HIGH = 0.8, 1.2
"""Volume over its 20-day mean."""

MOMENTUM_FLAT = 0.01
"""Largest absolute 10-day return that counts as flat."""

TREND_SIDEWAYS = 0.005
"""Largest distance of EMA(10) / EMA(30) from 1 that counts as no trend."""

REGIME_SIDEWAYS = 0.01
"""Largest distance of EMA(50) / EMA(200) from 1 that counts as neither bull nor bear market."""

VOLATILITY_MODERATE, VOLATILITY_HIGH = 0.15, 0.35
"""Annualised volatility: moderate from the first, high above the second."""

GAP_NONE = 0.01
"""Largest return from close to open that counts as no gap."""

RANGE_NARROW, RANGE_WIDE = 0.5, 1.5
"""Day's range over its 20-day mean."""

Numbers = TypeVar("Numbers", float, np.ndarray, Tensor)


def macd_state(ohlcv: Tensor) -> Tensor:
    """+1 bullish where the MACD histogram is positive, else -1 bearish; doubled on the day the sign changed.

    The sign changes where the MACD line crosses its signal line (Appel, 1979).
    """
    side = torch.where(numbers.macd_histogram(ohlcv) > 0, 1.0, -1.0)
    return torch.where(side == lagged(side, 1), side, 2.0 * side)


def trend_state(ohlcv: Tensor) -> Tensor:
    """+1 bullish, -1 bearish, 0 sideways: EMA(10) / EMA(30) - 1 beyond ±0.5%."""
    return _beyond(numbers.exponential_trend(ohlcv, fast=10, slow=30), -TREND_SIDEWAYS, TREND_SIDEWAYS)


def bollinger_zone(ohlcv: Tensor) -> Tensor:
    """-2 below the lower band, -1 below the middle, +1 from the middle up, +2 above the upper (Bollinger, 2001).

    A close on a band lies inside, one in the middle above it.
    """
    position = numbers.bollinger_position(ohlcv, window=20)
    side = torch.where(position >= 0.5, 1.0, -1.0)
    return torch.where((position < 0.0) | (position > 1.0), 2.0 * side, side)


def volatility_level(ohlcv: Tensor, year: float = EXCHANGE_DAYS) -> Tensor:
    """0 low, 1 moderate, 2 high: annualised volatility of 20 days below 15%, up to 35%, above."""
    annualised = numbers.volatility(ohlcv, window=20, year=year)
    return 1.0 * (annualised >= VOLATILITY_MODERATE) + 1.0 * (annualised > VOLATILITY_HIGH)


def regime_state(ohlcv: Tensor) -> Tensor:
    """+1 bull, -1 bear, 0 sideways market: EMA(50) / EMA(200) - 1 beyond ±1%."""
    return _beyond(numbers.exponential_trend(ohlcv, fast=50, slow=200), -REGIME_SIDEWAYS, REGIME_SIDEWAYS)


def candle(ohlcv: Tensor) -> Tensor:
    """0 none, 1 doji, 2 hammer, 3 shooting star, 4 bullish engulfing, 5 bearish engulfing.

    Where several patterns end on the same day the highest code wins: two-day patterns before
    one-day patterns with a shadow, those before the doji.
    """
    patterns = (doji, hammer, shooting_star, bullish_engulfing, bearish_engulfing)
    return torch.stack([code * pattern(ohlcv) for code, pattern in enumerate(patterns, start=1)]).amax(0)


def gap_state(ohlcv: Tensor) -> Tensor:
    """+1 up, -1 down, 0 none: open beyond ±1% of the close before."""
    return _beyond(numbers.opening_gap(ohlcv), -GAP_NONE, GAP_NONE)


def range_state(ohlcv: Tensor) -> Tensor:
    """+1 wide, -1 narrow, 0 normal: day's range at least 1.5, at most 0.5 of its 20-day mean."""
    expansion = numbers.range_expansion(ohlcv, window=20)
    return 1.0 * (expansion >= RANGE_WIDE) - 1.0 * (expansion <= RANGE_NARROW)


def rsi_level(rsi: Numbers) -> Numbers:
    """+1 overbought above 70, -1 oversold below 30, 0 neutral (Wilder, 1978). Any shape."""
    return _beyond(rsi, RSI_OVERSOLD, RSI_OVERBOUGHT)


def volume_level(volume_ratio: Numbers) -> Numbers:
    """+1 high from 1.2 of the mean volume, -1 low below 0.8, 0 normal. Any shape."""
    return 1.0 * (volume_ratio >= VOLUME_HIGH) - 1.0 * (volume_ratio < VOLUME_LOW)


def momentum_level(momentum: Numbers) -> Numbers:
    """+1 up above a return of +1%, -1 down below -1%, 0 flat. Any shape."""
    return _beyond(momentum, -MOMENTUM_FLAT, MOMENTUM_FLAT)


def _beyond(values: Numbers, low: float, high: float) -> Numbers:
    return 1.0 * (values > high) - 1.0 * (values < low)


LEVELS: dict[str, Callable[[Any], Any]] = {
    "rsi_14": rsi_level,
    "volume_ratio_20": volume_level,
    "momentum_10": momentum_level,
}
"""Code of a feature that is a number. The functions take floats, arrays and tensors alike."""

LABELS: dict[str, dict[int, str]] = {
    "rsi_14": {-1: "oversold", 0: "neutral", 1: "overbought"},
    "macd_state": {-2: "bearish (CROSSOVER)", -1: "bearish", 1: "bullish", 2: "bullish (CROSSOVER)"},
    "trend_state": {-1: "bearish", 0: "sideways", 1: "bullish"},
    "bollinger_zone": {-2: "below_lower", -1: "below_middle", 1: "above_middle", 2: "above_upper"},
    "volume_ratio_20": {-1: "low", 0: "normal", 1: "high"},
    "volatility_level": {0: "low", 1: "moderate", 2: "high"},
    "momentum_10": {-1: "down", 0: "flat", 1: "up"},
    "regime_state": {-1: "bear", 0: "sideways", 1: "bull"},
    "candle": {
        0: "none", 1: "doji", 2: "hammer", 3: "shooting_star", 4: "bullish_engulfing", 5: "bearish_engulfing",
    },
    "gap_state": {-1: "down", 0: "none", 1: "up"},
    "range_state": {-1: "narrow", 0: "normal", 1: "wide"},
}  # fmt: skip
"""Label of each code, by feature name; codes ascend. For the features of ``LEVELS``, the codes of the level."""


@overload
def labels_of(name: str, values: float) -> str: ...
@overload
def labels_of(name: str, values: np.ndarray) -> np.ndarray: ...
def labels_of(name: str, values: float | np.ndarray) -> str | np.ndarray:
    """Return the labels of a feature's values after its warm-up: a string for a scalar, else an array of them.

    Raises:
        ValueError: the feature has no labels, or a value is NaN or no code of the feature.
    """
    if name not in LABELS:
        raise ValueError(f"feature {name!r} has no labels; {', '.join(LABELS)} have")
    given = np.asarray(values)
    codes = LEVELS[name](given) if name in LEVELS else given
    known, words = np.array(list(LABELS[name])), np.array(list(LABELS[name].values()), dtype=object)
    place = np.searchsorted(known, codes).clip(max=len(known) - 1)
    unknown = np.isnan(given) | (known[place] != codes)
    if unknown.any():
        raise ValueError(f"{name} cannot be {given[unknown].flat[0]}; its codes are {LABELS[name]}")
    return words[place]
