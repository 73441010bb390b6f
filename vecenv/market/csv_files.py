"""CSV files in which no field is cut off or shifted, whatever separates them."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenv.market.validation import MarketDataError

if TYPE_CHECKING:
    import pandas as pd

_SEPARATORS = ",;\t|"
# Rows that tell whether numbers have a decimal comma.
_SAMPLE = 1000
# Thousands are grouped by three digits or, in India, by two above the last three.
_GROUPED = r"\s*-?(\$\d+|\$?\d{1,3}(,\d{3})*|\$?\d{1,2}(,\d\d)*,\d{3})(\.\d+)?\s*"
_SHOWS_GROUPS = r"\..|,.*,"


def csv_rows(path: Path, number: int) -> list[list[str]]:
    """Return the first rows that are not empty, the header first, at most so many; MarketDataError if there is none."""
    rows = list(islice(_rows(path), number))
    if not rows:
        raise MarketDataError(f"{path}: the file is empty, it has no header")
    return rows


def read_csv(path: Path, **options: Any) -> pd.DataFrame:  # noqa: ANN401
    """Read a file with `pandas.read_csv`; fields beyond the header's must be empty, as where lines end with a comma.

    Fields are separated by commas, semicolons, tabs or bars, by whichever the header has most of. Where it is not the
    comma, numbers such as 1,5 are read if one of them shows that the comma is no mark of thousands. A column whose
    values all are numbers, as 1,234.5, 1,23,456 or $9, is one of numbers; where it is not the comma that separates
    fields, only if one of them shows that its comma is no decimal one.

    Raises:
        MarketDataError: a row has more fields, such as of 1,234 without quotation marks; it names the first.
    """
    import pandas as pd

    separator = _separator(path)
    if separator != "," and _decimal_comma(path):
        options = {"decimal": ","} | options

    def read() -> pd.DataFrame:
        own = {"sep": separator, "index_col": False, "low_memory": False, "encoding": "utf-8-sig"}
        return _with_numbers(pd.read_csv(path, **own, **options), options.get("dtype", {}), separator)

    with warnings.catch_warnings():
        # What pandas says, without the row, when it drops fields.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            return read()
        except (pd.errors.ParserWarning, pd.errors.ParserError):
            _check_fields(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pd.errors.ParserWarning)
        return read()


def _with_numbers(table: pd.DataFrame, texts: Any, separator: str) -> pd.DataFrame:  # noqa: ANN401
    """Return a table with numbers in the columns of marked ones, but for those that are read as texts."""
    import pandas as pd

    numeric = pd.api.types.is_numeric_dtype
    for name in () if texts is str else [each for each in table if each not in texts and not numeric(table[each])]:
        known = table[name].dropna().astype(str)
        marked = known.str.contains("[,$]").any() and known.str.fullmatch(_GROUPED).all()
        if marked and (separator == "," or known.str.contains(_SHOWS_GROUPS).any()):
            table[name] = known.str.replace("[,$]", "", regex=True).astype(float).reindex(table.index)
    return table


def _rows(path: Path) -> Iterator[list[str]]:
    separator = _separator(path)
    with path.open(newline="", encoding="utf-8-sig") as lines:
        yield from (row for row in csv.reader(lines, delimiter=separator) if row)


def _separator(path: Path) -> str:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        header = next((line for line in lines if line.strip()), "")
    return max(_SEPARATORS, key=lambda mark: len(next(csv.reader([header], delimiter=mark), [])))


def _decimal_comma(path: Path) -> bool:
    fields = [field.strip() for row in islice(_rows(path), _SAMPLE) for field in row]
    point, comma = (any(re.fullmatch(rf"-?\d+{mark}\d+", field) for field in fields) for mark in (r"\.", ","))
    return comma and not point and any(re.fullmatch(r"-?\d+,(\d{1,2}|\d{4,})", field) for field in fields)


def _check_fields(path: Path) -> None:
    rows = _rows(path)
    num_fields = len(next(rows))
    for number, row in enumerate(rows, 1):
        if any(field.strip() for field in row[num_fields:]):
            raise MarketDataError(
                f"{path}: row {number} has {len(row)} fields, more than the header's {num_fields}: "
                f"{','.join(row)[:80]!r}; a number with commas needs quotes, and names of columns the first row"
            )
