"""States against words told day by day from pandas and TA-Lib, and the words of numbers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import talib
import torch
from torch import Tensor

from tests.market.random_bars import compute, frames, random_bars, warmup_of
from vecenv.market.indicators import INDICATORS
from vecenv.market.state_indicators import LABELS, LEVELS, TIER_FEATURES, labels_of

STATES = tuple(name for name in LABELS if name not in LEVELS)


@pytest.fixture(scope="module")
def ohlcv() -> Tensor:
    """Random bars of three symbols, the first calmer and the last wilder, on a grid of exact fractions."""
    bars = random_bars(seed=20)
    power = torch.tensor([0.3, 1.0, 2.0])[:, None]
    bars[..., :4] = (100.0 * (bars[..., :4] / 100.0) ** power * 1024.0).round() / 1024.0
    return bars


def three_words(values: pd.Series, low: float, high: float, words: tuple[str, str, str]) -> list[str]:
    """Tell below ``low``, between, above ``high``."""
    return [words[0] if value < low else words[2] if value > high else words[1] for value in values]


def ema(values: pd.Series, span: int) -> pd.Series:
    return values.ewm(span=span).mean()


def macd_words(bars: pd.DataFrame) -> list[str]:
    line = ema(bars.close, 12) - ema(bars.close, 26)
    up = list(line - ema(line, 9) > 0)
    crossed = [before != today for before, today in zip([False, *up], up, strict=False)]
    return [("bearish", "bullish")[up] + (" (CROSSOVER)" * cross) for up, cross in zip(up, crossed, strict=True)]


def trend_words(bars: pd.DataFrame) -> list[str]:
    trend = ema(bars.close, 10) / ema(bars.close, 30) - 1
    return three_words(trend, -0.005, 0.005, ("bearish", "sideways", "bullish"))


def regime_words(bars: pd.DataFrame) -> list[str]:
    return three_words(ema(bars.close, 50) / ema(bars.close, 200) - 1, -0.01, 0.01, ("bear", "sideways", "bull"))


def bollinger_words(bars: pd.DataFrame) -> list[str]:
    upper, middle, lower = talib.BBANDS(bars.close, 20, 2.0, 2.0)
    places = [bars.close > upper, bars.close < lower, bars.close >= middle]
    return list(np.select(places, ["above_upper", "below_lower", "above_middle"], "below_middle"))


def volatility_words(bars: pd.DataFrame) -> list[str]:
    annualised = np.log(bars.close).diff().rolling(20).std() * math.sqrt(252)
    return three_words(annualised, 0.15, 0.35, ("low", "moderate", "high"))


PATTERNS = ["bullish_engulfing", "bearish_engulfing", "shooting_star", "hammer", "doji"]
"""The stronger first."""


def patterns(bars: pd.DataFrame) -> list[pd.Series]:
    """Where each pattern is."""
    prices = (bars.open, bars.high, bars.low, bars.close)
    engulfing, others = talib.CDLENGULFING(*prices), (talib.CDLSHOOTINGSTAR, talib.CDLHAMMER, talib.CDLDOJI)
    return [engulfing > 0, engulfing < 0, *(found(*prices) != 0 for found in others)]


def candle_words(bars: pd.DataFrame) -> list[str]:
    return list(np.select(patterns(bars), PATTERNS, "none"))


def gap_words(bars: pd.DataFrame) -> list[str]:
    return three_words(bars.open / bars.close.shift() - 1, -0.01, 0.01, ("down", "none", "up"))


def range_words(bars: pd.DataFrame) -> list[str]:
    day_range = bars.high - bars.low
    expansion = day_range / day_range.rolling(20).mean()
    return ["wide" if value >= 1.5 else "narrow" if value <= 0.5 else "normal" for value in expansion]


REFERENCES = {
    "macd_state": macd_words,
    "trend_state": trend_words,
    "bollinger_zone": bollinger_words,
    "volatility_level": volatility_words,
    "regime_state": regime_words,
    "candle": candle_words,
    "gap_state": gap_words,
    "range_state": range_words,
}


@pytest.mark.parametrize("name", STATES)
def test_state_is_the_word_told_day_by_day(ohlcv: Tensor, name: str) -> None:
    codes = compute(ohlcv, name)
    settled = max(warmup_of([name]), 11)  # TA-Lib starts its candlesticks at day 11
    seen = set()
    for path, symbol, bars in frames(ohlcv):
        words = list(labels_of(name, codes[path, settled:, symbol]))
        assert words == REFERENCES[name](bars)[settled:]
        seen |= set(words)
    assert seen == set(LABELS[name].values())


def last_value(name: str, bars: list[list[float]]) -> float:
    """Value on the last of these bars of one symbol."""
    return float(INDICATORS[name].function(torch.tensor(bars, dtype=torch.float64)[None, :, None])[0, -1])


EDGES = {
    "rsi_14": [(0.0, "oversold"), (29.99, "oversold"), (30.0, "neutral"), (70.0, "neutral"), (70.01, "overbought")],
    "volume_ratio_20": [(0.79, "low"), (0.8, "normal"), (1.19, "normal"), (1.2, "high"), (20.0, "high")],
    "momentum_10": [(-0.011, "down"), (-0.01, "flat"), (0.01, "flat"), (0.011, "up")],
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_words_of_numbers_on_scalars_arrays_and_tensors(name: str) -> None:
    """In float64 and in float32, as the tape holds them."""
    values, words = zip(*EDGES[name], strict=True)
    codes = [{word: code for code, word in LABELS[name].items()}[word] for word in words]
    assert [labels_of(name, value) for value in values] == list(words)
    assert [LEVELS[name](value) for value in values] == codes
    for dtype in (np.float32, np.float64):
        array = np.array(values, dtype=dtype)
        assert labels_of(name, array[None]).tolist() == [list(words)]
        assert [labels_of(name, float(value)) for value in array] == list(words)
        assert LEVELS[name](torch.from_numpy(array)).tolist() == codes


def test_words_at_thresholds_and_for_codes_alone() -> None:
    """19 days of range 37 and one of 57 have a mean of 38, two thirds of 57; 39 and 19 a mean of twice 19."""
    for before, today, word in ((37, 57, "wide"), (37, 56, "normal"), (39, 19, "narrow"), (39, 20, "normal")):
        bars = [[100.0, 100.0 + day_range, 100.0, 100.0, 1.0] for day_range in [before] * 19 + [today]]
        assert labels_of("range_state", last_value("range_state", bars)) == word
    # A hammer that is a shooting star, too.
    bars = [[100.0, 104.0, 100.0, 104.0, 1.0]] * 10 + [[100.0] * 4 + [1.0], [100.3, 100.5, 100.1, 100.3, 1.0]]
    assert last_value("hammer", bars) == last_value("shooting_star", bars) == 1.0
    assert labels_of("candle", last_value("candle", bars)) == "shooting_star"
    assert tuple(LABELS) == TIER_FEATURES[1:] and set(LEVELS) == set(EDGES)
    for words in LABELS.values():
        assert list(words) == sorted(words) and len(set(words.values())) == len(words)
    for name, values, words in (
        ("macd", 0.0, r"'macd' has no labels; rsi_14, macd_state"),
        ("macd_state", np.array([1.0, 0.0]), r"macd_state cannot be 0\.0.*bullish"),
        ("candle", 6.0, r"candle cannot be 6\.0"),
        ("rsi_14", math.nan, "rsi_14 cannot be nan"),
    ):
        with pytest.raises(ValueError, match=words):
            labels_of(name, values)
