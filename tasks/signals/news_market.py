"""A market with synthetic news, whose tone leads the prices by a known strength: law, filter and generator.

Each symbol has two hidden signs of its own, which persist: the direction s(t) and the danger v(t). The simple return of
the next day is

    R(t + 1) = strength s(t) + volatility (1 + danger v(t)) e(t + 1),    e standard normal.

On a day there is a headline with probability ``coverage``. With probability ``accuracy`` its tone is the direction,
else it is bad, neutral or good with equal probability; its risk is drawn of the danger in the same way. So of headlines
the mean of tone times direction is the accuracy. It is drawn among all of its tone and risk
(`vecenv.tasks.signals.news.headlines`) and published before the close of its day, so the decision at that close may use
it. The scores are the lexicon's, which misreads some.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from vecenv.core.random import Block, episode_key, open_uniform, random_bits
from vecenv.market.bars import Bars
from vecenv.market.planted_law import LARGEST_NORMAL, bars_of_returns, normal_numbers, switching_sign
from vecenv.market.streams import NewsStream
from vecenv.market.synthetic import CURRENCY, business_days, path_blocks, symbol_names
from vecenv.system.settings import Fraction, NotNegative, Positive, Settings, Share
from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news.lexicon import LexiconScorer


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

    def reported(self, sign: Tensor, draw: Tensor) -> Tensor:
        """Return what headlines tell of a hidden sign: -1, 0 or 1; draws are uniform in (0, 1). Shape: that of both."""
        other = ((draw - self.accuracy) / max(1.0 - self.accuracy, 1e-12) * 3.0).floor().clamp(0.0, 2.0) - 1.0
        return torch.where(draw < self.accuracy, sign, other)


def forward_filter(law: NewsLaw, returns: Tensor, tone: Tensor, risk: Tensor, there: Tensor) -> Tensor:
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
    """Return the long-only weights of largest expected log-growth to second order, given `forward_filter`.

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


def news_bars(
    num_paths: int = 32,
    num_days: int = 504,
    symbols: int | Sequence[str] = 10,
    seed: int = 0,
    device: torch.device | str = "cpu",
    strength: float = 0.0015,
    volatility: float = 0.01,
    danger: float = 0.5,
    coverage: float = 0.6,
    accuracy: float = 0.6,
    flip: float = 0.1,
    danger_flip: float = 0.05,
) -> Bars:
    """Generate bars of P histories of T business days and K independent symbols, with headlines and their scores.

    Path p does not depend on the number of paths. The seed is in [0, 2^64). The parameters of the law are those of
    `NewsLaw`: a ``strength`` of 0 leaves nothing to find in the tone, an ``accuracy`` of 0 makes news that tell
    nothing.

    The bars have the columns ``sentiment`` and ``risk``, NaN without a headline or where the lexicon knows no word of
    it, and ``text``, the position of the headline in ``texts``, NaN without one. Shape of each: (P, T, K). The best
    weights are `growth_weights`, of a reader who reads all headlines right. Raises ValueError if a count is below one,
    a parameter or the seed is out of range, or a price could reach zero.
    """
    law = NewsLaw(strength, volatility, danger, coverage, accuracy, flip, danger_flip)
    names, dates = symbol_names(symbols), business_days(num_days)
    parts = [
        _paths(law, seed, paths, num_days, len(names))
        for paths in path_blocks(num_paths, num_days * len(names), device)
    ]
    prices, columns, best = (torch.cat(part) for part in zip(*parts, strict=True))
    return Bars(
        names,
        dates,
        prices,
        columns=dict(zip(("sentiment", "risk", "text"), columns.unbind(-1), strict=True)),
        source=f"market of synthetic news, seed {seed}",
        currency=CURRENCY,
        best_weights=best,
        texts=HEADLINES,
        law=law,
    )


def _paths(law: NewsLaw, seed: int, paths: Tensor, num_days: int, num_symbols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return bars, shape (P, T, K, 5), sentiment, risk and headline, (P, T, K, 3), and weights, (P, T, K)."""
    bars, news, direction_word, danger_word = (
        _words(stream, seed, paths, num_days, num_symbols)
        for stream in (NewsStream.BAR, NewsStream.NEWS, NewsStream.DIRECTION, NewsStream.DANGER)
    )
    direction = switching_sign(direction_word[0], law.flip)
    danger = switching_sign(danger_word[0], law.danger_flip)
    change = law.volatility * normal_numbers(bars)
    change[:, 1:] = law.strength * direction[:, :-1] + (1 + law.danger * danger[:, :-1]) * change[:, 1:]
    there = open_uniform(news[0]) < law.coverage
    tone, risk = (law.reported(sign, open_uniform(word)) for sign, word in ((direction, news[1]), (danger, news[2])))
    first, count = (table.to(paths.device)[(3 * (tone + 1) + risk + 1).long()] for table in _classes())
    headline = first + ((news[3] * count) >> 32)
    scores = _scores().to(paths.device)[headline]
    columns = torch.cat([scores, headline.double().unsqueeze(-1)], dim=-1)
    columns = torch.where(there.unsqueeze(-1), columns, torch.nan)
    # The range has one scale in danger and without: it must not tell more than the close.
    ohlcv = bars_of_returns(torch.log1p(change), law.volatility, bars)
    return ohlcv, columns, growth_weights(law, forward_filter(law, change, tone, risk, there))


def _words(stream: NewsStream, seed: int, paths: Tensor, num_days: int, num_symbols: int) -> Block:
    """Draw four words per path, day and symbol. Shape of each: (P, T, K)."""
    day = torch.arange(num_days, device=paths.device)[:, None]
    symbol = torch.arange(num_symbols, device=paths.device)
    return random_bits(episode_key(seed, paths[:, None, None], 0), stream + symbol, day)


@cache
def _classes() -> tuple[Tensor, Tensor]:
    """Return the first headline and the number of headlines of each class 3 (tone + 1) + risk + 1. Shape: (9,)."""
    classes = np.array([3 * (tone + 1) + risk + 1 for tone, risk in zip(TONES, RISKS, strict=True)])
    first = [int(np.flatnonzero(classes == number)[0]) for number in range(9)]
    return torch.tensor(first), torch.tensor(np.bincount(classes, minlength=9))


@cache
def _scores() -> Tensor:
    """Return sentiment and risk of all headlines by the lexicon, NaN where it knows no word. Shape: (H, 2)."""
    scores = LexiconScorer().score(HEADLINES)
    values = np.stack([scores.sentiment, scores.risk], axis=-1)
    return torch.from_numpy(np.where(scores.known[:, None], values, np.nan))
