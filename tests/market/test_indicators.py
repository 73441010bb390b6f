"""Indicators against stockstats, TA-Lib and pandas; listings, causality, warm-up and flat prices."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import stockstats
import talib
import torch

from tests.market.random_bars import DAYS, PATHS, SYMBOLS, compute, frames, listed_from_start, random_bars, warmup_of
from vecenv.market.indicators import FINRL_INDICATORS, INDICATORS, compute_indicators
from vecenv.market.state_indicators import TIER_FEATURES

ALL = tuple(INDICATORS)
SPANS = {
    "macd": 26, "macd_signal": 26 + 9 - 1, "macd_hist": 26 + 9 - 1, "rsi_30": 1 + 59, "dx_30": 1 + 59,
    "rsi_14": 1 + 27, "trend_10_30": 30, "regime_50_200": 200,
    "macd_state": 1 + 26 + 9 - 1, "trend_state": 30, "regime_state": 200,
}  # fmt: skip
"""Bars that the exponential means span; a mean of changes or a change of the mean needs one bar more."""


def bollinger_position(bars: pd.DataFrame) -> pd.Series:
    upper, _, lower = talib.BBANDS(bars.close, 20, 2.0, 2.0)
    return (bars.close - lower) / (upper - lower)


def ema_ratio(bars: pd.DataFrame, fast: int, slow: int) -> pd.Series:
    return bars.close.ewm(span=fast).mean() / bars.close.ewm(span=slow).mean() - 1.0


def pattern(function: Callable, bars: pd.DataFrame) -> pd.Series:
    return function(bars.open, bars.high, bars.low, bars.close)


STOCKSTATS = {
    **dict(zip(FINRL_INDICATORS, FINRL_INDICATORS, strict=True)),
    "macd_signal": "macds",
    "macd_hist": "macdh",
}
REFERENCES: dict[str, Callable[[pd.DataFrame], pd.Series]] = {
    **{name: lambda bars, column=column: stockstats.wrap(bars)[column] for name, column in STOCKSTATS.items()},
    "bollinger_position": bollinger_position,
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
    settled = max(INDICATORS[name].warmup, 11)  # TA-Lib starts its candlesticks at day 11
    for path, symbol, bars in frames(ohlcv):
        expected = REFERENCES[name](bars)
        told = expected.to_numpy()[settled:].astype(float)
        np.testing.assert_allclose(values[path, settled:, symbol], told, rtol=1e-9, atol=1e-9)
    if expected.dtype == bool:
        assert set(np.unique(values[:, settled:])) == {0.0, 1.0}


@pytest.mark.parametrize("name", ALL)
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


@pytest.mark.parametrize("day", [30, 250, 600])
def test_bars_after_a_day_change_nothing_up_to_it(day: int) -> None:
    ohlcv, other = random_bars(seed=6), random_bars(seed=7)
    first = torch.tensor([[0, 20, 240], [37, 1, DAYS]])
    changed = ohlcv.clone()
    changed[:, day + 1 :] = other[:, day + 1 :] * 3.0
    changed[:, -1] = math.nan
    before, after = (compute_indicators(bars, first, ALL) for bars in (ohlcv, changed))
    torch.testing.assert_close(after[:, : day + 1], before[:, : day + 1], rtol=0.0, atol=0.0, equal_nan=True)
    assert not torch.equal(after[:, day + 1 :].nan_to_num(), before[:, day + 1 :].nan_to_num())


def test_names_shapes_and_types() -> None:
    """Columns follow the names; a history may be shorter than every window; what does not fit is refused."""
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
        (lambda: compute_indicators(ohlcv, first, ["rsi_14", "rsi_15"]), r"unknown indicators rsi_15; .*rsi_14"),
        (lambda: compute_indicators(ohlcv[..., :4], first, ["gap"]), r"\(2, 60, 3, 4\)"),
        (lambda: compute_indicators(ohlcv, first[:, :2], ["gap"]), r"\(2, 2\)"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


FLAT_VALUES = {
    "macd": 0.0, "boll_ub": 103.3, "boll_lb": 103.3, "rsi_30": 50.0, "cci_30": 0.0, "dx_30": 0.0,
    "close_30_sma": 103.3, "close_60_sma": 103.3, "rsi_14": 50.0, "macd_signal": 0.0, "macd_hist": 0.0,
    "bollinger_position": 0.5, "volume_ratio_20": 1.0, "trend_10_30": 0.0, "volatility_20": 0.0,
    "momentum_10": 0.0, "doji": 1.0, "hammer": 0.0, "shooting_star": 0.0, "bullish_engulfing": 0.0,
    "bearish_engulfing": 0.0, "gap": 0.0, "range_expansion_20": 1.0, "regime_50_200": 0.0,
    "daily_change": 0.0, "macd_state": -1.0, "trend_state": 0.0, "bollinger_zone": 1.0, "volatility_level": 0.0,
    "regime_state": 0.0, "candle": 1.0, "gap_state": 0.0, "range_state": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_flat_prices_without_volume(name: str) -> None:
    ohlcv = torch.full((1, 400, 2, 5), 103.3, dtype=torch.float64)
    ohlcv[..., 4] = 0.0
    values = compute(ohlcv, name)[:, INDICATORS[name].warmup :]
    np.testing.assert_allclose(values, FLAT_VALUES[name], rtol=1e-13, atol=0.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_same_on_gpu() -> None:
    ohlcv = random_bars(seed=14)
    first = torch.tensor([[0, 20, 240], [37, 1, DAYS]])
    values = compute_indicators(ohlcv.cuda(), first.cuda(), ALL)
    assert values.is_cuda
    torch.testing.assert_close(
        values.cpu(), compute_indicators(ohlcv, first, ALL), rtol=1e-9, atol=1e-9, equal_nan=True
    )
