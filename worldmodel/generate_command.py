"""Histories drawn from a neural market, as files that every other command reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console

from vecenv.market.bars import Bars
from vecenv.market.sources import read_bars
from worldmodel.checkpoint import load_network
from worldmodel.neural import NeuralMarket


@dataclass(frozen=True)
class GenerateSettings:
    """Draw the days after a history from a neural market."""

    model: Path
    """Checkpoint of ``vecenv worldmodel train``."""
    history: Path
    """File of bars that the paths start from."""
    out: Path
    """Folder for the paths, one Parquet file each: the history's last days and the drawn ones."""
    market: str | None = None
    """Name of the market among those of the model, by default its only one."""
    symbols: tuple[str, ...] = ()
    """Symbols to draw jointly, by default all of the history."""
    start: str | None = None
    """Last date of the history that is used, by default its last."""
    paths: int = 4
    """Number of paths."""
    days: int = 250
    """Days drawn on each."""
    keep: int = 250
    """Days of history written before the drawn ones, which serve as warm-up of indicators."""
    temperature: float = 1.0
    """Factor on the size of every move; 1 draws from the model."""
    seed: int = 0
    """Of the draws."""


def generate(settings: GenerateSettings) -> dict[str, Any]:
    """Draw the days after a history from a neural market.

    Raises:
        ValueError: the settings do not fit the model or the history.
        FileNotFoundError: there is no such checkpoint.
    """
    for name in ("paths", "days"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if settings.keep < 0 or settings.temperature <= 0:
        raise ValueError("keep must not be negative, and temperature must be positive")
    if settings.out.exists() and any(settings.out.iterdir()):
        raise ValueError(f"{settings.out}: the folder is not empty")
    network = load_network(settings.model).network
    model = NeuralMarket.of_file(settings.model, network, settings.market, settings.temperature)
    history = read_bars(settings.history, settings.symbols or None, end=settings.start)
    drawn = model.generate(history, settings.paths, settings.days, settings.seed)
    settings.out.mkdir(parents=True, exist_ok=True)
    for path, bars in enumerate(drawn):
        _long_table(history, bars, settings.keep).to_parquet(settings.out / f"path_{path:04d}.parquet", index=False)
    Console().print(
        f"{settings.out}: {settings.paths} paths of {settings.days} days of {len(history.symbols)} symbols after "
        f"{history.dates[-1]}",
        soft_wrap=True,
    )
    return {
        "folder": str(settings.out),
        "paths": settings.paths,
        "days": settings.days,
        "symbols": list(history.symbols),
    }


def _long_table(history: Bars, drawn: torch.Tensor, keep: int) -> pd.DataFrame:
    """Return a path as a long table; drawn days are the business days after the history. Shape: (H, K, 5)."""
    kept = history.ohlcv[0, max(0, len(history.dates) - keep) :]
    later = np.busday_offset(history.dates[-1] + 1, np.arange(len(drawn)), roll="forward")
    dates = np.concatenate([history.dates[len(history.dates) - len(kept) :], later])
    bars = torch.cat([kept, drawn.to(kept)]).numpy()
    columns = ("open", "high", "low", "close", "volume")
    table = pd.DataFrame(bars.reshape(-1, 5), columns=list(columns))
    table.insert(0, "symbol", np.tile(history.symbols, len(dates)))
    table.insert(0, "date", np.repeat(dates, len(history.symbols)))
    return table.dropna().sort_values(["symbol", "date"], ignore_index=True)
