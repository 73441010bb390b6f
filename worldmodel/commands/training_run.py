"""What the commands that train a neural market share: files, calibration, validations as a table, progress in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from vecenv.market.bars import Bars
from vecenv.market.dates import day_of
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.sampling.neural import NeuralMarket
from vecenv.worldmodel.sampling.stationary import StationaryStart
from vecenv.worldmodel.sampling.training_market import Advance, TrainingMarket, split_by_date
from vecenv.worldmodel.training.calendar_moves import calibrate_calendar
from vecenv.worldmodel.training.common_shocks import calibrate_shocks
from vecenv.worldmodel.training.correlation_levels import calibrate_levels
from vecenv.worldmodel.training.correlations import calibrate_correlations
from vecenv.worldmodel.training.coupling import calibrate_coupling
from vecenv.worldmodel.training.drift import calibrate_drift
from vecenv.worldmodel.training.fit import Validation


def check_out(out: Path) -> None:
    """Raise ValueError for a file that cannot be a checkpoint, by its suffix or for lack of its folder."""
    if out.suffix != ".safetensors" or not out.absolute().parent.is_dir():
        raise ValueError(f"{out}: a file that ends in .safetensors, in a folder that exists, is needed")


def running_path(out: Path) -> Path:
    """Return the file of an unfinished run's state."""
    return out.with_suffix(".running.safetensors")


def training_market(
    name: str, bars: Bars, file: Path, ends: tuple[str, str], embargo: int, device: torch.device
) -> tuple[TrainingMarket, dict[str, Any]]:
    """Return the training data of bars, and what a checkpoint's record tells about them.

    Raises:
        ValueError: a part of the split would be empty.
    """
    split = split_by_date(bars.dates, *ends, embargo, bars.source)
    known = bars.days(0, split.stop)
    source = {
        "file": file.name,
        "symbols": list(bars.symbols),
        "first_day": str(bars.dates[0]),
        "train_end": str(day_of(ends[0], "train_end")),
        "validation_end": str(day_of(ends[1], "validation_end")),
        "sha256": bars_digest(known),
    }
    if bars.currency is not None:
        source["currency"] = bars.currency
    return TrainingMarket.from_bars(name, known, split, device), source


def bars_digest(bars: Bars) -> str:
    """SHA-256 hash of the bars, 16 hex digits."""
    digest = hashlib.sha256(repr((bars.symbols, [str(day) for day in bars.dates])).encode())
    digest.update(np.ascontiguousarray(bars.ohlcv.numpy()).tobytes())
    return digest.hexdigest()[:16]


TRAINING_PART = "training"
"""Name of the training among the parts of a command."""

BARS_PART = "bars"
"""Name of the second stage of the training."""


def told_scores(scores: Mapping[str, Validation]) -> str:
    return "  ".join(f"{name}: {score.alone:.4f} alone, {score.joint:.4f} joint" for name, score in scores.items())


def validation_table(history: Iterable[Mapping[str, object]]) -> Table:
    """Return the scores of all validations, in nats per stock-day."""
    table = Table(title="Validation: negative log-density, nats per stock-day (lower is better)")
    for heading in ("step", "loss", "market", "alone", "joint", "shape"):
        table.add_column(heading, justify="right")
    for entry in history:
        markets = {name: scores for name, scores in entry.items() if isinstance(scores, dict)}
        loss = "–" if entry["loss"] is None else f"{entry['loss']:.3f}"
        for name, scores in markets.items():
            numbers = (f"{scores[key]:.4f}" for key in Validation._fields)
            table.add_row(str(entry["step"]), loss, name, *numbers)
    return table


class PartsBar(Progress):
    """Progress bars of the parts of a command."""

    def __init__(self, console: Console, parts: Sequence[str]) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
        )
        self._rows = {name: self.add_task(name, total=1.0, state="") for name in parts}

    @contextmanager
    def part(self, name: str) -> Iterator[Advance]:
        """Run a part within the context, which is told the share of the work that is done; at its end all is."""
        row = self._rows[name]
        # Speed is measured from the first sample.
        self.advance(row, 0.0)
        yield partial(self.advance, row)
        self.update(row, completed=1.0)

    def tell(self, name: str, state: str, completed: float | None = None) -> None:
        """Show a part's state in words, and set the share that is done."""
        row: TaskID = self._rows[name]
        self.update(row, state=state, completed=completed)


def calibration_parts(market: str) -> tuple[str, ...]:
    """Return the names of the parts of a market's calibration, in their order."""
    parts = "correlations", "coupling", "calendar", "drift", "starts"
    return tuple(f"{market}: {part}" for part in parts)


def calibrate(
    network: MarketNetwork,
    markets: Sequence[TrainingMarket],
    symbols: Mapping[str, Sequence[str]],
    part: Callable[[str], AbstractContextManager[Advance]],
) -> tuple[dict[str, tuple[str, ...]], dict[str, Tensor]]:
    """Calibrate each market's correlations, common shocks, coupling, calendar and drift; compute its stationary start.

    Return the symbols with a start of each market that has one, and the tensors of the starts.
    """
    network.eval()
    starts: dict[str, tuple[str, ...]] = {}
    tensors: dict[str, Tensor] = {}
    for trained in markets:
        correlations, coupling, calendar, drift, stationary = calibration_parts(trained.name)
        with part(correlations) as advance:
            calibrate_correlations(network, trained, advance=lambda share: advance(share / 2))
            calibrate_levels(network, trained.estimated_by(network), advance=lambda share: advance(share / 2))
        market = trained.estimated_by(network)
        with part(coupling) as advance:
            calibrate_shocks(network, market, advance=lambda share: advance(share / 2))
            calibrate_coupling(network, market, advance=lambda share: advance(share / 2))
        with part(calendar) as advance:
            calibrate_calendar(network, market, advance=advance)
        with part(drift) as advance:
            calibrate_drift(network, market, advance=advance)
        with part(stationary):
            known, start = StationaryStart.learn(market, symbols[market.name])
            if known:
                starts[market.name] = known
                tensors |= start.with_warm_up(NeuralMarket(network, market.name)).tensors(market.name)
    return starts, tensors
