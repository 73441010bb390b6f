"""Seeded synthetic market generator: regimes, GARCH volatility, fat tails, factors and valid daily bars.

A Markov chain moves the whole market between the `REGIMES`, which set drift, volatility and correlation.
In units of its volatility, the return of symbol i on day t is

    u = sqrt(h) (sqrt(c) market + sqrt(s) sector + sqrt(1 - c - s) own),
    h' = (1 - a - b) + a u^2 + b h,

a GARCH(1,1) process (Bollerslev 1986) whose market, sector and own shocks are Student-t with five degrees
of freedom and unit variance. A path depends only on the seed and its number, not on the numbers of paths,
symbols or days.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, box_muller, episode_key, open_uniform, random_bits, student_t
from vecenv.market.bars import EXCHANGE_DAYS, Bars
from vecenv.market.streams import SyntheticStream
from vecenv.market.validation import has_control_characters
from vecenv.system.memory import check_memory

FIRST_DAY = "2010-01-04"

CURRENCY = "INR"
"""Currency of generated markets: that of the NSE, whose symbols the trading tiers use."""

START_PRICES = (20.0, 200.0)
ANNUAL_VOLATILITIES = (0.22, 0.42)
MEAN_VOLUMES = (2e5, 2e7)
# Closes are reflected at these bounds; every price then fits 2^23 ticks of 1e-4.
CLOSE_BOUNDS = (2.0, 800.0)
PRICE_BOUNDS = (1.0, 838.0)
# Daily price limit, as on exchanges; it keeps bars below the check for unadjusted splits.
DAILY_LIMIT = 0.2

NUM_SECTORS = 6
SECTOR_SHARE = 0.1
GARCH_ALPHA, GARCH_BETA = 0.07, 0.9
DEGREES_OF_FREEDOM = 5.0
SHOCK_LIMIT = 8.0
OVERNIGHT_SHARE = 0.2
VOLUME_PERSISTENCE, VOLUME_NOISE, VOLUME_ELASTICITY = 0.8, 0.25, 0.8

# Bars per block, which bounds the temporaries to a few hundred MB.
_BARS_PER_BLOCK = 1 << 21
# Peak memory of generation and conversion to a tape; 270 to 420 bytes were measured.
_BYTES_PER_BAR = 160


@dataclass(frozen=True)
class Regime:
    """One state of the market.

    Attributes:
        drift: mean log-return of every symbol per year.
        volatility: factor on every symbol's volatility; the mean square over the chain is about one.
        correlation: share of a symbol's variance due to the market factor.
        duration: mean stay in trading days; stays are geometric.
        exits: probability of each next regime on leaving.
    """

    drift: float
    volatility: float
    correlation: float
    duration: float
    exits: dict[str, float]


REGIMES = {
    "bull": Regime(0.22, 0.75, 0.25, 120, {"sideways": 0.70, "bear": 0.25, "crisis": 0.05}),
    "bear": Regime(-0.25, 1.20, 0.38, 50, {"sideways": 0.50, "bull": 0.30, "crisis": 0.20}),
    "sideways": Regime(0.03, 0.80, 0.18, 80, {"bull": 0.60, "bear": 0.30, "crisis": 0.10}),
    "crisis": Regime(-0.60, 2.40, 0.60, 20, {"bear": 0.50, "bull": 0.25, "sideways": 0.25}),
}


def synthetic_bars(
    num_paths: int = 1,
    num_days: int = 1500,
    symbols: int | Sequence[str] = 30,
    seed: int = 0,
    device: torch.device | str = "cpu",
    regime: str | None = None,
) -> Bars:
    """Generate bars of a market with regimes, fat tails, volatility clusters and sectors.

    Args:
        num_paths: independent histories P; path p does not depend on their number.
        num_days: business days T from `FIRST_DAY`.
        symbols: names of the K symbols, or their number (then SYN00, SYN01, ...).
        seed: integer in [0, 2^64).
        device: where the tensors are made.
        regime: a name in `REGIMES` for all days; by default the Markov chain.

    Returns:
        Bars with prices in cents within `PRICE_BOUNDS`, volumes in whole shares, and no gap.

    Raises:
        ValueError: if a count is below one, names repeat, the regime is unknown or the seed out of range.
    """
    names, dates = names_and_days(num_paths, num_days, symbols, device)
    if regime is not None and regime not in REGIMES:
        raise ValueError(f"unknown regime {regime!r}, expected one of {', '.join(REGIMES)}")
    blocks = path_blocks(num_paths, num_days * len(names), device)
    ohlcv = torch.cat([_simulate(seed, paths, num_days, len(names), regime) for paths in blocks])
    return Bars(names, dates, ohlcv, source=f"synthetic market, seed {seed}", currency=CURRENCY)


def names_and_days(
    num_paths: int, num_days: int, symbols: int | Sequence[str], device: torch.device | str
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return `symbol_names` and `business_days` of paths that fit in memory; errors as of these and `check_paths`."""
    check_paths(num_paths, num_days * (symbols if isinstance(symbols, int) else len(symbols)), device)
    return symbol_names(symbols), business_days(num_days)


