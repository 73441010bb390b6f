"""Generator of a market with synthetic news, whose tone leads the prices by a known strength.

The law is in `vecenv.tasks.signals.news_law`. A headline of the day is drawn among all of its tone and risk
(`vecenv.tasks.signals.news.headlines`). The scores are the lexicon's, which misreads some. A headline is published
before the close of its day, so the decision at that close may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from vecenv.core.random import Block, episode_key, open_uniform, random_bits
from vecenv.market.bars import Bars
from vecenv.market.planted_draws import bars_of_returns, normal_numbers, switching_sign
from vecenv.market.streams import NewsStream
from vecenv.market.synthetic import CURRENCY, business_days, path_blocks, symbol_names
from vecenv.tasks.signals.news.headlines import HEADLINES, RISKS, TONES
from vecenv.tasks.signals.news.lexicon import LexiconScorer
from vecenv.tasks.signals.news_law import NewsLaw, growth_weights, known_of_signs


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
    tone, risk = (law.told(sign, open_uniform(word)) for sign, word in ((direction, news[1]), (danger, news[2])))
    first, count = (table.to(paths.device)[(3 * (tone + 1) + risk + 1).long()] for table in _classes())
    headline = first + ((news[3] * count) >> 32)
    scores = _scores().to(paths.device)[headline]
    columns = torch.cat([scores, headline.double().unsqueeze(-1)], dim=-1)
    columns = torch.where(there.unsqueeze(-1), columns, torch.nan)
    # The range has one scale in danger and without: it must not tell more than the close.
    ohlcv = bars_of_returns(torch.log1p(change), law.volatility, bars)
    return ohlcv, columns, growth_weights(law, known_of_signs(law, change, tone, risk, there))


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
