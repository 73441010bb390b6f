"""Generate paths from a neural market as Parquet files for the other commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console

from vecenv.core.device import device_named
from vecenv.market.bars import Bars
from vecenv.market.parquet_files import write_parquet
from vecenv.market.sources import read_bars
from vecenv.system.write_lock import WriteLock
from vecenv.worldmodel.network.checkpoint import load_network
from vecenv.worldmodel.network.named_weights import model_file
from vecenv.worldmodel.sampling.generator import PathOptions, draw_paths
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import WARM_UP


@dataclass(frozen=True)
class GenerateSettings:
    """Draw days from a neural market, after a history or from nothing."""

    out: Path
    """Folder for the paths, one Parquet file each, with preceding and drawn days."""
    model: str = "shipped"
    """Weights by name, shipped or judged, or a checkpoint of ``vecenv worldmodel train`` or ``fit``."""
    history: Path | None = None
    """File of bars that the paths continue; without it they start without history."""
    market: str | None = None
    """Name of one of the model's markets, by default the only one, or without history the first."""
    symbols: tuple[str, ...] = ()
    """Symbols to draw jointly, by default all of the history, or all known to the model."""
    start: str | None = None
    """Last used date of the history, by default its last."""
    paths: int = 4
    """Number of paths."""
    days: int = 250
    """Days drawn per path."""
    keep: int = 250
    """Days written before the drawn ones, as warm-up of indicators; without history at most 252."""
    temperature: float = 1.0
    """Temperature: factor on the size of every move; 1 draws from the model."""
    seed: int = 0
    """Seed of the draws."""
    device: str = "auto"
    """Device: cpu, cuda, or auto for cuda if available."""


def generate(settings: GenerateSettings) -> dict[str, Any]:
    """Draw days from a neural market, after a history or from nothing.

    Raises:
        ValueError: the settings do not fit the model or the history.
        FileNotFoundError: there is no such checkpoint.
    """
    for name in ("paths", "days"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(settings, name)}")
    if settings.keep < 0 or settings.temperature <= 0:
        raise ValueError("keep must not be negative, and temperature must be positive")
    with WriteLock(settings.out) as lock:
        if any(path != lock.file for path in settings.out.iterdir()):
            raise ValueError(f"{settings.out}: the folder is not empty")
        return _run(settings)


def _run(settings: GenerateSettings) -> dict[str, Any]:
    """Draw into an empty, locked folder."""
    before, drawn = _from_nothing(settings) if settings.history is None else _after_history(settings, settings.history)
    later = np.busday_offset(before.dates[-1] + 1, np.arange(settings.days), roll="forward")
    dates = np.concatenate([before.dates, later])
    first = max(0, len(before.dates) - settings.keep)
    for path, bars in enumerate(drawn):
        past = before.ohlcv[path if settings.history is None else 0]
        table = _long_table(before, dates[first:], torch.cat([past, bars])[first:])
        write_parquet(table, settings.out / f"path_{path:04d}.parquet")
    origin = "from nothing" if settings.history is None else f"after {before.dates[-1]}"
    Console().print(
        f"{settings.out}: {settings.paths} paths of {settings.days} days of {len(before.symbols)} symbols {origin}",
        soft_wrap=True,
    )
    return {
        "folder": str(settings.out),
        "paths": settings.paths,
        "days": settings.days,
        "symbols": list(before.symbols),
    }


def _after_history(settings: GenerateSettings, file: Path) -> tuple[Bars, torch.Tensor]:
    """Return real days, and the days drawn after them. Shape: (P, days, K, 5)."""
    model_path = model_file(settings.model)
    network = load_network(model_path, device_named(settings.device)).network
    model = NeuralMarket.of_file(model_path, network, settings.market, settings.temperature)
    history = read_bars(file, settings.symbols or None, end=settings.start)
    return history, model.generate(history, settings.paths, settings.days, settings.seed).cpu()


def _from_nothing(settings: GenerateSettings) -> tuple[Bars, torch.Tensor]:
    """Return a stored warm-up per path, and the days drawn after it. Shape: (P, days, K, 5)."""
    if settings.start is not None:
        raise ValueError("start is the last date of a history, and none is given")
    options = PathOptions(
        num_paths=settings.paths,
        num_days=WARM_UP + settings.days,
        symbols=settings.symbols or None,
        seed=settings.seed,
        device=device_named(settings.device),
        temperature=settings.temperature,
        market=settings.market,
    )
    bars = draw_paths(model_file(settings.model), options).to("cpu")
    return bars.days(0, WARM_UP), bars.ohlcv[:, WARM_UP:]


def _long_table(before: Bars, dates: np.ndarray, ohlcv: torch.Tensor) -> pd.DataFrame:
    """Return a path as a long table, with symbols and currency of the preceding days. Shape: (T, K, 5)."""
    columns = ("open", "high", "low", "close", "volume")
    table = pd.DataFrame(ohlcv.reshape(-1, 5).numpy(), columns=list(columns))
    table.insert(0, "symbol", np.tile(before.symbols, len(dates)))
    table.insert(0, "date", np.repeat(dates, len(before.symbols)))
    if before.currency is not None:
        table["currency"] = before.currency
    return table.dropna().sort_values(["symbol", "date"], ignore_index=True)
