"""A small market, settings of trainings on it, and runs as they are before their first update, made in an instant."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import vecenv
from vecenv.learn import checkpoints, exact, ppo
from vecenv.tasks.commands import run_folder, train, train_settings
from vecenv.tasks.stock_trading.config import StockTradingConfig
from vecenv.tasks.stock_trading.task import STOCK_TRADING

DAYS = 160
SHARES = StockTradingConfig(features=("rsi_30",), episode_length=12, hmax=10)
TILTS = replace(SHARES, action="tilt")
SMALL = {"hidden": (8,), "num_steps": 8, "total_frames": 256, "minibatches": 2}


def bars(num_symbols: int, num_days: int) -> pd.DataFrame:
    random, tables, days = np.random.default_rng(5), [], {"date": pd.bdate_range("2020-01-01", periods=num_days)}
    for k in range(num_symbols):
        close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, num_days)))
        prices = {"open": close, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1e6}
        tables.append(pd.DataFrame({**days, "symbol": f"S{k}", **prices}))
    return pd.concat(tables)


def settings_on(place: Path, **changes: Any) -> train_settings.TrainSettings:
    """Settings of a training of two updates on the market of a folder."""
    given = {"market": str(place / "market.parquet"), "num_envs": 16, "compile": False, "episodes": 6, "device": "cpu"}
    given |= {"env": TILTS, "ppo": ppo.PPOConfig(**SMALL), "exact": exact.ExactConfig(**SMALL | {"policy": "symbol"})}
    return train_settings.TrainSettings(**given | changes)


def learner_of(settings: train_settings.TrainSettings) -> Any:
    config = settings.with_symbols(settings.env)
    config = STOCK_TRADING.domain.smooth(config) if settings.algorithm == "exact" else config
    training = settings.training(settings.tape(config))
    options = {"market": training, "compile": False, "config": config, "seed": settings.seed}
    return train.new_learner(settings, vecenv.make(settings.task, settings.num_envs, **options))


def made_run(folder: Path, settings: train_settings.TrainSettings, **state: Any) -> Path:
    """Make a folder with the checkpoint, some of its entries replaced, and the settings of a run."""
    folder.mkdir(parents=True)
    checkpoints.save_checkpoint(learner_of(settings).state_dict() | state, folder / "checkpoint.pt")
    run_folder.write_settings(folder, settings, train_settings.NOT_IN_FILES)
    return folder
