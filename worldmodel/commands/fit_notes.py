"""What fitting tells of the market, of the initial weights and of the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from vecenv.market.bars import Bars
from vecenv.worldmodel.network.checkpoint import Checkpoint
from vecenv.worldmodel.sampling.stationary import LEAST_DAYS
from vecenv.worldmodel.sampling.training_market import TrainingMarket
from vecenv.worldmodel.training.coupling import FEWEST


def tell_market(console: Console, market: TrainingMarket, bars: Bars, ends: tuple[str, str]) -> None:
    """Tell the days and symbols of the market, and which parts of the model they are too few for."""
    symbols, split = len(bars.symbols), market.split
    plural = "symbol" if symbols == 1 else "symbols"
    console.print(
        f"{market.name}: {symbols} {plural}, {split.train} days to train on until {ends[0]}, "
        f"{split.stop - split.validation} to validate on until {ends[1]}, none held out for a test",
        soft_wrap=True,
    )
    often = len(market.often())
    if symbols == 1:
        console.print("One symbol: the joint part of the model has nothing to learn, it stays as it was")
    elif often < FEWEST:
        told = f"the coupling of the market's moves needs {FEWEST} symbols with nearly all days: it stays 1"
        console.print(f"{often} symbols with nearly all days: {told}", soft_wrap=True)
    returns = market.encoded.valid[0, : split.train].sum(0).tolist()
    few = [name for name, count in zip(bars.symbols, returns, strict=True) if count < LEAST_DAYS]
    if few:
        told = f"fewer than {LEAST_DAYS} returns in training, no paths without a history: {', '.join(few)}"
        console.print(f"Symbols with {told}", soft_wrap=True)


def tell_seen(console: Console, init: str, initial: Checkpoint, nearest: str, train_end: str) -> None:
    """Tell if the initial weights have learned from days of the validation."""
    last = initial.record.get("sources", {}).get(nearest, {}).get("validation_end")
    if last is not None and np.datetime64(last) > np.datetime64(train_end):
        console.print(
            f"{init} has learned from days of {nearest} up to {last}, validation begins after {train_end}: zero-shot "
            "is better here than on new days",
            soft_wrap=True,
        )


def tell_result(console: Console, out: Path, record: dict[str, Any], name: str) -> None:
    """Tell which weights are kept, and what they are worth beside those that it started with."""
    step, after = record["kept_step"], record["calibrated"]
    which = f"those after step {step}"
    if not step:
        which = "those that it started with: no validation was better"
    ended = "Ended by Ctrl+C. " if record["interrupted"] else ""
    console.print(f"{ended}The weights that are kept are {which}.", soft_wrap=True)
    told = f"{after['alone']:.4f} alone, {after['joint']:.4f} joint"
    if "market" in record["init"]:
        first = record["history"][0][name]
        told += f", zero-shot {first['alone']:.4f} and {first['joint']:.4f}"
    console.print(f"Written to {out}, after the calibration on the validation days {told}", soft_wrap=True)


def tell_kept(console: Console, kept: Path) -> None:
    """Tell after an interruption what is left, and how to go on."""
    if kept.exists():
        told = f"the best weights so far are kept in {kept}, without calibration; --init {kept} goes on from them"
    else:
        told = "nothing is kept, no validation was better than the start"
    console.print(f"Interrupted: {told}", soft_wrap=True)
