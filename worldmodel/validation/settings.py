"""Settings of a validation, without PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from vecenv.market.bar_form import FormSettings
from vecenv.system.settings import Count, CountFromZero, Positive, Seed, Within

LAST_YEAR = 250
"""Days of the shorter bootstrap."""

TAILS = (0.25, 0.05, 0.005)
"""Tail probability on each side of the 50, 90 and 99% intervals."""

LEAST_DRAWS = math.ceil(1 / TAILS[-1]) - 1
"""The ends of the widest interval are quantiles of draws."""


@dataclass(frozen=True)
class ValidateSettings(FormSettings):
    """Measure how real a neural market is, beside all baselines, on days that none of them has seen."""

    history: Path
    """File of bars: training days, to which the baselines are fitted, validation days and test days."""
    out: Path
    """Folder for validation.json, validation.md and validation.png."""
    model: tuple[str, ...] = ()
    """Weights by name, judged or shipped, or a checkpoint of ``vecenv worldmodel train``; of several, such as training
    seeds, the figures are averaged. Without it only the baselines."""
    beside: tuple[str, ...] = ()
    """Models of other architectures, evaluated as further baselines at temperature 1."""
    market: str | None = None
    """Name of one of each checkpoint's markets, by default the only one."""
    train_end: str | None = None
    """Last date of training, by default the model's."""
    validation_end: str | None = None
    """Last date before the test, by default the model's."""
    test_end: str | None = None
    """Last date of the test, by default the file's."""
    symbols: tuple[str, ...] = ()
    """Symbols, by default all with a bar on every test day."""
    max_symbols: Annotated[int, Within(2)] | None = None
    """Maximum number of symbols, the first ones, for a quick run."""
    every: Count = 20
    """Test days between origins of paths."""
    paths: Annotated[int, Within(2)] = 128
    """Paths per origin: the Monte-Carlo error of FHS' energy score on 46 origins is 0.004, with 32 paths 0.007."""
    forecast_every: Count = 10
    """Test days between origins of one-day forecasts; 1 scores every day."""
    draws: Annotated[int, Within(LEAST_DRAWS)] = 1000
    """Draws per one-day forecast: the Monte-Carlo error of FHS' CRPS on 50 days is 0.08, with 200 draws 0.22."""
    long_days: CountFromZero = 0
    """Days of longer paths for the figures from day 41 on, such as 250; 0 for none."""
    long_paths: Count = 16
    """Longer paths per origin."""
    memory: Annotated[int, Within(LAST_YEAR + 1)] = 1000
    """Days before the test that models read, besides the test days up to an origin; older ones have no influence."""
    temperature: Positive = 1.0
    """Temperature: factor on the size of the model's moves; 1 draws from the model."""
    temperatures: tuple[Positive, ...] = ()
    """Further temperatures to measure, such as 0.1 0.4 0.7 0.9 1 1.1 1.3 1.5."""
    discriminator_seeds: CountFromZero = 5
    """Discriminators of each kind, which classify generated and real days; 0 for none. Needs scikit-learn."""
    seeds: Count = 1
    """Number of runs with different draws, whose figures are averaged."""
    seed: Seed = 0
    """Seed of the first run."""
    device: str = "auto"
    """Device of networks: cpu, cuda, or auto for cuda if available. Baselines run on the CPU."""
