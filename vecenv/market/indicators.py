"""Technical indicators of daily bars, in batch over the days of all symbols and paths at once.

An indicator is a plain function of bars (P, T, K, 5) that returns values (P, T, K) and reads no bar
after the day of the value. ``compute_indicators`` handles different listing days: it shifts each
symbol's first bar to day 0, calls the functions, and shifts the values back.

Warm-up: a window indicator is valid once its window is full. An exponential mean has normalised
weights and is valid after its span, 2/alpha - 1 bars (N for EMA(N), 2N - 1 for Wilder's average
over N): earlier bars of a longer history would then weigh less than e⁻² = 13.5%.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

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


_WINDOW = r"([1-9]\d{0,3})"

PATTERNS: dict[str, Callable[..., Indicator]] = {
    "rsi_N": lambda n: Indicator(partial(numbers.relative_strength_index, window=n), 2 * n - 1, scale=1 / 64),
    "cci_N": lambda n: Indicator(partial(numbers.commodity_channel_index, window=n), n - 1, scale=1 / 128),
    "dx_N": lambda n: Indicator(partial(numbers.directional_index, window=n), 2 * n - 1, scale=1 / 32),
    "close_N_sma": lambda n: Indicator(partial(numbers.close_mean, window=n), n - 1, price_unit=True),
    "momentum_N": lambda n: Indicator(partial(numbers.momentum, window=n), n, scale=_by_root(64.0, n)),
    "volatility_N": lambda n: Indicator(partial(numbers.volatility, window=n), n, scale=4, annual=True),
    "bollinger_N": lambda n: Indicator(partial(numbers.bollinger_position, window=n), n - 1),
    "volume_ratio_N": lambda n: Indicator(partial(numbers.volume_ratio, window=n), n - 1),
    "range_expansion_N": lambda n: Indicator(partial(numbers.range_expansion, window=n), n - 1),
    "trend_N_M": lambda fast, slow: Indicator(
        partial(numbers.exponential_trend, fast=fast, slow=slow), max(fast, slow) - 1, scale=_by_root(32.0, slow / 30)
    ),
}
"""Indicators of any windows N and M, up to 9,999 bars, by the form of their names."""

LEAST_WINDOW = {"volatility_N": 2, "bollinger_N": 2}
"""Least window of the patterns whose deviation needs several bars; of others it is 1."""


def _by_root(scale: float, bars: float) -> float:
    """Return the power of two nearest to what a scale is for a return over so many bars, by the square root of time."""
    return 2.0 ** round(math.log2(scale / math.sqrt(bars)))


@cache
def _of_pattern(name: str) -> Indicator | None:
    for form, made in PATTERNS.items():
        windows = re.fullmatch(re.sub("[NM]", lambda _: _WINDOW, form), name)
        if windows is not None:
            given = [int(window) for window in windows.groups()]
            return made(*given) if min(given) >= LEAST_WINDOW.get(form, 1) else None
    return None


def _all_of_patterns(*names: str) -> dict[str, Indicator]:
    return {name: made for name in names if (made := _of_pattern(name)) is not None}


INDICATORS: dict[str, Indicator] = {
    "macd": Indicator(numbers.macd, 25, price_unit=True, scale=64),
    "boll_ub": Indicator(partial(numbers.bollinger_band, window=20, width=2.0), 19, price_unit=True),
    "boll_lb": Indicator(partial(numbers.bollinger_band, window=20, width=-2.0), 19, price_unit=True),
    **_all_of_patterns("rsi_30", "cci_30", "dx_30", "close_30_sma", "close_60_sma"),
    "daily_change": Indicator(partial(numbers.momentum, window=1), 1, scale=64),
    **_all_of_patterns("rsi_14"),
    "macd_signal": Indicator(numbers.macd_signal, 33, price_unit=True, scale=64),
    "macd_hist": Indicator(numbers.macd_histogram, 33, price_unit=True, scale=128),
    "bollinger_position": Indicator(partial(numbers.bollinger_position, window=20), 19),
    **_all_of_patterns("volume_ratio_20", "trend_10_30", "volatility_20", "momentum_10"),
    "doji": Indicator(candles.doji, 10),
    "hammer": Indicator(candles.hammer, 10),
    "shooting_star": Indicator(candles.shooting_star, 10),
    "bullish_engulfing": Indicator(candles.bullish_engulfing, 1),
    "bearish_engulfing": Indicator(candles.bearish_engulfing, 1),
    "gap": Indicator(numbers.opening_gap, 1, scale=128),
    **_all_of_patterns("range_expansion_20"),
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
"""Indicators with names of their own; others are of `PATTERNS`, or registered."""


_registered: dict[str, Indicator] = {}


def indicator_named(name: str) -> Indicator | None:
    """Return an indicator, of this module, of `PATTERNS` or registered; None if there is none of the name."""
    return INDICATORS.get(name) or _registered.get(name) or _of_pattern(name)


def indicator_names() -> list[str]:
    """Return the names of all indicators, and the forms of the names of others."""
    return [*INDICATORS, *_registered, *PATTERNS]


def register_indicator(name: str, function: Callable[..., Tensor], warmup: int, **options: Any) -> Indicator:  # noqa: ANN401
    """Add an indicator under a name, in this process, and return it.

    It is called on random bars first: a value that changes when a later bar does would show the agent the future.

    Args:
        name: the name of a feature in Python, such as ``close_to_high``.
        function: maps bars (P, T, K, 5), float64, each symbol listed from day 0, to values (P, T, K).
        warmup: leading bars of a symbol whose values are not valid.
        **options: ``price_unit``, ``scale`` and ``annual`` of `Indicator`.

    Raises:
        ValueError: the name is taken or none, or the function returns another shape, values that are not finite after
            the warm-up, or values that depend on later bars, on other symbols or on other paths.
    """
    if not name.isidentifier() or indicator_named(name) is not None:
        raise ValueError(f"an indicator cannot be named {name!r}: it is taken, or no name")
    if warmup < 0:
        raise ValueError(f"the warm-up of {name!r} must be at least 0, got {warmup}")
    made = Indicator(function, warmup, **options)
    _check_causal(name, made)
    _registered[name] = made
    return made


CHECKED_BARS = 64
"""Bars after the warm-up on which a registered indicator is checked."""


def _check_causal(name: str, indicator: Indicator) -> None:
    def values(bars: Tensor) -> Tensor:
        found = indicator.function(bars.clone(), **({"year": EXCHANGE_DAYS} if indicator.annual else {}))
        if not isinstance(found, Tensor) or found.shape != bars.shape[:3]:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"indicator {name!r} must return {tuple(bars.shape[:3])} for {tuple(bars.shape)}, got {shape}"
            )
        return found[:, indicator.warmup :].double()

    bars = _random_bars(indicator.warmup + CHECKED_BARS)
    whole = values(bars)
    if not whole.isfinite().all():
        day = int((~whole.isfinite()).any(-1).any(0).nonzero()[0])
        raise ValueError(f"indicator {name!r} is not finite on bar {indicator.warmup + day}, after its warm-up")
    later = _random_bars(indicator.warmup + CHECKED_BARS, seed=1)
    for kept in range(1, CHECKED_BARS, 7):
        changed = torch.cat([bars[:, : indicator.warmup + kept], later[:, indicator.warmup + kept :]], dim=1)
        seen = (values(changed)[:, :kept] != whole[:, :kept]).any(-1).any(0).nonzero()
        if len(seen):
            raise ValueError(
                f"indicator {name!r} looks ahead: its value of bar {indicator.warmup + int(seen[0])} changes "
                f"with the bars from {indicator.warmup + kept} on"
            )
    alone = values(bars[1:, :, 1:2])
    if not torch.allclose(alone, whole[1:, :, 1:2], rtol=1e-9, atol=1e-12):
        raise ValueError(f"indicator {name!r} of a symbol depends on other symbols or paths")


def _random_bars(days: int, seed: int = 0) -> Tensor:
    """Return bars of three symbols on two paths. Shape: (2, days, 3, 5), float64."""
    random = torch.Generator().manual_seed(seed)

    def normal(*last: int) -> Tensor:
        return torch.randn(2, days, 3, *last, generator=random, dtype=torch.float64)

    close = 50.0 * (0.02 * normal()).cumsum(1).exp()
    open_ = close * (0.01 * normal()).exp()
    wicks = (0.01 * normal(2).abs()).exp()
    high, low = torch.maximum(close, open_) * wicks[..., 0], torch.minimum(close, open_) / wicks[..., 1]
    return torch.stack([open_, high, low, close, 1e5 * normal().exp()], dim=-1)


def compute_indicators(ohlcv: Tensor, first: Tensor, names: Sequence[str], year: float = EXCHANGE_DAYS) -> Tensor:
    """Compute indicators of all symbols on all days, from bars up to the day.

    Args:
        ohlcv: bars without NaN from each symbol's first bar on (gaps filled with flat bars); earlier
            entries are not read. Shape: (P, T, K, 5).
        first: day of each symbol's first bar, int64; T if it never lists. Shape: (P, K).
        names: I names that `indicator_named` knows.
        year: bars of a year.

    Returns:
        float64, NaN until the end of a symbol's warm-up. Shape: (P, T, K, I).

    Raises:
        ValueError: a name is unknown or the shapes do not fit.
    """
    found = [indicator_named(name) for name in names]
    unknown = [name for name, indicator in zip(names, found, strict=True) if indicator is None]
    if unknown:
        raise ValueError(f"unknown indicators {', '.join(unknown)}; there are {', '.join(indicator_names())}")
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
    for i, indicator in enumerate(filter(None, found)):
        values = indicator.function(aligned, **({"year": year} if indicator.annual else {}))
        values = values.gather(1, bar_of_day.clamp(min=0))
        features[..., i] = values.masked_fill(bar_of_day < indicator.warmup, torch.nan)
    return features
