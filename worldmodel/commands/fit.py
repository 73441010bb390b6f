"""Fit a neural market to the user's own market: fine-tune shipped weights, keep the best, calibrate, save."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from vecenv.core.checks import device_named
from vecenv.learn.checkpoints import telling_what_is_kept
from vecenv.market.bars import Bars
from vecenv.market.dates import day_of
from vecenv.market.sources import read_bars
from vecenv.system.files import WriteLock
from vecenv.system.interrupts import first_interrupt_asks
from vecenv.worldmodel.commands.settings import NOTHING, FitSettings
from vecenv.worldmodel.commands.training_run import (
    TRAINING_PART,
    PartsBar,
    calibrate,
    calibration_parts,
    check_out,
    told_scores,
    training_market,
    validation_table,
)
from vecenv.worldmodel.network.checkpoint import Checkpoint, load_network, model_file, save_network
from vecenv.worldmodel.network.market_network import MarketNetwork, one_market_network
from vecenv.worldmodel.network.settings import NetworkSettings
from vecenv.worldmodel.sampling.stationary import LEAST_DAYS
from vecenv.worldmodel.sampling.training_market import Advance, TrainingMarket
from vecenv.worldmodel.training.coupling import FEWEST
from vecenv.worldmodel.training.fit import (
    TrainingState,
    Validation,
    judge_start,
    new_state,
    state_from,
    train_network,
    validate_network,
)
from vecenv.worldmodel.training.settings import TrainingSettings

VALIDATION_SHARE = 0.15
"""Default share of the days for validation, the last ones."""

LEAST_VALIDATION = 60
"""Minimum number of validation days."""

NAMED = 6
"""Symbols named in a message."""

KNOWN_GAIN = "at most 0.001"
"""Gain of a fit of symbols that the initial weights know, see benchmarks/results/worldmodel.md."""

READING, ZERO_SHOT = "reading", "zero-shot"
"""Parts before the training."""


def fit(settings: FitSettings) -> dict[str, Any]:
    """Fit a neural market to daily bars of your own, from the weights that are shipped.

    Each market of the initial weights is tried on the validation days as it is (zero-shot), and the best one is
    fine-tuned. Of the validations with returns no less likely than at first, alone and joint, the best is kept; without
    one the weights stay what they were. Ctrl+C ends the training, not the calibration that follows.

    Raises:
        ValueError: the settings do not fit the file, which may have too few days.
        FileNotFoundError: there are no such initial weights, or no such file.
    """
    check_out(settings.out)
    if not settings.market.exists():
        raise FileNotFoundError(f"{settings.market}: there is no such file or folder")
    kept = best_path(settings.out)
    if kept.exists() and model_file(settings.init).absolute() != kept.absolute():
        told = f"--init {kept} goes on from it, and without it a new fit begins"
        raise ValueError(f"{kept} is left of a fit that did not end: {told}")
    with WriteLock.beside(settings.out):
        return _run(settings)


def best_path(out: Path) -> Path:
    """Return the file of the best weights until they are calibrated."""
    return out.with_suffix(".best.safetensors")


def _run(settings: FitSettings) -> dict[str, Any]:
    console, device = Console(), device_named(settings.device)
    training, name = settings.training().on(device), settings.name or settings.market.stem
    initial = None if settings.init == NOTHING else load_network(model_file(settings.init), device)
    began, kept = time.monotonic(), best_path(settings.out)
    parts = [READING, *([] if initial is None else [ZERO_SHOT]), TRAINING_PART, *calibration_parts(name)]
    with PartsBar(console, parts) as bar:
        with bar.part(READING):
            bars = read_bars(settings.market, form=settings.form())
            ends = _ends(bars, settings)
            market, source = training_market(name, bars, settings.market, ends, settings.embargo, device)
        tell_market(console, market, bars, ends)
        record: dict[str, Any] = {"sources": {name: source}, "settings": asdict(training), "embargo": settings.embargo}
        record["init"] = {"weights": settings.init}
        known = {} if initial is None else tell_known(console, settings.init, initial, bars.symbols, ends[0])
        if initial is None:
            state = new_state(NetworkSettings(markets=(name,)), training, device)
        else:
            with bar.part(ZERO_SHOT) as advance:
                network, scores, nearest = _nearest(initial, market, training, advance)
            told = {known: score._asdict() for known, score in scores.items()}
            record["init"] |= {"market": nearest, "label": initial.record.get("label"), "zero_shot": told}
            record["init"] |= {"known_days": initial.known_days()}
            console.print(f"zero-shot: {told_scores(scores)}; it starts from {nearest}", soft_wrap=True)
            if not known:
                tell_seen(console, settings.init, initial, nearest, ends[0])
            state, market = state_from(network, training), market.estimated_by(network)
        try:
            interrupted = _train(state, market, training, bar, kept, record)
            if not state.history:
                raise KeyboardInterrupt
            state.network.load_state_dict(state.best)
            starts, tensors = calibrate(state.network, [market], {name: bars.symbols}, bar.part)
            calibrated = _validated(state.network, market)._asdict()
        except KeyboardInterrupt:
            tell_kept(console, kept)
            raise
    record |= {"history": state.history, "kept_step": state.best_step}
    record |= {"interrupted": interrupted, "calibrated": calibrated}
    record |= {"starts": starts, "seconds": time.monotonic() - began}
    with telling_what_is_kept(kept, f"step {state.best_step}" if kept.exists() else None):
        save_network(settings.out, state.network, record, tensors)
    kept.unlink(missing_ok=True)
    console.print(validation_table(state.history))
    tell_result(console, settings.out, record, name)
    return {"file": str(settings.out), **record}


def _train(
    state: TrainingState,
    market: TrainingMarket,
    training: TrainingSettings,
    bar: PartsBar,
    kept: Path,
    record: Mapping[str, Any],
) -> bool:
    """Train until done, out of patience or Ctrl+C, with the best weights in a file; return whether it was Ctrl+C."""

    def on_step(state: TrainingState, loss: float) -> None:
        bar.tell(TRAINING_PART, f"step {state.step}, loss {loss:+.3f}", state.step / training.steps)

    def on_validation(state: TrainingState, scores: dict[str, Validation]) -> None:
        bar.console.print(f"step {state.step}: {told_scores(scores)}", soft_wrap=True)
        if state.bad_validations == 0:
            best = deepcopy(state.network)
            best.load_state_dict(state.best)
            with telling_what_is_kept(kept, "an earlier step" if kept.exists() else None):
                save_network(kept, best, {**record, "step": state.step}, {})

    asking = first_interrupt_asks(
        "Stopping the training; the best weights so far are calibrated now, Ctrl+C again leaves that out"
    )
    with bar.part(TRAINING_PART), asking as stopped:
        if "market" in record["init"]:
            judge_start(state, [market], training)
        train_network(state, [market], training, on_step, on_validation, stopped)
        return stopped()


def _ends(bars: Bars, settings: FitSettings) -> tuple[str, str]:
    """Return the last dates of training and validation; raise ValueError if a market or symbol has too few days."""
    last = str(bars.dates[-1]) if settings.validation_end is None else settings.validation_end
    days = int((bars.dates <= day_of(last, "validation_end")).sum())
    validation = max(round(days * VALIDATION_SHARE), LEAST_VALIDATION)
    # With too few days the first one: the split is refused below, with the others.
    first = str(bars.dates[max(days - validation - 1, 0)]) if settings.train_end is None else settings.train_end
    end = day_of(first, "train_end")
    train = int((bars.dates <= end).sum()) - settings.embargo
    if train <= LEAST_DAYS or days - train - settings.embargo < LEAST_VALIDATION:
        raise ValueError(
            f"{bars.source}: {len(bars.dates)} days, {max(train, 0)} to train on until {first} less an embargo of "
            f"{settings.embargo}, and {max(days - train - settings.embargo, 0)} to validate on until {last}; more than "
            f"{LEAST_DAYS} and at least {LEAST_VALIDATION} are needed"
        )
    listed = bars.listed[0]
    if int(listed[:train].sum(0).max()) <= LEAST_DAYS:
        raise ValueError(f"{bars.source}: no symbol has more than {LEAST_DAYS} bars in its {train} days of training")
    return first, last


def _nearest(
    initial: Checkpoint, market: TrainingMarket, training: TrainingSettings, advance: Advance
) -> tuple[MarketNetwork, dict[str, Validation], str]:
    """Return a checkpoint's best market on the validation days as a network of its own, all scores, and its name."""
    known = initial.network.settings.markets
    networks = {each: one_market_network(initial.network, each, market.name) for each in known}
    scores = {}
    for each, network in networks.items():
        scores[each] = _validated(network, market)
        advance(1 / len(known))
    best = min(known, key=lambda each: scores[each].loss(training))
    return networks[best], scores, best


