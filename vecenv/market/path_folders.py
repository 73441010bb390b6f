"""Folders of paths of a market, one Parquet file each, as ``vecenv worldmodel generate`` writes them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vecenv.market.bars import Bars
from vecenv.market.validation import MarketDataError, MarketDataWarning

Source = TypeVar("Source")

FILES = "path_[0-9]*.parquet"
"""Names of the files of paths."""

RECORD = "paths.json"
"""Written after them: ``paths``, their number, ``first_drawn``, the first day that is not of the history before, and
``known_days``, the last day that their model has learned from, by symbol."""

WEIGHTS = "weights.json"
"""Beside paths of a drawdown: its probability, and under ``paths`` the ``weight`` of each file."""


def path_files(market: object) -> list[Path]:
    """Return the files of a folder of paths, in order; none if the market is no such folder."""
    return sorted(Path(market).glob(FILES)) if isinstance(market, str | Path) and Path(market).is_dir() else []


def path_record(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file beside paths, empty if there is none; MarketDataError if it cannot be read."""
    try:
        record = json.loads((folder / name).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise MarketDataError(f"{folder / name}: cannot be read ({error})") from error
    if not isinstance(record, dict):
        raise MarketDataError(f"{folder / name}: cannot be read")
    return record


def read_paths(source: Source, read: Callable[[Source | Path], Bars]) -> Bars:
    """Read a folder of paths as bars of P paths; the days before the drawn ones are warm-up, without trading.

    ``read`` reads one of its files, as `vecenv.market.sources.read_bars` does, and any other source.

    Raises:
        MarketDataError: as of ``read``; the files are not of the same symbols, days and
            columns; or the weights are not equal, or not those of the files.
    """
    files = path_files(source)
    if not files:
        return read(source)
    # Not above: a file of one path is looked at without PyTorch.
    import torch

    folder = Path(str(source))
    record = path_record(folder, RECORD)
    if record.get("paths") != len(files):
        told = f"{len(files)} paths, and {record.get('paths', 'none')} in {RECORD}"
        raise MarketDataError(f"{folder}: {told}: not written to its end, or changed since; generate the paths again")
    _check_weights(folder, [file.name for file in files])
    with warnings.catch_warnings():
        # A drawn day may move as a split does.
        warnings.filterwarnings("ignore", ".*looks like an unadjusted split", MarketDataWarning)
        parts = [read(file) for file in files]
    first = parts[0]
    for file, bars in zip(files, parts, strict=True):
        same = bars.symbols == first.symbols and np.array_equal(bars.dates, first.dates)
        if not same or bars.columns.keys() != first.columns.keys() or bars.context.keys() != first.context.keys():
            raise MarketDataError(f"{file}: other symbols, days or columns than those of {files[0].name}")
    columns, context = (
        {name: torch.cat([getattr(bars, kind)[name] for bars in parts]) for name in getattr(first, kind)}
        for kind in ("columns", "context")
    )
    ohlcv = torch.cat([bars.ohlcv for bars in parts])
    drawn = record.get("first_drawn", str(first.dates[0]))
    try:
        warm_up = int(np.searchsorted(first.dates, np.datetime64(drawn, "D")))
    except (TypeError, ValueError) as error:
        raise MarketDataError(f"{folder / RECORD}: first_drawn {drawn!r} is no date") from error
    return replace(first, ohlcv=ohlcv, columns=columns, context=context, source=str(folder), warm_up=warm_up)


def known_days_of_paths(folder: Path) -> dict[str, str]:
    """Return the last day that the model of a folder's paths has learned from, by symbol."""
    known = path_record(folder, RECORD).get("known_days", {})
    return {str(symbol): str(day) for symbol, day in known.items()} if isinstance(known, dict) else {}


def _check_weights(folder: Path, names: Sequence[str]) -> None:
    """Refuse weights of other files, or that differ: every path is drawn as often as any other."""
    paths = path_record(folder, WEIGHTS).get("paths")
    if paths is None:
        return
    weights = {name: path.get("weight") for name, path in paths.items()} if isinstance(paths, dict) else {}
    if sorted(weights) != sorted(names):
        raise MarketDataError(f"{folder / WEIGHTS}: its paths are not the files of the folder, {len(names)} paths")
    if len(set(map(str, weights.values()))) > 1:
        raise MarketDataError(f"{folder / WEIGHTS}: paths of different weights cannot be played, each equally often")
