"""CSV files in which no field is cut off or shifted."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vecenv.market.validation import MarketDataError

if TYPE_CHECKING:
    import pandas as pd


def csv_header(path: Path) -> list[str]:
    """Return the names in the first line, duplicates among them; raises MarketDataError if there is no line."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        header = next(csv.reader(lines), None)
    if header is None:
        raise MarketDataError(f"{path}: the file is empty, it has no header")
    return header


def read_csv(path: Path, **options: Any) -> pd.DataFrame:  # noqa: ANN401
    """Read a file with `pandas.read_csv`; fields beyond the header's must be empty, as where lines end with a comma.

    Raises:
        MarketDataError: a row has more fields, such as of a number that is written as 1,234; it names the first.
    """
    import pandas as pd

    def read() -> pd.DataFrame:
        return pd.read_csv(path, index_col=False, low_memory=False, encoding="utf-8-sig", **options)

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


def _check_fields(path: Path) -> None:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        rows = (row for row in csv.reader(lines) if row)
        num_fields = len(next(rows))
        for number, row in enumerate(rows, 1):
            if any(field.strip() for field in row[num_fields:]):
                raise MarketDataError(
                    f"{path}: row {number} has {len(row)} fields, more than the header's {num_fields}: "
                    f"{','.join(row)[:80]!r}; a number with commas needs quotes"
                )
