"""Small markets of news for tests, with days without bars and without news."""

import numpy as np
import torch

from vecenv.market.bars import Bars
from vecenv.market.scores import score_panels
from vecenv.market.synthetic import business_days
from vecenv.market.tape import MarketTape
from vecenv.tasks.signals.news_market import news_bars


def news_tape(num_paths: int = 4, num_days: int = 60, symbols=("A", "B", "C", "D"), seed: int = 0, **law) -> MarketTape:
    """Return a market of synthetic news without indicators."""
    bars = news_bars(num_paths, num_days, symbols, seed, **law)
    return MarketTape.from_bars(bars, (), (), panels=score_panels(bars))


def holed_tape(seed: int, num_days: int = 40, symbols: int = 5) -> MarketTape:
    """Return one random path of coarse prices, of which a seventh of the bars is missing, so that there are ties."""
    draw = np.random.default_rng(seed)
    close = np.exp(np.cumsum(draw.normal(0, 0.05, (num_days, symbols)), 0)).round(1).clip(0.2) * 10
    missing = draw.random(close.shape) < 1 / 7
    missing[:2] = False
    ohlcv = np.repeat(close[..., None], 5, axis=-1)
    ohlcv[missing] = np.nan
    scores = np.where(draw.random(close.shape) < 0.5, draw.integers(1, 6, close.shape), np.nan)
    names = tuple("ABCDEFGH"[:symbols])
    columns = {"sentiment": torch.from_numpy(scores)[None]}
    bars = Bars(names, business_days(num_days), torch.from_numpy(ohlcv)[None], columns)
    return MarketTape.from_bars(bars, (), (), tick_size=0.1, panels=score_panels(bars))
