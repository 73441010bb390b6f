"""Small random markets with gaps, as tapes and in the oracle's plain lists."""

import numpy as np
import torch

from tests.tasks.stock_trading.oracle import Market
from vecenv.market.tape import MarketTape

TICK = 0.0001


def random_tape(
    rng: np.random.Generator,
    num_days: int,
    num_symbols: int,
    num_features: int = 2,
    gaps: bool = True,
    highest: float = 300.0,
) -> MarketTape:
    """Make a tape of prices between a hundred ticks and about ``highest`` with jumps, gaps and a gate series."""
    drift = rng.normal(0, 0.05, (num_days, num_symbols))
    level = np.exp(rng.uniform(np.log(0.5), np.log(highest), num_symbols))
    close = np.clip(level * np.exp(drift.cumsum(0)), 0.01, 2.3 * highest)
    open_ = np.clip(close * np.exp(rng.normal(0, 0.02, close.shape)), 0.01, 2.3 * highest)
    ohlcv = np.stack([open_, np.maximum(open_, close), np.minimum(open_, close), close, np.ones_like(close)], -1)
    ohlcv[..., :4] = np.round(ohlcv[..., :4] / TICK) * TICK
    tradable = rng.random((num_days, num_symbols)) > (0.1 if gaps else -1)
    dates = np.datetime64("2020-01-01") + np.arange(num_days)
    return MarketTape(
        symbols=tuple(f"S{k}" for k in range(num_symbols)),
        dates=dates,
        ohlcv=torch.from_numpy(ohlcv).float()[None],
        tradable=torch.from_numpy(tradable)[None],
        features=torch.from_numpy(rng.normal(0, 50, (1, num_days, num_symbols, num_features))).float(),
        feature_names=tuple(f"f{i}" for i in range(num_features)),
        context=torch.from_numpy(rng.uniform(0, 200, (1, num_days, 1))).float(),
        context_names=("turbulence",),
        first_day=0,
        tick_size=TICK,
    )


def oracle_market(tape: MarketTape, path: int = 0) -> Market:
    """Return one path of a tape as the oracle reads it."""
    return Market(
        tick_size=tape.tick_size,
        close=tape.price_ticks(3)[path].long().tolist(),
        open=tape.price_ticks(0)[path].long().tolist(),
        tradable=tape.tradable[path].tolist(),
        gate_series=tape.context[path, :, 0].tolist(),
        features=tape.features[path].tolist(),
        periods_per_year=tape.periods_per_year,
    )
