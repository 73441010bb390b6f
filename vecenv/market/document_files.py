"""Files of documents about companies or of their scores: Parquet or CSV with a row for each.

Columns, whose names are compared without case: ``symbol``, ``date`` or ``published_at`` or both, and of documents
``text`` or ``title`` or ``summary`` or several of them, of scores columns of numbers. FinRL's ``tic`` is a symbol;
``Stock_symbol``, ``Article_title`` and ``Article`` of FNSPID (Dong et al., arXiv 2402.06698, 2024) are symbol, title
and text. Other columns are left out.

A file of closes has the columns ``date`` and ``time``, and a row for each day on which an exchange closes at that time
instead of the usual one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, time
from pathlib import Path

import numpy as np
import pandas as pd

from vecenv.market.csv_files import csv_rows, read_csv
from vecenv.market.dates import NOT_A_DATE, Times, column_unread, read_times
from vecenv.market.long_table import named_errors, symbol_categories
from vecenv.market.parquet_files import read_parquet
from vecenv.market.validation import MarketDataError, check_columns

SUFFIXES = (".parquet", ".csv")

_ALIASES = {"tic": "symbol", "ticker": "symbol", "stock_symbol": "symbol", "article_title": "title", "article": "text"}
_TEXTS = ("text", "title", "summary")
_KEYS = ("date", "symbol", "published_at")

_MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "None")


def read_news(path: str | Path, date_format: str | None = None) -> pd.DataFrame:
    """Read and check a file of news, whose dates may have a format that is not certain, such as ``%m/%d/%Y``.

    A row's text is its ``text`` or, without one, its title and summary. Rows without any text are kept. The date is
    that of ``date``, whose time of day is dropped or, without such a column, the day of ``published_at`` in the zone
    that it is written in.

    Returns:
        Table in the order of the file: ``date`` (datetime64[s]), ``symbol`` (categories), ``text`` (str, may be empty),
        and ``published_at`` (datetime64[us, UTC]) where the file has it.

    Raises:
        MarketDataError: the file is missing, unreadable or empty, lacks a column, or has a missing symbol, a missing or
            unreadable date or time, or a time without zone; naming file, column and row (from 1, after the header).
    """
    raw, columns, source = _read(path, _TEXTS)
    found = {name: raw[column] for name, column in columns.items()}
    return pd.DataFrame(_keys(found, source, date_format) | {"text": _texts(found)})


def read_scores(path: str | Path, names: Sequence[str], date_format: str | None = None) -> pd.DataFrame:
    """Read and check a file of scores, which needs one at least of the columns of ``names``.

    Returns:
        Table as that of `read_news`, with the scores that the file has, float64, NaN where one is missing, instead of
        the text.

    Raises:
        MarketDataError: as `read_news`, or a score is not a number.
    """
    raw, columns, source = _read(path, names)
    found = {name: raw[column] for name, column in columns.items()}
    scores = {name: _numbers(found[name], source) for name in names if name in found}
    return pd.DataFrame(_keys(found, source, date_format) | scores)


def read_closes(path: str | Path, date_format: str | None = None) -> dict[date, time]:
    """Read a file of the days on which an exchange closes at another time: ``date`` and ``time``, such as 13:00.

    Raises:
        MarketDataError: as `read_news`, or a day is there twice, or a time is not one of the day without a zone.
    """
    raw, columns, source = _read(path, ("time",), keys=("date",))
    column = raw[columns["time"]]
    days = _days(raw[columns["date"]], source, date_format).astype("datetime64[D]")
    _refuse(pd.Series(days).duplicated().to_numpy(), raw[columns["date"]], "'{value}' is there twice", source)
    times = [_clock(value) for value in column]
    unread = np.array([each is None for each in times], dtype=bool)
    _refuse(unread, column, "'{value}' is not a time of the day such as 13:00", source)
    return {day: each for day, each in zip(days.tolist(), times, strict=True) if each is not None}


def _clock(value: object) -> time | None:
    try:
        clock = value if isinstance(value, time) else time.fromisoformat(str(value).strip())
    except ValueError:
        return None
    return clock if clock.tzinfo is None else None


def refuse_documents(table: pd.DataFrame, bad: np.ndarray, column: str, what: str, source: str) -> None:
    """Raise MarketDataError if a row is marked, naming row, symbol, column and value of the first, and their number."""
    if bad.any():
        row, count = int(np.argmax(bad)), int(bad.sum())
        value = table[column].iloc[row]
        told = value.date() if column == "date" else f"{value:g}" if isinstance(value, float) else value
        raise MarketDataError(
            f"{source}: row {row + 1}, symbol {table['symbol'].iloc[row]}, column {column}: {told}: {what} "
            f"({count} row{'s' if count > 1 else ''} in all)"
        )


def _read(
    path: str | Path, contents: Sequence[str], keys: Sequence[str] = _KEYS
) -> tuple[pd.DataFrame, dict[str, str], str]:
    """Return a file as it is, its columns' names by those of this module, and its name; needs one of ``contents``."""
    path = Path(path)
    if not path.is_file():
        raise MarketDataError(f"{path}: there is no such file")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise MarketDataError(f"{path}: unknown extension {suffix or '(none)'}; known are {', '.join(SUFFIXES)}")
    with named_errors(path):
        raw = read_parquet(path).reset_index(drop=True) if suffix == ".parquet" else _read_csv(path, contents, keys)
    columns = _columns(list(raw.columns), contents, keys, str(path))
    if raw.empty:
        raise MarketDataError(f"{path}: the file is empty, it has no rows")
    return raw, columns, str(path)


