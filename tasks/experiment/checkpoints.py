"""Files of a run's folder: settings, checkpoint and metrics log, and what a checkpoint fits."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from vecenv.learn.checkpoints import load_checkpoint
from vecenv.learn.runs import read_metrics
from vecenv.learn.settings.run import CHECKPOINT, METRICS
from vecenv.learn.verdict import validated_rows
from vecenv.market.tape import MarketTape
from vecenv.registry import task_named
from vecenv.system.files import replacing
from vecenv.system.preset_files import as_values, with_values
from vecenv.system.settings import with_earlier
from vecenv.tasks.experiment.run_files import SETTINGS, checkpoint_path


def read_checkpoint(place: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, from a run's folder or a file, a ValueError if there is none or it is not one."""
    path = checkpoint_path(place)
    if not path.is_file():
        raise ValueError(f"{path}: there is no checkpoint")
    state = load_checkpoint(path, torch.device("cpu"))
    if not {"config", "scenario"} <= set(state):
        raise ValueError(f"{path}: not a checkpoint of vecenv")
    return state


def check_resumable_folder(folder: Path) -> None:
    """Raise a ValueError if a run folder lacks an undamaged checkpoint and log of metrics to resume from."""
    read_checkpoint(folder)
    if (folder / METRICS).exists():
        with warnings.catch_warnings():
            # A truncated last row is handled when the log is reopened.
            warnings.simplefilter("ignore")
            read_metrics(folder / METRICS)


def write_settings(folder: Path, settings: Any, without: Collection[str]) -> None:  # noqa: ANN401
    """Write settings as a preset, without those that only the command line may set."""
    with replacing(folder / SETTINGS) as partial:
        partial.write_text(yaml.safe_dump(as_values(settings, without), sort_keys=False))


def read_progress(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of every update of a run, those before a resumption included."""
    return read_metrics(folder / METRICS)


def looks_of(path: Path) -> int | None:
    """Return the validations that chose the policy of a run's checkpoint; None where its log does not tell."""
    if path.name != CHECKPOINT or not (path.parent / METRICS).is_file():
        return None
    return len(validated_rows(read_progress(path.parent)))


def trained_config(scenario: Mapping[str, Any], source: str) -> Any:  # noqa: ANN401
    """Return the config in a checkpoint's metadata, a ValueError if it is not that of the installed task."""
    values = scenario.get("curriculum", scenario.get("config", {}))
    config = task_named(scenario["task"]).config()
    return with_values(config, with_earlier(values, config), source)


def check_fits(state: Mapping[str, Any], tape: MarketTape, config: Any) -> None:  # noqa: ANN401
    """Raise a ValueError if a market's or config's observations or actions differ from a checkpoint's."""
    scenario = state["scenario"]
    symbols = scenario["market"]["symbols"]
    traded = getattr(config, "symbols", tape.symbols)
    # Policies of symbols play any number of them.
    flat = state["config"].get("policy", "flat") == "flat"
    if flat and len(symbols) != len(traded):
        raise ValueError(
            f"the checkpoint was trained on {len(symbols)} symbols, but {len(traded)} are chosen of {tape.source}; "
            f"choose as many with --symbols"
        )
    check_same_inputs(state, config)


def check_same_inputs(state: Mapping[str, Any], config: Any) -> None:  # noqa: ANN401
    """Raise a ValueError if a config's features, context or actions differ from a checkpoint's."""
    scenario = state["scenario"]
    trained = scenario["config"]
    for name in ("features", "context"):
        if name in trained and list(trained[name]) != list(getattr(config, name)):
            chosen = ", ".join(getattr(config, name))
            raise ValueError(f"the checkpoint was trained on {name} {', '.join(trained[name])}, not {chosen}")
    task_named(scenario["task"]).domain.check_trained(trained, config)
