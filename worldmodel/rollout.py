"""Draws of days to come, batched over paths and symbols, one day after the other.

Random numbers are counter-based: path p of a seed draws the same whatever the number of paths. Paths run in blocks of a
fixed size, because a matrix product may round differently for another number of rows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.random import EpisodeKey, box_muller, episode_key, open_uniform, random_bits
from worldmodel.bar_moves import Move, MoveState, bounded_moves, decode_bar
from worldmodel.bar_shape import TOKEN_SIZE, day_summary
from worldmodel.correlation import RETURN_LIMIT
from worldmodel.features import FeatureState, observe_day
from worldmodel.network import MarketNetwork
from worldmodel.return_chain import SHRINK_COUNT, ChainStatistics
from worldmodel.trunk import TrunkCache

PATHS_PER_BLOCK, ROWS_PER_BLOCK = 32, {"cpu": 1 << 9, "cuda": 1 << 17}
"""Paths that run together at least, and symbol-paths that do if that is more paths, by device type."""

MAX_SYMBOLS = 1 << 12

RETURN_STREAM = 0x2000_0000
"""First of the random streams of generated days: one for returns, four for shapes, one per number of the token."""

START_STREAM = 0x2100_0000
"""Random stream that chooses where a path starts."""


class Starts(NamedTuple):
    """What paths go on from: the ends of S histories of the same symbols.

    Attributes:
        known: the trunk's output on the last day. Shape: (S, K, width).
        cache: of the trunk. Batch: S K.
        state: after the last day. Batch: (S, K).
        factor: lower Cholesky factor of the symbols' correlation. Shape: (S, K, K).
    """

    known: Tensor
    cache: TrunkCache
    state: FeatureState
    factor: Tensor


@torch.no_grad()
def roll_out(
    network: MarketNetwork,
    starts: Starts,
    market: str,
    num_paths: int,
    num_days: int,
    seed: int,
    temperature: float = 1.0,
) -> Tensor:
    """Draw days to come.

    Args:
        network: in evaluation mode.
        starts: from `worldmodel.neural`; where there are several, each path draws its own.
        market: whose flag the network is shown.
        num_paths: P.
        num_days: H.
        seed: integer in [0, 2^64).
        temperature: factor on returns, about their mean, and with them on gaps and wicks; 1 draws from the model.

    Returns:
        Open, high, low, close, volume. Shape: (P, H, K, 5), float64.

    Raises:
        ValueError: a number of paths or days is below one, or the bars do not fit in memory.
    """
    for name, count in (("num_paths", num_paths), ("num_days", num_days)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    symbols = starts.known.shape[1]
    device = starts.known.device
    _refuse_too_large(num_paths, num_days, symbols, device)
    block = rows_per_block(device, symbols) // symbols
    bars = []
    for first in range(0, num_paths, block):
        paths = torch.arange(first, first + block, device=device)
        bars.append(_block(network, starts, market, paths, num_days, seed, temperature))
    return torch.cat(bars)[:num_paths]


def _refuse_too_large(num_paths: int, num_days: int, symbols: int, device: torch.device) -> None:
    """Raise if the bars, twice while blocks are joined, are more than the device's memory."""
    needed = 2 * 8 * 5 * num_paths * num_days * symbols
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        raise ValueError(
            f"{num_paths:,} paths of {num_days:,} days of {symbols} symbols need {needed / 1e9:,.0f} GB, "
            f"{device} has {memory / 1e9:,.0f} GB; ask for fewer paths at once"
        )


