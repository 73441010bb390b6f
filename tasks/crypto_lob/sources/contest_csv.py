"""Order books from the CSV files of the FinRL contests of 2024 and 2025.

Columns: ``system_time``, ``midpoint``, ``spread``, ``buys``, ``sells``, and for levels 0 to 14 of bids and asks
``_distance_``, the distance of the price from the mid as a fraction of it (negative for bids), and ``_notional_``, the
value shown there, in the currency. ``buys`` and ``sells`` are values too. The prices lie on ticks, which the file's
rounding of distances hides: they are rounded to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vecenv.market.validation import MarketDataError
from vecenv.tasks.crypto_lob.sources.parquet_snapshots import column_numbers
from vecenv.tasks.crypto_lob.sources.snapshots import FaultyRows, Snapshots

if TYPE_CHECKING:
    import pandas as pd

TICK = 0.01
"""Tick of the coins of the contests, which were recorded at Coinbase."""

_BASE = ("system_time", "midpoint", "buys", "sells")


def is_contest_table(table: pd.DataFrame) -> bool:
    """Whether a table has the columns of the contests."""
    return "midpoint" in table and "bids_distance_0" in table


def contest_snapshots(
    table: pd.DataFrame,
    source: str,
    tick: float | None = None,
    levels: int | None = None,
    faulty_rows: FaultyRows = "refuse",
) -> Snapshots:
    """Return the snapshots of a contest's table; ``tick`` is that of the prices, by default `TICK`.

    Raises MarketDataError if a column is missing, a time or number cannot be read, or the books are invalid.
    """
    import pandas as pd

    tick = TICK if tick is None else tick
    depth = 0
    while all(f"{side}_{what}_{depth}" in table for side in ("bids", "asks") for what in ("distance", "notional")):
        depth += 1
    depth = depth if levels is None else min(depth, levels)
    needed = (*_BASE, *(f"{side}_{what}_0" for side in ("bids", "asks") for what in ("distance", "notional")))
    missing = [name for name in needed if name not in table]
    if missing:
        raise MarketDataError(f"{source}: missing columns {', '.join(missing)}")
    read = pd.to_datetime(table["system_time"], utc=True, errors="coerce", format="ISO8601")
    if read.isna().any():
        row = int(read.isna().to_numpy().argmax())
        raise MarketDataError(f"{source}: row {row}, system_time: {table['system_time'].iloc[row]!r} is no time")
    rows = np.arange(len(table))

    def numbers(name: str) -> np.ndarray:
        return column_numbers(table[name], name, source, rows)

    mid = numbers("midpoint")
    wrong = ~(np.isfinite(mid) & (mid > 0))
    if wrong.any():
        raise MarketDataError(f"{source}: row {int(wrong.argmax())}, midpoint: not a positive number")
    columns: dict[str, str] = {}
    prices, sizes = [], []
    for side, name in (("bid", "bids"), ("ask", "asks")):
        distance, notional = (
            np.stack([numbers(f"{name}_{what}_{level}") for level in range(depth)], 1)
            for what in ("distance", "notional")
        )
        price = np.round(mid[:, None] * (1 + distance) / tick) * tick
        prices.append(price)
        sizes.append(notional / price)
        columns |= {f"{side}_price": f"{name}_distance_{{}}", f"{side}_size": f"{name}_notional_{{}}"}
    return Snapshots(
        source=source,
        symbol="",
        # Of any unit that pandas chose.
        time=read.dt.as_unit("ms").astype("int64").to_numpy(),
        bid_price=prices[0],
        ask_price=prices[1],
        bid_size=sizes[0],
        ask_size=sizes[1],
        bought=numbers("buys") / mid,
        sold=numbers("sells") / mid,
        age=np.zeros(len(table), np.int64),
        rows=rows,
        columns=columns,
        faulty_rows=faulty_rows,
    )
