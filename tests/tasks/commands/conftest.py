"""A folder with a market, and runs on it that no test changes."""

from pathlib import Path

import pytest

from tests.tasks.commands.small_runs import DAYS, SHARES, bars, made_run, settings_on


@pytest.fixture(scope="package")
def place(tmp_path_factory) -> Path:
    """A folder with a market of three symbols and four runs before their first update."""
    folder = tmp_path_factory.mktemp("commands")
    bars(3, DAYS).to_parquet(folder / "market.parquet")
    made_run(folder / "tilts", settings_on(folder))
    made_run(folder / "shares", settings_on(folder, env=SHARES))
    made_run(folder / "exact", settings_on(folder, algorithm="exact"))
    made_run(folder / "two", settings_on(folder, symbols=("S0", "S1")))
    return folder
