"""Validation of market data; every error names file, symbol, date and column."""

from __future__ import annotations

import difflib
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
# Relative distance of an open or close from its bar's range up to which it is no fault of another kind.
CLIPPED = 1e-3
# A dividend below this share of the close may be lost in the rounding of an adjusted close.
LEAST_DIVIDEND = 0.002

# A one-day close move of this size looks like a split that was never adjusted for.
SPLIT_MOVE = 0.4


class MarketDataError(ValueError):
    """Invalid market data; the message names file, symbol, date and column."""


class MarketDataWarning(UserWarning):
    """Usable but suspicious market data."""


def check_columns(names: Sequence[str], required: Sequence[str], source: str, hint: str = "") -> None:
    """Raise MarketDataError for duplicate and missing columns; names are canonical, in lower case."""
    duplicates = sorted({name for name in names if list(names).count(name) > 1})
    if duplicates:
        raise MarketDataError(
            f"{source}: duplicate columns {', '.join(duplicates)} (names are compared without case, ticker is symbol)"
        )
    missing = [name for name in required if name not in names]
    if missing:
        told = f"missing columns {', '.join(missing)}; there are {len(names)}: {_shown(names)}"
        raise MarketDataError(f"{source}: {told}{hint.format(missing[0])}")


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


def first_of(table: pd.DataFrame, marked: np.ndarray) -> str:
    """Return symbol and date of the first marked row, for messages."""
    import pandas as pd

    first = table.iloc[int(np.argmax(marked))]
    date = first["date"]
    return f"symbol {first['symbol']}, date {date.date() if isinstance(date, pd.Timestamp) else date}"


def refuse_rows(table: pd.DataFrame, bad: np.ndarray, column: str, what: str, source: str, hint: str = "") -> None:
    """Raise MarketDataError if rows are marked; ``{value}`` in ``what`` stands for the first invalid value."""
    if bad.any():
        value, count = table[column].iloc[int(np.argmax(bad))], int(bad.sum())
        raise MarketDataError(
            f"{source}: {first_of(table, bad)}, column {column}: "
            f"{what.format(value=value)} ({count} row{'s' if count > 1 else ''} in all){hint}"
        )


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
    refuse_rows(table, bad, column, "'{value}' is not a number, such as 1234.5", source)
    return numbers


def check_order(table: pd.DataFrame, source: str) -> None:
    """Raise MarketDataError for the first date, in the order of the file, that repeats or steps back in a symbol."""
    days = table["date"].to_numpy().astype("datetime64[D]").astype(np.int64)
    codes = table["symbol"].cat.codes.to_numpy()
    falls = np.zeros(len(table), dtype=bool)
    falls[1:] = (np.diff(days) <= 0) & (np.diff(codes) == 0)
    if falls.any():
        duplicate = table.duplicated(["symbol", "date"]).to_numpy()
        what = "duplicate date: bars are daily, one per symbol, and several symbols need a column that names them"
        refuse_rows(table, duplicate, "date", what, source)
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
            do = "; fill them in, or leave the rows out"
            refuse_rows(table, missing, column, f"NaN, longest run {run} bars", source, do)
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
        what = f"{column} {{value}} is outside [low, high]"
        refuse_rows(table, outside, column, what, source, f"; up to {CLIPPED:.1%} are mended by clip (--clip)")


def clipped(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """Widen the ranges of bars that their prices leave by at most `CLIPPED`; warns of their number and the first."""
    prices = table[PRICES].to_numpy()
    highest, lowest = prices.max(axis=1), prices.min(axis=1)
    outside = (highest > prices[:, 1] * (1 + ROUNDING)) | (lowest < prices[:, 2] * (1 - ROUNDING))
    outside &= (highest <= prices[:, 1] * (1 + CLIPPED)) & (lowest >= prices[:, 2] * (1 - CLIPPED))
    if not outside.any():
        return table
    warnings.warn(
        f"{source}: {int(outside.sum())} bars whose prices leave [low, high] by at most {CLIPPED:.1%} are widened, the "
        f"first: {first_of(table, outside)}",
        MarketDataWarning,
        stacklevel=4,
    )
    high, low = np.where(outside, highest, prices[:, 1]), np.where(outside, lowest, prices[:, 2])
    return table.assign(high=high, low=low)


def warn_of_splits(table: pd.DataFrame, source: str) -> None:
    """Warn once of all one-day close moves that look like unadjusted splits, and of those that a column tells.

    A column of splits has the new shares for an old one, as of yfinance, Alpha Vantage and Tiingo; 0 and 1 are none.
    """
    close, codes = table["close"].to_numpy(), table["symbol"].cat.codes.to_numpy()
    move = np.zeros(len(table))
    move[1:] = np.where(np.diff(codes) == 0, close[1:] / close[:-1] - 1, 0)
    told = np.zeros(len(table), dtype=bool)
    for name in (name for name in table if "split" in name):
        ratio = table[name].to_numpy()
        size = np.log(np.where(ratio > 0, ratio, 1.0))
        told |= np.abs(np.log1p(move) + size) < np.abs(size) / 2
    large = (np.abs(move) >= SPLIT_MOVE * (1 - ROUNDING)) & ~told
    for marked, what, why in (
        (large, f"one-day close moves of {SPLIT_MOVE:.0%} or more", "looks like an unadjusted split"),
        (told, "splits that a column tells are not in the prices", "adjust the prices before"),
    ):
        if marked.any():
            warnings.warn(
                f"{source}: {int(marked.sum())} {what}, the first: {first_of(table, marked)}, "
                f"{move[np.argmax(marked)]:+.1%}; {why}",
                MarketDataWarning,
                stacklevel=4,
            )


def warn_of_dividends(table: pd.DataFrame, factor: np.ndarray, source: str) -> None:
    """Warn once of dividends that a column tells and the factors of an adjusted close do not have. Shape: (rows,)."""
    close, codes = table["close"].to_numpy(), table["symbol"].cat.codes.to_numpy()
    for name in (name for name in table if "dividend" in name):
        dividend, marked = table[name].to_numpy(), np.zeros(len(table), dtype=bool)
        paid = dividend[1:] / close[:-1]
        marked[1:] = (np.diff(codes) == 0) & (paid >= LEAST_DIVIDEND) & (np.log(factor[1:] / factor[:-1]) < paid / 2)
        if marked.any():
            warnings.warn(
                f"{source}: {int(marked.sum())} dividends that a column tells are not in Adj Close, the first: "
                f"{first_of(table, marked)}, {dividend[np.argmax(marked)]:g}; adjust the prices before",
                MarketDataWarning,
                stacklevel=5,
            )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def _longest_run(marked: np.ndarray, codes: np.ndarray) -> int:
    ends = np.flatnonzero(np.append(~marked[1:] | (np.diff(codes) != 0), True))
    counts = np.add.reduceat(marked, np.append(0, ends[:-1] + 1), dtype=np.int64)
    return int(counts.max())
