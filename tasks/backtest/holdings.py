"""The file of an account: its columns by their usual names, and whole shares of each symbol. It needs no PyTorch."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from vecenv.market.dress import meanings

CASH = "CASH"
"""Symbol of the row that has the cash."""

WORDS = {
    "shares": ("quantity", "qty", "position", "units", "number of shares"),
    "average_price": (
        "average price",
        "avg price",
        "average cost",
        "avg cost",
        "average cost basis",
        "cost basis price",
        "cost per share",
        "cost/share",
        "unit cost",
    ),
    "currency": ("ccy",),
}
"""Words of brokers for columns, in lower case, without dots; those for the symbol are the ones of files of bars."""

MOST_SHARES = 2**24
"""Shares of a symbol from which on float32 does not count them."""


@dataclass(frozen=True)
class Holdings:
    """What a file of an account tells, before the market is known.

    Attributes:
        where: the file, for messages.
        shares: of each symbol, negative of shorts; `CASH` has the cash, in currency, unless it is a symbol.
        average_price: of purchases, in currency, by symbol; where it is known.
        currencies: codes that are given, sorted.
    """

    where: str
    shares: Mapping[str, float]
    average_price: Mapping[str, float]
    currencies: tuple[str, ...]


def read_holdings(given: Path | pd.DataFrame, cash: float | None) -> Holdings:
    """Read ``symbol``, ``shares``, ``average_price`` and ``currency`` of a file or a frame.

    ``cash`` is what is known of it beside the file.

    Raises:
        ValueError: a column or the cash is missing, two columns are read as one, a number is none or is not whole, or
            a symbol is twice there.
    """
    where = str(given) if isinstance(given, Path) else "holdings"
    if isinstance(given, Path) and not given.is_file():
        raise ValueError(f"{where}: there is no such file")
    try:
        # All as texts: NA is a symbol.
        text = given if isinstance(given, Path) else io.StringIO(given.to_csv(index=False))
        table = pd.read_csv(text, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: not a CSV file of holdings ({error})") from error
    table = _named(table, where)
    table["symbol"] = table["symbol"].where(table["symbol"].str.upper() != CASH, CASH)
    if twice := table["symbol"][table["symbol"].duplicated()].tolist():
        raise ValueError(f"{where}: {', '.join(twice)} has several rows")
    shares, average = (_numbers(table, column, where) for column in ("shares", "average_price"))
    if lacking := [name for name in table["symbol"] if name not in shares]:
        raise ValueError(f"{where}: the shares of {', '.join(lacking)} are missing")
    if CASH not in shares and cash is None:
        raise ValueError(f"{where}: the cash is unknown: add a row {CASH}, or give --cash")
    check_whole({name: number for name, number in shares.items() if name != CASH}, where)
    return Holdings(where, shares, average, tuple(sorted({*table.get("currency", [])} - {""})))


def check_whole(shares: Mapping[str, float], where: str) -> None:
    """Raise ValueError where shares are not whole, or too many to be counted exactly."""
    for name, number in shares.items():
        if number != int(number):
            raise ValueError(
                f"{where}: {name} has {number:,.15g} shares, but orders are for whole ones: write {int(number)}, and "
                "the fraction stays in your account untouched"
            )
        if abs(number) >= MOST_SHARES:
            raise ValueError(f"{where}: {name} has {number:,.0f} shares, but orders are for less than {MOST_SHARES:,}")


def _named(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Return a table whose columns have the names of their meanings."""
    usual = {word: name for name, words in WORDS.items() for word in (name.replace("_", " "), *words)}
    names = [usual.get(re.sub(r"[._ ]+", " ", name).strip(), name) for name in meanings([*table], {}, where)]
    for name in ("symbol", *WORDS):
        if names.count(name) > 1:
            those = [given for given, read in zip(table, names, strict=True) if read == name]
            raise ValueError(f"{where}: the columns {' and '.join(those)} are both read as {name}: leave one out")
    if lacking := [name for name in ("symbol", "shares") if name not in names]:
        raise ValueError(
            f"{where}: there is no column {' and no column '.join(lacking)}, but {', '.join(table)}; needed are symbol "
            "(or ticker) and shares (or quantity)"
        )
    return table.set_axis(names, axis=1)


def _numbers(table: pd.DataFrame, column: str, where: str) -> dict[str, float]:
    """Return the numbers of a column by symbol, without empty ones; ValueError of what is none."""
    texts = table[table[column] != ""].set_index("symbol")[column] if column in table else pd.Series(dtype=str)
    numbers = pd.to_numeric(texts, errors="coerce").astype(float)
    for name, text in texts[~np.isfinite(numbers)].items():
        raise ValueError(f"{where}: {column} of {name} is not a number, got {text!r}")
    return dict(numbers)
