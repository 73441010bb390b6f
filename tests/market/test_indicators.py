"""Indicators and their words against stockstats, TA-Lib and pandas; listings, causality, warm-up and flat prices."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import stockstats
import talib
import torch
from torch import Tensor

from vecenv.market import indicators
from vecenv.market.feature_names import FINRL_INDICATORS, TIER_FEATURES
from vecenv.market.indicators import INDICATORS, compute_indicators, indicator_named, register_indicator
from vecenv.market.number_indicators import momentum
from vecenv.market.state_indicators import LABELS, LEVELS, labels_of

PATHS, DAYS, SYMBOLS = 2, 700, 3
COLUMNS = ["open", "high", "low", "close", "volume"]


def random_bars(seed: int, paths: int = PATHS, days: int = DAYS, symbols: int = SYMBOLS) -> Tensor:
    """Random walks with opening gaps, bars without body and carried days, on a grid of exact fractions."""
    generator = np.random.default_rng(seed)
    shape = (paths, days, symbols)
    close = 100.0 * np.exp(np.cumsum(generator.normal(0.0, 0.02, shape), axis=1))
    close_before = np.concatenate([close[:, :1], close[:, :-1]], axis=1)
    open_ = np.where(generator.random(shape) < 0.1, close, close_before * generator.normal(1.0, 0.008, shape))
    shadow = generator.exponential(0.004, (2, *shape)) * (generator.random((2, *shape)) < 0.7)
    high = np.maximum(open_, close) * (1.0 + shadow[0])
    low = np.minimum(open_, close) * (1.0 - shadow[1])
    prices = np.round(np.stack([open_, high, low, close], -1) * 64.0) / 64.0
    volume = generator.integers(0, 10**6, shape).astype(float)
    for path, day, symbol in np.argwhere(generator.random(shape) < 0.02):
        if day > 0:
            prices[path, day, symbol] = prices[path, day - 1, symbol, 3]
            volume[path, day, symbol] = 0.0
    return torch.from_numpy(np.concatenate([prices, volume[..., None]], -1))


def listed_from_start(ohlcv: Tensor) -> Tensor:
    return torch.zeros(ohlcv.shape[0], ohlcv.shape[2], dtype=torch.int64)


def compute(ohlcv: Tensor, name: str) -> np.ndarray:
    """One indicator of symbols that are listed from day 0. Shape: (P, T, K)."""
    return compute_indicators(ohlcv, listed_from_start(ohlcv), [name])[..., 0].numpy()


def frames(ohlcv: Tensor) -> list[tuple[int, int, pd.DataFrame]]:
    """(path, symbol, bars) of each symbol of each path."""
    return [
        (path, symbol, pd.DataFrame(ohlcv[path, :, symbol].numpy(), columns=COLUMNS))
        for path in range(ohlcv.shape[0])
        for symbol in range(ohlcv.shape[2])
    ]


def warmup_of(names: Sequence[str]) -> int:
    """The longest warm-up of some indicators, in bars."""
    return max((indicator_named(name).warmup for name in names), default=0)


ALL = tuple(INDICATORS)
OTHERS = ("rsi_21", "cci_21", "dx_21", "close_7_sma", "momentum_60", "volatility_15", "bollinger_12", "volume_ratio_5")
OTHERS += ("range_expansion_9", "trend_5_50")
"""One of each pattern, with windows that no other indicator has."""
SPANS = {
    "macd": 26, "macd_signal": 26 + 9 - 1, "macd_hist": 26 + 9 - 1, "rsi_30": 1 + 59, "dx_30": 1 + 59,
    "rsi_14": 1 + 27, "trend_10_30": 30, "regime_50_200": 200,
    "macd_state": 1 + 26 + 9 - 1, "trend_state": 30, "regime_state": 200,
    "rsi_21": 1 + 41, "dx_21": 1 + 41, "trend_5_50": 50,
}  # fmt: skip
"""Bars that the exponential means span; a mean of changes or a change of the mean needs one bar more."""


def bollinger_position(bars: pd.DataFrame, window: int = 20) -> pd.Series:
    upper, _, lower = talib.BBANDS(bars.close, window, 2.0, 2.0)
    return (bars.close - lower) / (upper - lower)


def ema(values: pd.Series, span: int) -> pd.Series:
    return values.ewm(span=span).mean()


def ema_ratio(bars: pd.DataFrame, fast: int, slow: int) -> pd.Series:
    return ema(bars.close, fast) / ema(bars.close, slow) - 1.0


def pattern(function: Callable, bars: pd.DataFrame) -> pd.Series:
    return function(bars.open, bars.high, bars.low, bars.close)


STOCKSTATS = {name: name for name in (*FINRL_INDICATORS, *OTHERS[:4])} | {"macd_signal": "macds", "macd_hist": "macdh"}
REFERENCES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    **{name: lambda bars, column=column: stockstats.wrap(bars)[column] for name, column in STOCKSTATS.items()},
    "bollinger_position": bollinger_position,
    "momentum_60": lambda bars: talib.ROCP(bars.close, 60),
    "volatility_15": lambda bars: np.log(bars.close).diff().rolling(15).std() * np.sqrt(252),
    "bollinger_12": lambda bars: bollinger_position(bars, 12),
    "volume_ratio_5": lambda bars: bars.volume / bars.volume.rolling(5).mean(),
    "range_expansion_9": lambda bars: (bars.high - bars.low) / (bars.high - bars.low).rolling(9).mean(),
    "trend_5_50": lambda bars: ema_ratio(bars, 5, 50),
    "volume_ratio_20": lambda bars: bars.volume / bars.volume.rolling(20).mean(),
    "trend_10_30": lambda bars: ema_ratio(bars, 10, 30),
    "volatility_20": lambda bars: np.log(bars.close).diff().rolling(20).std() * np.sqrt(252),
    "momentum_10": lambda bars: talib.ROCP(bars.close, 10),
    "daily_change": lambda bars: bars.close.pct_change(),
    "doji": lambda bars: pattern(talib.CDLDOJI, bars) != 0,
    "hammer": lambda bars: pattern(talib.CDLHAMMER, bars) != 0,
    "shooting_star": lambda bars: pattern(talib.CDLSHOOTINGSTAR, bars) != 0,
    "bullish_engulfing": lambda bars: pattern(talib.CDLENGULFING, bars) > 0,
    "bearish_engulfing": lambda bars: pattern(talib.CDLENGULFING, bars) < 0,
    "gap": lambda bars: bars.open / bars.close.shift() - 1.0,
    "range_expansion_20": lambda bars: (bars.high - bars.low) / (bars.high - bars.low).rolling(20).mean(),
    "regime_50_200": lambda bars: ema_ratio(bars, 50, 200),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_equals_stockstats_talib_or_pandas(name: str) -> None:
    ohlcv = random_bars(seed=3)
    values = compute(ohlcv, name)
    settled = max(warmup_of([name]), 11)  # TA-Lib starts its candlesticks at day 11
    for path, symbol, bars in frames(ohlcv):
        expected = REFERENCES[name](bars)
        told = expected.to_numpy()[settled:].astype(float)
        np.testing.assert_allclose(values[path, settled:, symbol], told, rtol=1e-9, atol=1e-9)
    if expected.dtype == bool:
        assert set(np.unique(values[:, settled:])) == {0.0, 1.0}


@pytest.mark.parametrize("name", (*ALL, *OTHERS))
def test_late_listing_equals_symbol_alone(name: str) -> None:
    """NaN exactly in its warm-up, after which longer histories change nothing, or an exponential mean spans as much."""
    ohlcv, warmup = random_bars(seed=5), warmup_of([name])
    first = torch.tensor([[0, 100, 450], [37, 1, DAYS]])
    expected = torch.full(ohlcv.shape[:-1], math.nan, dtype=torch.float64)
    whole = compute(ohlcv, name)
    for path, symbol in torch.cartesian_prod(torch.arange(PATHS), torch.arange(SYMBOLS)).tolist():
        start = int(first[path, symbol])
        if start < DAYS:
            alone = compute(ohlcv[path : path + 1, start:, symbol : symbol + 1].clone(), name)[0, :, 0]
            expected[path, start:, symbol] = torch.from_numpy(alone)
            assert np.isnan(alone[:warmup]).all() and np.isfinite(alone[warmup:]).all()
            if name not in SPANS:
                np.testing.assert_allclose(alone[warmup:], whole[path, start + warmup :, symbol], rtol=1e-9, atol=1e-9)
        ohlcv[path, :start, symbol] = math.nan
    assert warmup == SPANS.get(name, warmup + 1) - 1
    values = compute_indicators(ohlcv, first, [name])[..., 0]
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_bars_after_a_day_change_nothing_up_to_it():
    for day in (30, 250, 600):
        ohlcv, other = random_bars(seed=6), random_bars(seed=7)
        first = torch.tensor([[0, 20, 240], [37, 1, DAYS]])
        changed = ohlcv.clone()
        changed[:, day + 1 :] = other[:, day + 1 :] * 3.0
        changed[:, -1] = math.nan
        before, after = (compute_indicators(bars, first, (*ALL, *OTHERS)) for bars in (ohlcv, changed))
        torch.testing.assert_close(after[:, : day + 1], before[:, : day + 1], rtol=0.0, atol=0.0, equal_nan=True)
        assert not torch.equal(after[:, day + 1 :].nan_to_num(), before[:, day + 1 :].nan_to_num())


FLAT_VALUES = {
    "macd": 0.0, "boll_ub": 103.3, "boll_lb": 103.3, "rsi_30": 50.0, "cci_30": 0.0, "dx_30": 0.0,
    "close_30_sma": 103.3, "close_60_sma": 103.3, "rsi_14": 50.0, "macd_signal": 0.0, "macd_hist": 0.0,
    "bollinger_position": 0.5, "volume_ratio_20": 1.0, "trend_10_30": 0.0, "volatility_20": 0.0,
    "momentum_10": 0.0, "doji": 1.0, "hammer": 0.0, "shooting_star": 0.0, "bullish_engulfing": 0.0,
    "bearish_engulfing": 0.0, "gap": 0.0, "range_expansion_20": 1.0, "regime_50_200": 0.0,
    "daily_change": 0.0, "macd_state": -1.0, "trend_state": 0.0, "bollinger_zone": 1.0, "volatility_level": 0.0,
    "regime_state": 0.0, "candle": 1.0, "gap_state": 0.0, "range_state": 0.0,
}  # fmt: skip


def test_names_shapes_types_and_flat_prices():
    """Columns follow the names; a history may be shorter than every window; prices may be flat, and without volume."""
    ohlcv = random_bars(seed=10, days=60)
    names, first = ("rsi_14", "gap", "rsi_14"), listed_from_start(ohlcv)
    values = compute_indicators(ohlcv.float(), first, names)
    assert values.shape == (PATHS, 60, SYMBOLS, 3) and values.dtype == torch.float64
    for i, name in enumerate(names):
        np.testing.assert_allclose(values[..., i].numpy(), compute(ohlcv.float(), name))
    assert compute_indicators(ohlcv[:, :1], first, ALL).isnan().all()
    assert set(FINRL_INDICATORS) | set(TIER_FEATURES) <= set(ALL)
    assert (len(set(FINRL_INDICATORS)), len(set(TIER_FEATURES))) == (8, 12)
    assert [warmup_of(each) for each in (names, FINRL_INDICATORS, TIER_FEATURES, ())] == [27, 59, 199, 0]
    for call, words in (
        (lambda: compute_indicators(ohlcv, first, ["rsi_14", "rsi_0"]), r"unknown indicators rsi_0; .*rsi_14.*rsi_N"),
        (lambda: compute_indicators(ohlcv[..., :4], first, ["gap"]), r"\(2, 60, 3, 4\)"),
        (lambda: compute_indicators(ohlcv, first[:, :2], ["gap"]), r"\(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    for name in ALL:
        ohlcv = torch.full((1, 400, 2, 5), 103.3, dtype=torch.float64)
        ohlcv[..., 4] = 0.0
        values = compute(ohlcv, name)[:, INDICATORS[name].warmup :]
        np.testing.assert_allclose(values, FLAT_VALUES[name], rtol=1e-13, atol=0.0)


def test_names_of_patterns():
    forms = {re.sub(r"\d+", "M", re.sub(r"\d+", "N", name, count=1)) for name in OTHERS}
    assert forms == {*indicators.PATTERNS}, "each is tested"
    scales = [indicator_named(f"momentum_{window}").scale for window in (1, 10, 60, 250)]
    assert scales == [INDICATORS["daily_change"].scale, 16.0, 8.0, 4.0]
    for name in (
        "rsi_",
        "rsi_0",
        "rsi_007",
        "rsi_10000",
        "volatility_1",
        "momentum_-3",
        "trend_5",
        "close_30",
        "xrsi_14",
    ):
        assert indicator_named(name) is None


WRONG: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "tomorrow": (lambda bars: torch.cat([bars[:, 1:, :, 3], bars[:, -1:, :, 3]], 1), "looks ahead"),
    "scaled_by_all": (lambda bars: bars[..., 3] / bars[..., 3].mean(1, keepdim=True), "looks ahead"),
    "rank": (lambda bars: bars[..., 3].argsort(-1).double(), "depends on other symbols"),
    "first_path": (lambda bars: bars[:1, ..., 3].expand(len(bars), -1, -1), "depends on other symbols or paths"),
    "one_day": (lambda bars: bars[:, -1, :, 3], "must return"),
    "number": (lambda bars: 1.0, "got float"),
    "too_early": (lambda bars: momentum(bars, 9), "not finite on bar 5"),
    "rsi_23": (lambda bars: bars[..., 3], "it is taken"),
    "no name": (lambda bars: bars[..., 3], "or no name"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_indicator_that_is_none_is_refused(name, monkeypatch):
    monkeypatch.setattr(indicators, "_registered", {})
    function, told = WRONG[name]
    with pytest.raises(ValueError, match=told):
        register_indicator(name, function, 5)
    assert indicators._registered == {}


def test_a_registered_indicator_is_a_feature(monkeypatch):
    monkeypatch.setattr(indicators, "_registered", {})

    def high_to_close(bars: Tensor) -> Tensor:
        return bars[..., 1] / bars[..., 3] - 1.0

    register_indicator("high_to_close", high_to_close, 0, scale=64.0)
    ohlcv = random_bars(seed=3)
    np.testing.assert_array_equal(compute(ohlcv, "high_to_close"), high_to_close(ohlcv).numpy())
    with pytest.raises(ValueError, match="it is taken"):
        register_indicator("high_to_close", high_to_close, 0)
    with pytest.raises(ValueError, match="warm-up"):
        register_indicator("other", high_to_close, -1)
    # A year of other length reaches it only if it asks for it.
    register_indicator("of_year", lambda bars, year: bars[..., 3] * year, 0, annual=True)
    values = compute_indicators(ohlcv, listed_from_start(ohlcv), ["of_year"], 365)
    torch.testing.assert_close(values[..., 0], ohlcv[..., 3] * 365)


STATES = tuple(name for name in LABELS if name not in LEVELS)


@pytest.fixture(scope="module")
def told_bars() -> Tensor:
    """Random bars of three symbols, the first calmer and the last wilder, on a grid of exact fractions."""
    bars = random_bars(seed=20)
    power = torch.tensor([0.3, 1.0, 2.0])[:, None]
    bars[..., :4] = (100.0 * (bars[..., :4] / 100.0) ** power * 1024.0).round() / 1024.0
    return bars


def three_words(name: str, low: float, high: float, words: tuple[str, str, str]) -> Callable:
    """Tell of an indicator's numbers below ``low``, between, and above ``high``."""

    def told(bars: pd.DataFrame) -> list[str]:
        numbers = REFERENCES[name](bars)
        return list(np.select([numbers < low, numbers > high], [words[0], words[2]], words[1]))

    return told


