"""Markets that a policy is trained in: paths of models of the training days, and those days themselves."""

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
"""Days before the first of an episode that every market has, so that indicators and fixed policies know a past."""

SHORTEST_HISTORY = 250
"""Fewest days, about a year, that a path goes on from."""


def complete_symbols(bars: Bars, most: int) -> Bars:
    """Return the bars of the first symbols that have one on every day.

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


def real_test(trial: Trial, rules: StockTradingConfig) -> MarketTape:
    """Return the real test days; days before them are read for the warm-up alone."""
    tape = MarketTape.from_bars(trial.bars, rules.features, rules.context)
    return _warmed_up(tape.days(trial.first - WARM_UP, tape.num_days))


def replay(trial: Trial, rules: StockTradingConfig) -> MarketTape:
    """Return the real training days."""
    return _warmed_up(MarketTape.from_bars(trial.train, rules.features, rules.context))


def start_days(trial: Trial, count: int, seed: int) -> list[int]:
    """Draw training days that paths go on from, without repetition, in their order.

    Raises:
        ValueError: there are not as many with a bar of every symbol and the `SHORTEST_HISTORY` before them.
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
    rules: StockTradingConfig,
    num_paths: int,
    num_starts: int,
    num_days: int,
    seed: int,
) -> MarketTape:
    """Draw paths of a model, each after a random training day of which it sees the history alone.

    Args:
        trial: whose training days are the history.
        model: knows the trial's symbols.
        rules: name the features.
        num_paths: a multiple of ``num_starts``.
        num_starts: days that paths go on from.
        num_days: of a path, with the warm-up.
        seed: of starts and paths.

    Raises:
        ValueError: as `start_days`.
    """
    days = start_days(trial, num_starts, seed)
    seeds = [seed * SEED_STRIDE + day for day in days]
    parts = list(model.generate_after(trial.train, days, num_paths // num_starts, num_days, seeds))
    # Paths of different starts share a calendar, which has no other meaning than to count their days.
    dates = np.busday_offset(trial.train.dates[-1], np.arange(1, num_days + 1), roll="backward")
    bars = Bars(trial.bars.symbols, dates, torch.cat(parts), source=f"{model.name}, seed {seed}")
    return _warmed_up(MarketTape.from_bars(bars, rules.features, rules.context))


def _warmed_up(tape: MarketTape) -> MarketTape:
    return replace(tape, first_day=max(tape.first_day, WARM_UP))
