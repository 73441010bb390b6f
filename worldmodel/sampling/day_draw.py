"""Sampling of one day for many paths: returns sequentially over symbols, then all bars at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, box_muller, open_uniform, random_bits
from vecenv.market.streams import NeuralStream
from vecenv.worldmodel.network.bar_heads import MATRICES, BarHeads, BarNoise
from vecenv.worldmodel.network.common_shocks import CommonShocks
from vecenv.worldmodel.network.return_draw import ReturnDraws

MAX_SYMBOLS = 1 << 12


class DayDraws(NamedTuple):
    """Samplers of the days of some paths.

    Attributes:
        returns: of the returns.
        bars: of the bars given the returns.
        bar_factors: of the bars' correlations, from `BarHeads.factors`. Shape: (P, 4, K, K).
        shocks: common to the symbols of a market.
        antithetic: draw the reflection of every return about the location of its component, from the same numbers.
    """

    returns: ReturnDraws
    bars: BarHeads
    bar_factors: Tensor
    shocks: CommonShocks
    antithetic: bool = False

    def draw(
        self,
        known: Tensor,
        scales: Tensor,
        key: EpisodeKey,
        day: int | Tensor,
        drift: Tensor,
        temperature: float,
    ) -> Tensor:
        """Draw the scaled moves of one day.

        Args:
            known: the trunk's output. Shape: (P, K, width).
            scales: of the bars before the day. Shape: (P, K, 4).
            key: of the paths. Shape of each word: (P, 1).
            day: number of the day, from 0; of shape () if a tensor.
            drift: of the market, scaled as the returns; added after the chain, so that no symbol is conditioned on the
                previous symbols' drift. Shape: (P, K).
            temperature: as in `roll_out`.

        Returns:
            Shape: (P, K, 5), float64.
        """
        everyone = torch.arange(known.shape[1], device=known.device)
        stream = NeuralStream.DAY + torch.arange(1 + len(MATRICES), device=known.device)[:, None, None]
        words = random_bits(key, stream, day * MAX_SYMBOLS + everyone)
        uniform = open_uniform(torch.stack(words, dim=1), torch.float32)
        if self.antithetic:
            # Half a turn of the noise's angle, the third number, changes its sign.
            uniform[0, 2] = (uniform[0, 2] + 0.5) % 1.0
        returns = self.returns.draw(known, uniform[0, :3], temperature) + drift
        normal, other = box_muller(uniform[1:, 0], uniform[1:, 1])
        # A day's shocks are drawn with its first symbol, from numbers that its bar has no use for.
        noise = BarNoise(normal, uniform[1:, 2], uniform[1:, 3, ..., 0], other[..., 0])
        return self.bars.draw(known, returns, scales, self.bar_factors, noise, temperature, self.shocks).double()
