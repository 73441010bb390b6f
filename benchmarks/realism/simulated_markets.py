"""Training markets of the benchmark: model-generated paths, and replayed training days."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from vecenv.market.bars import Bars
from vecenv.market.tape import MarketTape
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.validation.judge import SEED_STRIDE, Trial

WARM_UP = 60
"""Warm-up days before episodes in every market, for indicators and fixed policies."""

SHORTEST_HISTORY = 250
"""Minimum history of a path in days, about a year."""


def complete_symbols(bars: Bars, most: int) -> Bars:
    """Return the bars of the first symbols without gaps.

    Raises:
        ValueError: fewer than two do.
    """
    chosen = bars.listed[0].all(0).nonzero().squeeze(-1)[:most]
    if len(chosen) < 2:
        raise ValueError(
            f"{bars.source}: {len(chosen)} symbols have a bar on every day from {bars.dates[0]} to {bars.dates[-1]}, "
            "at least 2 are needed; name symbols to trade"
        )
    symbols = tuple(bars.symbols[index] for index in chosen.tolist())
    return Bars(symbols, bars.dates, bars.ohlcv[:, :, chosen], source=bars.source)


def real_test(trial: Trial, config: StockTradingConfig) -> MarketTape:
    """Return the real test days, with preceding days as warm-up."""
    tape = MarketTape.from_bars(trial.bars, config.features, config.context)
    return _warmed_up(tape.days(trial.first - WARM_UP, tape.num_days))


def replay(trial: Trial, config: StockTradingConfig) -> MarketTape:
    """Return the real training days."""
    return _warmed_up(MarketTape.from_bars(trial.train, config.features, config.context))


def start_days(trial: Trial, count: int, seed: int) -> list[int]:
    """Draw distinct training days as starts of paths, in order.

    Raises:
        ValueError: there are too few with a bar of every symbol and a `SHORTEST_HISTORY` before them.
    """
    usable = trial.train.listed[0].all(-1).nonzero().squeeze(-1)
    usable = usable[usable >= SHORTEST_HISTORY - 1]
    if len(usable) < count:
        raise ValueError(
            f"{trial.bars.source}: {len(usable)} training days have a bar of every symbol and {SHORTEST_HISTORY} days "
            f"of history, {count} are needed as starts"
        )
    drawn = torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed))[:count]
    return sorted(usable[drawn].tolist())


def generated(
    trial: Trial,
    model: MarketModel,
    config: StockTradingConfig,
    num_paths: int,
    num_starts: int,
    num_days: int,
    seed: int,
) -> MarketTape:
    """Draw paths of a model, each after a random training day and its history.

    Args:
        trial: whose training days are the history.
        model: with the trial's symbols.
        config: of the task, for the features.
        num_paths: a multiple of ``num_starts``.
        num_starts: number of start days.
        num_days: of a path, with the warm-up.
        seed: of starts and paths.

    Raises:
        ValueError: as `start_days`.
    """
    days = start_days(trial, num_starts, seed)
    seeds = [seed * SEED_STRIDE + day for day in days]
    parts = list(model.generate_after(trial.train, days, num_paths // num_starts, num_days, seeds))
    # Paths of different starts share a nominal calendar.
    dates = np.busday_offset(trial.train.dates[-1], np.arange(1, num_days + 1), roll="backward")
    bars = Bars(trial.bars.symbols, dates, torch.cat(parts), source=f"{model.name}, seed {seed}")
    return _warmed_up(MarketTape.from_bars(bars, config.features, config.context))


def _warmed_up(tape: MarketTape) -> MarketTape:
    return replace(tape, first_day=max(tape.first_day, WARM_UP))
