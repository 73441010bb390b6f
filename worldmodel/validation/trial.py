"""Out-of-sample trial of a market model: the model, test days, origins, and draws of paths and forecasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from vecenv.market.bars import CLOSE, Bars
from vecenv.market.dates import day_of
from vecenv.system.settings import Count, Settings, Within
from vecenv.worldmodel.data.bar_moves import encode_history
from vecenv.worldmodel.data.market_model import MarketModel
from vecenv.worldmodel.data.training_days import MINIMUM_RETURNS
from vecenv.worldmodel.network.checkpoint import load_network, model_file
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.training_market import split_by_date
from vecenv.worldmodel.validation.forecast import ForecastScores, forecast_scores
from vecenv.worldmodel.validation.windows import Windows, align_windows, return_scale

HORIZON = 40
"""Days of a path, for drawdowns and the metrics by rollout day."""

CONTEXT = 60
"""Context days kept before each origin."""

SEED_STRIDE = 1 << 32
"""Difference between the seeds of two runs: every origin of a run has a separate seed."""


@dataclass(frozen=True, eq=False)
class Trial(Settings):
    """Real days for the evaluation of models.

    Attributes:
        bars: one path of history up to the last test day.
        train_stop: number of training days, which come first.
        first: position of the first test day.
        every: test days between origins of paths.
        forecast_every: test days between origins of one-day forecasts.
        memory: days before the test that models read, in addition to the test days up to an origin.

    Raises:
        ValueError: a number is out of its range, the test days are fewer than a path's, or a symbol has no bar on a
            day that paths or forecasts start from.
    """

    bars: Bars
    train_stop: int
    first: int
    every: Count = 20
    forecast_every: Count = 10
    memory: Annotated[int, Within(CONTEXT)] = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.bars.dates) - self.first < HORIZON:
            raise ValueError(
                f"{self.bars.source}: {len(self.bars.dates) - self.first} test days after "
                f"{self.bars.dates[self.first - 1]}, at least {HORIZON} are needed"
            )
        if self.first < CONTEXT:
            raise ValueError(f"{self.bars.source}: {self.first} days before the test, at least {CONTEXT} are needed")
        for day in sorted({*self.origins(), *self.forecast_days}):
            absent = self.bars.absent(day)
            if absent:
                raise ValueError(f"{self.bars.source}: no bar on {self.bars.dates[day]}: {', '.join(absent)}")

    @property
    def train(self) -> Bars:
        return self.bars.days(0, self.train_stop)

    @property
    def forecast_days(self) -> Sequence[int]:
        """Positions of the days whose next day is forecast."""
        return range(self.first - 1, len(self.bars.dates) - 1, self.forecast_every)

    @cached_property
    def scale(self) -> Tensor:
        """Standard deviation of each symbol's returns over the test days. Shape: (N,)."""
        return return_scale(self.bars.ohlcv[0, self.first - 1 :, :, CLOSE])

    @cached_property
    def real(self) -> Windows:
        """The real days after each origin, with M = 1."""
        return self.real_after(self.origins())

    @property
    def dense_origins(self) -> Sequence[int]:
        """Up to twice as many origins as those of paths, for comparing real days with other real ones."""
        return range(self.first - 1, len(self.bars.dates) - HORIZON, max(1, self.every // 2))

    def origins(self, days: int = HORIZON) -> Sequence[int]:
        """Return the positions of the origins of paths with a given length; the first is the day before the test."""
        return range(self.first - 1, len(self.bars.dates) - days, self.every)

    def real_after(self, origins: Sequence[int]) -> Windows:
        """Return the real days after some origins, with M = 1; a symbol without a bar on an origin is missing there."""
        bars = self._following(origins, HORIZON)
        return align_windows(self._context(origins), bars, bars[:, None], self.scale)[0]

    def aligned(self, synthetic_bars: Tensor) -> tuple[Windows, Windows]:
        """Return real and generated windows of all origins. Shape of the bars: (O, M, H, N, 5)."""
        days = synthetic_bars.shape[2]
        origins = self.origins(days)
        return align_windows(self._context(origins), self._following(origins, days), synthetic_bars, self.scale)

    @property
    def begin(self) -> int:
        """Position of the first day that models read in the test."""
        return max(0, self.first - self.memory)

    def test_days(self) -> Bars:
        return self.bars.days(self.begin, len(self.bars.dates))

    def drawn_after(
        self, model: MarketModel, days: Sequence[int], num_paths: int, num_days: int, seed: int
    ) -> Iterator[Tensor]:
        """Yield a model's draws after each of some days. Shape: (P, num_days, N, 5)."""
        positions, seeds = [day - self.begin for day in days], [seed * SEED_STRIDE + day for day in days]
        return model.generate_after(self.test_days(), positions, num_paths, num_days, seeds)

    def _context(self, origins: Sequence[int]) -> Tensor:
        """Return the real days up to each origin. Shape: (O, CONTEXT, N, 5)."""
        return torch.stack([self.bars.ohlcv[0, day + 1 - CONTEXT : day + 1] for day in origins])

    def _following(self, origins: Sequence[int], days: int) -> Tensor:
        """Return the real days after each origin. Shape: (O, H, N, 5)."""
        return torch.stack([self.bars.ohlcv[0, day + 1 : day + 1 + days] for day in origins])


def choose_trial(
    bars: Bars,
    train_end: str,
    validation_end: str,
    every: int = 20,
    forecast_every: int = 10,
    memory: int = 1000,
    keep_gaps: bool = False,
    max_symbols: int | None = None,
) -> tuple[Trial, tuple[str, ...]]:
    """Split a history by date; return the trial, and the symbols left out for gaps or too few training days.

    Raises:
        ValueError: there are no training or no test days, fewer than two symbols are left, or as `Trial`.
    """
    split = split_by_date(bars.dates, train_end, validation_end, 0, bars.source)
    if split.stop >= len(bars.dates):
        raise ValueError(f"{bars.source}: no test day after {validation_end}; its days run to {bars.dates[-1]}")
    fit = encode_history(bars.days(0, split.train)).valid[0].sum(0) >= MINIMUM_RETURNS
    if not keep_gaps:
        fit &= bars.listed[0, split.stop - 1 :].all(0)
    chosen = fit.nonzero().squeeze(-1)[:max_symbols]
    if len(chosen) < 2:
        raise ValueError(
            f"{bars.source}: {len(chosen)} symbols with {MINIMUM_RETURNS} training returns and bars on all test days "
            f"after {validation_end}, at least 2 are needed"
        )
    symbols = tuple(bars.symbols[index] for index in chosen.tolist())
    left_out = tuple(name for name, kept in zip(bars.symbols, fit.tolist(), strict=True) if not kept)
    judged = Bars(symbols, bars.dates, bars.ohlcv[:, :, chosen], source=bars.source)
    return Trial(judged, split.train, split.stop, every, forecast_every, memory), left_out


def sample_paths(
    trial: Trial,
    model: MarketModel,
    num_paths: int,
    seed: int,
    days: int = HORIZON,
    advance: Callable[[], object] = lambda: None,
) -> Tensor:
    """Draw paths of a model after every origin. Shape: (O, M, H, N, 5), float32."""
    origins = trial.origins(days)
    bars = torch.empty(len(origins), num_paths, days, len(trial.bars.symbols), 5)
    for row, drawn in zip(bars, trial.drawn_after(model, origins, num_paths, days, seed), strict=True):
        row.copy_(drawn)
        advance()
    return bars


def sample_forecasts(
    trial: Trial, model: MarketModel, draws: int, seed: int, advance: Callable[[], object] = lambda: None
) -> ForecastScores:
    """Draw the next day of every forecast day, and score it against the outcome."""
    close = trial.bars.ohlcv[0, :, :, CLOSE]
    days = torch.tensor(trial.forecast_days)
    samples = torch.empty(len(days), draws, close.shape[1], dtype=torch.float64)
    forecasts = trial.drawn_after(model, trial.forecast_days, draws, 1, seed)
    for row, before, drawn in zip(samples, close[days], forecasts, strict=True):
        row.copy_((drawn[:, 0, :, CLOSE].cpu() / before).log())
        advance()
    return forecast_scores(samples, (close[days + 1] / close[days]).log())


def judged_model(
    model: str | Path | None,
    market: str | None,
    temperature: float,
    train_end: str | None,
    validation_end: str | None,
    device: torch.device | str = "cpu",
) -> tuple[NeuralMarket | None, str, str]:
    """Return a model to evaluate, None if none is named, and the last dates of training and validation.

    By default the market is the model's only one, and the dates are the model's.

    Raises:
        ValueError: the market is unknown, the model was trained on later days, or no dates are known.
        FileNotFoundError: there is no such checkpoint.
    """
    if bool(train_end) != bool(validation_end):
        raise ValueError("give both train_end and validation_end, or neither")
    if model is None:
        if not train_end or not validation_end:
            raise ValueError("without a model, train_end and validation_end are needed")
        return None, train_end, validation_end
    path = model_file(model)
    saved = load_network(path, device)
    neural = NeuralMarket.of_file(path, saved.network, market, temperature)
    trained = saved.record.get("sources", {}).get(neural.market, {})
    if "validation_end" not in trained and not train_end:
        raise ValueError(f"{path} does not say when its training ended; give train_end and validation_end")
    train_end, validation_end = train_end or trained["train_end"], validation_end or trained["validation_end"]
    last = day_of(validation_end, "validation_end")
    if "validation_end" in trained and last < np.datetime64(trained["validation_end"]):
        raise ValueError(
            f"{path} was chosen on days up to {trained['validation_end']}: the test cannot start after {validation_end}"
        )
    return neural, train_end, validation_end
