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


def three_words(value: float, low: float, high: float, words: tuple[str, str, str]) -> str:
    """Tell below ``low``, between, above ``high``."""
    if value < low:
        return words[0]
    return words[2] if value > high else words[1]


def ema(values: pd.Series, span: int) -> pd.Series:
    return values.ewm(span=span).mean()


def macd_words(bars: pd.DataFrame) -> list[str]:
    line = ema(bars.close, 12) - ema(bars.close, 26)
    histogram = list(line - ema(line, 9))
    told = []
    for before, today in zip([math.nan, *histogram], histogram, strict=False):
        crossed = (before > 0) != (today > 0)
        told.append(("bullish" if today > 0 else "bearish") + (" (CROSSOVER)" if crossed else ""))
    return told


def trend_words(bars: pd.DataFrame) -> list[str]:
    trend = ema(bars.close, 10) / ema(bars.close, 30) - 1
    return [three_words(value, -0.005, 0.005, ("bearish", "sideways", "bullish")) for value in trend]


def regime_words(bars: pd.DataFrame) -> list[str]:
    trend = ema(bars.close, 50) / ema(bars.close, 200) - 1
    return [three_words(value, -0.01, 0.01, ("bear", "sideways", "bull")) for value in trend]


def bollinger_words(bars: pd.DataFrame) -> list[str]:
    told = []
    for close, upper, middle, lower in zip(bars.close, *talib.BBANDS(bars.close, 20, 2.0, 2.0), strict=True):
        if close > upper:
            told.append("above_upper")
        elif close < lower:
            told.append("below_lower")
        else:
            told.append("above_middle" if close >= middle else "below_middle")
    return told


def volatility_words(bars: pd.DataFrame) -> list[str]:
    annualised = np.log(bars.close).diff().rolling(20).std() * math.sqrt(252)
    return [three_words(value, 0.15, 0.35, ("low", "moderate", "high")) for value in annualised]


def candle_words(bars: pd.DataFrame) -> list[str]:
    prices = (bars.open, bars.high, bars.low, bars.close)
    told = []
    for engulfing, star, hammer, doji in zip(
        talib.CDLENGULFING(*prices),
        talib.CDLSHOOTINGSTAR(*prices),
        talib.CDLHAMMER(*prices),
        talib.CDLDOJI(*prices),
        strict=True,
    ):
        if engulfing:
            told.append("bullish_engulfing" if engulfing > 0 else "bearish_engulfing")
        elif star:
            told.append("shooting_star")
        elif hammer:
            told.append("hammer")
        else:
            told.append("doji" if doji else "none")
    return told


def gap_words(bars: pd.DataFrame) -> list[str]:
    gap = bars.open / bars.close.shift() - 1
    return [three_words(value, -0.01, 0.01, ("down", "none", "up")) for value in gap]


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


@pytest.mark.parametrize(
    ("before", "today", "word"), [(37, 57, "wide"), (37, 56, "normal"), (39, 19, "narrow"), (39, 20, "normal")]
)
def test_range_on_the_threshold_is_beyond_it(before: float, today: float, word: str) -> None:
    """19 days of range 37 and one of 57 have a mean of 38, two thirds of 57; 39 and 19 a mean of twice 19."""
    bars = [[100.0, 100.0 + day_range, 100.0, 100.0, 1.0] for day_range in [before] * 19 + [today]]
    assert labels_of("range_state", last_value("range_state", bars)) == word


@pytest.mark.parametrize(
    ("patterns", "last_two", "word"),
    [
        (["hammer", "shooting_star"], [[100.0, 100.0, 100.0, 100.0], [100.3, 100.5, 100.1, 100.3]], "shooting_star"),
        (["doji", "shooting_star"], [[100.0, 100.0, 100.0, 100.0], [100.3, 101.0, 100.2, 100.3]], "shooting_star"),
        (["doji", "hammer"], [[100.0, 101.0, 100.0, 101.0], [100.5, 100.6, 99.0, 100.5]], "hammer"),
        (["doji", "bullish_engulfing"], [[100.0, 102.0, 98.0, 99.9], [99.8, 102.0, 98.0, 100.1]], "bullish_engulfing"),
        (["hammer", "bearish_engulfing"], [[100.0, 101, 99.5, 100.1], [100.2, 100.3, 97.0, 99.9]], "bearish_engulfing"),
    ],
)  # fmt: skip
def test_of_two_patterns_on_a_day_the_stronger_stands(
    patterns: list[str], last_two: list[list[float]], word: str
) -> None:
    days = [[*prices, 1.0] for prices in [[100.0, 104.0, 100.0, 104.0]] * 10 + last_two]
    assert [last_value(pattern, days) for pattern in patterns] == [1.0, 1.0]
    assert labels_of("candle", last_value("candle", days)) == word


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
        assert [labels_of(name, value) for value in array] == list(words)
        assert [labels_of(name, float(value)) for value in array] == list(words)
        assert LEVELS[name](torch.from_numpy(array)).tolist() == codes


def test_words_exist_for_codes_alone() -> None:
    assert tuple(LABELS) == TIER_FEATURES[1:] and set(LEVELS) == set(EDGES)
    for words in LABELS.values():
        assert list(words) == sorted(words) and len(set(words.values())) == len(words)
    with pytest.raises(ValueError, match=r"'macd' has no labels; rsi_14, macd_state"):
        labels_of("macd", 0.0)
    with pytest.raises(ValueError, match=r"macd_state cannot be 0\.0.*bullish"):
        labels_of("macd_state", np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"candle cannot be 6\.0"):
        labels_of("candle", 6.0)
    with pytest.raises(ValueError, match=r"rsi_14 cannot be nan"):
        labels_of("rsi_14", math.nan)
