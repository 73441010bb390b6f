"""Files of documents or their scores: one row per symbol and date or publication time, Parquet or CSV."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from vecenv.market.parquet_files import read_parquet
from vecenv.market.validation import MarketDataError, check_columns

SUFFIXES = (".parquet", ".csv")

DATE, SYMBOL, PUBLISHED = "date", "symbol", "published_at"

ALIASES = {
    "tic": SYMBOL,
    "stock_symbol": SYMBOL,
    "article_title": "title",
    "article": "summary",
    "lsa_summary": "summary",
}
"""Names of columns in FinRL's and FNSPID's files."""


@dataclass(frozen=True, eq=False)
class DocumentTable:
    """Rows of a file, in its order.

    Attributes:
        source: the file, for messages.
        frame: with lower-case names; ``symbol`` is text.
        published: publication times in UTC; None where only dates are known. Shape: (rows,).
    """

    source: str
    frame: pd.DataFrame
    published: pd.Series | None

    @property
    def day_column(self) -> str:
        """Name of the column of days."""
        return DATE if self.published is None else PUBLISHED

    def days(self) -> np.ndarray:
        """Return the days of the rows, of publication times those in UTC. Shape: (rows,), ``datetime64[D]``."""
        if self.published is not None:
            return self.published.dt.tz_localize(None).to_numpy().astype("datetime64[D]")
        return self.frame[DATE].to_numpy().astype("datetime64[D]")

    def numbers(self, column: str) -> np.ndarray:
        """Return a column of numbers, NaN where there is none. Shape: (rows,), float64.

        Raises:
            MarketDataError: naming the first row that holds something else.
        """
        values = self.frame[column]
        numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        self.refuse(np.isnan(numbers) & values.notna().to_numpy(), column, "not a number")
        return numbers

    def texts(self) -> list[str]:
        """Return the text of each row: ``text``, or title and summary in one line; empty for none.

        Raises:
            MarketDataError: there is no such column.
        """
        parts = [name for name in ("text", "title", "summary") if name in self.frame]
        parts = ["text"] if "text" in parts else parts
        if not parts:
            raise MarketDataError(f"{self.source}: missing columns text, or title or summary")
        columns = [self.frame[name].astype("string").fillna("").str.strip().tolist() for name in parts]
        return [" ".join(" ".join(row).split()) for row in zip(*columns, strict=True)]

    def refuse(self, bad: np.ndarray, column: str, what: str) -> None:
        """Reject the file if a row is marked.

        Raises:
            MarketDataError: naming the first marked row, its value, and the number of them.
        """
        if not bad.any():
            return
        row, count = int(np.argmax(bad)), int(bad.sum())
        value, symbol = self.frame[column].iloc[row], self.frame[SYMBOL].iloc[row]
        raise MarketDataError(
            f"{self.source}: row {row + 1}, symbol {symbol}, column {column}: {value}: {what} "
            f"({count} row{'s' if count > 1 else ''} in all)"
        )


def read_documents(path: Path) -> DocumentTable:
    """Read a file of documents or scores.

    Columns are ``symbol``, ``date`` or ``published_at`` (times with a zone), and others of the caller's choice. Names
    are compared without case, and those of FinRL and FNSPID are understood. With publication times the date is theirs.

    Raises:
        MarketDataError: naming file, row and column: it cannot be read, lacks a column, has no rows, a date is none, a
            time has no zone, a symbol is missing, or a row is there twice.
    """
    frame = _read(path)
    names = [ALIASES.get(str(name).strip().lower(), str(name).strip().lower()) for name in frame.columns]
    kept = [bool(name) and not name.startswith("unnamed: ") for name in names]
    check_columns([name for name, keep in zip(names, kept, strict=True) if keep], [SYMBOL], str(path))
    frame = frame.loc[:, kept].set_axis([name for name, keep in zip(names, kept, strict=True) if keep], axis=1)
    if DATE not in frame and PUBLISHED not in frame:
        raise MarketDataError(f"{path}: missing columns {DATE} or {PUBLISHED}; it has {', '.join(frame)}")
    if frame.empty:
        raise MarketDataError(f"{path}: the file is empty, it has no rows")
    frame = frame.assign(**{SYMBOL: frame[SYMBOL].astype("string").str.strip()})
    raw = DocumentTable(str(path), frame, None)
    raw.refuse((frame[SYMBOL].isna() | (frame[SYMBOL] == "")).to_numpy(dtype=bool), SYMBOL, "the symbol is missing")
    published = _published(raw) if PUBLISHED in frame else None
    if published is None:
        raw = DocumentTable(str(path), frame.assign(**{DATE: _dates(raw)}), None)
    table = DocumentTable(str(path), raw.frame, published)
    content = [name for name in table.frame if name not in (DATE, SYMBOL, PUBLISHED)]
    _refuse_doubled(table, content)
    return table


def _refuse_doubled(table: DocumentTable, content: list[str]) -> None:
    """Reject a row that is there twice: of scores by symbol and time, of texts by symbol, time and text.

    Raises:
        MarketDataError: naming the second.
    """
    written = [name for name in ("text", "title", "summary") if name in content]
    keys = [table.day_column, SYMBOL, *written]
    doubled = table.frame.duplicated(keys).to_numpy()
    table.refuse(doubled, table.day_column, f"there is such a row already, of the same {', '.join(keys)}")


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise MarketDataError(f"{path}: there is no such file")
    if path.suffix.lower() not in SUFFIXES:
        raise MarketDataError(f"{path}: unknown extension {path.suffix or '(none)'}; known are {', '.join(SUFFIXES)}")
    try:
        if path.suffix.lower() == ".parquet":
            return read_parquet(path)
        # Symbols as text: a ticker may read NA or TRUE.
        head = pd.read_csv(path, nrows=0, encoding="utf-8-sig").columns
        texts = {name: str for name in head if ALIASES.get(name.strip().lower(), name.strip().lower()) == SYMBOL}
        missing = {name: ["", "NA", "NaN", "nan", "null", "None"] for name in head if name not in texts}
        return pd.read_csv(path, dtype=texts, na_values=missing, keep_default_na=False, encoding="utf-8-sig")
    except (ValueError, OSError, EOFError) as error:
        raise MarketDataError(f"{path}: cannot be read as {path.suffix.lower()}: {error}") from error


def _dates(table: DocumentTable) -> pd.Series:
    """Return the column of dates, without times.

    Raises:
        MarketDataError: a date is missing or none.
    """
    column = table.frame[DATE]
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        column = column.dt.tz_localize(None)
    days = pd.to_datetime(column, errors="coerce", format=None if column.dtype.kind == "M" else "ISO8601")
    if isinstance(days.dtype, pd.DatetimeTZDtype):
        days = days.dt.tz_localize(None)
    table.refuse(days.isna().to_numpy(), DATE, "not a date of the form YYYY-MM-DD")
    return days.dt.normalize()


def _published(table: DocumentTable) -> pd.Series:
    """Return publication times in UTC.

    Raises:
        MarketDataError: a time is missing, none, or without a zone.
    """
    column = table.frame[PUBLISHED]
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        table.refuse(column.isna().to_numpy(), PUBLISHED, "the time is missing")
        return column.dt.tz_convert("UTC")
    text = column.astype("string").str.strip()
    table.refuse(column.isna().to_numpy(), PUBLISHED, "the time is missing")
    times = pd.to_datetime(text, errors="coerce", format="ISO8601", utc=True)
    table.refuse(times.isna().to_numpy(), PUBLISHED, "not a time of the form 2024-05-31T14:05:00-04:00")
    zoned = text.str.contains(r"[T ]\d.*(?:Z|UTC|[+-]\d{2}:?\d{2})$", regex=True).to_numpy(dtype=bool)
    table.refuse(~zoned, PUBLISHED, "a time without a zone: it could be hours earlier or later")
    return times
