"""The 54 features of the market that a learner sees, with ranges and neutral values.

All are pure functions of the last 65 candles and of what is seen now. Prices are in price ticks, and are taken relative
to the newest close first: the difference of two large numbers would lose its digits in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.tasks.agent_market.config import NUM_CANDLES

LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Candles over which changes are taken."""

WILDER, BOLLINGER, SURGE = 8, 12, 16
"""Candles of Wilder's means, Bollinger bands and the mean volume."""

SHORT, LONG, SIGNAL = 8, 16, 4
"""Spans of the short and long averages, and of the MACD's signal."""


class Candles(NamedTuple):
    """The last 65 candles, newest last; prices are doubled, ``close`` is twice the mid. Shape of each: (65,), int32."""

    close: Tensor
    high: Tensor
    low: Tensor
    volume: Tensor
    trades: Tensor


class Quote(NamedTuple):
    """Best prices, 0 where there is none, and shares on the best levels. Shape of each: (), int32."""

    bid: Tensor
    ask: Tensor
    bid_size: Tensor
    ask_size: Tensor


class News(NamedTuple):
    """Active news, zeros without: sentiment in [-1, 1], magnitude in price ticks, remaining ticks. Shapes: ()."""

    sentiment: Tensor
    magnitude: Tensor
    remaining: Tensor


class Feature(NamedTuple):
    """A feature's meaning in words, its range, and ``neutral``, its value where it is undefined.

    ``scale``, divided by the price with ``of_price``, is about one over its usual size.
    """

    meaning: str
    low: float = -math.inf
    high: float = math.inf
    neutral: float = 0.0
    scale: float = 1.0
    of_price: bool = False


_PRICE = (0.0, math.inf)

FEATURES: dict[str, Feature] = {
    "mid": Feature("middle of best bid and ask", *_PRICE, of_price=True),
    **{f"change_{lag}": Feature(f"change of the mid over {lag} candles, %", -100.0, scale=2.0**6) for lag in LAGS},
    **{f"log_return_{lag}": Feature(f"log return of the mid over {lag} candles", scale=2.0**13) for lag in LAGS},
    "sma_8": Feature("mean of 8 closes", *_PRICE, of_price=True),
    "sma_16": Feature("mean of 16 closes", *_PRICE, of_price=True),
    "ema_8": Feature("exponential mean of the closes, span 8", *_PRICE, of_price=True),
    "ema_16": Feature("exponential mean of the closes, span 16", *_PRICE, of_price=True),
    "rsi_8": Feature("relative strength index, Wilder's mean over 8", 0.0, 100.0, 50.0, scale=2.0**-6),
    "macd": Feature("exponential mean of span 8 less that of span 16", scale=1e4, of_price=True),
    "macd_signal": Feature("exponential mean of the MACD, span 4", scale=1e4, of_price=True),
    "macd_histogram": Feature("MACD less its signal", scale=1e4, of_price=True),
    "bollinger_upper": Feature("mean of 12 closes and two standard deviations", of_price=True),
    "bollinger_middle": Feature("mean of 12 closes", *_PRICE, of_price=True),
    "bollinger_lower": Feature("mean of 12 closes less two standard deviations", of_price=True),
    "bollinger_position": Feature("place of the close between the bands: 0 lower, 1 upper", neutral=0.5),
    "atr_8": Feature("average true range, Wilder's mean over 8", *_PRICE, scale=1e4, of_price=True),
    "news_active": Feature("1 while there are news", 0.0, 1.0),
    "news_sentiment": Feature("1 for good news, -1 for bad", -1.0, 1.0),
    "news_magnitude": Feature("shift of the fundamental by the news", *_PRICE, scale=1e4, of_price=True),
    "news_remaining": Feature("ticks that the news last", *_PRICE, scale=2.0**-6),
    "spread": Feature("spread in basis points of the mid", *_PRICE),
    "imbalance": Feature("bids less asks over both, in shares on ten levels", -1.0, 1.0),
    "volatility_8": Feature("root mean square of 8 log returns", *_PRICE, scale=2.0**14),
    "volatility_32": Feature("root mean square of 32 log returns", *_PRICE, scale=2.0**14),
    "volatility_ratio": Feature("volatility over 8 candles by that over 32", 0.0, 2.0, 1.0),
    "deviation": Feature("mid above the public estimate of the fundamental, %", scale=2.0**4),
    "price_to_fair": Feature("mid by the public estimate of the fundamental", *_PRICE, 1.0),
    "trend_strength": Feature("distance of the exponential means by the average true range", *_PRICE),
    "rsi_centred": Feature("relative strength index less 50", -50.0, 50.0, scale=2.0**-5),
    "volume_surge": Feature("volume of the candle by the mean of the 16 before it", *_PRICE, 1.0),
    "trades": Feature("trades of the candle", *_PRICE),
    "sentiment_deviation": Feature("sentiment of the news times the deviation", scale=2.0**4),
}
"""All features in their order."""

