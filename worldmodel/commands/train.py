"""Train a neural market: read the data, train with a progress bar, save the best network."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from vecenv.core.checks import device_named, warn_of_slow_bfloat16
from vecenv.distributed.command import as_started, identity
from vecenv.learn.checkpoints import check_optimiser, check_same_form, state_digest, telling_what_is_kept
from vecenv.learn.shards import ALONE, Ranks, as_rank
from vecenv.market.bars import Bars
from vecenv.market.sources import read_bars
from vecenv.system.files import WriteLock
from vecenv.worldmodel.commands.settings import TrainSettings
from vecenv.worldmodel.commands.training_run import (
    BARS_PART,
    TRAINING_PART,
    PartsBar,
    calibrate,
    calibration_parts,
    check_out,
    running_path,
    told_scores,
    training_market,
    validation_table,
)
from vecenv.worldmodel.network.checkpoint import load_network, save_network
from vecenv.worldmodel.network.market_network import MarketNetwork
from vecenv.worldmodel.network.settings import network_settings
from vecenv.worldmodel.sampling.training_market import TrainingMarket
from vecenv.worldmodel.training.bar_stage import train_bars
from vecenv.worldmodel.training.fit import TrainingState, Validation, new_state, train_network
from vecenv.worldmodel.training.settings import BarStageSettings, TrainingSettings

TRAINING, VALIDATION = 0.7, 0.1
"""Default ends of training and validation as shares of the days; the last fifth is for tests."""


def train(settings: TrainSettings) -> dict[str, Any] | None:
    """Train a neural market on daily bars.

    Of several processes the first alone validates, writes, trains the second stage and calibrates, and returns the
    result; the others return None.

    Raises:
        ValueError: the settings do not fit the files, or each other.
        FileNotFoundError: there is no run to resume.
    """
    names = settings.names or tuple(file.stem for file in settings.market)
    _check(settings, names)
    with ExitStack() as held:
        own = held.enter_context(as_started(settings, device_named(settings.device), settings.num_shards()))
        if own.number == 0:
            held.enter_context(WriteLock.beside(settings.out))
        return _run(settings, names, own)


def _run(settings: TrainSettings, names: tuple[str, ...], own: Ranks) -> dict[str, Any] | None:
    console = Console(quiet=own.number > 0)
    device = device_named(settings.device)
    training = replace(settings.training.on(device), shards=settings.num_shards())
    if training.bf16:
        warn_of_slow_bfloat16(device, "--bf16")
    network = network_settings(settings.architecture, settings.network, settings.cnn_gru, names)
    markets, sources = _read_markets(settings, names, device)
    record = {
        "sources": sources,
        "settings": asdict(training),
        "bars": asdict(settings.bars),
        "embargo": settings.embargo,
        "label": settings.label,
    }
    state = new_state(network, training, device)
    running = running_path(settings.out)
    if settings.resume:
        _restore(state, running, record)
    elif _started_again(own, running):
        with suppress(ValueError):
            # Of another run, which this one is about to replace.
            _restore(state, running, record)
    model = state_digest({"step": state.step, "network": state.network.state_dict()})
    own.same(identity(settings, ("market", "resume"), data=sources, model=model))
    parameters = sum(tensor.numel() for tensor in state.network.parameters())
    days = ", ".join(f"{m.name} {m.split.train} days of {m.observed.valid.shape[2]} symbols" for m in markets)
    console.print(f"{parameters:,} parameters; training on {days}, on {device}", soft_wrap=True)
    began, kept = time.monotonic(), f"step {state.step}" if state.step else None
    stages = [TRAINING_PART, BARS_PART] if settings.bars.steps else [TRAINING_PART]
    with PartsBar(console, [*stages, *(part for name in names for part in calibration_parts(name))]) as bar:

        def on_step(state: TrainingState, loss: float) -> None:
            bar.tell(TRAINING_PART, f"step {state.step}, loss {loss:+.3f}", state.step / training.steps)

        def on_validation(state: TrainingState, scores: dict[str, Validation]) -> None:
            bar.console.print(f"step {state.step}: {told_scores(scores)}", soft_wrap=True)
            nonlocal kept
            with telling_what_is_kept(running, kept):
                save_network(running, state.network, record | _progress(state), _extra(state))
            kept = f"step {state.step}"

        with bar.part(TRAINING_PART):
            train_network(state, markets, training, on_step, on_validation)
        own.rest()
        if own.number:
            return None
        with as_rank(ALONE):
            state.network.load_state_dict(state.best)
            bars = settings.bars
            bar_history = _train_bars(state.network, markets, bars, training, bar) if bars.steps else []
            final = record | {
                "history": state.history,
                "bar_history": bar_history,
                "training_seconds": time.monotonic() - began,
            }
            symbols = {name: source["symbols"] for name, source in sources.items()}
            with telling_what_is_kept(running, kept):
                starts, tensors = calibrate(state.network, markets, symbols, bar.part)
                save_network(settings.out, state.network, final | {"starts": starts}, tensors)
    running.unlink(missing_ok=True)
    console.print(validation_table(state.history))
    console.print(f"Written to {settings.out}", soft_wrap=True)
    return {"file": str(settings.out), "parameters": parameters, **final}


def _started_again(own: Ranks, running: Path) -> bool:
    """Whether torchrun has started the ranks again after a failure, and there is a state to go on from."""
    again = own.every(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0)
    return any(again) and own.told_by_first(str(running.exists())) == "True"


def _train_bars(
    network: MarketNetwork,
    markets: Sequence[TrainingMarket],
    settings: BarStageSettings,
    training: TrainingSettings,
    bar: PartsBar,
) -> list[dict[str, object]]:
    """Run the second stage; interrupted, it begins anew from what the first one left."""

    def on_step(step: int, loss: float) -> None:
        bar.tell(BARS_PART, f"step {step}, loss {loss:+.3f}", step / settings.steps)

    with bar.part(BARS_PART):
        return train_bars(network, markets, settings, training.seed, bool(training.bf16), on_step)


def _check(settings: TrainSettings, names: tuple[str, ...]) -> None:
    given = {"names": names, "train_end": settings.train_end, "validation_end": settings.validation_end}
    for option, values in given.items():
        if values and len(values) != len(settings.market):
            raise ValueError(f"{option} has {len(values)} entries for {len(settings.market)} markets")
    if bool(settings.train_end) != bool(settings.validation_end):
        raise ValueError("give both train_end and validation_end, or neither")
    if len(set(names)) < len(names):
        raise ValueError(f"two markets have the same name: {', '.join(names)}")
    check_out(settings.out)


def _read_markets(
    settings: TrainSettings, names: tuple[str, ...], device: torch.device
) -> tuple[list[TrainingMarket], dict[str, dict[str, Any]]]:
    markets, sources = [], {}
    for index, (file, name) in enumerate(zip(settings.market, names, strict=True)):
        bars = read_bars(file, form=settings.form())
        given = bool(settings.train_end)
        ends = (settings.train_end[index], settings.validation_end[index]) if given else _default_ends(bars)
        market, sources[name] = training_market(name, bars, file, ends, settings.embargo, device)
        markets.append(market)
    return markets, sources


def _default_ends(bars: Bars) -> tuple[str, str]:
    train, stop = (round(len(bars.dates) * share) - 1 for share in (TRAINING, TRAINING + VALIDATION))
    return str(bars.dates[train]), str(bars.dates[stop])


def _progress(state: TrainingState) -> dict[str, Any]:
    return {
        "step": state.step,
        "best_loss": state.best_loss,
        "best_step": state.best_step,
        "bad_validations": state.bad_validations,
        "history": state.history,
    }


def _extra(state: TrainingState) -> dict[str, torch.Tensor]:
    """Return the tensors of a run besides the network's."""
    tensors = _averages(state)
    for index, moments in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in moments.items()}
    return tensors


