"""What policies have learned from: days of a file that they play, and market models that know days of the test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from vecenv.market.generators import known_days
from vecenv.market.load import generator_of
from vecenv.market.path_folders import path_files
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import read_values
from vecenv.tasks.experiment.checkpoints import read_checkpoint
from vecenv.tasks.experiment.markets import OF_FILES, BarMarket, FileMarket
from vecenv.tasks.experiment.run_files import SETTINGS, checkpoint_path
from vecenv.tasks.experiment.settings import resumed_settings

FEWER = "judged"
"""Market whose model has learned from fewer days."""


def trained_on(place: Path, market: BarMarket, device: torch.device) -> str:
    """Tell which training of a policy, or of one that it started from, was on a market of data; empty if none.

    If none that is known was, but not all are, it tells which is not.

    What a policy was trained on is known by its content: the prices of its training days, whatever their file is called
    now, and whatever it holds beside them.
    """
    folders, unknown = _lineage(place)
    for folder in folders:
        try:
            trained = resumed_settings(folder)
            known = read_checkpoint(folder)["scenario"].get("market")
        except (ValueError, ImportError) as error:
            unknown = f"what {folder} was trained on is not known: {error}"
            continue
        if not isinstance(trained.source, FileMarket):
            continue
        given = {name: getattr(market, name) for name in OF_FILES if hasattr(market, name)}
        own = {item.name for item in fields(trained.source)}
        source = replace(trained.source, **{name: value for name, value in given.items() if name in own})
        try:
            rules = source.fitted(trained.record, trained.env)
            days = source.tape(rules, device).between(None, known["last_day"])
            same = trained.subsets.of(days, trained.seed).metadata()["fingerprint"] == known["fingerprint"]
        except ValueError:
            # It lacks symbols, columns or days of the training.
            continue
        if same:
            return f"{folder} was trained on it until {known['last_day']}"
    return unknown


def tell_known_before(console: Console, market: object, test: MarketTape, policies: Iterable[Path | None]) -> None:
    """Tell each such model of policies, None for no policy; nothing if the test is itself drawn by a generator."""
    if generator_of(market) is not None or path_files(market):
        return
    trained = {name for place in policies if place is not None for name in _markets(place)}
    for name in sorted(trained):
        try:
            last = _last_day(name, test)
        except (OSError, ValueError) as error:
            console.print(f"A policy was trained on paths of a model whose days are unknown: {error}", soft_wrap=True)
            continue
        if last and np.datetime64(last) >= test.dates[0]:
            told = (
                f"A policy was trained on paths of {name}, a model that has learned from days of these symbols up to "
                f"{last}: until then this is no test on unseen days"
            )
            if "" < (fewer := _last_day(FEWER, test)) < last:
                told += f"; --market {FEWER} has learned from none after {fewer}"
            console.print(told, soft_wrap=True)


def _last_day(market: str, test: MarketTape) -> str:
    """Return the last day of the test's symbols that a market has learned from, empty if there is none."""
    return max((day for symbol, day in known_days(market).items() if symbol in test.symbols), default="")


def _markets(place: Path) -> Iterator[str]:
    """Yield the market of a policy's run, and those of the runs that it started from, as far as they are there."""
    for folder in _lineage(place)[0]:
        if (market := read_values(folder / SETTINGS).get("market")) is not None:
            yield str(market)


def _lineage(place: Path) -> tuple[list[Path], str]:
    """Return the folders of a policy's run and of those that it started from, and why what was before is not known."""
    folders: list[Path] = []
    policy = checkpoint_path(place)
    while (folder := policy.parent) not in folders:
        unknown = f"what {policy} was trained on is not known"
        if not (folder / SETTINGS).is_file():
            return folders, f"{unknown}, as its folder has no {SETTINGS}"
        try:
            initial = read_values(folder / SETTINGS).get("initial")
        except ValueError as error:
            return folders, f"{unknown}: {error}"
        folders.append(folder)
        if initial is None:
            break
        policy = checkpoint_path(_found(Path(str(initial)), folder))
    return folders, ""


def _found(initial: Path, folder: Path) -> Path:
    """Return the place of what a run started from: a relative path is one of where the run began, mostly above it."""
    places = [above / initial for above in (*folder.resolve().parents, Path())]
    return next((place for place in places if place.exists()), initial)