OF_FAIR_VALUE = ("deviation", "price_to_fair", "sentiment_deviation")
"""Features that need the public estimate."""


def feature_scales(names: Iterable[str], price: float) -> list[float]:
    """Return factors that make features of order one at prices of this size, in price ticks."""
    chosen = [FEATURES[name] for name in names]
    return [power_of_two(feature.scale / (price if feature.of_price else 1.0)) for feature in chosen]


def power_of_two(size: float) -> float:
    """Return the nearest power of two, by which numbers are multiplied and read back exactly."""
    return 2.0 ** round(math.log2(size))


def feature_names(fair_value: bool) -> tuple[str, ...]:
    """Return the names of the features, with or without those of the public estimate."""
    return tuple(name for name in FEATURES if fair_value or name not in OF_FAIR_VALUE)


def features(
    candles: Candles, quote: Quote, news: News, fair: Tensor | None, doubled_mid: Tensor, weights: Tensor
) -> Tensor:
    """Return the features of one market, in the order of `feature_names`. Shape: (54,), float32.

    ``fair`` is the public estimate of the fundamental in price ticks; None leaves out what needs it, shape (51,).
    ``weights`` are `average_weights`.
    """
    last = candles.close[-1]
    close = _relative(candles.close, last)
    mid, base = doubled_mid.float() / 2, last.float() / 2
    price = (candles.close.float() / 2).clamp(min=0.5)
    changes = close[1:] - close[:-1]
    before, since = (torch.stack([part[-1 - lag] for lag in LAGS]) for part in (price, -close))
    growth, log_growth = since / before, _log_return(since, before, price[-1])
    returns = _log_return(changes, price[:-1], price[1:])

    ema_short, ema_long, signal = ((weights[row] * close).sum() for row in range(3))
    wilder = weights[3, 1:]
    macd = ema_short - ema_long
    rsi = _strength(changes, wilder)
    window = close[-BOLLINGER:]
    middle = window.mean()
    width = 2 * (window - middle).square().mean().sqrt()
    place = torch.where(width > 0, (width - middle) / (2 * width).clamp(min=1e-6), 0.5)
    true_range = _true_range(close, _relative(candles.high, last), _relative(candles.low, last))
    atr = (true_range * wilder).sum()

    quick, slow = returns[-8:].square().mean().sqrt(), returns[-32:].square().mean().sqrt()
    both = (quote.bid > 0) & (quote.ask > 0)
    # Differences of integers before the conversion.
    spread = torch.where(both, 1e4 * (quote.ask - quote.bid).float() / mid.clamp(min=0.5), 0.0)
    bids, asks = quote.bid_size.float(), quote.ask_size.float()
    volume = candles.volume.float()
    usual = volume[-1 - SURGE : -1].mean()
    trend = macd.abs()
    shown = {
        "mid": mid,
        **{f"change_{lag}": 100 * growth[place_] for place_, lag in enumerate(LAGS)},
        **{f"log_return_{lag}": log_growth[place_] for place_, lag in enumerate(LAGS)},
        "sma_8": base + close[-SHORT:].mean(),
        "sma_16": base + close[-LONG:].mean(),
        "ema_8": base + ema_short,
        "ema_16": base + ema_long,
        "rsi_8": rsi,
        "macd": macd,
        "macd_signal": signal,
        "macd_histogram": macd - signal,
        "bollinger_upper": base + middle + width,
        "bollinger_middle": base + middle,
        "bollinger_lower": base + middle - width,
        "bollinger_position": place,
        "atr_8": atr,
        "news_active": (news.remaining > 0).float(),
        "news_sentiment": news.sentiment,
        "news_magnitude": news.magnitude,
        "news_remaining": news.remaining.float(),
        "spread": spread,
        "imbalance": (bids - asks) / (bids + asks).clamp(min=1.0),
        "volatility_8": quick,
        "volatility_32": slow,
        "volatility_ratio": torch.where(slow > 0, quick / slow.clamp(min=1e-12), 1.0),
        "trend_strength": torch.where(atr > 0, trend / atr.clamp(min=1e-6), 0.0),
        "rsi_centred": rsi - 50,
        "volume_surge": torch.where(usual > 0, volume[-1] / usual.clamp(min=1e-6), 1.0),
        "trades": candles.trades[-1].float(),
    }
    if fair is not None:
        known = fair > 0
        ratio = torch.where(known, mid / fair.clamp(min=0.5), 1.0)
        deviation = torch.where(known, 100 * (mid - fair) / fair.clamp(min=0.5), 0.0)
        shown |= {"deviation": deviation, "price_to_fair": ratio, "sentiment_deviation": news.sentiment * deviation}
    return torch.stack([shown[name] for name in feature_names(fair is not None)])