def _averages(state: TrainingState) -> dict[str, torch.Tensor]:
    tensors = {f"average.{name}": tensor for name, tensor in state.average.items()}
    return tensors | {f"best.{name}": tensor for name, tensor in state.best.items()}


def _restore(state: TrainingState, running: Path, record: dict[str, Any]) -> None:
    """Read a run's state; raise FileNotFoundError without one, ValueError for other data, settings or sizes."""
    saved = load_network(running)
    for name, value in record.items():
        # Compare after a JSON round trip, as the values were saved.
        if saved.record.get(name) != json.loads(json.dumps(value)):
            raise ValueError(f"{running}: its {name} are not those of this command")
    if saved.network.settings != state.network.settings:
        raise ValueError(f"{running}: its network is another, or of other sizes: {saved.network.settings}")
    weights = {name: tensor for name, tensor in saved.extra.items() if not name.startswith("optimizer.")}
    moments: dict[int | str, dict[str, torch.Tensor]] = {}
    for name in saved.extra.keys() - weights.keys():
        index, _, moment = name.removeprefix("optimizer.").partition(".")
        moments.setdefault(int(index) if index.isdecimal() else index, {})[moment] = saved.extra[name]
    optimizer = {**state.optimizer.state_dict(), "state": moments}
    try:
        # The number of validations depends on the run's length.
        own = _progress(state) | {"history": saved.record.get("history") or []}
        check_same_form({name: saved.record.get(name) for name in own}, own, "record")
        check_same_form(weights, _averages(state), "state")
        check_optimiser(optimizer, state.optimizer)
    except ValueError as error:
        raise ValueError(f"{running}: {error}") from error
    state.network.load_state_dict(saved.network.state_dict())
    for name in state.average:
        state.average[name].copy_(saved.extra[f"average.{name}"])
        state.best[name].copy_(saved.extra[f"best.{name}"])
    state.optimizer.load_state_dict(optimizer)
    state.step, state.best_step = saved.record["step"], saved.record["best_step"]
    state.best_loss = saved.record["best_loss"]
    state.bad_validations, state.history = saved.record["bad_validations"], saved.record["history"]