def macd_words(bars: pd.DataFrame) -> list[str]:
    line = ema(bars.close, 12) - ema(bars.close, 26)
    up = list(line - ema(line, 9) > 0)
    crossed = [before != today for before, today in zip([False, *up], up, strict=False)]
    return [("bearish", "bullish")[up] + (" (CROSSOVER)" * cross) for up, cross in zip(up, crossed, strict=True)]


def bollinger_words(bars: pd.DataFrame) -> list[str]:
    upper, middle, lower = talib.BBANDS(bars.close, 20, 2.0, 2.0)
    places = [bars.close > upper, bars.close < lower, bars.close >= middle]
    return list(np.select(places, ["above_upper", "below_lower", "above_middle"], "below_middle"))


PATTERNS = ["bullish_engulfing", "bearish_engulfing", "shooting_star", "hammer", "doji"]
"""The stronger first."""


def patterns(bars: pd.DataFrame) -> list[pd.Series]:
    prices = (bars.open, bars.high, bars.low, bars.close)
    engulfing, others = talib.CDLENGULFING(*prices), (talib.CDLSHOOTINGSTAR, talib.CDLHAMMER, talib.CDLDOJI)
    return [engulfing > 0, engulfing < 0, *(found(*prices) != 0 for found in others)]


def range_words(bars: pd.DataFrame) -> list[str]:
    expansion = REFERENCES["range_expansion_20"](bars)
    return list(np.select([expansion >= 1.5, expansion <= 0.5], ["wide", "narrow"], "normal"))


