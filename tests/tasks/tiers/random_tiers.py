"""Small random markets, rules and orders of the trading tiers, as tapes and in the oracle's plain lists."""

from dataclasses import replace

import numpy as np
import torch

from tests.tasks.tiers.oracle import PRESETS, Market
from vecenv.market.feature_names import TIER_FEATURES
from vecenv.market.tape import MarketTape
from vecenv.tasks.tiers.config import TierConfig
from vecenv.tasks.tiers.observation import RSI

TICK = 0.001
HIGHEST = 8_000_000
NUM_DAYS, LONGEST, LATEST_LISTING = 26, 12, 6


def tier_tape(rng, num_symbols, num_days=NUM_DAYS, num_paths=1, ragged=True, highest=HIGHEST) -> MarketTape:
    """Make a tape of closes from a tick to ``highest`` ticks, with late listings, days without trade and random RSI."""
    shape = (num_paths, num_days, num_symbols)
    drift = rng.normal(rng.normal(0, 0.01), rng.choice([0.01, 0.04]), shape).cumsum(1)
    level = np.exp(rng.uniform(np.log(3), np.log(highest), (num_paths, 1, num_symbols)))
    ticks = np.clip(np.round(level * np.exp(drift)), 1, max(highest, HIGHEST))
    listing = rng.integers(0, LATEST_LISTING if ragged else 1, (num_paths, 1, num_symbols))
    day = np.arange(num_days)[:, None]
    ticks = np.where(day >= listing, ticks, 0)
    tradable = (day == listing) | ((day > listing) & (rng.random(shape) > (0.1 if ragged else -1)))
    features = rng.normal(0, 1, (*shape, len(TIER_FEATURES)))
    features[..., RSI] = rng.uniform(0, 100, shape)
    volume = np.ones((*shape, 1))
    return MarketTape(
        symbols=tuple(f"S{k}" for k in range(num_symbols)),
        dates=np.datetime64("2020-01-01") + np.arange(num_days),
        ohlcv=torch.from_numpy(np.concatenate([np.repeat(ticks[..., None] * TICK, 4, -1), volume], -1)).float(),
        tradable=torch.from_numpy(tradable),
        features=torch.from_numpy(features).float(),
        feature_names=TIER_FEATURES,
        context=torch.from_numpy(rng.uniform(10, 40, (num_paths, num_days, 1))).float(),
        context_names=("vix",),
        first_day=0,
        tick_size=TICK,
    )


def oracle_market(tape: MarketTape, path: int, context: bool) -> Market:
    """Return one path of a tape as the oracle reads it."""
    return Market(
        symbols=tape.symbols,
        close=tape.price_ticks()[path].long().tolist(),
        tradable=tape.tradable[path].tolist(),
        rsi=tape.features[path, ..., RSI].tolist(),
        tick_size=tape.tick_size,
        features=tape.features[path].tolist(),
        context=tape.context[path].tolist() if context else [],
    )


def random_rules(rng, symbols: tuple[str, ...]) -> TierConfig:
    """Draw the settings of a tier on the orders' space."""
    return TierConfig(
        symbols=symbols,
        days=int(rng.integers(2, LONGEST + 1)),
        initial_cash=float(np.round(np.exp(rng.uniform(np.log(5.0), np.log(1e6))), 2)),
        commission=float(rng.choice([0.0, 0.0005, 0.001, 0.0123, 0.3], p=[0.3, 0.2, 0.3, 0.15, 0.05])),
        slippage=float(rng.choice([0.0, 0.0005, 0.002, 0.0123, 0.5], p=[0.3, 0.2, 0.3, 0.15, 0.05])),
        max_trades=int(rng.choice([1, 2, 5, 100])),
        max_position=float(rng.choice([0.05, 0.15, 0.5, 1.0])),
        max_exposure=float(rng.choice([0.1, 0.4, 0.8, 1.0])),
        gate=bool(rng.random() < 0.4),
        seed_grader=str(rng.choice(["single", "portfolio", "full"])),  # type: ignore[arg-type]
        action="orders",
        max_orders=int(rng.integers(1, 9)),
        reward=str(rng.choice(list(PRESETS))),
        grader=str(rng.choice(["calibrated", "seed"])),
        context=("vix",) if rng.random() < 0.5 else (),
        dtype="float64" if rng.random() < 0.5 else "float32",
    )


def random_tiers(rng, shared: TierConfig) -> list[TierConfig]:
    """Draw one to three tiers on some of the symbols of ``shared``, with its space, reward and precision."""
    if rng.random() < 0.3:
        return [shared]
    names = ("action", "max_orders", "tilt_gain", "reward", "grader", "context", "dtype")
    common = {name: getattr(shared, name) for name in names}
    tiers = []
    for _ in range(int(rng.integers(2, 4))):
        count = int(rng.integers(1, len(shared.symbols) + 1))
        owned = tuple(shared.symbols[k] for k in sorted(rng.permutation(len(shared.symbols))[:count]))
        tiers.append(replace(random_rules(rng, owned), **common))
    return tiers


def random_orders(rng, *shape: int, num_symbols: int, broken: float = 0.05) -> np.ndarray:
    """Draw orders of every kind: few symbols a day, fractions 0, 1, tiny and beyond.

    A share ``broken`` of the actions has one entry replaced by one that may not be valid.
    """
    kind = rng.choice([0.0, 1.0, 2.0], shape, p=[0.2, 0.45, 0.35])
    kind[rng.random(shape[:-1]) < 0.15] = 0.0
    few = rng.integers(0, num_symbols, (*shape[:-1], 1))
    symbol = np.where(rng.random(shape) < 0.5, few, rng.integers(0, num_symbols, shape)).astype(float)
    fraction = rng.uniform(0, 1, shape)
    special = rng.choice([0.0, 1.0, 1.0, 0.00005, 0.00015, 1e-6, 0.01, 0.5, -0.3, 7.0], shape)
    orders = np.stack([kind, symbol, np.where(rng.random(shape) < 0.5, special, fraction)], axis=-1)
    flat = orders.reshape(-1, shape[-1], 3)
    for row in (rng.random(len(flat)) < broken).nonzero()[0]:
        entry = rng.choice([np.nan, np.inf, -np.inf, -1.0, 3.0, 0.5, 1.5, num_symbols, 1e30])
        flat[row, rng.integers(shape[-1]), rng.integers(3)] = entry
    return orders.astype(np.float32)


def random_tilts(rng, num_rows: int, num_symbols: int, broken: float = 0.03) -> np.ndarray:
    """Draw actions of ``limit_weights``: within, at and beyond the bounds, zeros, and some with no number."""
    shape = (num_rows, num_symbols + 1)
    tilts = np.where(rng.random(shape) < 0.3, rng.choice([-1.0, 0.0, 1.0, 1.5, -7.0], shape), rng.uniform(-1, 1, shape))
    tilts = np.where(rng.random((num_rows, 1)) < 0.2, 0.0, tilts)
    for row in (rng.random(num_rows) < broken).nonzero()[0]:
        tilts[row, rng.integers(shape[1])] = rng.choice([np.nan, np.inf, -np.inf])
    return tilts.astype(np.float32)
