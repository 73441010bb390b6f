"""Forecast moves of the mid with networks that have seen only earlier rows: `vecenv factors train` and `apply`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro import conf

from vecenv.system.settings import Count, CountFromZero, OpenShare
from vecenv.system.settings import Settings as CheckedSettings
from vecenv.tasks.crypto_lob.config import BookSource
from vecenv.tasks.crypto_lob.forecasts.settings import FitSettings


@dataclass(frozen=True)
class TrainFactors(CheckedSettings):
    """Train forecasting networks walk-forward, and write their forecasts of the same books."""

    out: Path
    """Folder for forecasts.parquet, model.safetensors, quality.json and quality.png."""
    books: Annotated[BookSource, conf.arg(name="")] = field(default_factory=BookSource)
    """Order books."""
    folds: Count = 6
    """Blocks that are forecast, each by a network of its own."""
    first_share: OpenShare = 0.25
    """Share of the rows, the first, that are learned from only."""
    judged_share: OpenShare = 0.15
    """Share of the rows before a block, the last, that choose among weights."""
    fit: Annotated[FitSettings, conf.arg(name="")] = field(default_factory=FitSettings)
    """Network and its training."""
    threads: CountFromZero = 0
    """CPU threads, 0 for PyTorch's default."""


@dataclass(frozen=True)
class ApplyFactors:
    """Forecast later books with a trained network."""

    model: Path
    """model.safetensors of ``vecenv factors train``."""
    out: Path
    """Parquet file of forecasts to write."""
    books: Annotated[BookSource, conf.arg(name="")] = field(default_factory=BookSource)
    """Order books."""


Settings = Annotated[TrainFactors, conf.subcommand("train")] | Annotated[ApplyFactors, conf.subcommand("apply")]


def main(settings: Settings) -> dict[str, Any]:
    """Forecast moves of the mid with networks that have seen only earlier rows, for `--env.forecasts`."""
    # It needs PyTorch, which settings do not.
    from vecenv.tasks.crypto_lob.forecasts.runs import apply, train

    return train(settings) if isinstance(settings, TrainFactors) else apply(settings)