WORDS = {
    "macd_state": macd_words,
    "trend_state": three_words("trend_10_30", -0.005, 0.005, ("bearish", "sideways", "bullish")),
    "bollinger_zone": bollinger_words,
    "volatility_level": three_words("volatility_20", 0.15, 0.35, ("low", "moderate", "high")),
    "regime_state": three_words("regime_50_200", -0.01, 0.01, ("bear", "sideways", "bull")),
    "candle": lambda bars: list(np.select(patterns(bars), PATTERNS, "none")),
    "gap_state": three_words("gap", -0.01, 0.01, ("down", "none", "up")),
    "range_state": range_words,
}


@pytest.mark.parametrize("name", STATES)
def test_state_is_the_word_told_day_by_day(told_bars: Tensor, name: str) -> None:
    codes = compute(told_bars, name)
    settled = max(warmup_of([name]), 11)  # TA-Lib starts its candlesticks at day 11
    seen = set()
    for path, symbol, bars in frames(told_bars):
        words = list(labels_of(name, codes[path, settled:, symbol]))
        assert words == WORDS[name](bars)[settled:]
        seen |= set(words)
    assert seen == set(LABELS[name].values())


def last_value(name: str, bars: list[list[float]]) -> float:
    return float(INDICATORS[name].function(torch.tensor(bars, dtype=torch.float64)[None, :, None])[0, -1])


