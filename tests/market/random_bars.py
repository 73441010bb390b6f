"""Random bars of several paths and symbols, and one indicator of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vecenv.market.indicators import INDICATORS, compute_indicators

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
    return max((INDICATORS[name].warmup for name in names), default=0)
