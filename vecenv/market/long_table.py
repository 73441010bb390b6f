"""Readers of files and DataFrames into one long table of daily bars, one row per symbol and date."""

from __future__ import annotations

import csv
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

from vecenv.market.csv_files import csv_header, read_csv
from vecenv.market.parquet_files import read_parquet
from vecenv.market.path_folders import path_files
from vecenv.market.validation import (
    CONTEXT,
    OHLCV,
    MarketDataError,
    MarketDataWarning,
    check_columns,
    check_order,
    check_values,
    checked_currency,
    has_control_characters,
    known_symbols,
    local_dates,
    numeric_values,
)

MarketSource: TypeAlias = str | Path | pd.DataFrame

SUFFIXES = (".parquet", ".csv", ".npz")
# Marks a table with adjusted closes but unadjusted other prices, such as FinRL's; pandas keeps it in Parquet files.
CLOSE_ONLY_ADJUSTED = "close_only_adjusted"
CURRENCY = "currency"
"""Text column, DataFrame attribute or Parquet metadata key of the currency code."""

_TIME_ZONE, _CURRENCIES = "time_zone", "currencies"
ALIASES = {
    "tic": "symbol",
    "ticker": "symbol",
    "instrument": "symbol",
    "datetime": "date",
    "timestamp": "date",
    "vol": "volume",
    "adj close": "adj_close",
    "adj. close": "adj_close",
    "adjclose": "adj_close",
    "adjusted close": "adj_close",
    "adjusted_close": "adj_close",
    "adjcp": "adj_close",
}
"""Other usual names of columns, in lower case: those of FinRL, yfinance, Qlib, Alpha Vantage, Nasdaq Data Link and
Stooq, which puts names in angle brackets."""
# Missing-value markers in a CSV file, except in its symbol column.
_MISSING = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None"]
# ElegantRL's arrays have no dates: business days are counted from this Monday.
_ORIGIN = "2000-01-03"


def source_name(source: MarketSource) -> str:
    """Name of a source for messages."""
    return "DataFrame" if isinstance(source, pd.DataFrame) else str(source)


def load_table(source: MarketSource, symbols: Sequence[str] | None = None, name: str | None = None) -> pd.DataFrame:
    """Load daily bars as a long table; values are checked and not changed.

    The layouts are those of ``vecenv.market.sources.read_bars``. Column names are compared without
    case, and other usual ones are those of `ALIASES`. Unnamed index columns, FinRL's ``day`` (the day of the week) and,
    with a warning, columns of text are left out.

    Returns:
        Table sorted by symbol and date with the columns ``date`` (datetime64), ``symbol`` (categories
        in the order asked for), ``open, high, low, close, volume`` and all further numeric columns,
        as float64. ``attrs[CLOSE_ONLY_ADJUSTED]`` marks FinRL's format, ``attrs[CURRENCY]`` is the currency, if known.

    Raises:
        MarketDataError: the source cannot be read or fails a check.
    """
    name = source_name(source) if name is None else name
    if isinstance(source, pd.DataFrame):
        table = _canonical(source, name)
    else:
        table = _load_path(Path(source), symbols)
    if table.empty:
        raise MarketDataError(f"{name}: the file is empty, it has no rows")
    chosen = known_symbols(symbols, table["symbol"].cat.categories.tolist(), name)
    table = table[table["symbol"].isin(chosen)]
    table = table.assign(symbol=table["symbol"].cat.set_categories(chosen))
    # A stable sort by symbol keeps the file's order of dates, for the check.
    order = np.argsort(table["symbol"].cat.codes.to_numpy(), kind="stable")
    table = table.iloc[order].reset_index(drop=True)
    check_order(table, name)
    check_values(table, name)
    currencies = table.attrs.pop(_CURRENCIES, {})
    table.attrs[CURRENCY] = _only_currency({symbol: currencies.get(symbol) for symbol in chosen}, name)
    return table


def _load_path(path: Path, symbols: Sequence[str] | None) -> pd.DataFrame:
    if not path.exists():
        raise MarketDataError(f"{path}: there is no such file or folder")
    if path_files(path):
        raise MarketDataError(f"{path}: a folder of paths, as a market to trade; here one of its files is needed")
    if path.is_dir():
        return _load_folder(path, symbols)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MarketDataError(
            f"{path}: unknown extension {suffix or '(none)'}; known are {', '.join(SUFFIXES)} and a folder"
        )
    if suffix == ".npz":
        return _load_npz(path)
    return _canonical(_read_frame(path), str(path))


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Within the context, turn a reader's errors into MarketDataErrors that name the file."""
    try:
        yield
    except MarketDataError:
        raise
    except (pa.ArrowException, ValueError, EOFError, OSError, zipfile.BadZipFile, csv.Error) as error:
        raise MarketDataError(f"{path}: cannot be read as {path.suffix.lower()}: {error}") from error