EDGES = {
    "rsi_14": [(0.0, "oversold"), (29.99, "oversold"), (30.0, "neutral"), (70.0, "neutral"), (70.01, "overbought")],
    "volume_ratio_20": [(0.79, "low"), (0.8, "normal"), (1.19, "normal"), (1.2, "high"), (20.0, "high")],
    "momentum_10": [(-0.011, "down"), (-0.01, "flat"), (0.01, "flat"), (0.011, "up")],
}  # fmt: skip


def test_words_at_thresholds_of_every_type_and_for_codes_alone():
    for name in EDGES:
        values, words = zip(*EDGES[name], strict=True)
        codes = [{word: code for code, word in LABELS[name].items()}[word] for word in words]
        assert [labels_of(name, value) for value in values] == list(words)
        assert [LEVELS[name](value) for value in values] == codes
        for dtype in (np.float32, np.float64):
            array = np.array(values, dtype=dtype)
            assert labels_of(name, array[None]).tolist() == [list(words)]
            assert [labels_of(name, float(value)) for value in array] == list(words)
            assert LEVELS[name](torch.from_numpy(array)).tolist() == codes
    # 19 days of range 37 and one of 57 have a mean of 38, two thirds of 57; 39 and 19 a mean of twice 19.
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


def test_the_page_has_every_indicator_and_its_warm_up():
    table = re.findall(r"^\| (`.*?) \| .* \| (.*?) \|$", Path("vecenv/market/indicators.md").read_text(), re.MULTILINE)
    told = {name: warm_up for names, warm_up in table for name in re.findall(r"`(\w+)`", names)}
    named = {name for name in INDICATORS if indicators._of_pattern(name) is None}
    assert {*told} == named | {*indicators.PATTERNS}
    for names, warm_ups in table:
        numbers = [int(number) for number in re.findall(r"\b\d+\b", warm_ups)] if "N" not in warm_ups else []
        for place, name in enumerate(re.findall(r"`(\w+)`", names)):
            if numbers:
                assert warmup_of([name]) == numbers[min(place, len(numbers) - 1)], name
