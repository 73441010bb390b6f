"""Baseline models: geometric Brownian motion and stationary bootstrap.

Each is fitted to training bars by its `fit` and generates whole bars. Random numbers are counter-based (see
`vecenv.core.random`), so a path does not depend on the batch. Generated volumes are the training days' deviations from
the level, centred, less a small share of the level's distance from the history's end: without this mean reversion the
sum of deviations would be unbounded.
"""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

import torch
from torch import Tensor

from vecenv.core.random import EpisodeKey, box_muller, episode_key, open_uniform, random_bits
from vecenv.market.bars import Bars
from vecenv.market.streams import BaselineStream
from vecenv.worldmodel.data.bar_moves import (
    EncodedBars,
    Move,
    MoveState,
    bounded_moves,
    daily_returns,
    decode_bar,
    encode_history,
    next_state,
)
from vecenv.worldmodel.data.correlation import positive_definite
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.data.training_days import DayShapes, TrainingDays, symbol_positions

VOLUME_PULL = 0.1
"""Mean reversion per day of the log-volume's level towards its start. Regressed on the distance from the mean of a year
it is 0.04 for NSE stocks and 0.09 for the Dow's."""

EIGENVALUE_FLOOR = 0.01
"""Lowest eigenvalue of a correlation matrix, so that it is invertible for any number of days."""

MEAN_BLOCK = 20
"""Mean length of the bootstrap's blocks in days: a month, to preserve most volatility clusters."""


class Baseline(MarketModel):
    """Market model that generates day by day from drawn moves."""

    symbols: tuple[str, ...]

    def columns(self, bars: Bars) -> Tensor:
        """Return the positions of the bars' symbols in the model; raise ValueError for an unknown one. Shape: (K,)."""
        return symbol_positions(self.symbols, bars.symbols)

    @abstractmethod
    def draw(self, history: Bars, encoded: EncodedBars, key: EpisodeKey) -> Iterator[Tensor]:
        """Yield the moves of successive days after a history, endlessly. Shape: (P, K, 5); of the key: (P, 1)."""

    def generate(self, history: Bars, num_paths: int, num_days: int, seed: int = 0) -> Tensor:
        return next(self.generate_after(history, [len(history.dates) - 1], num_paths, num_days, [seed]))

    def generate_after(
        self, bars: Bars, days: Sequence[int], num_paths: int, num_days: int, seeds: Sequence[int]
    ) -> Iterator[Tensor]:
        if num_paths < 1 or num_days < 1:
            raise ValueError(f"num_paths and num_days must be at least 1, got {num_paths} and {num_days}")
        # Rejects unknown symbols early.
        self.columns(bars)
        encoded = encode_history(bars)
        for day in days:
            absent = bars.absent(day)
            if absent:
                raise ValueError(f"{bars.source}: no bar on {bars.dates[day]}: {', '.join(absent)}")
        for day, seed in zip(days, seeds, strict=True):
            yield self._draw_after(bars.days(0, day + 1), encoded.until(day), num_paths, num_days, seed)

    def _draw_after(self, history: Bars, encoded: EncodedBars, num_paths: int, num_days: int, seed: int) -> Tensor:
        """Draw the days after a history. Shape: (P, num_days, K, 5)."""
        state = MoveState(*(part.expand(num_paths, -1) for part in encoded.last))
        level = state.volume_level
        key = episode_key(seed, torch.arange(num_paths)[:, None], 0)
        bars = torch.empty(num_paths, num_days, len(history.symbols), 5, dtype=torch.float64)
        for day, move in enumerate(itertools.islice(self.draw(history, encoded, key), num_days)):
            move[..., Move.VOLUME] -= VOLUME_PULL * (state.volume_level - level)
            bounded = bounded_moves(state, move)
            bars[:, day] = decode_bar(state, bounded)
            state = next_state(state, bounded)
        return bars