def _relative(doubled: Tensor, last: Tensor) -> Tensor:
    """Return doubled prices in price ticks above the newest close. Shape: (65,), float32."""
    return (doubled.to(torch.int64) - last).float() / 2


def _log_return(change: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return logarithms of after / before, from the change, which keeps its digits. Shapes: (T,) or (), -> (T,)."""
    # By the lower price: a fall to nearly nothing is -1 of the price before it, and log1p(-1) infinite.
    return torch.sign(change) * torch.log1p(change.abs() / torch.minimum(before, after))


def average_weights() -> Tensor:
    """Return the weights of the 65 candles in the exponential means, each begun with the first candle. Shape: (4, 65).

    Rows: mean of span 8, mean of span 16, the MACD's signal, and Wilder's mean over 8 of the 64 changes (the first
    column is 0). Means of means are linear in the closes too.
    """
    short, long = (_mean_weights(NUM_CANDLES, 2 / (span + 1)) for span in (SHORT, LONG))
    signal = _mean_weights(NUM_CANDLES, 2 / (SIGNAL + 1))[-1] @ (short - long)
    wilder = torch.cat([torch.zeros(1, dtype=torch.float64), _mean_weights(NUM_CANDLES - 1, 1 / WILDER)[-1]])
    return torch.stack([short[-1], long[-1], signal, wilder]).float()


def _mean_weights(count: int, weight: float) -> Tensor:
    """Return the weights of values in their exponential mean at every place. Shape: (T, T), float64."""
    rows = [torch.eye(1, count, dtype=torch.float64)[0]]
    for place in range(1, count):
        row = (1 - weight) * rows[-1]
        row[place] += weight
        rows.append(row)
    return torch.stack(rows)


def _strength(changes: Tensor, weights: Tensor) -> Tensor:
    """Return the relative strength index of changes, 50 without any. Shapes: (64,) and (64,) -> ()."""
    gains, losses = (weights * changes.clamp(min=0)).sum(), (weights * (-changes).clamp(min=0)).sum()
    return torch.where(gains + losses > 0, 100 * (gains / (gains + losses).clamp(min=1e-9)), 50.0)


def _true_range(close: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Return the true range of all candles but the first. Shape: (T - 1,)."""
    before = close[:-1]
    return torch.maximum(high[1:], before) - torch.minimum(low[1:], before)
