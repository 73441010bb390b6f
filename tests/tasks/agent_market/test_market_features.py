"""The 54 features against plain float64 NumPy written from their meanings, and at the ends of what prices can be."""

import math
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import Tensor

from vecenv.system.native_library import built_library
from vecenv.tasks.agent_market.features import (
    FEATURES,
    LAGS,
    Candles,
    News,
    Quote,
    average_weights,
    feature_names,
    features,
)
from vecenv.tasks.agent_market.native import FEATURES as SOURCE
from vecenv.tasks.agent_market.native import PARTS

PRICES = (1, 10, 1_000, 1_000_000, 2**24)
STEPS = (0, 1, 3, 40)
LEVELS = ("mid", "sma_8", "sma_16", "ema_8", "ema_16", "bollinger_upper", "bollinger_middle", "bollinger_lower")
OF_AVERAGES = ("macd", "macd_signal", "macd_histogram", "atr_8")
ORDER = tuple(FEATURES)

Inputs = tuple[Candles, Quote, News, Tensor, Tensor]


def inputs(candles: list[np.ndarray], quote: np.ndarray, news: np.ndarray, fair: np.ndarray) -> Inputs:
    """Return the arguments of B markets. Shapes: (B, 65) of closes to trades, (B, 4), (B, 3), (B,)."""
    parts = Candles(*(torch.from_numpy(part.astype(np.int32)) for part in candles))
    sentiment, magnitude, remaining = torch.from_numpy(news.astype(np.int64)).unbind(1)
    told = News(sentiment.float(), magnitude.float(), remaining.to(torch.int32))
    # As an estimate in 2^-16 price ticks can say it.
    estimate = (torch.from_numpy(fair).float() * 2**16).round() / 2**16
    return parts, Quote(*torch.from_numpy(quote.astype(np.int32)).unbind(1)), told, estimate, parts.close[:, -1].clone()


