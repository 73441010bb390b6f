"""Validation of market data; every error names file, symbol, date and column."""

from __future__ import annotations

import difflib
import re
import unicodedata
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    # The errors are imported everywhere; pandas is imported only to check a table.
    import pandas as pd

PRICES = ["open", "high", "low", "close"]
OHLCV = [*PRICES, "volume"]
CONTEXT = ["vix", "turbulence"]

# Relative rounding error of prices from single precision and adjustment factors.
ROUNDING = 1e-6
# A one-day close move of this size looks like a split that was never adjusted for.
SPLIT_MOVE = 0.4

_CURRENCY_CODE = re.compile("[A-Za-z]{3,5}")
# A UTC offset at the end of a text that also holds a time of day.
_OFFSET = r"[T ]\d.*?(Z|UTC|[+-]\d{2}:?\d{2})$"


class MarketDataError(ValueError):
    """Invalid market data; the message names file, symbol, date and column."""


class MarketDataWarning(UserWarning):
    """Usable but suspicious market data."""


def check_columns(names: Sequence[str], required: Sequence[str], source: str) -> None:
    """Raise MarketDataError for duplicate and missing columns; names are canonical, in lower case."""
    duplicates = sorted({name for name in names if list(names).count(name) > 1})
    if duplicates:
        raise MarketDataError(
            f"{source}: duplicate columns {', '.join(duplicates)} (names are compared without case, ticker is symbol)"
        )
    missing = [name for name in required if name not in names]
    if missing:
        raise MarketDataError(
            f"{source}: missing columns {', '.join(missing)}; there are {len(names)}: {_shown(names)}"
        )


def known_symbols(symbols: Sequence[str] | None, known: Sequence[str], source: str) -> list[str]:
    """Return the chosen symbols in the order given, or all of them for None.

    Raises:
        MarketDataError: for an empty choice, a repeated or an unknown symbol (with near matches).
    """
    if symbols is None:
        return list(known)
    chosen = [symbols] if isinstance(symbols, str) else list(symbols)
    if not chosen:
        raise MarketDataError(f"{source}: no symbol was asked for")
    repeated = sorted({name for name in chosen if chosen.count(name) > 1})
    if repeated:
        raise MarketDataError(f"{source}: symbols asked for more than once: {', '.join(repeated)}")
    unknown = [name for name in chosen if name not in set(known)]
    if unknown:
        upper = {name.upper(): name for name in known}
        near = difflib.get_close_matches(unknown[0].upper(), upper, n=3)
        hint = f" (did you mean {' or '.join(upper[name] for name in near)}?);" if near else ";"
        raise MarketDataError(
            f"{source}: unknown symbols {', '.join(unknown)}{hint} there are {len(known)}: {_shown(known)}"
        )
    return chosen


def has_control_characters(name: str) -> bool:
    """Whether a name has invisible characters: control, bidirectional-format or unassigned ones."""
    return not all(letter.isprintable() or unicodedata.category(letter) == "Zs" for letter in name)


def checked_currency(code: str) -> str:
    """Return a currency code; ValueError unless it has three letters (ISO 4217), or up to five such as USDT."""
    if _CURRENCY_CODE.fullmatch(code) is None:
        raise ValueError(f"currency must be a code such as USD, INR or USDT, got {code!r}")
    return code


def refuse_rows(table: pd.DataFrame, bad: np.ndarray, column: str, what: str, source: str) -> None:
    """Raise MarketDataError if rows are marked; ``{value}`` in ``what`` stands for the first invalid value."""
    if not bad.any():
        return
    import pandas as pd

    row, count = table.iloc[int(np.argmax(bad))], int(bad.sum())
    date = row["date"]
    day = str(date.date()) if isinstance(date, pd.Timestamp) else str(date)
    raise MarketDataError(
        f"{source}: symbol {row['symbol']}, date {day}, column {column}: "
        f"{what.format(value=row[column])} ({count} row{'s' if count > 1 else ''} in all)"
    )


def local_dates(table: pd.DataFrame, source: str) -> tuple[np.ndarray, str | None]:
    """Read the ``date`` column as calendar days, in the written time zone.

    Accepts datetimes, ``datetime.date``, ISO 8601 texts and integers of the form YYYYMMDD. Other
    texts are refused, because day and month cannot be told apart in 01/02/2020.

    Returns:
        Days, ``datetime64[D]``, shape (rows,), and the name of their time zone, None for none.

    Raises:
        MarketDataError: for missing or unparsable dates, and for more than one UTC offset.
    """
    import pandas as pd

    codes, unique = pd.factorize(table["date"])
    refuse_rows(table, codes < 0, "date", "the date is missing", source)
    if isinstance(unique, pd.DatetimeIndex):
        zone = None if unique.tz is None else str(unique.tz)
        return unique.tz_localize(None).to_numpy().astype("datetime64[D]")[codes], zone
    text = pd.Series(unique).astype(str).str.strip()
    offset = text.str.extract(_OFFSET, expand=False).replace(["Z", "UTC"], "+00:00").fillna("no zone")
    other = (offset != offset.iloc[0]).to_numpy()
    zones = " and ".join(offset.unique()[:2])
    hint = "write plain dates, or all in one zone without daylight saving"
    refuse_rows(table, other[codes], "date", f"mixed time zones, {zones}: {hint}", source)
    zone = None if offset.iloc[0] == "no zone" else offset.iloc[0]
    if zone is not None:
        text = text.str.replace(r"\s*(Z|UTC|[+-]\d{2}:?\d{2})$", "", regex=True)
    style = "%Y%m%d" if pd.api.types.is_integer_dtype(unique.dtype) else "ISO8601"
    days = pd.to_datetime(text, format=style, errors="coerce")
    what = "'{value}' is not a date of the form YYYY-MM-DD"
    refuse_rows(table, days.isna().to_numpy()[codes], "date", what, source)
    return days.to_numpy().astype("datetime64[D]")[codes], zone