def _read_frame(path: Path) -> pd.DataFrame:
    with named_errors(path):
        if path.suffix.lower() != ".parquet":
            return _read_csv(path)
        frame, metadata = read_parquet(path), pq.read_schema(path).metadata or {}
        if CURRENCY.encode() in metadata:
            frame.attrs[CURRENCY] = metadata[CURRENCY.encode()].decode()
        return frame


def _read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file, its symbols as text: a ticker may read ``000001``, ``NA`` or ``TRUE``."""
    header = csv_header(path)
    # pandas would rename duplicates silently.
    _check_roles(header, str(path))
    names = _canonical_names(header)
    texts = {header[i]: str for i, name in enumerate(names) if name == "symbol"}
    missing = {name: _MISSING for name in header if name and name not in texts}
    return read_csv(path, dtype=texts, na_values=missing, keep_default_na=False)


def _load_folder(folder: Path, symbols: Sequence[str] | None) -> pd.DataFrame:
    paths = {path.stem: path for path in sorted(folder.glob("*.csv"))}
    if not paths:
        raise MarketDataError(f"{folder}: the folder holds no .csv file")
    tables = {}
    for symbol in known_symbols(symbols, list(paths), str(folder)):
        table = _canonical(_read_frame(paths[symbol]), str(paths[symbol]), symbol)
        if table.empty:
            raise MarketDataError(f"{paths[symbol]}: the file is empty, it has no rows")
        tables[symbol] = table
    zones = {symbol: table.attrs[_TIME_ZONE] or "no zone" for symbol, table in tables.items()}
    first = next(iter(zones))
    for symbol, zone in zones.items():
        if zone != zones[first]:
            raise MarketDataError(
                f"{paths[symbol]}: symbol {symbol}, column date: mixed time zones, {zone} and "
                f"{zones[first]} in {paths[first].name}"
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


def _canonical_names(names: Sequence[object]) -> list[str]:
    lower = [str(name).strip().lower().removeprefix("<").removesuffix(">") for name in names]
    return ["" if name.startswith("unnamed: ") else ALIASES.get(name, name) for name in lower]


def _check_roles(names: Sequence[object], source: str) -> None:
    roles: dict[str, list[str]] = {}
    for name, role in zip(names, _canonical_names(names), strict=True):
        roles.setdefault(role, []).append(str(name).strip())
    for role, claims in roles.items():
        if role and len(claims) > 1:
            raise MarketDataError(f"{source}: duplicate columns {role}: {' and '.join(claims)} are read as one")


def _canonical(frame: pd.DataFrame, source: str, symbol: str | None = None) -> pd.DataFrame:
    """Convert a raw frame to the form of ``load_table``; ``symbol`` is that of all rows, if the file names it."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    finrl = "tic" in [str(name).strip().lower() for name in frame.columns]
    _check_roles(frame.columns, source)
    names = _canonical_names(frame.columns)
    keep = [bool(name) and not (finrl and name == "day") for name in names]
    raw = frame.loc[:, keep].set_axis([name for name, kept in zip(names, keep, strict=True) if kept], axis=1)
    given = [*raw.columns, "symbol"] if symbol is not None and "symbol" not in raw else list(raw.columns)
    check_columns(given, ["date", "symbol", *OHLCV], source)
    if "symbol" not in raw:
        raw = raw.assign(symbol=symbol)
    raw = raw.assign(symbol=symbol_categories(raw["symbol"], source))
    if symbol is not None and any(raw["symbol"].cat.categories != symbol):
        raise MarketDataError(
            f"{source}: column symbol holds {', '.join(raw['symbol'].cat.categories)}, the file's name says {symbol}"
        )
    currencies = _currencies(raw, frame.attrs.get(CURRENCY), source)
    raw = raw.drop(columns=CURRENCY) if _marked(raw) else raw
    dates, zone = local_dates(raw, source) if len(raw) else (raw["date"].to_numpy("datetime64[D]"), None)
    others = [name for name in raw.columns if name not in ("date", "symbol", *OHLCV, *CONTEXT)]
    contexts = [name for name in CONTEXT if name in raw]
    columns = {name: numeric_values(raw, name, source) for name in [*OHLCV, *others, *contexts]}
    texts = [name for name, values in columns.items() if values is None]
    if texts and len(raw):
        warnings.warn(f"{source}: columns of text are left out: {', '.join(texts)}", MarketDataWarning, stacklevel=4)
    numbers = {name: values for name, values in columns.items() if values is not None}
    keys = {"date": dates.astype("datetime64[s]"), "symbol": raw["symbol"].array}
    table = pd.DataFrame({**keys, **numbers})
    adjusted = finrl or bool(frame.attrs.get(CLOSE_ONLY_ADJUSTED))
    table.attrs = {_TIME_ZONE: zone, CLOSE_ONLY_ADJUSTED: adjusted, _CURRENCIES: currencies}
    return table


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
