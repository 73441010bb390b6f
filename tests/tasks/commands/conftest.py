"""Folders with a market, and with a trained run, for the tests of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.commands.small_runs import DAYS, TINY, bars, train_args
from vecenv.tasks.commands import cli


@pytest.fixture(scope="module")
def market_place(tmp_path_factory) -> Path:
    """A folder with two markets and a preset."""
    folder = tmp_path_factory.mktemp("cli")
    bars(3, DAYS).to_parquet(folder / "market.parquet")
    bars(2, 60).to_parquet(folder / "short.parquet")
    (folder / "tiny.yaml").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def place(market_place) -> Path:
    """A folder with markets, a preset and a run of two updates."""
    words = ("--folder", str(market_place / "run"), "--json", str(market_place / "train.json"))
    assert cli.main(train_args(market_place, *words)) == 0
    return market_place
