"""What `vecenv factors train` and `apply` do: forecasts of books, written with a record of their quality."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from vecenv.system.figures import save
from vecenv.system.files import WriteLock, replacing
from vecenv.tasks.crypto_lob.clock import ClockedBooks, clocked, moment, recordings
from vecenv.tasks.crypto_lob.config import BookSource
from vecenv.tasks.crypto_lob.factors import FACTORS, book_series, factor_table
from vecenv.tasks.crypto_lob.forecast_file import HORIZONS, write_forecasts
from vecenv.tasks.crypto_lob.forecasts.fit import (
    NETWORK,
    Fold,
    ForecastModel,
    fold_before,
    forecast_forward,
    forecasts,
    network_of_fold,
    smoothed_moves,
    walk_forward,
)
from vecenv.tasks.crypto_lob.forecasts.quality import (
    Quality,
    quality_by_horizon,
    quality_figure,
    quality_table,
    to_json,
)
from vecenv.tasks.crypto_lob.tape import snapshots_of

if TYPE_CHECKING:
    from vecenv.tasks.crypto_lob.forecasts.command import ApplyFactors, TrainFactors

WIDTH = 160
"""Least columns of the table."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What is read of books, and what happens next.

    ``factors`` are all of `FACTORS`, (T, F), float32, ``moves`` smoothed, (T, H), float64, NaN where unknown.
    """

    books: ClockedBooks
    factors: np.ndarray
    moves: np.ndarray
    description: str


def rows_of(source: BookSource) -> Rows:
    """Read books, and compute factors and moves; raises MarketDataError if the file is missing or invalid."""
    snapshots, gap = snapshots_of(source), source.step_gap
    books = clocked(snapshots, gap, source.max_age)
    return Rows(
        books,
        factor_table(books, tuple(FACTORS), gap),
        np.concatenate([smoothed_moves(book_series(part, gap)) for part in recordings(books, gap)]),
        f"{Path(snapshots.source).name}: {moment(books.time[0])} to {moment(books.time[-1])}",
    )


def train(settings: TrainFactors) -> dict[str, Any]:
    """Train a network for each fold, forecast its block, and train a last one on all rows.

    Raises ValueError if the rows are too few for the folds, MarketDataError if the file is missing or invalid.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    console = Console()
    with console.status("Reading books, computing factors …"):
        rows = rows_of(settings.books)
    count, purge = len(rows.moves), round(HORIZONS[-1] / settings.books.step_gap)
    folds = walk_forward(count, settings.folds, settings.first_share, purge, settings.judged_share)
    last = fold_before(count, count, purge, settings.judged_share)
    console.print(
        f"{rows.description}; {count:,} rows of {settings.books.step_gap:g} s, of which the last "
        f"{count - folds[0].first:,} are forecast",
        soft_wrap=True,
    )
    settings.out.mkdir(parents=True, exist_ok=True)
    with WriteLock(settings.out):
        with Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(), console=console,
        ) as bar:  # fmt: skip
            task = bar.add_task("networks", total=len(folds) + 1)

            def told(fold: Fold) -> None:
                bar.advance(task)

            made = forecast_forward(rows.factors, rows.moves, folds, settings.fit, told)
            network = network_of_fold(rows.factors, rows.moves, last, settings.fit)
            bar.advance(task)
        model = ForecastModel(
            network, settings.fit, settings.books.step_gap, int(rows.books.time[-1]), rows.description
        )
        model.save(settings.out / "model.safetensors")
        # Moves of the rows that are learned from reach the row before the block.
        time = rows.books.time
        seen = np.where(made.learned > 0, time[(made.learned + purge - 1).clip(max=count - 1)], 0)
        measured = quality_by_horizon(made.forecasts, rows.moves, made.mean, time / 1000)
        record = {
            "books": rows.description,
            "settings": asdict(settings.fit),
            "folds": [asdict(fold) for fold in folds],
            "horizons_s": list(HORIZONS),
            "meaning": "forecasts of a row come from a network that has seen no price after models_seen_until_ms",
        }
        write_forecasts(settings.out / "forecasts.parquet", rows.books, made.forecasts[NETWORK], seen, record)
        result = record | {"rows": count, "forecast_rows": count - folds[0].first, "quality": to_json(measured)}
        with replacing(settings.out / "quality.json") as partial:
            partial.write_text(json.dumps(result, indent=1) + "\n")
        save(quality_figure(measured, rows.description), settings.out / "quality.png")
    _show(console, measured)
    written = settings.out / "forecasts.parquet"
    console.print(f"Written to {settings.out}; trade with them: --env.forecasts {written}", soft_wrap=True)
    return result


def apply(settings: ApplyFactors) -> dict[str, Any]:
    """Forecast the rows of books that are later than all that the network has seen.

    Raises FileNotFoundError without such a model, ValueError if it is no model, or of another clock, or all rows are
    earlier, MarketDataError if the file of books is missing or invalid.
    """
    console = Console()
    model = ForecastModel.load(settings.model)
    if model.step_gap != settings.books.step_gap:
        raise ValueError(f"{settings.model}: of rows of {model.step_gap:g} s, not {settings.books.step_gap:g} s")
    with console.status("Reading books, computing factors …"):
        rows = rows_of(settings.books)
    time = rows.books.time
    first = int(np.searchsorted(time, model.seen_until, "right"))
    if first == len(time):
        seen = moment(model.seen_until)
        raise ValueError(f"{rows.description}: nothing is later than {seen}, until which {settings.model} has seen")
    made = np.full(rows.moves.shape, np.nan, np.float32)
    made[first:] = forecasts(model.network, torch.from_numpy(rows.factors), first, len(time)).numpy()
    seen_until = np.where(np.arange(len(time)) >= first, model.seen_until, 0)
    record = {"books": rows.description, "model": str(settings.model), "model_books": model.source}
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    write_forecasts(settings.out, rows.books, made, seen_until, record)
    mean = np.broadcast_to(model.network.mean_move.numpy(), rows.moves.shape)
    measured = quality_by_horizon({NETWORK: made}, rows.moves, mean, time / 1000)
    console.print(f"{rows.description}; {len(time) - first:,} of {len(time):,} rows are forecast", soft_wrap=True)
    _show(console, measured)
    console.print(f"Written to {settings.out}", soft_wrap=True)
    return record | {"rows": len(time), "forecast_rows": len(time) - first, "quality": to_json(measured)}


def _show(console: Console, measured: dict[str, list[Quality | None]]) -> None:
    Console(width=max(WIDTH, console.width)).print(quality_table(measured))
