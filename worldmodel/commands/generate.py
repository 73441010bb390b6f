"""Generate paths from a neural market as Parquet files for the other commands."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console

from vecenv.core.checks import device_named
from vecenv.distributed.command import as_started, identity
from vecenv.learn.shards import Ranks
from vecenv.market.bars import Bars
from vecenv.market.parquet_files import write_parquet
from vecenv.market.path_folders import RECORD, WEIGHTS
from vecenv.market.sources import read_bars
from vecenv.system.files import WriteLock, replacing
from vecenv.worldmodel.commands.settings import GenerateSettings
from vecenv.worldmodel.network.checkpoint import load_network, model_file
from vecenv.worldmodel.sampling.generator import PathOptions, draw_own_paths, stored_past
from vecenv.worldmodel.sampling.neural import NeuralMarket, own_paths, rollout_network
from vecenv.worldmodel.sampling.splitting import Level, Split
from vecenv.worldmodel.sampling.stationary import WARM_UP
from vecenv.worldmodel.sampling.stress_paths import FEWEST_PATHS, share_of, stress_paths, told_share

FILE_SUFFIXES = (".parquet", ".csv", ".npz", ".json", ".safetensors")
"""Endings that name a file, not a folder."""


def generate(settings: GenerateSettings) -> dict[str, Any] | None:
    """Draw days from a neural market, after a history or from nothing.

    Of several processes each draws and writes a part of the paths; the first returns the result, the others None.

    Raises:
        ValueError: the settings do not fit the model or the history.
        FileNotFoundError: there is no such checkpoint.
    """
    if settings.out.suffix.lower() in FILE_SUFFIXES:
        raise ValueError(f"out is a folder, for a Parquet file of each path; {settings.out} names a file")
    if settings.history is None and settings.start is not None:
        raise ValueError("start is the last date of a history, and none is given")
    if settings.drawdown is not None:
        share_of(settings.drawdown, "drawdown")
        if settings.paths < FEWEST_PATHS:
            raise ValueError(f"paths must be at least {FEWEST_PATHS} with a drawdown, got {settings.paths}")
    with as_started(settings, device_named(settings.device)) as own:
        if settings.paths < own.count:
            raise ValueError(f"{own.count} processes for paths={settings.paths}: take at most as many")
        with WriteLock(settings.out) if own.number == 0 else nullcontext() as lock:
            if lock and any(path != lock.file for path in settings.out.iterdir()):
                raise ValueError(f"{settings.out}: the folder is not empty")
            file = model_file(settings.model)
            weights = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "none"
            # Also that the others wait until the first has the folder.
            own.same(identity(settings, weights=weights))
            return _run(settings, own)


def _run(settings: GenerateSettings, ranks: Ranks) -> dict[str, Any] | None:
    console = Console(soft_wrap=True, quiet=ranks.number > 0)
    own, found = own_paths(settings.paths), None
    if settings.drawdown is not None:
        # Which paths go on depends on all of them.
        before, drawn, found = _stressed(settings, share_of(settings.drawdown, "drawdown"), console)
        before, drawn = replace(before, ohlcv=before.ohlcv[own.start : own.stop]), drawn[own.start : own.stop]
    elif settings.history is not None:
        model, history = _model_and_history(settings, settings.history)
        drawn = model.draw_after(model.starts(history), len(own), settings.days, settings.seed, first=own.start).cpu()
        before = replace(history, ohlcv=history.ohlcv.expand(len(own), -1, -1, -1))
    else:
        bars = draw_own_paths(model_file(settings.model), _options(settings)).to("cpu")
        before, drawn = bars.days(0, WARM_UP), bars.ohlcv[:, WARM_UP:]
    later = np.busday_offset(before.dates[-1] + 1, np.arange(settings.days), roll="forward")
    dates = np.concatenate([before.dates, later])
    first = max(0, len(before.dates) - settings.keep)
    files = [settings.out / f"path_{path:04d}.parquet" for path in range(settings.paths)]
    for file, past, bars in zip(files[own.start : own.stop], before.ohlcv, drawn, strict=True):
        ranks.watch()
        write_parquet(_long_table(before, dates[first:], torch.cat([past, bars])[first:]), file)
    # All have written theirs.
    ranks.every(0)
    ranks.rest()
    if ranks.number:
        return None
    result: dict[str, Any] = {
        "folder": str(settings.out),
        "paths": settings.paths,
        "days": settings.days,
        "symbols": list(before.symbols),
    }
    if found is not None:
        weights = _weights(settings, found, dates[-settings.days :], [file.name for file in files])
        _write_json(settings.out / WEIGHTS, weights)
        result["probability"] = found.probability
    known = load_network(model_file(settings.model)).known_days()
    # The last file: without it the paths are not read.
    record = {"paths": settings.paths, "model": settings.model, "first_drawn": str(later[0]), "known_days": known}
    _write_json(settings.out / RECORD, record)
    origin = "from nothing" if settings.history is None else f"after {before.dates[-1]}"
    console.print(
        f"{settings.out}: {settings.paths} paths of {settings.days} days of {len(before.symbols)} symbols {origin}"
    )
    return result


def _write_json(file: Path, content: dict[str, Any]) -> None:
    with replacing(file) as partial:
        partial.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def _model_and_history(settings: GenerateSettings, file: Path) -> tuple[NeuralMarket, Bars]:
    path = model_file(settings.model)
    device = device_named(settings.device)
    network = rollout_network(load_network(path, device).network, settings.bf16, device)
    model = NeuralMarket.of_file(path, network, settings.market, settings.temperature)
    return model, read_bars(file, settings.symbols or None, end=settings.start, form=settings.form.form())


def _options(settings: GenerateSettings) -> PathOptions:
    return PathOptions(
        num_paths=settings.paths,
        num_days=WARM_UP + settings.days,
        symbols=settings.symbols or None,
        seed=settings.seed,
        device=device_named(settings.device),
        temperature=settings.temperature,
        market=settings.market,
        bf16=settings.bf16,
    )


def _stressed(settings: GenerateSettings, drawdown: float, console: Console) -> tuple[Bars, torch.Tensor, Split]:
    """Return the days before each path of a drawdown, those drawn, of shape (P, days, K, 5), and the splitting."""
    matrices = None
    if settings.history is not None:
        model, past = _model_and_history(settings, settings.history)
    else:
        model, past, matrices = stored_past(model_file(settings.model), _options(settings))

    def show(level: Level) -> None:
        console.print(f"{told_share(level.score)} drawdown: reached by {level.reached} of {level.paths} paths")

    found = stress_paths(model, past, matrices, drawdown, settings.paths, settings.days, settings.seed, show)
    low, high = map(told_share, found.interval)
    console.print(
        f"{told_share(drawdown)} drawdown within {settings.days} days: probability {told_share(found.probability)} "
        f"({low} … {high})"
    )
    past = past.to("cpu")
    return replace(past, ohlcv=past.ohlcv[found.paths.origins.cpu()]), found.paths.days.cpu(), found


def _weights(settings: GenerateSettings, found: Split, dates: np.ndarray, files: list[str]) -> dict[str, Any]:
    """Return the JSON of the weights of paths, with the date on which each first falls as far."""
    target = found.levels[-1].score
    reached = (found.paths.scores >= target).long().argmax(1).tolist()
    low, high = found.interval
    return {
        "drawdown": target,
        "days": settings.days,
        "probability": found.probability,
        "relative_standard_error": found.relative_error,
        "interval_95": [low, high],
        "levels": [{"drawdown": level.score, "reached": level.reached, "paths": level.paths} for level in found.levels],
        "paths": {
            file: {"weight": found.probability / len(files), "reached": str(dates[day])}
            for file, day in zip(files, reached, strict=True)
        },
    }


def _long_table(before: Bars, dates: np.ndarray, ohlcv: torch.Tensor) -> pd.DataFrame:
    """Return a path as a long table, with symbols and currency of the preceding days. Shape: (T, K, 5)."""
    columns = ("open", "high", "low", "close", "volume")
    table = pd.DataFrame(ohlcv.reshape(-1, 5).numpy(), columns=list(columns))
    table.insert(0, "symbol", np.tile(before.symbols, len(dates)))
    table.insert(0, "date", np.repeat(dates, len(before.symbols)))
    if before.currency is not None:
        table["currency"] = before.currency
    return table.dropna().sort_values(["symbol", "date"], ignore_index=True)
