"""Conversion of daily bars between FinRL's long CSV and long Parquet, without loss."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vecenv.market.bar_form import BarForm
from vecenv.market.long_table import CURRENCY, MarketSource, load_table, source_name
from vecenv.market.parquet_files import write_parquet
from vecenv.market.sources import checked_prices
from vecenv.market.validation import CONTEXT, OHLCV, MarketDataError


def convert(source: MarketSource, target_path: str | Path, form: BarForm | None = None) -> int:
    """Write daily bars as FinRL's CSV or as Parquet, by the target's suffix; return the number of rows.

    Parquet holds ``date, symbol, open, high, low, close, volume``, the further columns and the context,
    sorted by symbol and date. CSV is FinRL's long format, sorted by date and symbol: an unnamed column
    with the number of the day, ``date, tic, open, high, low, close, volume, day`` (the day of the week,
    Monday 0), the further columns, ``vix`` and ``turbulence``. Both end with the currency, if known. Values are those
    of the source, before any adjustment, so that a round trip preserves them. ``form`` is that of `read_bars`, such as
    the market's zone: what is written needs none.

    Raises:
        MarketDataError: for a fault in the source, or an unknown suffix or folder of the target.
    """
    target, name = Path(target_path), source_name(source)
    suffix = target.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise MarketDataError(f"{target}: unknown extension {suffix or '(none)'}; known are .csv, .parquet")
    if not target.parent.is_dir():
        raise MarketDataError(f"{target}: there is no folder {target.parent}")
    table = load_table(source, form=form)
    checked_prices(table, name)
    others = [column for column in table.columns if column not in ("date", "symbol", *OHLCV, *CONTEXT)]
    order = ["date", "symbol", *OHLCV, *others, *[column for column in CONTEXT if column in table]]
    if (currency := table.attrs[CURRENCY]) is not None:
        table, order = table.assign(**{CURRENCY: currency}), [*order, CURRENCY]
    if suffix == ".parquet":
        write_parquet(table[order], target)
    else:
        _finrl_table(table[order]).to_csv(target)
    return len(table)


def _finrl_table(table: pd.DataFrame) -> pd.DataFrame:
    """The long table in FinRL's format; the index counts the days."""
    finrl = table.rename(columns={"symbol": "tic"}).sort_values(["date", "tic"])
    finrl.insert(list(finrl.columns).index("volume") + 1, "day", finrl["date"].dt.day_of_week)
    return finrl.set_index(pd.factorize(finrl["date"])[0])
