"""A small market and the command line of a training run of two updates on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

DAYS = 160
# Each rollout has 64 x 8 steps, so these are two updates.
TINY = """
end: 2021-12-31
num_envs: 64
compile: false
episodes: 200
env: {episode_length: 12, features: [rsi_30], hmax: 10}
ppo: {num_steps: 8, total_frames: 1024, epochs: 1, minibatches: 2, hidden: [8]}
"""
RUN_FILES = {
    "checkpoint.pt",
    "drawdown.png",
    "equity.png",
    "exposure.png",
    "holdings.png",
    "learning_curve.png",
    "metrics.csv",
    "metrics.json",
    "settings.yaml",
    "untrained.pt",
    "worst_days.png",
}
GROUPS = ("--algorithm", "grpo", "--num-groups", "16", "--group-size", "4", "--grpo.minibatches", "2")


def bars(num_symbols: int, num_days: int) -> pd.DataFrame:
    """A long table of random walks."""
    random, tables = np.random.default_rng(5), []
    for k in range(num_symbols):
        close = 50 * np.exp(np.cumsum(random.normal(0, 0.01, num_days)))
        dates = pd.bdate_range("2020-01-01", periods=num_days)
        table = pd.DataFrame({"date": dates, "symbol": f"S{k}", "open": close, "high": close * 1.01})
        tables.append(table.assign(low=close * 0.99, close=close, volume=1e6))
    return pd.concat(tables)


def train_args(place: Path, *more: str) -> list[str]:
    """The command line of a training run on the market and the preset of a folder."""
    return ["train", "--preset", str(place / "tiny.yaml"), "--market", str(place / "market.parquet"), *more]
