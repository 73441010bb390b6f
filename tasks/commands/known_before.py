"""What policies have learned from: days of a file that they play, and market models that know days of the test."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console

from vecenv.market.load import generator_of, known_days
from vecenv.market.path_folders import path_files
from vecenv.market.tape import MarketTape
from vecenv.system.preset_files import read_values
from vecenv.tasks.commands.market_settings import OF_FILES, MarketSettings
from vecenv.tasks.commands.run_folder import SETTINGS, checkpoint_path, read_checkpoint
from vecenv.tasks.commands.train_settings import TrainSettings

FEWER = "judged"
"""Market whose model has learned from fewer days."""


def days_to_play(
    settings: MarketSettings, tape: MarketTape, policies: Collection[Path], part: Literal["test", "all"] | None
) -> tuple[MarketTape, str]:
    """Return the days of a market that policies play, and why: its test, or all of a file that none was trained on.

    What a policy was trained on is known by its content: the prices of its training days, whatever their file is called
    now, and whatever it holds beside them.
    """
    if generator_of(settings.market) is not None:
        return settings.test(tape), ""
    if part is None:
        told = next(filter(None, (_trained_on(place, settings) for place in policies)), "")
        if policies and not told:
            return tape, "all of it, as no policy here was trained on this market"
        why = f": {told}" if told else "; --part all plays it too"
        return settings.test(tape), f"the test part; the rest is for training{why}"
    return (tape, "all of it, as asked for") if part == "all" else (settings.test(tape), "the test part, as asked for")


def _trained_on(place: Path, settings: MarketSettings) -> str:
    """Tell which training of a policy, or of one that it started from, was on the settings' market; empty if none."""
    records = list(_records(place))
    if not records:
        return f"what {checkpoint_path(place)} was trained on is not known, as its folder has no {SETTINGS}"
    for folder in (record.parent for record in records):
        trained = TrainSettings.defaults(["--resume", str(folder)])
        if generator_of(trained.market) is not None:
            continue
        known = read_checkpoint(folder)["scenario"]["market"]
        again = replace(trained, **{name: getattr(settings, name) for name in (*OF_FILES, "device")})
        try:
            days = again.tape(again.with_symbols(again.env)).between(None, known["last_day"])
            same = again.subsets(days).metadata()["fingerprint"] == known["fingerprint"]
        except ValueError:
            # It lacks symbols, columns or days of the training.
            continue
        if same:
            return f"{folder} was trained on it until {known['last_day']}"
    return ""


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
    for record in _records(place):
        yield str(read_values(record).get("market"))


def _records(place: Path) -> Iterator[Path]:
    """Yield the settings of a policy's run, and those of the runs that it started from, as far as they are there."""
    known: set[Path] = set()
    record = checkpoint_path(place).parent / SETTINGS
    while record.is_file() and record not in known:
        known.add(record)
        yield record
        initial = read_values(record).get("initial")
        if initial is None:
            return
        record = checkpoint_path(Path(initial)).parent / SETTINGS
