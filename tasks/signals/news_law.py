"""The law of the market of synthetic news, and what news and prices tell of the next day.

Each symbol has two hidden signs of its own, which persist: the direction s(t) and the danger v(t). The simple return of
the next day is

    R(t + 1) = strength s(t) + volatility (1 + danger v(t)) e(t + 1),    e standard normal.

On a day there is a headline with probability ``coverage``. With probability ``accuracy`` its tone is the direction,
else it is bad, neutral or good with equal probability; its risk is drawn of the danger in the same way. So of headlines
the mean of tone times direction is the accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vecenv.market.planted_law import LARGEST_NORMAL
from vecenv.system.settings import Fraction, NotNegative, Positive, Settings, Share


@dataclass(frozen=True)
class NewsLaw(Settings):
    """Parameters of the market of synthetic news.

    ``strength`` is the size of the mean return per day, ``volatility`` that of a symbol's return per day, on average
    over the danger; ``danger`` the relative distance of the volatilities in danger and without from the average, in
    [0, 1); ``coverage`` the probability of a headline per symbol and day, ``accuracy`` that it tells the truth rather
    than anything; ``flip`` and ``danger_flip`` the probabilities per day that direction and danger change sign. Raises
    ValueError if a parameter is out of range, or a price could reach zero.
    """

    strength: NotNegative
    volatility: Positive
    danger: Fraction
    coverage: Share
    accuracy: Share
    flip: Share
    danger_flip: Share

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength + LARGEST_NORMAL * self.volatility * (1 + self.danger) >= 1:
            raise ValueError(f"a price could reach zero with strength {self.strength}, volatility {self.volatility}")

    def told(self, sign: Tensor, draw: Tensor) -> Tensor:
        """Return what headlines tell of a hidden sign: -1, 0 or 1; draws are uniform in (0, 1). Shape: that of both."""
        other = ((draw - self.accuracy) / max(1.0 - self.accuracy, 1e-12) * 3.0).floor().clamp(0.0, 2.0) - 1.0
        return torch.where(draw < self.accuracy, sign, other)


def known_of_signs(law: NewsLaw, returns: Tensor, tone: Tensor, risk: Tensor, there: Tensor) -> Tensor:
    """Return the probabilities of the hidden signs at each close, given all returns and headlines up to it.

    The forward filter of a hidden Markov model (Rabiner, "A tutorial on hidden Markov models", 1989, eq. 19-20), exact
    for this law. ``returns`` are simple, ``tone`` and ``risk`` -1, 0 or 1; all have shape (P, T, K). The probabilities
    are of (direction, danger) = (-1, -1), (-1, 1), (1, -1), (1, 1). Shape: (P, T, K, 4), float64.
    """
    signs = returns.new_tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
    direction, danger = signs.T
    scale = law.volatility * (1 + law.danger * danger)
    move = torch.kron(_persistence(law.flip, returns), _persistence(law.danger_flip, returns))
    # Of the day's return given the signs of the day before, up to a common factor.
    likelihood = torch.exp(-0.5 * ((returns.unsqueeze(-1) - law.strength * direction) / scale).square()) / scale
    chance = (1 - law.accuracy) / 3
    told = [
        torch.where(value.unsqueeze(-1) == sign, law.accuracy + chance, torch.full_like(likelihood, chance))
        for value, sign in ((tone, direction), (risk, danger))
    ]
    news = torch.where(there.unsqueeze(-1), told[0] * told[1], 1.0)
    known = torch.empty_like(likelihood)
    now = torch.full_like(likelihood[:, 0], 0.25)
    for day in range(returns.shape[1]):
        if day:
            now = (now * likelihood[:, day]) @ move
        now = now * news[:, day]
        now = now / now.sum(-1, keepdim=True)
        known[:, day] = now
    return known


def growth_weights(law: NewsLaw, known: Tensor) -> Tensor:
    """Return the long-only weights of largest expected log-growth to second order, given `known_of_signs`.

    Maximises sum w m - sum w^2 q / 2 over w >= 0, sum w <= 1, with mean m and second moment q of the next return of
    each symbol, which are independent. The solution is w = max(m - l, 0) / q, with l >= 0 so that the sum is at most 1
    (the Karush-Kuhn-Tucker conditions). Shapes: (P, T, K, 4) -> (P, T, K), float64.
    """
    safe_down, danger_down, safe_up, danger_up = known.unbind(-1)
    mean = law.strength * (safe_up + danger_up - safe_down - danger_down)
    calm, wild = ((law.volatility * (1 + sign * law.danger)) ** 2 for sign in (-1, 1))
    second = law.strength**2 + calm * (safe_down + safe_up) + wild * (danger_down + danger_up)
    # The symbols that are held are those of the largest means: l for every number of them.
    order = mean.argsort(dim=-1, descending=True)
    ranked, weight = mean.gather(-1, order), (1 / second).gather(-1, order)
    price = ((ranked * weight).cumsum(-1) - 1) / weight.cumsum(-1)
    # The largest of them solves the problem: sum max(m - l, 0) / q falls in l and is 1 there.
    multiplier = price.amax(-1, keepdim=True).clamp(min=0.0)
    return (mean - multiplier).clamp(min=0.0) / second


def _persistence(flip: float, like: Tensor) -> Tensor:
    """Return the transition probabilities of a sign. Shape: (2, 2)."""
    return like.new_tensor([[1 - flip, flip], [flip, 1 - flip]])
