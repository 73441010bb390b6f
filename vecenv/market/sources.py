"""Readers of recorded daily bars: Parquet, CSV, a folder of CSVs, ElegantRL's npz, FinRL's DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from vecenv.market.bar_form import BarForm
from vecenv.market.bars import CLOSE, Bars
from vecenv.market.dates import Day, day_of
from vecenv.market.long_table import CLOSE_ONLY_ADJUSTED, CURRENCY, MarketSource, load_table, source_name
from vecenv.market.parquet_files import write_parquet
from vecenv.market.validation import (
    CONTEXT,
    OHLCV,
    PRICES,
    MarketDataError,
    MarketDataWarning,
    check_ranges,
    first_of,
    refuse_rows,
    warn_of_dividends,
    warn_of_splits,
)
from vecenv.system.memory import check_memory

_CELL_BYTES = 24
"""Least bytes of a column for each day of each symbol: what is read, and what is made of it."""


@dataclass(frozen=True, eq=False)
class BarArrays:
    """What a file holds as `Bars` has it, P = 1, but in NumPy, so that it is told of without PyTorch."""

    symbols: tuple[str, ...]
    dates: np.ndarray
    ohlcv: np.ndarray
    columns: dict[str, np.ndarray]
    context: dict[str, np.ndarray]
    source: str
    currency: str | None
    adjusted: bool

    def bars(self) -> Bars:
        from torch import from_numpy

        columns, context = (
            {name: from_numpy(values) for name, values in table.items()} for table in (self.columns, self.context)
        )
        ohlcv = from_numpy(self.ohlcv)
        bars = Bars(self.symbols, self.dates, ohlcv, columns, context, self.source, currency=self.currency)
        return replace(bars, adjusted=self.adjusted)


def read_bars(
    source: MarketSource,
    symbols: Sequence[str] | None = None,
    start: Day | None = None,
    end: Day | None = None,
    form: BarForm | None = None,
) -> Bars:
    """Read daily bars, check them and align them by date.

    A source is one of:

    - a Parquet or CSV file in long format: ``date, symbol, open, high, low, close, volume``, or other usual names
      of these (`vecenv.market.dress.ALIASES` and `FALLBACKS`), and any numeric columns; without a column of symbols the
      file's stem is that of all rows,
    - a wide file: columns of fields and symbols, as of yfinance, or a column of closes per symbol,
    - a folder of one CSV per symbol, named by the file's stem,
    - a DataFrame in that format, FinRL's among them,
    - ElegantRL's npz: ``price_ary`` (or ``close_ary``) of shape (T, K) and ``tech_ary`` of shape
      (T, I·K), all stocks of one indicator before the next. It names neither days nor stocks: the dates
      are business days from 2000-01-03, the symbols ``asset_0`` …, the columns ``tech_0`` …, open, high
      and low equal the close, and the volume is 0.

    Symbols are aligned by the union of their dates, with NaN where a symbol has no bar. ``vix`` and
    ``turbulence`` become the context of the market, every other numeric column one of ``Bars.columns``. The currency of
    the prices, one for all symbols, is read from a column ``currency`` of codes such as USD, or from a DataFrame's
    attribute or a Parquet file's metadata of that name.

    Prices are adjusted in two cases. With a column ``Adj Close`` all four prices of a row are scaled by
    ``Adj Close / Close``. In FinRL's format (a column ``tic``) the close alone may be adjusted for
    dividends, which puts it below the low: see `_adjusted`.

    Args:
        source: path or DataFrame.
        symbols: symbols to keep, in that order; None keeps all, sorted by name.
        start: first day to keep, inclusive; None for no limit.
        end: last day to keep, inclusive; None for no limit.
        form: what the data does not tell: the market's zone, names of columns, and whether ranges are widened.

    Returns:
        Bars of one path: P = 1, T dates on which any of the K symbols has a bar. A symbol without a bar
        in the span stays, all NaN, so that K does not depend on the span.

    Raises:
        MarketDataError: naming file, symbol, date and column of the first fault, before anything runs.
    """
    name = source_name(source)
    first = None if start is None else day_of(start, f"{name}: start")
    last = None if end is None else day_of(end, f"{name}: end")
    loaded = load_table(source, symbols, form=form)
    table = checked_prices(loaded, name)
    days = table["date"].to_numpy().astype("datetime64[D]")
    inside = np.ones(len(table), dtype=bool)
    if first is not None:
        inside &= days >= first
    if last is not None:
        inside &= days <= last
    if not inside.any():
        raise MarketDataError(
            f"{name}: no bar from {first or 'the start'} to {last or 'the end'}; "
            f"the data runs from {days.min()} to {days.max()}"
        )
    return _align(table[inside], name, loaded.attrs[CURRENCY], "adj_close" in loaded).bars()


def read_arrays(source: MarketSource, form: BarForm | None = None) -> BarArrays:
    """Read daily bars of all symbols and days as `read_bars` does, without PyTorch."""
    name, loaded = source_name(source), load_table(source, form=form)
    return _align(checked_prices(loaded, name), name, loaded.attrs[CURRENCY], "adj_close" in loaded)


def with_context(bars: Bars, source: str | Path, names: Sequence[str], form: BarForm | None = None) -> Bars:
    """Add the closes of a one-symbol file as context series, aligned by date.

    A date without a bar has the previous close; dates before the first are NaN. Existing names, and turbulence, are
    skipped.

    Raises:
        MarketDataError: for a fault in the file, or more than one symbol in it.
    """
    series = read_bars(source, form=form)
    if len(series.symbols) != 1:
        raise MarketDataError(
            f"{source}: a market series needs a file of one symbol, this has {', '.join(series.symbols)}"
        )
    lacking = [name for name in names if name not in bars.context and name != "turbulence"]
    from torch import from_numpy

    # Forward fill only: no look-ahead.
    closes = pd.Series(series.ohlcv[0, :, 0, CLOSE].numpy(), index=series.dates).reindex(bars.dates, method="ffill")
    values = from_numpy(closes.to_numpy(copy=True)).expand(bars.ohlcv.shape[0], -1)
    return replace(bars, context=bars.context | dict.fromkeys(lacking, values))


def checked_prices(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """Adjust the prices of a table, refuse what leaves its range, and warn of splits; see `_adjusted`."""
    table = _adjusted(table, source)
    check_ranges(table, source)
    warn_of_splits(table, source)
    return table


def _adjusted(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """Scale open, high and low to an adjusted close; the result has no ``adj_close``.

    With ``adj_close`` the factor is known. FinRL's format lacks the unadjusted close. There the factor
    of a symbol whose close leaves [low, high] is estimated as the running maximum of close / high, at
    most 1. It is a lower bound of any non-decreasing factor, such as one of dividends, makes every bar
    valid, and uses no later day. The close itself is never changed.
    """
    if "adj_close" in table:
        factor = (table["adj_close"] / table["close"]).to_numpy()
        warn_of_dividends(table, factor, source)
        prices = {column: table[column] * factor for column in PRICES}
        return table.drop(columns="adj_close").assign(**prices)
    outside = (table["close"] > table["high"]) | (table["close"] < table["low"])
    if not table.attrs.get(CLOSE_ONLY_ADJUSTED) or not outside.any():
        return table
    adjusted = table["symbol"].isin(table.loc[outside, "symbol"].unique())
    bound = (table["close"] / table["high"]).groupby(table["symbol"], observed=True).cummax().clip(upper=1)
    factor = bound.where(adjusted, 1.0)
    warnings.warn(
        f"{source}: close is adjusted and open, high, low are not ({int(outside.sum())} closes outside "
        f"[low, high], the first: {first_of(table, outside.to_numpy())}); open, high and low are scaled to it",
        MarketDataWarning,
        stacklevel=4,
    )
    return table.assign(**{column: table[column] * factor for column in ("open", "high", "low")})


def _align(table: pd.DataFrame, source: str, currency: str | None, adjusted: bool) -> BarArrays:
    symbols = table["symbol"].cat.categories.tolist()
    days, day = np.unique(table["date"].to_numpy().astype("datetime64[D]"), return_inverse=True)
    symbol = table["symbol"].cat.codes.to_numpy()
    # Few rows may be of many days and symbols.
    needed = _CELL_BYTES * table.shape[1] * len(days) * len(symbols)
    what = f"{source}: {len(days):,} days of {len(symbols):,} symbols"
    check_memory(needed, "cpu", what, "choose fewer symbols, or dates on which most have bars")

    def spread(values: np.ndarray) -> np.ndarray:
        wide = np.full((1, len(days), len(symbols), *values.shape[1:]), np.nan)
        wide[0, day, symbol] = values
        return wide

    ohlcv = table[OHLCV].to_numpy(copy=True)
    # The checks tolerate rounding; clamping makes low ≤ open, close ≤ high exact.
    ohlcv[:, 1], ohlcv[:, 2] = ohlcv[:, :4].max(axis=1), ohlcv[:, :4].min(axis=1)
    context = {name: _context(table, name, day, len(days), source) for name in CONTEXT if name in table}
    others = [name for name in table.columns if name not in ("date", "symbol", *OHLCV, *context)]
    return BarArrays(
        symbols=tuple(symbols),
        dates=days,
        ohlcv=spread(ohlcv),
        columns={name: spread(table[name].to_numpy()) for name in others},
        context=context,
        source=source,
        currency=currency,
        adjusted=adjusted,
    )


def _context(table: pd.DataFrame, name: str, day: np.ndarray, num_days: int, source: str) -> np.ndarray:
    """One value per date of a column that must not differ between symbols. Shape: (1, T)."""
    values, series = table[name].to_numpy(), np.empty(num_days)
    series[day[::-1]] = values[::-1]
    what = "{value} differs from another symbol's value of the same date"
    refuse_rows(table, values != series[day], name, what, source)
    return series[None]


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
