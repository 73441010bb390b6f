"""Every kind of bad market data is refused with file, symbol, date and column, before anything runs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError, MarketDataWarning

DAYS = [str(day.date()) for day in pd.bdate_range("2024-01-01", periods=10)]
# Rows of the fixture: AAA from 0, BBB from 10, CCC from 20 to 25.
B3 = 13
PRICES = ["open", "high", "low", "close"]


def _set(row: int, column: str, value: object, first: object = None) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A corruption of one cell, of a new column of other values if they are given."""

    def corrupt(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame if first is None else frame.assign(**{column: first})
        frame = frame.astype({column: object}) if isinstance(value, str) else frame
        frame.loc[row, column] = value
        return frame

    return corrupt


def _scaled(factor: float, column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: _set(B3, column, frame.loc[B3, column] * factor)(frame)


AT = ("BBB", DAYS[3])
ZERO = "2024-01-04 00:00:00+00:00"
FAULTS = {
    "zero price": (_set(B3, "open", 0.0), *AT, "open", "non-positive price 0.0 (1 row in all)"),
    "NaN price": (_set(B3, "high", np.nan), *AT, "high", "NaN, longest run 1 bars"),
    "NaN run": (
        lambda f: f.assign(close=f["close"].where(~f.index.isin([1, 8, 9, 10, 11, 12]))),
        *("AAA", DAYS[1], "close", "NaN, longest run 3 bars (6 rows in all)"),
    ),
    "infinite price": (_set(B3, "close", np.inf), *AT, "close", "infinite value inf"),
    "infinite factor": (_set(0, "factor", -np.inf, 1.0), "AAA", DAYS[0], "factor", "infinite value -inf"),
    "negative volume": (_set(B3, "volume", -1.0), *AT, "volume", "negative volume -1.0"),
    "high below low": (_scaled(0.5, "high"), *AT, "high", "is below the low"),
    "open above high": (_scaled(1.5, "open"), *AT, "open", "is outside [low, high]"),
    "close below low": (_scaled(0.5, "close"), *AT, "close", "is outside [low, high]"),
    "text for a price": (_set(B3, "close", "n/k"), *AT, "close", "'n/k' is not a number"),
    "NaN context": (_set(B3, "vix", np.nan, 20.0), *AT, "vix", "NaN"),
    "other context": (_set(B3, "turbulence", 3.0, 1.0), *AT, "turbulence", "3.0 differs from another symbol's value"),
    "duplicate date": (_set(B3, "date", DAYS[2]), "BBB", DAYS[2], "date", "duplicate date"),
    "duplicate apart": (_set(19, "date", DAYS[2]), "BBB", DAYS[2], "date", "duplicate date"),
    "unsorted": (lambda f: f.iloc[[*range(13), 15, 13, 14, *range(16, 26)]], *AT, "date", "dates are not sorted"),
    "no date": (_set(B3, "date", "2024-13-01"), "BBB", "2024-13-01", "date", "'2024-13-01' is not a date"),
    "month first": (_set(0, "date", "01/02/2024"), "AAA", "01/02/2024", "date", "is not a date"),
    "two zones": (
        lambda f: _set(B3, "date", ZERO, f["date"] + " 00:00:00+05:30")(f),
        *("BBB", ZERO, "date", "mixed time zones, +05:30 and +00:00"),
    ),
    "zone and none": (_set(B3, "date", ZERO), "BBB", ZERO, "date", "mixed time zones, no zone and +00:00"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_file_symbol_date_and_column(
    fault: str, long_frame: pd.DataFrame, tmp_path: Path
) -> None:
    corrupt, symbol, day, column, what = FAULTS[fault]
    frame = corrupt(long_frame)
    csv, parquet = tmp_path / "bars.csv", tmp_path / "bars.parquet"
    frame.to_csv(csv, index=False)
    # Parquet columns have one type: text in a column of numbers makes all of it text.
    mixed = [name for name in frame if frame[name].map(type).nunique() > 1]
    frame.astype(dict.fromkeys(mixed, str)).to_parquet(parquet, index=False)
    for source, name in ((frame, "DataFrame"), (csv, str(csv)), (parquet, str(parquet))):
        with pytest.raises(MarketDataError) as caught:
            read_bars(source)
        message = str(caught.value)
        assert message.startswith(f"{name}: symbol {symbol}, date {day}, column {column}: ") and what in message


def test_what_no_bar_may_have_is_refused(long_frame: pd.DataFrame):
    for corrupt, words in (
        (_set(B3, "date", None), "symbol BBB, .*column date: the date is missing"),
        (_set(3, "symbol", None), "column symbol: the symbol is missing, row 4"),
        (_set(3, "symbol", " "), "column symbol: the symbol is missing, row 4"),
        (lambda f: f.assign(date=19723), "date 19723, column date: '19723' is not a date"),
        (lambda f: f.drop(columns=["high", "volume"]), "DataFrame: missing columns high, volume; there are 5: date"),
        (lambda f: pd.concat([f, f["close"].rename(" CLOSE ")], axis=1), "duplicate columns close: close and CLOSE"),
        (lambda f: f.iloc[:0], "the file is empty, it has no rows"),
        (lambda f: f.assign(close=f["high"] * (1 + 1e-5)), "column close: close .* outside"),
    ):
        with pytest.raises(MarketDataError, match=words):
            read_bars(corrupt(long_frame.copy()))
    # Rounding passes, and leaves valid bars.
    ohlcv = read_bars(long_frame.assign(close=long_frame["high"] * (1 + 1e-8)), symbols=["AAA"]).ohlcv
    assert (ohlcv[..., 1] == ohlcv[..., 3]).all()


def test_files_that_cannot_be_read_are_named(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    header = ",".join(long_frame).encode()
    (tmp_path / "folder").mkdir()
    long_frame.iloc[:0].to_parquet(tmp_path / "none.parquet")
    for name, content, what in (
        ("absent.csv", None, "there is no such file or folder"),
        ("bars.xlsx", b"x", r"unknown extension .xlsx; known are .parquet, .csv, .npz and a folder"),
        ("empty.csv", b"", "the file is empty, it has no header"),
        ("header.csv", header + b"\n", "the file is empty, it has no rows"),
        ("ragged.csv", header + b"\n1,2,3,4,5,6,7\n1,2,3,4,5,6,7,8,9", "csv"),
        ("latin.csv", header + b"\n\xff\xfe", "cannot be read as .csv"),
        ("empty.parquet", b"", "cannot be read as .parquet"),
        ("none.parquet", None, "the file is empty, it has no rows"),
        ("text.npz", b"date,symbol", "cannot be read as .npz"),
        ("folder", None, "the folder holds no .csv file"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(MarketDataError, match=what) as caught:
            read_bars(path)
        assert str(path) in str(caught.value)


def test_a_choice_that_finds_nothing_is_told_what_there_is(long_frame: pd.DataFrame) -> None:
    for options, words in (
        ({"symbols": ["BBB", "aab"]}, r"unknown symbols aab \(did you mean AAA.*there are 3: AAA, BBB, CCC"),
        ({"symbols": ["AAA", "AAA"]}, "asked for more than once: AAA"),
        ({"symbols": []}, "no symbol was asked for"),
        ({"start": "2025-01-01"}, "no bar from 2025-01-01 to the end; the data runs from 2024-01-01 to 2024-01-12"),
        ({"start": "2024-01-05", "end": "2024-01-03"}, "no bar from 2024-01-05 to 2024-01-03"),
        ({"end": "soon"}, "end 'soon' is not a date"),
    ):
        with pytest.raises(MarketDataError, match=words):
            read_bars(long_frame, **options)
    long_frame.loc[B3, "close"] = -1.0
    assert read_bars(long_frame, symbols=["CCC", "AAA"]).symbols == ("CCC", "AAA")


@pytest.mark.parametrize(("factor", "moves"), [(0.5, "-50.0%"), (1.4, r"\+40.0%"), (0.61, None)])
def test_a_large_move_warns_once_with_count_and_the_first(
    factor: float, moves: str | None, long_frame: pd.DataFrame
) -> None:
    """A step from one symbol to the next is none."""
    long_frame[PRICES] = 100.0
    long_frame.loc[20:, PRICES] *= 50
    long_frame.loc[B3:19, PRICES] *= factor
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_bars(long_frame)
    message = rf"DataFrame: 1 one-day .* 40% .*first: symbol BBB, date {DAYS[3]}, {moves}; .*split"
    assert len(caught) == (moves is not None) and all(re.match(message, str(told.message)) for told in caught)
    assert all(told.category is MarketDataWarning and told.filename == __file__ for told in caught)
