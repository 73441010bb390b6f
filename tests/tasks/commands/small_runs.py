"""A small market, settings of trainings on it, and runs as they are before their first update, made in an instant."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from vecenv.learn import algorithm_named, checkpoints, exact, ppo
from vecenv.registry import task_named
from vecenv.system.preset_files import option_names
from vecenv.tasks.experiment import planning
from vecenv.tasks.experiment.checkpoints import write_settings
from vecenv.tasks.experiment.seeds import SeedRun
from vecenv.tasks.experiment.settings import NOT_IN_FILES, TrainSettings, _of_kinds
from vecenv.tasks.experiment.splits import Splits
from vecenv.tasks.experiment.trainers import Trainer, trainer_of
from vecenv.tasks.stock_trading.config import StockTradingConfig

DAYS = 160
SHARES = StockTradingConfig(features=("rsi_30",), episode_length=12, hmax=10)
TILTS = replace(SHARES, action="tilt")
SMALL = {"hidden": (8,), "num_steps": 8, "total_frames": 256, "minibatches": 2}
LEARNERS = {"ppo": ppo.PPOConfig(**SMALL), "exact": exact.ExactConfig(**SMALL | {"policy": "symbol"})}
PARTS = ("source", "split", "paths", "subsets", "batch", "runs", "combining", "validation", "days", "trained")
PARTS += ("players",)


def bars(num_symbols: int, num_days: int) -> pd.DataFrame:
    random, tables, days = np.random.default_rng(5), [], {"date": pd.bdate_range("2020-01-01", periods=num_days)}
    for k in range(num_symbols):
        close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, num_days)))
        prices = {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1e6}
        tables.append(pd.DataFrame({**days, "symbol": f"S{k}", **prices}))
    return pd.concat(tables)


def changed(settings: Any, **given: Any) -> Any:
    """Settings with some options replaced, which may be those of their parts."""
    for item in fields(settings):
        if item.name in PARTS:
            part = getattr(settings, item.name)
            if own := {name: given.pop(name) for name in option_names(part) if name in given}:
                given[item.name] = changed(part, **own)
    return replace(settings, **given)


def settings_of(**given: Any) -> TrainSettings:
    """Settings of a training that no preset changes, by the names of their options."""
    record, algorithm = task_named(given.get("task", "stock_trading")), given.get("algorithm", "ppo")
    env = given.get("env") or record.config()
    return changed(_of_kinds(record, algorithm_named(algorithm), given.get("model"), env, given), **given)


def settings_on(place: Path, **changes: Any) -> TrainSettings:
    """Settings of a training of two updates on the market of a folder."""
    given = {"market": str(place / "market.parquet"), "num_envs": 16, "compile": False, "episodes": 6, "device": "cpu"}
    learner = LEARNERS.get(changes.get("algorithm", "ppo"))
    return settings_of(**given | {"env": TILTS} | ({} if learner is None else {"learner": learner}) | changes)


def parts_of(settings: TrainSettings) -> tuple[Trainer, Splits]:
    """Return what trains, and the splits of the market."""
    trainer = trainer_of(settings)
    return trainer, planning._splits(settings, trainer.rules, Console(quiet=True))


def learner_of(settings: TrainSettings) -> Any:
    """Return the learner of a run from its own start."""
    settings = changed(settings, **({} if settings.runs.initial is None else {"initial": None}))
    trainer, splits = parts_of(settings)
    rows = settings.batch.rows * (settings.runs.ensemble or 1)
    env = splits.of_seed(settings.seed).training(rows, trainer.training_rules, False, trainer.identity(settings))
    return trainer.learner(env, SeedRun(settings, Path(), "trained"), Path())


def made_run(folder: Path, settings: TrainSettings, **state: Any) -> Path:
    """Make a folder with the checkpoint, some of its entries replaced, and the settings of a run."""
    folder.mkdir(parents=True)
    checkpoints.save_checkpoint(learner_of(settings).state_dict() | state, folder / "checkpoint.pt")
    write_settings(folder, settings, NOT_IN_FILES)
    return folder
