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


def _zoned(value: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: _set(B3, "date", value, frame["date"] + " 00:00:00+05:30")(frame)


AT = ("BBB", DAYS[3])
FAULTS = {
    "zero price": (_set(B3, "open", 0.0), *AT, "open", "non-positive price 0.0 (1 row in all)"),
    "negative price": (_set(B3, "low", -2.5), *AT, "low", "non-positive price -2.5"),
    "NaN price": (_set(B3, "high", np.nan), *AT, "high", "NaN, longest run 1 bars"),
    "NaN run": (
        lambda f: f.assign(close=f["close"].where(~f.index.isin([1, 8, 9, 10, 11, 12]))),
        *("AAA", DAYS[1], "close", "NaN, longest run 3 bars (6 rows in all)"),
    ),
    "NaN volume": (_set(25, "volume", np.nan), "CCC", DAYS[9], "volume", "NaN"),
    "infinite price": (_set(B3, "close", np.inf), *AT, "close", "infinite value inf"),
    "infinite factor": (_set(0, "factor", -np.inf, 1.0), "AAA", DAYS[0], "factor", "infinite value -inf"),
    "negative volume": (_set(B3, "volume", -1.0), *AT, "volume", "negative volume -1.0"),
    "high below low": (_scaled(0.5, "high"), *AT, "high", "is below the low"),
    "open above high": (_scaled(1.5, "open"), *AT, "open", "is outside [low, high]"),
    "close below low": (_scaled(0.5, "close"), *AT, "close", "is outside [low, high]"),
    "text for a price": (_set(B3, "close", "n/k"), *AT, "close", "'n/k' is not a number"),
    "text in a factor": (_set(B3, "factor", "high", 1.0), *AT, "factor", "'high' is not a number"),
    "NaN context": (_set(B3, "vix", np.nan, 20.0), *AT, "vix", "NaN"),
    "other context": (_set(B3, "turbulence", 3.0, 1.0), *AT, "turbulence", "3.0 differs from another symbol's value"),
    "duplicate date": (_set(B3, "date", DAYS[2]), "BBB", DAYS[2], "date", "duplicate date"),
    "duplicate apart": (_set(19, "date", DAYS[2]), "BBB", DAYS[2], "date", "duplicate date"),
    "unsorted": (lambda f: f.iloc[[*range(13), 15, 13, 14, *range(16, 26)]], *AT, "date", "dates are not sorted"),
    "no date": (_set(B3, "date", "2024-13-01"), "BBB", "2024-13-01", "date", "'2024-13-01' is not a date"),
    "month first": (_set(0, "date", "01/02/2024"), "AAA", "01/02/2024", "date", "is not a date"),
    "two zones": (
        _zoned("2024-01-04 00:00:00+00:00"),
        *("BBB", "2024-01-04 00:00:00+00:00", "date", "mixed time zones, +05:30 and +00:00"),
    ),
    "zone and none": (
        _set(B3, "date", "2024-01-04T00:00:00Z"),
        *("BBB", "2024-01-04T00:00:00Z", "date", "mixed time zones, no zone and +00:00"),
    ),
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


def _absent(symbol: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return _set(3, "symbol", symbol)


@pytest.mark.parametrize(
    ("corrupt", "words"),
    [
        (
            lambda f: f.assign(open=f["open"].where(~f.index.isin([2, 12, 13]), -1.0)),
            r"AAA, date 2024-01-03, .*\(3 rows",
        ),
        (_set(B3, "date", None), "symbol BBB, .*column date: the date is missing"),
        (_absent(None), "column symbol: the symbol is missing, row 4"),
        (_absent(" "), "column symbol: the symbol is missing, row 4"),
        (
            lambda f: f.assign(date=f["date"].to_numpy("datetime64[D]").astype(int)),
            "date 19723, .*'19723' is not a date",
        ),
        (lambda f: f.assign(date=2024), "date 2024, column date: '2024' is not a date"),
        (
            lambda f: f.drop(columns=["high", "volume"]),
            "DataFrame: missing columns high, volume; there are 5: date, symbol",
        ),
        (lambda f: pd.concat([f, f["close"].rename(" CLOSE ")], axis=1), "duplicate columns close: close and CLOSE"),
        (lambda f: f.assign(tic="AAA"), "duplicate columns symbol: symbol and tic are read as one"),
        (lambda f: f.iloc[:0], "the file is empty, it has no rows"),
    ],
)
def test_what_no_bar_may_have_is_refused(corrupt, words: str, long_frame: pd.DataFrame) -> None:
    with pytest.raises(MarketDataError, match=words):
        read_bars(corrupt(long_frame))


def test_files_that_cannot_be_read_are_named(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    header = ",".join(long_frame).encode()
    (tmp_path / "folder").mkdir()
    long_frame.iloc[:0].to_parquet(tmp_path / "none.parquet")
    for name, content, what in (
        ("absent.csv", None, "there is no such file or folder"),
        ("bars.xlsx", b"x", r"unknown extension .xlsx; known are .parquet, .csv, .npz and a folder"),
        ("bars", b"x", r"unknown extension \(none\)"),
        ("empty.csv", b"", "the file is empty, it has no header"),
        ("header.csv", header + b"\n", "the file is empty, it has no rows"),
        ("twice.csv", header + b",Close\n", "duplicate columns close"),
        ("ragged.csv", header + b"\n1,2,3,4,5,6,7\n1,2,3,4,5,6,7,8,9", "csv"),
        ("latin.csv", header + b"\n\xff\xfe", "cannot be read as .csv"),
        ("empty.parquet", b"", "cannot be read as .parquet"),
        ("text.parquet", b"date,symbol", "cannot be read as .parquet"),
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
        ({"symbols": ["RELIANCE"]}, "unknown symbols RELIANCE; there are 3: AAA, BBB, CCC"),
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
    assert len(caught) == (0 if moves is None else 1)
    if moves is not None:
        message = rf"DataFrame: 1 one-day .* 40% .*first: symbol BBB, date {DAYS[3]}, {moves}; .*split"
        assert re.match(message, str(caught[0].message))
        assert caught[0].category is MarketDataWarning
        assert caught[0].filename == __file__


def test_rounding_passes_and_leaves_valid_bars(long_frame: pd.DataFrame) -> None:
    long_frame["close"] = long_frame["high"] * (1 + 1e-8)
    ohlcv = read_bars(long_frame, symbols=["AAA"]).ohlcv
    assert (ohlcv[..., 1] == ohlcv[..., 3]).all()
    long_frame["close"] = long_frame["high"] * (1 + 1e-5)
    with pytest.raises(MarketDataError, match=r"column close: close .* outside"):
        read_bars(long_frame)
