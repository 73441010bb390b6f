"""Readers of files and DataFrames into one long table of daily bars, one row per symbol and date."""

from __future__ import annotations

import csv
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vecenv.market.bar_form import BarForm
from vecenv.market.csv_files import csv_rows, read_csv
from vecenv.market.currency import checked_currency
from vecenv.market.dates import DAYLIGHT_SAVING, market_dates, shown_offset
from vecenv.market.dress import canonical_names, meanings, undressed
from vecenv.market.parquet_files import read_parquet
from vecenv.market.path_folders import path_files
from vecenv.market.validation import (
    CONTEXT,
    OHLCV,
    PRICES,
    MarketDataError,
    MarketDataWarning,
    check_order,
    check_values,
    clipped,
    first_of,
    has_control_characters,
    known_symbols,
    numeric_values,
)

MarketSource: TypeAlias = str | Path | pd.DataFrame

SUFFIXES = (".parquet", ".csv", ".npz")
# Marks a table with adjusted closes but unadjusted other prices, such as FinRL's; pandas keeps it in Parquet files.
CLOSE_ONLY_ADJUSTED = "close_only_adjusted"
CURRENCY = "currency"
"""Text column, DataFrame attribute or Parquet metadata key of the currency code."""

_OFFSETS, _CURRENCIES = "utc_offsets", "currencies"
# Missing-value markers in a CSV file, except in its symbol column.
_MISSING = ["", ".", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"]
# ElegantRL's arrays have no dates: business days are counted from this Monday.
_ORIGIN = "2000-01-03"


def source_name(source: MarketSource) -> str:
    """Name of a source for messages."""
    return "DataFrame" if isinstance(source, pd.DataFrame) else str(source)


def load_table(
    source: MarketSource, symbols: Sequence[str] | None = None, name: str | None = None, form: BarForm | None = None
) -> pd.DataFrame:
    """Load daily bars as a long table; values are checked and, unless the form clips them, not changed.

    The layouts are those of ``vecenv.market.sources.read_bars``, undressed by ``vecenv.market.dress``. Column names are
    compared without case. FinRL's ``day`` (the day of the week), unnamed index columns and, with a warning, columns of
    text and rows without any price are left out. A symbol's days may be the newest first.

    Returns:
        Table sorted by symbol and date with the columns ``date`` (datetime64), ``symbol`` (categories
        in the order asked for), ``open, high, low, close, volume`` and all further numeric columns,
        as float64. ``attrs[CLOSE_ONLY_ADJUSTED]`` marks FinRL's format, ``attrs[CURRENCY]`` is the currency, if known.

    Raises:
        MarketDataError: the source cannot be read or fails a check.
    """
    name, form = source_name(source) if name is None else name, form or BarForm()
    if isinstance(source, pd.DataFrame):
        table = _canonical(source, name, form)
    else:
        table = _load_path(Path(source), symbols, form)
    if table.empty:
        raise MarketDataError(f"{name}: the file is empty, it has no rows")
    chosen = known_symbols(symbols, table["symbol"].cat.categories.tolist(), name)
    table = table[table["symbol"].isin(chosen)]
    table = table.assign(symbol=table["symbol"].cat.set_categories(chosen))
    # A stable sort by symbol keeps the file's order of dates, for the check.
    order = np.argsort(table["symbol"].cat.codes.to_numpy(), kind="stable")
    table = _oldest_first(table.iloc[order].reset_index(drop=True))
    check_order(table, name)
    check_values(table, name)
    table = clipped(table, name) if form.clip else table
    currencies = table.attrs.pop(_CURRENCIES, {})
    table.attrs[CURRENCY] = _only_currency({symbol: currencies.get(symbol) for symbol in chosen}, name)
    return table


def _oldest_first(table: pd.DataFrame) -> pd.DataFrame:
    """Turn the rows of symbols whose every day is before the last one."""
    days, codes = table["date"].to_numpy(), table["symbol"].cat.codes.to_numpy()
    turned = np.ones(len(table["symbol"].cat.categories), dtype=bool)
    turned[codes[1:][(codes[1:] == codes[:-1]) & (days[1:] >= days[:-1])]] = False
    if not turned[codes].any():
        return table
    place = np.arange(len(table))
    return table.iloc[np.lexsort((np.where(turned[codes], -place, place), codes))].reset_index(drop=True)


def _load_path(path: Path, symbols: Sequence[str] | None, form: BarForm) -> pd.DataFrame:
    if not path.exists():
        raise MarketDataError(f"{path}: there is no such file or folder")
    if path_files(path):
        raise MarketDataError(f"{path}: a folder of paths, as a market to trade; here one of its files is needed")
    if path.is_dir():
        return _load_folder(path, symbols, form)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MarketDataError(
            f"{path}: unknown extension {suffix or '(none)'}; known are {', '.join(SUFFIXES)} and a folder"
        )
    if suffix == ".npz":
        return _load_npz(path)
    return _canonical(_read_frame(path, form), str(path), form, path.stem)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Within the context, turn a reader's errors into MarketDataErrors that name the file."""
    try:
        yield
    except MarketDataError:
        raise
    except (pa.ArrowException, ValueError, EOFError, OSError, zipfile.BadZipFile, csv.Error) as error:
        raise MarketDataError(f"{path}: cannot be read as {path.suffix.lower()}: {error}") from error


def _read_frame(path: Path, form: BarForm) -> pd.DataFrame:
    with named_errors(path):
        if path.suffix.lower() != ".parquet":
            return _read_csv(path, form)
        frame, metadata = read_parquet(path), pq.read_schema(path).metadata or {}
        if CURRENCY.encode() in metadata:
            frame.attrs[CURRENCY] = metadata[CURRENCY.encode()].decode()
        return frame


def _read_csv(path: Path, form: BarForm) -> pd.DataFrame:
    """Read a CSV file, its symbols as text: a ticker may read ``000001``, ``NA`` or ``TRUE``."""
    header, *others = csv_rows(path, 3)
    if levels := _rows_of_names(others):
        width = len(header)
        table = read_csv(path, header=None, skiprows=1 + len(levels), names=range(width), na_values=_MISSING)
        second = [*levels[0], *[""] * width][1:width]
        return table.set_axis(pd.MultiIndex.from_arrays([["date", *header[1:]], ["", *second]]), axis=1)
    if not {"date", "symbol", *OHLCV} & {*canonical_names(header)} and all(map(_is_value, header)):
        raise MarketDataError(
            f"{path}: the first row holds values, not names of columns: {','.join(header)[:60]!r}; write names above, "
            "such as open_time,open,high,low,close,volume,close_time for Binance's klines"
        )
    # pandas would rename duplicates silently.
    names = meanings(header, form.columns, str(path))
    texts = {header[i]: str for i, name in enumerate(names) if name == "symbol"}
    missing = {name: _MISSING for name in header if name and name not in texts}
    return read_csv(path, dtype=texts, na_values=missing, keep_default_na=False)


def _rows_of_names(rows: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the rows below the first that name levels of columns, of symbols and of the index, as yfinance writes."""
    levels: list[Sequence[str]] = []
    for row in rows:
        first, rest = row[0].strip().lower(), [field.strip() for field in row[1:] if field.strip()]
        named = first in ("ticker", "price", "symbols", "attributes") or canonical_names([first]) == ["date"]
        if not (named or (first == "" and rest and not any(map(_is_value, rest)))):
            break
        levels.append(row)
    return levels if levels and any(field.strip() for field in levels[0][1:]) else []


def _is_value(field: str) -> bool:
    return re.fullmatch(r"\s*(-?\d[-\d.,:/ TZ+eE]*)?", field) is not None


def _load_folder(folder: Path, symbols: Sequence[str] | None, form: BarForm) -> pd.DataFrame:
    paths = {path.stem: path for path in sorted(folder.glob("*.csv"))}
    if not paths:
        raise MarketDataError(f"{folder}: the folder holds no .csv file")
    tables = {}
    for symbol in known_symbols(symbols, list(paths), str(folder)):
        table = _canonical(_read_frame(paths[symbol], form), str(paths[symbol]), form, symbol, of_name=True)
        if table.empty:
            raise MarketDataError(f"{paths[symbol]}: the file is empty, it has no rows")
        tables[symbol] = table
    offsets = {symbol: table.attrs.pop(_OFFSETS) for symbol, table in tables.items()}
    first = next(iter(offsets))
    for symbol, those in offsets.items():
        both = (*those, *offsets[first])
        if bool(those) != bool(offsets[first]) or (both and max(both) - min(both) > DAYLIGHT_SAVING.astype(int)):
            zone, other = (shown_offset(each[0] if each else None) for each in (those, offsets[first]))
            raise MarketDataError(
                f"{paths[symbol]}: symbol {symbol}, column date: mixed time zones, {zone} and "
                f"{other} in {paths[first].name}"
            )
    currencies: dict[str, str] = {}
    for table in tables.values():
        # pandas keeps attributes of concatenated tables if all are equal.
        currencies |= table.attrs.pop(_CURRENCIES)
    codes = np.repeat(np.arange(len(tables)), [len(table) for table in tables.values()])
    joined = pd.concat([table.drop(columns="symbol") for table in tables.values()], ignore_index=True)
    joined = joined.assign(symbol=pd.Categorical.from_codes(codes, categories=list(tables)))
    joined.attrs[_CURRENCIES] = currencies
    return joined


def _load_npz(path: Path) -> pd.DataFrame:
    """Load ElegantRL's arrays: closes (T, K) and indicators (T, I·K), all stocks of one, then the next.

    The layout is that of ``convert_df_to_ary`` in ElegantRL's ``StockTradingEnv``, which writes the
    closes as ``close_ary``; its predecessors call them ``price_ary``.
    """
    with named_errors(path):
        if path.exists() and not zipfile.is_zipfile(path):
            raise MarketDataError(f"{path}: no .npz file, or a damaged one")
        with np.load(path) as arrays:
            key = "price_ary" if "price_ary" in arrays else "close_ary"
            missing = [name for name in (key, "tech_ary") if name not in arrays]
            if missing:
                raise MarketDataError(f"{path}: missing arrays {', '.join(missing)}; it has {arrays.files}")
            try:
                closes, tech = arrays[key], arrays["tech_ary"]
            except MemoryError as error:
                raise MarketDataError(f"{path}: an array is larger than memory ({error})") from error
    told = f"{path}: {key} {closes.dtype} {closes.shape} and tech_ary {tech.dtype} {tech.shape} are not "
    if closes.dtype.kind not in "fiu" or tech.dtype.kind not in "fiu":
        raise MarketDataError(f"{told}numbers")
    if (
        closes.ndim != 2
        or not closes.size
        or tech.ndim != 2
        or len(tech) != len(closes)
        or tech.shape[1] % closes.shape[1]
    ):
        raise MarketDataError(f"{told}(T, K) and (T, I·K)")
    closes, tech = closes.astype(np.float64), tech.astype(np.float64)
    days, stocks = closes.shape
    dates = pd.bdate_range(_ORIGIN, periods=days).to_numpy().astype("datetime64[s]")
    symbols = pd.Categorical.from_codes(
        np.tile(np.arange(stocks), days), categories=[f"asset_{k}" for k in range(stocks)]
    )
    prices = dict.fromkeys(OHLCV[:4], closes.ravel())
    indicators = tech.reshape(days, -1, stocks)
    columns = {f"tech_{i}": indicators[:, i].ravel() for i in range(indicators.shape[1])}
    return pd.DataFrame({"date": np.repeat(dates, stocks), "symbol": symbols, **prices, "volume": 0.0, **columns})


def _canonical(
    frame: pd.DataFrame, source: str, form: BarForm, symbol: str | None = None, of_name: bool = False
) -> pd.DataFrame:
    """Convert a raw frame to the form of ``load_table``; without such a column, or ``of_name``, it has one symbol."""
    raw, adjusted = undressed(frame, form.columns, source, symbol)
    raw = raw.assign(symbol=symbol_categories(raw["symbol"], source))
    if of_name and any(raw["symbol"].cat.categories != symbol):
        raise MarketDataError(
            f"{source}: column symbol holds {', '.join(raw['symbol'].cat.categories)}, the file's name says {symbol}"
        )
    currencies = _currencies(raw, frame.attrs.get(CURRENCY), source)
    raw = raw.drop(columns=CURRENCY) if _marked(raw) else raw
    dates, offsets = market_dates(raw, source, form.timezone, form.date_format)
    others = [name for name in raw.columns if name not in ("date", "symbol", *OHLCV, *CONTEXT)]
    contexts = [name for name in CONTEXT if name in raw]
    columns = {name: numeric_values(raw, name, source) for name in [*OHLCV, *others, *contexts]}
    texts = [name for name, values in columns.items() if values is None]
    if texts and len(raw):
        warnings.warn(f"{source}: columns of text are left out: {', '.join(texts)}", MarketDataWarning, stacklevel=4)
    numbers = {name: values for name, values in columns.items() if values is not None}
    keys = {"date": dates.astype("datetime64[s]"), "symbol": raw["symbol"].array}
    table = _with_prices(pd.DataFrame({**keys, **numbers}), source)
    adjusted = adjusted or bool(frame.attrs.get(CLOSE_ONLY_ADJUSTED))
    table.attrs = {_OFFSETS: offsets, CLOSE_ONLY_ADJUSTED: adjusted, _CURRENCIES: currencies}
    return table


def _with_prices(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """Leave out rows without any price, such as those before a listing."""
    without = table[PRICES].isna().all(axis=1).to_numpy()
    if not without.any() or without.all():
        return table
    told = f"{int(without.sum())} rows without any price are left out, the first: {first_of(table, without)}"
    warnings.warn(f"{source}: {told}", MarketDataWarning, stacklevel=5)
    return table[~without].reset_index(drop=True)


def _marked(raw: pd.DataFrame) -> bool:
    return CURRENCY in raw and not pd.api.types.is_numeric_dtype(raw[CURRENCY])


def _currencies(raw: pd.DataFrame, whole: object, source: str) -> dict[str, str]:
    symbols = raw["symbol"]
    if not _marked(raw):
        named = {} if whole is None else dict.fromkeys(symbols.cat.categories, str(whole))
    else:
        codes = raw[CURRENCY].astype("string").str.strip()
        pairs = pd.DataFrame({"symbol": symbols, "code": codes})[codes.notna() & (codes != "")].drop_duplicates()
        twice = pairs["symbol"][pairs["symbol"].duplicated()].tolist()
        if twice:
            told = ", ".join(pairs.loc[pairs["symbol"] == twice[0], "code"])
            raise MarketDataError(f"{source}: symbol {twice[0]}, column {CURRENCY}: its prices are in {told}")
        named = dict(zip(pairs["symbol"].tolist(), pairs["code"].tolist(), strict=True))
    for code in named.values():
        try:
            checked_currency(code)
        except ValueError as error:
            raise MarketDataError(f"{source}: {error}") from error
    return named


def _only_currency(currencies: Mapping[str, str | None], source: str) -> str | None:
    examples = {code: symbol for symbol, code in currencies.items() if code is not None}
    if len(examples) > 1:
        told = ", ".join(f"{symbol} in {code}" for code, symbol in examples.items())
        raise MarketDataError(f"{source}: prices are in several currencies, {told}: choose symbols of one")
    return next(iter(examples), None)


def symbol_categories(column: pd.Series, source: str) -> pd.Categorical:
    """Return sorted categories of stripped text; MarketDataError if one is missing or has control characters."""
    codes, unique = pd.factorize(column)
    raw = unique.astype(str)
    hidden = np.array([has_control_characters(name.strip(" \t\r\n")) for name in raw], dtype=bool)
    if hidden.any():
        row = int(np.argmax((codes >= 0) & hidden[codes]))
        found = raw[codes[row]]
        raise MarketDataError(f"{source}: column {column.name}: control characters in {found!r}, row {row + 1}")
    names = raw.str.strip()
    if (codes < 0).any() or (names == "").any():
        row = int(np.argmax((codes < 0) | (names == "")[codes]))
        raise MarketDataError(f"{source}: column {column.name}: the symbol is missing, row {row + 1}")
    categories, order = np.unique(names.to_numpy(dtype=object), return_inverse=True)
    return pd.Categorical.from_codes(order[codes], categories=categories)
