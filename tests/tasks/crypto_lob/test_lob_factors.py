"""Factors are those of their definitions, and none of them knows what comes later."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from book_tables import book_table
from factor_oracle import factor

from vecenv.tasks.crypto_lob.clock import clocked
from vecenv.tasks.crypto_lob.config import BookOptions, CryptoLobConfig
from vecenv.tasks.crypto_lob.factors.table import FACTORS, LARGEST_VALUE, factor_table
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import snapshots_of_table
from vecenv.tasks.crypto_lob.tape import tape_of_snapshots

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


@pytest.mark.parametrize("name", FACTORS)
def test_factors_do_not_know_the_future(name, table):
    """Whatever comes after a row, all numbers up to it stay the same, bit for bit."""
    other = book_table(rows=150, levels=4, gap_ms=5_000, seed=9)
    before, changes = table_of(table, [name]), 0
    for row in (1, 60, 140):
        changed = pd.concat([table[:row], other[row:]], ignore_index=True)
        after = table_of(changed, [name])
        assert np.array_equal(before[:row], after[:row])
        changes += not np.array_equal(before[row:], after[row:])
    assert name == "stale" or changes > 1


def test_nothing_of_a_tape_knows_the_future(table):
    """Prices, sizes, trades, mids and holes too; the tick and the lot are properties of the coin."""
    other = book_table(rows=150, levels=4, gap_ms=5_000, seed=9)
    options = BookOptions(step_gap=GAP, max_age=GAP, tick_size=0.5, unit=100.0, lot_size=0.125)
    tapes = [
        tape_of_snapshots(snapshots_of_table(part, "x"), options)
        for part in (table, pd.concat([table[:100], other[100:]], ignore_index=True))
    ]
    for name in ("price", "size", "taken", "doubled_mid", "open", "factors"):
        first, second = (getattr(tape, name) for tape in tapes)
        assert torch.equal(first[:100], second[:100])
    assert not torch.equal(tapes[0].factors, tapes[1].factors)


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


@pytest.mark.parametrize(
    ("factors", "message"),
    [(("spread", "gold"), "unknown factors gold; there are microprice"), (("spread", "spread"), "named twice")],
)
def test_wrong_names_are_refused(factors, message):
    with pytest.raises(ValueError, match=message):
        CryptoLobConfig(factors=factors)
