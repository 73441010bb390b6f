"""Sampling of one day for many paths: returns sequentially over symbols, then the shapes of all bars."""

from __future__ import annotations

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, box_muller, open_uniform, random_bits
from vecenv.market.streams import NeuralStream
from vecenv.worldmodel.network.bar_shape import TOKEN_SIZE, day_summary
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.return_draw import ReturnDraws

MAX_SYMBOLS = 1 << 12


def draw_day(
    network: MarketNetwork,
    known: Tensor,
    draws: ReturnDraws,
    key: EpisodeKey,
    day: int | Tensor,
    drift: Tensor,
    temperature: float,
) -> Tensor:
    """Draw the scaled moves of one day.

    Args:
        network: in evaluation mode.
        known: the trunk's output. Shape: (P, K, width).
        draws: sampler of the returns.
        key: of the paths. Shape of each word: (P, 1).
        day: number of the day, from 0; of shape () if a tensor.
        drift: of the market, scaled as the returns; added after the chain, so that no symbol is conditioned on the
            previous symbols' drift. Shape: (P, K).
        temperature: as in `roll_out`.

    Returns:
        Shape: (P, K, 5), float64.
    """
    everyone = torch.arange(known.shape[1], device=known.device)
    for_bars = _noise(key, NeuralStream.DAY, 5, day, everyone)
    for_token = _noise(key, NeuralStream.DAY + 5, TOKEN_SIZE, day, everyone[:1])
    returns = draws.draw(known, for_bars[0, :3], temperature) + drift
    return _draw_shapes(network, known, returns, for_bars[1:], for_token[..., 0], temperature).double()


def _noise(key: EpisodeKey, first: int, streams: int, day: int | Tensor, numbers: Tensor) -> Tensor:
    """Return four uniform numbers of each stream, path and number. Shape: (streams, 4, P, len(numbers))."""
    stream = first + torch.arange(streams, device=numbers.device)[:, None, None]
    words = random_bits(key, stream, day * MAX_SYMBOLS + numbers)
    return open_uniform(torch.stack(words, dim=1), torch.float32)


def _draw_shapes(
    network: MarketNetwork, known: Tensor, returns: Tensor, noise: Tensor, token_noise: Tensor, temperature: float
) -> Tensor:
    """Draw gap, wicks and volume given the returns. Shape: (P, K, 5)."""
    gap_noise, upper_noise, lower_noise, volume_noise = noise
    everyone = torch.ones_like(returns, dtype=torch.bool)
    summary = day_summary(returns, everyone)
    token = known.new_zeros(len(known), TOKEN_SIZE)
    if network.token is not None:
        for_token = network.token.begin(known, everyone, summary)
        numbers: list[Tensor] = []
        for words in token_noise:
            law = network.token.number(for_token, numbers)
            numbers.append(law.draw(words[0], *law.noise(*words[1:3])))
        token = torch.stack(numbers, dim=-1)
    heads = network.shapes
    joined = heads.begin(known, returns, summary, token)
    gap_law = heads.gap(joined, returns)
    gap = gap_law.draw(gap_noise[0], *gap_law.mixture.noise(*gap_noise[1:3]))
    if temperature != 1.0:
        gap = gap_law.mean() + temperature * (gap - gap_law.mean())
    body = returns - gap
    upper = temperature * heads.upper(joined, gap, body).draw(*_wick_noise(upper_noise))
    lower = temperature * heads.lower(joined, gap, body, upper).draw(*_wick_noise(lower_noise))
    volume_law = heads.volume(joined, gap, body, upper, lower)
    volume = volume_law.draw(volume_noise[0], *volume_law.noise(*volume_noise[1:3]))
    return torch.stack([gap, body, upper, lower, volume], dim=-1)


def _wick_noise(words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert four uniform numbers to a choice, a standard normal and a uniform number."""
    choice, radial, angular, atom = words
    return choice, box_muller(radial, angular)[0], atom