def symbol_names(symbols: int | Sequence[str]) -> tuple[str, ...]:
    """Return the names, or SYN00, SYN01, ... for a number; ValueError if there is none or names repeat."""
    if isinstance(symbols, str):
        raise ValueError(f"symbols must be a number or a sequence of names, got the string {symbols!r}")
    names = tuple(f"SYN{k:02d}" for k in range(symbols)) if isinstance(symbols, int) else tuple(symbols)
    if not names:
        raise ValueError("at least one symbol is needed")
    hidden = [name for name in names if has_control_characters(name)]
    if hidden:
        raise ValueError(f"control characters in symbols: {', '.join(map(repr, hidden))}")
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ValueError(f"repeated symbols: {', '.join(repeated)}")
    return names


def business_days(num_days: int) -> np.ndarray:
    """Return the Mondays to Fridays from `FIRST_DAY` on, at least one. Shape: (num_days,), ``datetime64[D]``."""
    if num_days < 1:
        raise ValueError(f"num_days must be at least 1, got {num_days}")
    return np.busday_offset(np.datetime64(FIRST_DAY), np.arange(num_days))


def path_blocks(num_paths: int, bars_per_path: int, device: torch.device | str) -> tuple[Tensor, ...]:
    """Split the path numbers 0 ... P - 1 into blocks whose temporaries fit in memory."""
    return torch.arange(num_paths, device=device).split(max(1, _BARS_PER_BLOCK // bars_per_path))


def check_paths(num_paths: int, bars_per_path: int, device: torch.device | str) -> None:
    """Raise ValueError if a number of paths is below one, or so many do not fit in memory."""
    if num_paths < 1:
        raise ValueError(f"num_paths must be at least 1, got {num_paths}")
    what = f"num_paths {num_paths:,} of {bars_per_path:,} bars each"
    check_memory(num_paths * bars_per_path * _BYTES_PER_BAR, device, what)


def bridge_extremes(
    log_open: Tensor, log_close: Tensor, variance: Tensor | float, bits: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Draw the extremes of a Brownian bridge: logarithms of the high and of the low.

    By the reflection principle P(max > m) = exp(-2 (m - x) (m - y) / v), so with u uniform
    max = (x + y + sqrt((x - y)^2 - 2 v log u)) / 2, exact for each extreme alone.
    """
    middle, squared = (log_open + log_close) / 2, (log_open - log_close).square()
    high, low = (torch.sqrt(squared - 2 * variance * torch.log(open_uniform(word))) / 2 for word in bits)
    return middle + high, middle - low


def _simulate(seed: int, paths: Tensor, num_days: int, num_symbols: int, regime: str | None) -> Tensor:
    """Simulate some paths. Shape: (len(paths), num_days, num_symbols, 5)."""
    device = paths.device
    key = episode_key(seed, paths[:, None, None], 0)
    day = torch.arange(num_days, device=device)[:, None]
    symbol = torch.arange(num_symbols, device=device)

    table = torch.tensor(
        [(r.drift / EXCHANGE_DAYS, r.volatility, r.correlation) for r in REGIMES.values()],
        dtype=torch.float64,
        device=device,
    )
    drift, level, correlation = table[_regime_states(key, day, regime)].unbind(-1)

    traits = random_bits(key, SyntheticStream.TRAITS + symbol)
    start = _log_uniform(traits[0], START_PRICES)
    low, high = ANNUAL_VOLATILITIES
    daily = (low + (high - low) * open_uniform(traits[1])) / math.sqrt(EXCHANGE_DAYS)

    market = _shock(*random_bits(key, SyntheticStream.MARKET, day)[:2])
    sector_stream = SyntheticStream.SECTOR + torch.arange(NUM_SECTORS, device=device)
    sector = _shock(*random_bits(key, sector_stream, day)[:2])[..., symbol % NUM_SECTORS]
    bits = random_bits(key, SyntheticStream.SHOCK + symbol, day)
    shock = (
        torch.sqrt(correlation) * market
        + math.sqrt(SECTOR_SHARE) * sector
        + torch.sqrt(1 - SECTOR_SHARE - correlation) * _shock(*bits[:2])
    )
    gap_noise, volume_noise = box_muller(open_uniform(bits[2]), open_uniform(bits[3]))

    close, deviation, activity = _recursion(start[:, 0], drift, level * daily, shock, volume_noise)
    previous = torch.cat([start, close[:, :-1]], dim=1)
    # The overnight part has its share of the variance and is uncorrelated with the intraday part.
    overnight = OVERNIGHT_SHARE * (close - previous)
    overnight += math.sqrt(OVERNIGHT_SHARE * (1 - OVERNIGHT_SHARE)) * deviation * gap_noise
    open_ = previous + overnight.clamp(-DAILY_LIMIT, DAILY_LIMIT)
    variance = (1 - OVERNIGHT_SHARE) * deviation.square()
    extremes = bridge_extremes(open_, close, variance, random_bits(key, SyntheticStream.RANGE + symbol, day)[:2])

    prices = torch.exp(torch.stack([open_, *extremes, close], dim=-1)).clamp(*PRICE_BOUNDS)
    volume = torch.exp(
        _log_uniform(traits[2], MEAN_VOLUMES) + VOLUME_ELASTICITY * torch.log(deviation / daily) + activity
    )
    return torch.cat([torch.round(prices * 100) / 100, torch.round(volume)[..., None]], dim=-1)


def _regime_states(key: EpisodeKey, day: Tensor, regime: str | None) -> Tensor:
    """Simulate the Markov chain from its stationary distribution. Shape: (P, T, 1), positions in `REGIMES`."""
    names = list(REGIMES)
    num_paths, num_days = len(key.env_id), len(day)
    if regime is not None:
        return torch.full((num_paths, num_days, 1), names.index(regime), device=day.device)
    transition = np.array([[r.exits.get(name, 0.0) / r.duration for name in names] for r in REGIMES.values()])
    transition += np.diag(1 - transition.sum(axis=1))
    stationary = np.linalg.matrix_power(transition, 1 << 14)[0]
    # Inverse transform: the regime is the number of cumulative probabilities, without the last (1), below the draw.
    rows = np.cumsum(np.vstack([transition, stationary]), axis=1)[:, :-1]
    thresholds = torch.tensor(rows, device=day.device)
    draws = open_uniform(random_bits(key, SyntheticStream.REGIME, day)[0])
    states = torch.empty((num_paths, num_days, 1), dtype=torch.int64, device=day.device)
    state = torch.full((num_paths,), len(names), device=day.device)
    for t in range(num_days):
        state = (draws[:, t] > thresholds[state]).sum(-1)
        states[:, t, 0] = state
    return states


def _recursion(
    start: Tensor, drift: Tensor, scale: Tensor, shock: Tensor, volume_noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the day-by-day recursion of volatility and price.

    Only correctly rounded operations, so that a path is bitwise the same in any batch. ``start`` is the logarithm of
    the price before the first day, ``scale`` the standard deviation of a day at h = 1.

    Returns:
        Log close, conditional standard deviation, and log activity of the volume. Shape of each: (P, T, K).
    """
    close, deviation, activity = (torch.empty_like(shock) for _ in range(3))
    lowest, highest = (math.log(bound) for bound in CLOSE_BOUNDS)
    price, busy, variance = start, torch.zeros_like(start), torch.ones_like(start)
    for t in range(shock.shape[1]):
        root = torch.sqrt(variance)
        deviation[:, t] = scale[:, t] * root
        unit_return = root * shock[:, t]
        change = (drift[:, t] + scale[:, t] * unit_return).clamp(-DAILY_LIMIT, DAILY_LIMIT)
        moved = price + change
        price = torch.where((moved < lowest) | (moved > highest), price - change, moved)
        close[:, t] = price
        busy = VOLUME_PERSISTENCE * busy + VOLUME_NOISE * volume_noise[:, t]
        activity[:, t] = busy
        variance = (1 - GARCH_ALPHA - GARCH_BETA) + GARCH_ALPHA * unit_return.square() + GARCH_BETA * variance
    return close, deviation, activity


def _log_uniform(bits: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = (math.log(bound) for bound in bounds)
    return low + (high - low) * open_uniform(bits)


def _shock(radial: Tensor, angular: Tensor) -> Tensor:
    """Draw Student-t numbers of unit variance from two words, cut at `SHOCK_LIMIT`."""
    return student_t(open_uniform(radial), open_uniform(angular), DEGREES_OF_FREEDOM).clamp(-SHOCK_LIMIT, SHOCK_LIMIT)