def _validated(network: MarketNetwork, market: TrainingMarket) -> Validation:
    estimated = market.estimated_by(network)
    return validate_network(network, estimated, market.split.validation, market.split.stop)


def tell_market(console: Console, market: TrainingMarket, bars: Bars, ends: tuple[str, str]) -> None:
    """Tell the days and symbols of the market, and which parts of the model they are too few for."""
    symbols, split = len(bars.symbols), market.split
    plural = "symbol" if symbols == 1 else "symbols"
    console.print(
        f"{market.name}: {symbols} {plural}, {split.train} days to train on until {ends[0]}, "
        f"{split.stop - split.validation} to validate on until {ends[1]}, none kept for a test",
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


def tell_known(
    console: Console, init: str, initial: Checkpoint, symbols: Sequence[str], train_end: str
) -> dict[str, str]:
    """Tell, before minutes of work, which symbols the initial weights know; return those known in the validation."""
    end = np.datetime64(train_end, "D")
    learned = {name: day for name, day in initial.known_days().items() if name in symbols}
    if learned:
        console.print(
            f"{init} has learned {len(learned)} of the {len(symbols)} symbols: expect little, a fit of the Dow's made "
            f"returns more likely by {KNOWN_GAIN} nats per stock-day",
            soft_wrap=True,
        )
    known = {name: day for name, day in learned.items() if np.datetime64(day) > end}
    if known:
        shown = ", ".join(list(known)[:NAMED]) + (f" and {len(known) - NAMED} more" if len(known) > NAMED else "")
        console.print(
            f"{init} has learned from days of {shown} up to {max(known.values())}, validation begins after "
            f"{train_end}: zero-shot is better here than on new days, and may need no fit",
            soft_wrap=True,
        )
    return known


def tell_seen(console: Console, init: str, initial: Checkpoint, nearest: str, train_end: str) -> None:
    """Tell if the initial weights have learned from days of the validation."""
    last = initial.record.get("sources", {}).get(nearest, {}).get("validation_end")
    if last is not None and np.datetime64(last) > day_of(train_end, "train_end"):
        console.print(
            f"{init} has learned from days of {nearest} up to {last}, validation begins after {train_end}: zero-shot "
            "is better here than on new days",
            soft_wrap=True,
        )


def tell_result(console: Console, out: Path, record: dict[str, Any], name: str) -> None:
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
