"""Factors are those of their definitions, and none of them knows what comes later."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from book_tables import book_table
from factor_oracle import factor

from vecenv.tasks.crypto_lob.clock import clocked
from vecenv.tasks.crypto_lob.factors.table import FACTORS, LARGEST_VALUE, factor_table
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import snapshots_of_table

GAP = 5.0
"""Bars of the alphas are two rows."""


def table_of(table: pd.DataFrame, names: list[str]) -> np.ndarray:
    return factor_table(clocked(snapshots_of_table(table, "x"), GAP, GAP), names, GAP)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Twelve minutes: all windows are full at the end, and cut at the beginning."""
    made = book_table(rows=150, levels=4, gap_ms=5_000, seed=3)
    # Alphas need some rows without trades, and mids that stand still.
    made.loc[made.index % 7 < 3, ["buy_qty", "sell_qty"]] = 0.0
    return made


@pytest.mark.parametrize("name", FACTORS)
def test_factors_are_those_of_their_definitions(name, table):
    got = table_of(table, [name])[:, 0]
    rows = [0, 1, 2, 9, 41, 77, 120, 148, 149]
    for row in rows:
        wanted = np.clip(factor(name, table[: row + 1], GAP), -LARGEST_VALUE, LARGEST_VALUE)
        assert got[row] == pytest.approx(wanted, rel=2e-5, abs=2e-4), (name, row)
    assert name == "stale" or len(np.unique(got)) > 2


def test_holes_show_the_last_book_and_their_age():
    table = book_table(rows=40, gap_ms=5_000, seed=1)
    table.loc[20:23, "age_ms"] = 60_000
    names = ["stale", "imbalance_1", "microprice", "flow_10", "queue_change_bid"]
    got = table_of(table, names)
    assert got[18:25, 0].tolist() == [0, 0, 5, 10, 15, 20, 0]
    assert (got[20:24, 1:3] == got[19, 1:3]).all()
    # No order flow is known into, in or out of a hole: only rows before it are in the window of two.
    assert (got[21:25, 3] == 0).all() and got[19, 3] != 0
    assert (got[20:24, 4] == 0).all()