class GeometricBrownianMotion(Baseline):
    """Jointly Gaussian log-returns of constant mean, volatility and correlation.

    Gap, wicks and volume are those of a random training day of the same symbol, in units of volatility.
    """

    name = "GBM"

    def __init__(
        self, symbols: tuple[str, ...], mean: Tensor, volatility: Tensor, correlation: Tensor, shapes: DayShapes
    ) -> None:
        self.symbols = symbols
        self.mean, self.volatility, self.correlation, self.shapes = mean, volatility, correlation, shapes

    @classmethod
    def fit(cls, bars: Bars) -> Self:
        """Fit to training bars; raises as `TrainingDays.from_bars`."""
        days = TrainingDays.from_bars(bars)
        count = days.valid.sum(0)
        mean = days.returns.sum(0) / count
        deviation = torch.where(days.valid, days.returns - mean, 0.0)
        volatility = (deviation.square().sum(0) / count).sqrt()
        correlation = pairwise_correlation(deviation / volatility, days.valid)
        return cls(bars.symbols, mean, volatility, correlation, DayShapes.from_days(days, volatility))

    def log_density(self, bars: Bars) -> Tensor:
        standard, valid, columns = self._standardised(bars)
        density = -0.5 * (standard.square() + math.log(2 * math.pi)) - self.volatility[columns].log()
        return torch.where(valid, density, float("nan"))

    def joint_log_density(self, bars: Bars) -> Tensor:
        standard, valid, columns = self._standardised(bars)
        density = torch.full((len(valid),), float("nan"), dtype=torch.float64)
        patterns, pattern = valid.unique(dim=0, return_inverse=True)
        for number, present in enumerate(patterns):
            if not present.any():
                continue
            days, some = pattern == number, columns[present]
            lower = torch.linalg.cholesky(self.correlation[some][:, some])
            white = torch.linalg.solve_triangular(lower, standard[days][:, present].T, upper=False)
            log_scale = lower.diagonal().log().sum() + self.volatility[some].log().sum()
            density[days] = -0.5 * (white.square().sum(0) + len(some) * math.log(2 * math.pi)) - log_scale
        return density

    def draw(self, history: Bars, encoded: EncodedBars, key: EpisodeKey) -> Iterator[Tensor]:
        columns = self.columns(history)
        mean, volatility = self.mean[columns], self.volatility[columns]
        lower = torch.linalg.cholesky(self.correlation[columns][:, columns])
        for day in itertools.count():
            radial, angular, row = symbol_draws(key, day, len(columns), len(self.shapes.table))
            shock = box_muller(radial, angular)[0] @ lower.T
            yield self.shapes.moves(mean + volatility * shock, volatility, row, columns)

    def _standardised(self, bars: Bars) -> tuple[Tensor, Tensor, Tensor]:
        """Return standardised returns, their mask, and the symbols' positions."""
        columns = self.columns(bars)
        returns, valid = daily_returns(encode_history(bars))
        return (returns - self.mean[columns]) / self.volatility[columns], valid, columns


class StationaryBootstrap(Baseline):
    """Stationary bootstrap of training days in blocks of geometric length (Politis and Romano 1994).

    All symbols of a day are drawn together, with unchanged bars; days wrap around at the end. The distribution is
    discrete, so there is no density. Without `days`, the last days of the continued history are drawn from.
    """

    has_density = has_joint_density = False

    def __init__(
        self, days: TrainingDays | None, symbols: tuple[str, ...], mean_block: float, last_days: int | None
    ) -> None:
        self.days, self.symbols, self.mean_block, self.last_days = days, symbols, mean_block, last_days
        self.name = "bootstrap" if last_days is None else f"bootstrap, last {last_days} days"

    @classmethod
    def fit(cls, bars: Bars, mean_block: float = MEAN_BLOCK, last_days: int | None = None) -> Self:
        """Fit to training bars, or draw instead from the `last_days` of the continued history.

        Raises:
            ValueError: a setting is below 1, or as `TrainingDays.from_bars`.
        """
        if mean_block < 1:
            raise ValueError(f"mean_block must be at least 1 day, got {mean_block}")
        if last_days is not None and last_days < 1:
            raise ValueError(f"last_days must be at least 1, got {last_days}")
        days = TrainingDays.from_bars(bars)
        return cls(days if last_days is None else None, bars.symbols, mean_block, last_days)

    def log_density(self, bars: Bars) -> Tensor:
        raise NotImplementedError("a bootstrap has no density; ask `has_density` before")

    def draw(self, history: Bars, encoded: EncodedBars, key: EpisodeKey) -> Iterator[Tensor]:
        days = self.days
        columns = self.columns(history)
        if days is None:
            days, columns = TrainingDays.from_moves(history, encoded, self.last_days), torch.arange(len(columns))
        table = days.filled(days.moves)
        row = torch.zeros_like(key.env_id)
        for day in itertools.count():
            ends, fresh = random_bits(key, BaselineStream.ROW, day)[:2]
            new_block = (open_uniform(ends) * self.mean_block < 1) | (day == 0)
            row = torch.where(new_block, row_draw(fresh, len(table)), (row + 1) % len(table))
            yield table[row, columns]


def pairwise_correlation(standard: Tensor, valid: Tensor) -> Tensor:
    """Return pairwise correlations of centred returns over common days, 0 without one, made positive definite."""
    common = standard.square().T @ valid.to(standard.dtype)
    correlation = (standard.T @ standard / (common * common.T).sqrt()).nan_to_num(0.0)
    return positive_definite(correlation, EIGENVALUE_FLOOR)


def symbol_draws(key: EpisodeKey, day: int, num_symbols: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw two uniform numbers and a row for each path and symbol. Shape of each: (P, K)."""
    bits = random_bits(key, BaselineStream.SYMBOL + torch.arange(num_symbols), day)
    return open_uniform(bits[0]), open_uniform(bits[1]), row_draw(bits[2], num_rows)


def row_draw(bits: Tensor, num_rows: int) -> Tensor:
    """Map 32-bit words to row numbers in [0, num_rows)."""
    return (bits * num_rows) >> 32