def _keys(found: dict[str, pd.Series], source: str, date_format: str | None) -> dict[str, object]:
    times = _times(found["published_at"], source, date_format) if "published_at" in found else None
    keys = {
        "date": _days(found["date"], source, date_format) if "date" in found else times[0] if times else None,
        "symbol": symbol_categories(found["symbol"], source),
    }
    return keys | ({"published_at": times[1]} if times else {})


def _read_csv(path: Path, contents: Sequence[str], keys: Sequence[str]) -> pd.DataFrame:
    """Read a CSV file as text: a symbol may read ``NA`` or ``TRUE``."""
    # pandas would rename duplicates silently.
    _columns(csv_rows(path, 1)[0], contents, keys, str(path))
    return read_csv(path, dtype=str, keep_default_na=False)


def _columns(names: list[str], contents: Sequence[str], keys: Sequence[str], source: str) -> dict[str, str]:
    known = [_ALIASES.get(name, name) for name in (str(name).strip().lower() for name in names)]
    wanted = (*keys, *contents)
    found = {name: column for name, column in zip(known, names, strict=True) if name in wanted}
    for options in ([name for name in keys if name != "symbol"], contents):
        if not any(name in found for name in options):
            there = ", ".join(map(str, names[:20]))
            raise MarketDataError(f"{source}: missing column {' or '.join(options)}; there are {len(names)}: {there}")
    check_columns([name for name in known if name in wanted], [name for name in keys if name == "symbol"], source)
    return found


def _numbers(column: pd.Series, source: str) -> np.ndarray:
    missing = column.isna().to_numpy() | column.astype("string").str.strip().isin(_MISSING).to_numpy(
        bool, na_value=True
    )
    numbers = pd.to_numeric(column.where(~missing), errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    _refuse(~np.isfinite(numbers) & ~missing, column, "'{value}' is not a number", source)
    return numbers


def _texts(found: dict[str, pd.Series]) -> pd.Series:
    parts = {
        name: found[name].astype("string").fillna("").str.strip().astype("object") for name in _TEXTS if name in found
    }
    empty = pd.Series("", index=next(iter(parts.values())).index)
    title, summary = parts.get("title", empty), parts.get("summary", empty)
    mark = np.where((title != "") & (summary != ""), np.where(title.str.endswith((".", "!", "?")), " ", ". "), "")
    told = title + pd.Series(mark, index=title.index) + summary
    text = parts.get("text", empty)
    return text.where(text != "", told)


def _refuse(bad: np.ndarray, column: pd.Series, what: str, source: str) -> None:
    if bad.any():
        row, count = int(np.argmax(bad)), int(bad.sum())
        told = what.format(value=column.iloc[row])
        raise MarketDataError(
            f"{source}: row {row + 1}, column {column.name}: {told} ({count} row{'s' if count > 1 else ''} in all)"
        )


def _read_times(column: pd.Series, otherwise: str, source: str, date_format: str | None) -> Times:
    missing = column.isna() | (column.astype("string").str.strip() == "").fillna(True)
    _refuse(missing.to_numpy(bool), column, "it is missing", source)
    times = read_times(column, date_format)
    unread = np.isnat(times.at)
    _refuse(unread, column, f"'{{value}}' {column_unread(column, unread, date_format, otherwise)}", source)
    return times


def _days(column: pd.Series, source: str, date_format: str | None) -> np.ndarray:
    """Return the calendar days of a column as they are written. Shape: (rows,), datetime64[s]."""
    return _read_times(column, NOT_A_DATE, source, date_format).days().astype("datetime64[s]")


def _times(column: pd.Series, source: str, date_format: str | None) -> tuple[np.ndarray, pd.Series]:
    """Return the days of times in their own zones, datetime64[s], and the times, datetime64[us, UTC]."""
    example = "such as 2024-01-31T09:30:00-05:00"
    times = _read_times(column, f"is not a time with a zone, {example}", source, date_format)
    _refuse(np.isnat(times.offset), column, f"'{{value}}' has no time zone, {example}", source)
    exact = pd.Series(times.at - times.offset).dt.tz_localize("UTC")
    return times.days().astype("datetime64[s]"), exact
