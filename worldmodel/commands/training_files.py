"""Files of the commands that train a neural market: what they read, and where they write."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vecenv.market.bars import Bars
from vecenv.worldmodel.sampling.training_market import TrainingMarket, split_by_date


def check_out(out: Path) -> None:
    """Reject a file that cannot be a checkpoint.

    Raises:
        ValueError: its suffix is another, or its folder does not exist.
    """
    if out.suffix != ".safetensors" or not out.absolute().parent.is_dir():
        raise ValueError(f"{out}: a file that ends in .safetensors, in a folder that exists, is needed")


def running_path(out: Path) -> Path:
    """Return the file of an unfinished run's state."""
    return out.with_suffix(".running.safetensors")


def training_market(
    name: str,
    bars: Bars,
    file: Path,
    ends: tuple[str, str],
    embargo: int,
    device: torch.device,
) -> tuple[TrainingMarket, dict[str, Any]]:
    """Return the training data of bars, and what a checkpoint's record tells about them.

    Args:
        name: of the market.
        bars: one path of all days.
        file: that they were read from.
        ends: last dates of training and of validation; later days are left out.
        embargo: last training days that are left out.
        device: of the training.

    Raises:
        ValueError: a part of the split would be empty.
    """
    split = split_by_date(bars.dates, *ends, embargo, bars.source)
    known = bars.days(0, split.stop)
    source = {
        "file": file.name,
        "symbols": list(bars.symbols),
        "first_day": str(bars.dates[0]),
        "train_end": ends[0],
        "validation_end": ends[1],
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