def random_walks(price: int, step: int, count: int, seed: int) -> Inputs:
    """Return markets whose doubled mids walk from a price by at most ``step`` a candle; by 0, nothing happens."""
    draw, lively = np.random.default_rng(seed), step > 0
    close = np.maximum(2 * price + draw.integers(-step, step + 1, (count, 65)).cumsum(1), 1)
    before = np.concatenate([close[:, :1], close[:, :-1]], 1)
    high = np.maximum(close, before) + draw.integers(0, step + 1, close.shape)
    low = np.maximum(np.minimum(close, before) - draw.integers(0, step + 1, close.shape), 1)
    volume, trades = draw.integers(0, 5_000, close.shape) * lively, draw.integers(0, 40, close.shape)
    bid = np.maximum(close[:, -1] // 2, 1)
    quote = np.stack([bid, close[:, -1] - bid, *(draw.integers(1, 900, (2, count)) * lively)], 1)
    # One without a bid, one without an ask.
    quote[[0, 1], [0, 1]] = 0
    active = draw.integers(0, 2, count)
    told = (draw.choice([-1, 1], count), draw.integers(1, 99, count), draw.integers(1, 60, count))
    news = np.stack([active * part for part in told], 1)
    fair = np.maximum(close[:, -1] / 2 + draw.normal(0, 1 + step, count), 0.75).astype(np.float32) * lively
    return inputs([close, high, low, volume, trades], quote, news, fair.astype(np.float64))


def batched(arguments: Inputs, fair_value: bool = True) -> Tensor:
    """Return the features of B markets. Shape: (B, 54), or (B, 51) without what needs the estimate."""
    weights = average_weights()
    return torch.vmap(lambda *m: features(*m[:3], m[3] if fair_value else None, m[4], weights))(*arguments)


def native(arguments: Inputs, fair_value: bool = True) -> Tensor:
    """Return the same by the library in C++. Shape: (B, 54) or (B, 51)."""
    if built_library(SOURCE) is None:
        pytest.skip("there is no C++ compiler")
    candles, quote, news, fair, doubled_mid = arguments
    quantities = torch.zeros(len(fair), 2, 10, dtype=torch.int32)
    quantities[:, :, 3] = torch.stack([quote.bid_size, quote.ask_size], -1)
    told = torch.stack([*(part.to(torch.int64) for part in news), torch.full_like(news.remaining, 7).long()], -1)
    estimate = (fair.double() * 2**16).to(torch.int64)
    parts = [torch.stack(candles, 1), quote.bid, quote.ask, doubled_mid, quantities, told, estimate]
    shown: Tensor = torch.ops.vecenv.agent_market_features(parts, average_weights(), fair_value)
    return shown


FORMS = {"torch": batched, "native": native}
BOTH = pytest.mark.parametrize("form", FORMS)


def exponential(values: np.ndarray, weight: float) -> np.ndarray:
    """Return the exponential mean of values so far, begun with the first."""
    return np.array(list(accumulate(values, lambda mean, value: mean + weight * (value - mean))))


def expected(arguments: Inputs, row: int) -> dict[str, float]:
    """Return the features of one market from their meanings, in float64."""
    candles, quote, news, fairs, mids = arguments
    close, high, low = (part[row].numpy().astype(np.float64) / 2 for part in candles[:3])
    volume, trades = (part[row].numpy().astype(np.float64) for part in candles[3:])
    mid, fair = float(mids[row]) / 2, float(fairs[row])
    short, long = exponential(close, 2 / 9), exponential(close, 2 / 17)
    macd = short - long
    signal = exponential(macd, 2 / 5)[-1]
    changes = np.diff(close)
    up, down = (exponential(np.maximum(sign * changes, 0), 1 / 8)[-1] for sign in (1, -1))
    rsi = 100 * up / (up + down) if up + down else 50.0
    middle, deviation = close[-12:].mean(), close[-12:].std()
    before = close[:-1]
    ranges = np.maximum(high[1:] - low[1:], np.maximum(abs(high[1:] - before), abs(low[1:] - before)))
    atr = exponential(ranges, 1 / 8)[-1]
    returns = np.diff(np.log(close))
    quick, slow = (math.sqrt((returns[-count:] ** 2).mean()) for count in (8, 32))
    bid, ask, bids, asks = (float(part[row]) for part in quote)
    sentiment, magnitude, remaining = (float(part[row]) for part in news)
    usual = volume[-17:-1].mean()
    away = 100 * (mid - fair) / fair if fair > 0 else 0.0
    return {
        "mid": mid,
        **{f"change_{lag}": 100 * (close[-1] - close[-1 - lag]) / close[-1 - lag] for lag in LAGS},
        **{f"log_return_{lag}": math.log(close[-1] / close[-1 - lag]) for lag in LAGS},
        **{"sma_8": close[-8:].mean(), "sma_16": close[-16:].mean(), "ema_8": short[-1], "ema_16": long[-1]},
        **{"rsi_8": rsi, "rsi_centred": rsi - 50, "atr_8": atr},
        **{"macd": macd[-1], "macd_signal": signal, "macd_histogram": macd[-1] - signal},
        **{"bollinger_upper": middle + 2 * deviation, "bollinger_lower": middle - 2 * deviation},
        "bollinger_middle": middle,
        "bollinger_position": (close[-1] - middle + 2 * deviation) / (4 * deviation) if deviation else 0.5,
        **{"news_active": float(remaining > 0), "news_sentiment": sentiment, "news_magnitude": magnitude},
        "news_remaining": remaining,
        "spread": 1e4 * (ask - bid) / mid if bid and ask else 0.0,
        "imbalance": (bids - asks) / (bids + asks) if bids + asks else 0.0,
        **{"volatility_8": quick, "volatility_32": slow, "volatility_ratio": quick / slow if slow else 1.0},
        **{"deviation": away, "sentiment_deviation": sentiment * away},
        "price_to_fair": mid / fair if fair > 0 else 1.0,
        "trend_strength": abs(macd[-1]) / atr if atr else 0.0,
        "volume_surge": volume[-1] / usual if usual else 1.0,
        "trades": trades[-1],
    }


def tolerance(name: str, values: np.ndarray, spans: np.ndarray, fair: np.ndarray, ranges: np.ndarray) -> np.ndarray:
    """Return by how much float32 may differ: some roundings of the feature and of what it is a difference of."""
    absolute: np.ndarray | float = {"rsi_8": 4e-5, "rsi_centred": 4e-5, "bollinger_position": 2e-6}.get(name, 1e-12)
    if name in OF_AVERAGES or name in LEVELS:
        absolute = 1e-6 * spans
    elif name == "trend_strength":
        absolute = 1e-6 * spans / np.maximum(ranges, 0.5)
    elif name in ("deviation", "sentiment_deviation"):
        # A half tick above 2^23 has no place in float32.
        absolute = np.where(fair > 2**23, 6e-6, 1e-12)
    return (2e-7 if name in LEVELS else 4e-6) * np.abs(values) + absolute


@BOTH
def test_features_are_what_their_meanings_say(form):
    """Of markets at all prices, some of which stand still, so that all features have their neutral values."""
    given = [random_walks(price, step, 7, 7 * price + step) for price in PRICES for step in STEPS]
    shown = np.concatenate([FORMS[form](arguments).double().numpy() for arguments in given])
    exact = [expected(arguments, row) for arguments in given for row in range(7)]
    assert feature_names(True) == ORDER and set(ORDER) == set(exact[0]) and len(ORDER) == 54
    closes = np.concatenate([arguments[0].close.numpy() for arguments in given]) / 2
    fair, ranges = np.concatenate([arguments[3].numpy() for arguments in given]), [told["atr_8"] for told in exact]
    for name in ORDER:
        values = np.array([market[name] for market in exact])
        away = np.abs(shown[:, ORDER.index(name)] - values)
        assert np.ptp(values) > 0, f"{name}: a constant would be right by chance"
        allowed = tolerance(name, values, np.ptp(closes, axis=1), fair, np.array(ranges))
        assert (away <= allowed).all(), (name, away.max(), values[away.argmax()])
    kept = [name not in ("deviation", "price_to_fair", "sentiment_deviation") for name in ORDER]
    assert torch.equal(FORMS[form](given[-1], False), FORMS[form](given[-1])[:, kept])
    undefined = ("rsi_8", "bollinger_position", "volatility_ratio", "price_to_fair", "volume_surge")
    assert [FEATURES[name].neutral for name in undefined] == [exact[2][name] for name in undefined]


def test_the_library_refuses_what_it_would_misread():
    report = [torch.zeros(3, *shape, dtype=kind) for shape, kind in PARTS.values()]
    assert torch.ops.vecenv.agent_market_features(report, average_weights(), True).shape == (3, 54)
    for place, wrong in ((0, torch.zeros(3, 5, 64, dtype=torch.int32)), (5, torch.zeros(3, 4)), (6, report[6][:2])):
        with pytest.raises(ValueError, match=f"{list(PARTS)[place]} must have shape"):
            torch.ops.vecenv.agent_market_features(
                [*report[:place], wrong, *report[place + 1 :]], average_weights(), True
            )


def extremes() -> Inputs:
    """Return markets between the least and the largest numbers, with empty sides and without news."""
    draw, count = np.random.default_rng(3), 300
    close, high, low = draw.choice([1, 2, 3, 2**24 + 1, 2**26 - 1, 2**26], (3, count, 65))
    # Some that stay, leap in the last candles only, or rise.
    close[:50] = close[:50, :1]
    close[50:100, :-8] = close[50:100, :1]
    close[100:200] = draw.integers(1, 2**26, (100, 65))
    close[150:200].sort(1)
    high, low = np.maximum(high, close), np.minimum(low, close)
    volume, trades = (draw.choice([0, 1, 2**31 - 1], (count, 65)) for _ in range(2))
    volume[:20], volume[20:40] = 0, 2**31 - 1
    touch = np.sort(draw.choice([0, 1, 2**25 - 1, 2**25], (count, 2)), 1)
    quote = np.concatenate([touch, draw.choice([0, 1, 2**31 - 1], (count, 2))], 1)
    news = draw.choice([0, 1], (count, 3)) * np.array([1, 2**25, 2**23])
    return inputs([close, high, low, volume, trades], quote, news, draw.choice([0.0, 0.5, 1.0, 2.0**25], count))


@BOTH
def test_features_are_finite_and_in_their_ranges_at_the_ends(form):
    """Changes from one half tick to 2^25 ticks and back too: one of -100 % has no logarithm in float32."""
    arguments = extremes()
    shown, close = FORMS[form](arguments), arguments[0].close.double()
    assert bool(shown.isfinite().all())
    for name, column in zip(ORDER, shown.unbind(1), strict=True):
        assert FEATURES[name].low <= float(column.min()) and float(column.max()) <= FEATURES[name].high, name
        kind, _, lag = name.rpartition("_")
        if kind in ("change", "log_return"):
            ratio = close[:, -1] / close[:, -1 - int(lag)]
            wanted = 100 * (ratio - 1) if kind == "change" else ratio.log()
            torch.testing.assert_close(column.double(), wanted, rtol=1e-6, atol=0.0)
