"""Second stage of training: the bar heads alone, on the trunk as the first stage left it.

Gap, wicks and volume go on gaining long after the densities of returns have begun to overfit. On a trunk that no longer
changes, its outputs are computed once for many updates, which then cost a hundredth of an update of everything.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from vecenv.learn.shards import Shards
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.sampling.training_market import TrainingMarket
from vecenv.worldmodel.training.fit import (
    VALIDATION_DAYS,
    copied,
    cosine_rate,
    descend,
    drawn_symbols,
    follow,
    market_weights,
)
from vecenv.worldmodel.training.settings import BarStageSettings

CHOICES = 8
"""Choices of symbols of each market at a time, with their features and trunk outputs; updates take them in random
order. With one at a time the averaged weights lean to the last."""

CHOICE_STEPS = 100
"""Updates until the oldest choice of each market is drawn anew: heads overfit to a few that stay."""

KNOWN_DAYS = 256
"""Days per batch of the trunk."""

READ_BEFORE = 60
"""Context days of a batch in training; validations read the whole receptive field."""

LEAST_DAYS = 16
"""Minimum number of days of an update."""

WEIGHT_DECAY = 0.02

AVERAGE_DECAY = 0.995
"""Of the exponential moving average of the weights, which is validated and kept."""


def train_bars(
    network: MarketNetwork,
    markets: Sequence[TrainingMarket],
    settings: BarStageSettings,
    seed: int,
    bf16: bool = False,
    on_step: Callable[[int, float], object] = lambda step, loss: None,
) -> list[dict[str, object]]:
    """Train the bar heads, keep the best of the validations, and return their history, the weights given first.

    Without an improvement on these they are kept. Scores are negative log-densities of bars, in nats per stock-day by
    market. Markets are drawn in proportion to the root of their number of stock-days; `bf16` is not for validations.
    """
    heads, weight, whole = network.bars, market_weights(markets), Shards()
    # Dropout is the trunk's alone, which does not learn here.
    network.eval()
    optimizer = torch.optim.AdamW(heads.parameters(), lr=settings.learning_rate, weight_decay=WEIGHT_DECAY)
    kept = [_validation_inputs(network, market) for market in markets]
    average = copied(heads)
    best, history = copied(heads), [_validated(network, markets, kept, 0)]
    best_loss = _mean_loss(history[0], markets)
    generators = [np.random.default_rng([seed, index]) for index in range(len(markets))]
    choices: list[deque[tuple[TrainingMarket, Tensor]]] = [deque(maxlen=CHOICES) for _ in markets]
    for step in range(settings.steps):
        if step % CHOICE_STEPS == 0:
            for market, chosen, generator in zip(markets, choices, generators, strict=True):
                while len(chosen) < CHOICES - 1:
                    chosen.append(_choice(network, market, generator, bf16))
                chosen.append(_choice(network, market, generator, bf16))
        generator = np.random.default_rng([seed, len(markets), step])
        chosen = choices[int(generator.choice(len(markets), p=weight))]
        loss = _bar_loss(network, *chosen[int(generator.integers(CHOICES))], settings.stock_days, generator)
        rate = settings.learning_rate * cosine_rate(step / settings.steps, 0.02)
        loss = descend([loss], optimizer, heads, rate, whole)
        follow(average, heads, AVERAGE_DECAY, step)
        on_step(step + 1, float(loss))
        if (step + 1) % settings.evaluate_every == 0 or step + 1 == settings.steps:
            current = copied(heads)
            heads.load_state_dict(average)
            history.append(_validated(network, markets, kept, step + 1))
            if _mean_loss(history[-1], markets) < best_loss:
                best_loss, best = _mean_loss(history[-1], markets), copied(heads)
            heads.load_state_dict(current)
    heads.load_state_dict(best)
    return history


def _choice(
    network: MarketNetwork, market: TrainingMarket, generator: np.random.Generator, bf16: bool
) -> tuple[TrainingMarket, Tensor]:
    """Draw some of a market's symbols, with the trunk's outputs before their training days."""
    chosen = drawn_symbols(market, generator)
    return chosen, _known(network, chosen, 1, market.split.train, READ_BEFORE, bf16)


@torch.no_grad()
def _known(
    network: MarketNetwork, market: TrainingMarket, first: int, stop: int, context: int, bf16: bool = False
) -> Tensor:
    edges = range(first, stop, KNOWN_DAYS)
    return torch.cat([market.known(network, day, min(day + KNOWN_DAYS, stop), context, bf16) for day in edges])


def _bar_loss(
    network: MarketNetwork, market: TrainingMarket, known: Tensor, stock_days: int, generator: np.random.Generator
) -> Tensor:
    count = max(LEAST_DAYS, stock_days // market.observed.valid.shape[2])
    days = torch.from_numpy(generator.integers(1, market.split.train, size=count)).to(known.device)
    total, number = market.bar_log_prob(network, known[days - 1], days)
    return -total / number.clamp(min=1)


def _validation_inputs(network: MarketNetwork, market: TrainingMarket) -> Tensor:
    """Return the trunk's outputs before the validation days. Shape: (days, K, width)."""
    return _known(network, market, market.split.validation, market.split.stop, network.settings.trunk.reach)


@torch.no_grad()
def _validated(
    network: MarketNetwork, markets: Sequence[TrainingMarket], kept: Sequence[Tensor], step: int
) -> dict[str, object]:
    found: dict[str, object] = {"step": step}
    for market, known in zip(markets, kept, strict=True):
        days = torch.arange(market.split.validation, market.split.stop, device=known.device)
        batches = zip(known.split(VALIDATION_DAYS), days.split(VALIDATION_DAYS), strict=True)
        totals, numbers = zip(*(market.bar_log_prob(network, *batch) for batch in batches), strict=True)
        found[market.name] = -float(sum(totals)) / max(int(sum(numbers)), 1)
    return found


def _mean_loss(scores: dict[str, object], markets: Sequence[TrainingMarket]) -> float:
    values = [scores[market.name] for market in markets]
    return math.fsum(value for value in values if isinstance(value, float)) / len(values)