def rows_per_block(device: torch.device, symbols: int) -> int:
    """Return how many symbol-paths run together, whatever the number of paths."""
    return max(PATHS_PER_BLOCK, ROWS_PER_BLOCK[device.type] // symbols) * symbols


def chosen_starts(key: EpisodeKey, count: int) -> Tensor:
    """Return which of a number of starts each path goes on from. Shape: that of the key's words, without the last."""
    word = random_bits(key, START_STREAM, 0)[0]
    return (open_uniform(word) * count).long().squeeze(-1)


def _block(
    network: MarketNetwork, starts: Starts, market: str, paths: Tensor, num_days: int, seed: int, temperature: float
) -> Tensor:
    """Draw some paths. Shape: (len(paths), num_days, K, 5)."""
    count, (total, symbols) = len(paths), starts.known.shape[:2]
    key = episode_key(seed, paths[:, None], 0)
    own = chosen_starts(key, total)
    rows = (own[:, None] * symbols + torch.arange(symbols, device=paths.device)).flatten()
    cache = starts.cache.chosen(rows)
    known, factor = starts.known[own], starts.factor[own]
    state = FeatureState(
        MoveState(*(part[own] for part in starts.state.moves)),
        starts.state.slow_variance[own],
        starts.state.market_variance[own],
    )
    valid = torch.ones(count, symbols, dtype=torch.bool, device=paths.device)
    bars = []
    for day in range(num_days):
        scaled = draw_day(network, known, factor, network.drift_of(market), key, day, temperature)
        volatility = state.volatility.unsqueeze(-1)
        move = torch.cat([scaled[..., : Move.VOLUME] * volatility, scaled[..., Move.VOLUME :]], dim=-1)
        move = bounded_moves(state.moves, move)
        bars.append(decode_bar(state.moves, move))
        if day + 1 < num_days:
            features, state = observe_day(state, move, valid)
            inputs = network.inputs(features.to(known.dtype), market).flatten(0, 1)
            flat, cache = network.trunk.step(inputs, cache)
            known = flat.unflatten(0, (count, symbols))
    return torch.stack(bars, dim=1)


def draw_day(
    network: MarketNetwork,
    known: Tensor,
    factor: Tensor,
    drift: Tensor,
    key: EpisodeKey,
    day: int,
    temperature: float,
) -> Tensor:
    """Draw the scaled moves of one day, symbol after symbol.

    Args:
        network: in evaluation mode.
        known: the trunk's output. Shape: (P, K, width).
        factor: lower Cholesky factors. Shape: (P, K, K).
        drift: of the market. Shape: ().
        key: of the paths. Shape of each word: (P, 1).
        day: number of the day, from 0.
        temperature: as in `roll_out`.

    Returns:
        Shape: (P, K, 5), float64.
    """
    index = day * MAX_SYMBOLS + torch.arange(known.shape[1], device=known.device)
    stream = RETURN_STREAM + torch.arange(5 + TOKEN_SIZE, device=known.device)[:, None, None]
    words = [open_uniform(word, torch.float32).unbind() for word in random_bits(key, stream, index)]
    noise = list(zip(*words, strict=True))
    returns = _draw_returns(network, known, factor, drift, noise[0], temperature)
    return _draw_shapes(network, known, returns, noise[1:], temperature).double()


def _draw_returns(
    network: MarketNetwork,
    known: Tensor,
    factor: Tensor,
    drift: Tensor,
    noise: Sequence[Tensor],
    temperature: float,
) -> Tensor:
    """Draw scaled returns, each given those before it. Shape: (P, K)."""
    paths, symbols = known.shape[:2]
    for_return = network.returns.known(known)
    white = known.new_zeros(paths, symbols)
    choice, radial, angular = (word.unbind(-1) for word in noise[:3])
    deviation = factor.diagonal(dim1=-2, dim2=-1)
    log_scale, scale = deviation.log().unbind(-1), deviation.unbind(-1)
    position = torch.arange(symbols, device=known.device, dtype=known.dtype).log1p().expand(paths, -1).unbind(-1)
    returns = []
    total, squares = known.new_zeros(paths), known.new_zeros(paths)
    for k in range(symbols):
        implied = (white[:, :k] * factor[:, k, :k]).sum(-1)
        statistics = ChainStatistics(
            implied_mean=implied,
            implied_log_scale=log_scale[k],
            running_mean=total / (k + SHRINK_COUNT),
            surprise=torch.log((squares + SHRINK_COUNT) / (k + SHRINK_COUNT)),
            position=position[k],
        )
        mixture = network.returns(for_return[:, k], statistics, drift)
        drawn = mixture.draw(choice[k], radial[k], angular[k])
        if temperature != 1.0:
            drawn = mixture.mean() + temperature * (drawn - mixture.mean())
        returns.append(drawn)
        limited = drawn.clamp(-RETURN_LIMIT, RETURN_LIMIT)
        surprise = (limited - implied) / scale[k]
        white[:, k] = surprise
        total, squares = total + limited, squares + surprise.square()
    return torch.stack(returns, dim=-1)


def _draw_shapes(
    network: MarketNetwork, known: Tensor, returns: Tensor, noise: Sequence[Sequence[Tensor]], temperature: float
) -> Tensor:
    """Draw gap, wicks and volume given the returns. Shape: (P, K, 5)."""
    gap_noise, upper_noise, lower_noise, volume_noise, *token_noise = noise
    everyone = torch.ones_like(returns, dtype=torch.bool)
    summary = day_summary(returns, everyone)
    token = known.new_zeros(len(known), TOKEN_SIZE)
    if network.token is not None:
        for_token = network.token.begin(known, everyone, summary)
        numbers: list[Tensor] = []
        for words in token_noise:
            numbers.append(network.token.number(for_token, numbers).draw(*(word[:, 0] for word in words[:3])))
        token = torch.stack(numbers, dim=-1)
    heads = network.shapes
    joined = heads.begin(known, returns, summary, token)
    gap_law = heads.gap(joined, returns)
    gap = gap_law.draw(*gap_noise[:3])
    if temperature != 1.0:
        gap = gap_law.mean() + temperature * (gap - gap_law.mean())
    body = returns - gap
    upper = temperature * heads.upper(joined, gap, body).draw(*_wick_noise(upper_noise))
    lower = temperature * heads.lower(joined, gap, body, upper).draw(*_wick_noise(lower_noise))
    volume = heads.volume(joined, gap, body, upper, lower).draw(*volume_noise[:3])
    return torch.stack([gap, body, upper, lower, volume], dim=-1)


def _wick_noise(words: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Turn four uniform numbers into a choice, a standard normal number and another uniform one."""
    choice, radial, angular, atom = words
    return choice, box_muller(radial, angular)[0], atom
