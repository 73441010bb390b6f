"""Random numbers and bars of markets with a planted law."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vecenv.core.random import Block, box_muller, open_uniform
from vecenv.market.synthetic import bridge_extremes

START_PRICE = 50.0
"""First open of every symbol."""

VOLUME = 1e6
"""Volume of every bar."""


def switching_sign(word: Tensor, flip: float) -> Tensor:
    """Draw a chain in {-1, +1} that starts fair and changes sign by a daily probability. Shape: (P, T, K)."""
    draw = open_uniform(word)
    changes_sign = torch.cat([draw[:, :1] < 0.5, draw[:, 1:] < flip], dim=1)
    return (1 - 2 * changes_sign.to(torch.float64)).cumprod(dim=1)


def normal_numbers(words: Sequence[Tensor]) -> Tensor:
    """Convert the first two words to a standard normal number (Box-Muller). Shape: that of a word."""
    return box_muller(open_uniform(words[0]), open_uniform(words[1]))[0]


def bars_of_returns(log_return: Tensor, volatility: float, words: Block) -> Tensor:
    """Build bars that open at the previous close; ``volatility``, of the way from open to close, sets high and low.

    The last two words draw high and low. Shapes: (P, T, K) -> (P, T, K, 5).
    """
    start = math.log(START_PRICE)
    close = start + log_return.cumsum(dim=1)
    open_ = torch.cat([torch.full_like(close[:, :1], start), close[:, :-1]], dim=1)
    high, low = bridge_extremes(open_, close, volatility**2, words[2:])
    prices = torch.exp(torch.stack([open_, high, low, close], dim=-1))
    return torch.cat([prices, torch.full_like(prices[..., :1], VOLUME)], dim=-1)