def numeric_values(table: pd.DataFrame, column: str, source: str) -> np.ndarray | None:
    """Read a column as float64, NaN where missing; None for a column of text that holds no number.

    Raises:
        MarketDataError: for text in a column of numbers or in a column of ``OHLCV``.
    """
    import pandas as pd

    values = table[column]
    if pd.api.types.is_numeric_dtype(values.dtype):
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    text = values.astype("string")
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    missing = text.isna().to_numpy()
    bad = np.isnan(numbers) & ~missing
    if column not in OHLCV and (bad | missing).all():
        return None
    refuse_rows(table, bad, column, "'{value}' is not a number", source)
    return numbers


def check_order(table: pd.DataFrame, source: str) -> None:
    """Raise MarketDataError for the first date, in the order of the file, that repeats or steps back in a symbol."""
    days = table["date"].to_numpy().astype("datetime64[D]").astype(np.int64)
    codes = table["symbol"].cat.codes.to_numpy()
    falls = np.zeros(len(table), dtype=bool)
    falls[1:] = (np.diff(days) <= 0) & (np.diff(codes) == 0)
    if falls.any():
        duplicate = table.duplicated(["symbol", "date"]).to_numpy()
        refuse_rows(table, duplicate, "date", "duplicate date (bars are daily, one per symbol)", source)
        refuse_rows(table, falls, "date", "dates are not sorted, this one is before the last", source)


def check_values(table: pd.DataFrame, source: str) -> None:
    """Raise MarketDataError for the first row with a NaN, infinite, non-positive or negative value in a bar.

    Further numeric columns may hold NaN (missing), and never an infinity.
    """
    for column in table.columns.difference(["date", "symbol"], sort=False):
        values = table[column].to_numpy()
        missing = np.isnan(values)
        if missing.any() and column in (*OHLCV, *CONTEXT, "adj_close"):
            run = _longest_run(missing, table["symbol"].cat.codes.to_numpy())
            refuse_rows(table, missing, column, f"NaN, longest run {run} bars", source)
        refuse_rows(table, np.isinf(values), column, "infinite value {value}", source)
        if column in (*PRICES, "adj_close"):
            refuse_rows(table, values <= 0, column, "non-positive price {value}", source)
    refuse_rows(table, table["volume"].to_numpy() < 0, "volume", "negative volume {value}", source)


def check_ranges(table: pd.DataFrame, source: str) -> None:
    """Raise MarketDataError for the first bar whose high is below the low, or whose open or close is outside them."""
    high, low = table["high"].to_numpy() * (1 + ROUNDING), table["low"].to_numpy() * (1 - ROUNDING)
    refuse_rows(table, high < low, "high", "high {value} is below the low", source)
    for column in ("open", "close"):
        price = table[column].to_numpy()
        outside = (price > high) | (price < low)
        refuse_rows(table, outside, column, f"{column} {{value}} is outside [low, high]", source)


def warn_of_splits(table: pd.DataFrame, source: str) -> None:
    """Warn once of all one-day close moves that look like unadjusted splits."""
    close, codes = table["close"].to_numpy(), table["symbol"].cat.codes.to_numpy()
    move = np.zeros(len(table))
    move[1:] = np.where(np.diff(codes) == 0, close[1:] / close[:-1] - 1, 0)
    large = np.abs(move) >= SPLIT_MOVE * (1 - ROUNDING)
    if large.any():
        first = int(np.argmax(large))
        warnings.warn(
            f"{source}: {int(large.sum())} one-day close moves of {SPLIT_MOVE:.0%} or more, the first: "
            f"symbol {table['symbol'].iloc[first]}, date {table['date'].iloc[first].date()}, "
            f"{move[first]:+.1%}; looks like an unadjusted split",
            MarketDataWarning,
            stacklevel=3,
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _longest_run(marked: np.ndarray, codes: np.ndarray) -> int:
    ends = np.flatnonzero(np.append(~marked[1:] | (np.diff(codes) != 0), True))
    counts = np.add.reduceat(marked, np.append(0, ends[:-1] + 1), dtype=np.int64)
    return int(counts.max())
