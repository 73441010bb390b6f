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


def _set(row: int, column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A corruption of one cell."""

    def corrupt(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object}) if isinstance(value, str) else frame
        frame.loc[row, column] = value
        return frame

    return corrupt


def _close_off(factor: float, column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A corruption that moves one price of one row far from the others."""

    def corrupt(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[B3, column] *= factor
        return frame

    return corrupt


FAULTS = {
    "zero price": (_set(B3, "open", 0.0), "BBB", DAYS[3], "open", "non-positive price 0.0 (1 row in all)"),
    "negative price": (_set(B3, "low", -2.5), "BBB", DAYS[3], "low", "non-positive price -2.5"),
    "NaN price": (_set(B3, "high", np.nan), "BBB", DAYS[3], "high", "NaN, longest run 1 bars"),
    "NaN run": (
        lambda f: f.assign(close=f["close"].where(~f.index.isin([1, 8, 9, 10, 11, 12]))),
        "AAA",
        DAYS[1],
        "close",
        "NaN, longest run 3 bars (6 rows in all)",
    ),
    "NaN volume": (_set(25, "volume", np.nan), "CCC", DAYS[9], "volume", "NaN"),
    "infinite price": (_set(B3, "close", np.inf), "BBB", DAYS[3], "close", "infinite value inf"),
    "infinite factor": (
        lambda f: _set(0, "factor", -np.inf)(f.assign(factor=1.0)),
        "AAA",
        DAYS[0],
        "factor",
        "infinite value -inf",
    ),
    "negative volume": (_set(B3, "volume", -1.0), "BBB", DAYS[3], "volume", "negative volume -1.0"),
    "high below low": (_close_off(0.5, "high"), "BBB", DAYS[3], "high", "is below the low"),
    "open above high": (_close_off(1.5, "open"), "BBB", DAYS[3], "open", "is outside [low, high]"),
    "close below low": (_close_off(0.5, "close"), "BBB", DAYS[3], "close", "is outside [low, high]"),
    "text for a price": (_set(B3, "close", "n/k"), "BBB", DAYS[3], "close", "'n/k' is not a number"),
    "text in a factor": (
        lambda f: _set(B3, "factor", "high")(f.assign(factor=1.0)),
        "BBB",
        DAYS[3],
        "factor",
        "'high' is not a number",
    ),
    "NaN context": (
        lambda f: _set(B3, "vix", np.nan)(f.assign(vix=20.0)),
        "BBB",
        DAYS[3],
        "vix",
        "NaN",
    ),
    "context that differs": (
        lambda f: _set(B3, "turbulence", 3.0)(f.assign(turbulence=1.0)),
        "BBB",
        DAYS[3],
        "turbulence",
        "3.0 differs from another symbol's value",
    ),
    "duplicate date": (_set(B3, "date", DAYS[2]), "BBB", DAYS[2], "date", "duplicate date"),
    "duplicate apart": (_set(19, "date", DAYS[2]), "BBB", DAYS[2], "date", "duplicate date"),
    "unsorted dates": (
        lambda f: f.iloc[[*range(13), 15, 13, 14, *range(16, 26)]],
        "BBB",
        DAYS[3],
        "date",
        "dates are not sorted",
    ),
    "no date": (_set(B3, "date", "2024-13-01"), "BBB", "2024-13-01", "date", "'2024-13-01' is not a date"),
    "day or month first": (_set(0, "date", "01/02/2024"), "AAA", "01/02/2024", "date", "is not a date"),
    "two zones": (
        lambda f: _set(B3, "date", "2024-01-04 00:00:00+00:00")(f.assign(date=f["date"] + " 00:00:00+05:30")),
        "BBB",
        "2024-01-04 00:00:00+00:00",
        "date",
        "mixed time zones, +05:30 and +00:00",
    ),
    "zone and none": (
        _set(B3, "date", "2024-01-04T00:00:00Z"),
        "BBB",
        "2024-01-04T00:00:00Z",
        "date",
        "mixed time zones, no zone and +00:00",
    ),
}


@pytest.mark.parametrize("form", ["csv", "parquet", "DataFrame"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_file_symbol_date_and_column(
    fault: str, form: str, long_frame: pd.DataFrame, tmp_path: Path
) -> None:
    corrupt, symbol, day, column, what = FAULTS[fault]
    frame = corrupt(long_frame)
    path = tmp_path / f"bars.{form}"
    if form == "csv":
        frame.to_csv(path, index=False)
    elif form == "parquet":
        # Parquet columns have one type: text in a column of numbers makes all of it text.
        mixed = [name for name in frame if frame[name].map(type).nunique() > 1]
        frame.astype(dict.fromkeys(mixed, str)).to_parquet(path, index=False)
    with pytest.raises(MarketDataError) as caught:
        read_bars(frame if form == "DataFrame" else path)
    message = str(caught.value)
    source = "DataFrame" if form == "DataFrame" else str(path)
    assert message.startswith(f"{source}: symbol {symbol}, date {day}, column {column}: ")
    assert what in message


def test_the_number_of_faults_is_counted(long_frame: pd.DataFrame) -> None:
    long_frame.loc[[2, 12, 13], "open"] = -1.0
    with pytest.raises(MarketDataError, match=rf"symbol AAA, date {DAYS[2]}, .*\(3 rows in all\)"):
        read_bars(long_frame)


def test_a_missing_date_and_a_missing_symbol_are_refused(long_frame: pd.DataFrame) -> None:
    with pytest.raises(MarketDataError, match=r"symbol BBB, .*column date: the date is missing"):
        read_bars(_set(B3, "date", None)(long_frame))
    for empty in (None, " "):
        with pytest.raises(MarketDataError, match="column symbol: the symbol is missing, row 4"):
            read_bars(_set(3, "symbol", empty)(long_frame.copy()))


@pytest.mark.parametrize("unit", ["D", "s", "Y"])
def test_numbers_since_an_epoch_are_no_dates(unit: str, long_frame: pd.DataFrame) -> None:
    numbers = long_frame["date"].to_numpy("datetime64[D]").astype(f"datetime64[{unit}]").astype(int)
    numbers += 1970 if unit == "Y" else 0
    with pytest.raises(MarketDataError, match=rf"date {numbers[0]}, column date: '{numbers[0]}' is not a date"):
        read_bars(long_frame.assign(date=numbers))


def test_missing_columns_are_named_beside_those_there_are(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "bars.csv"
    long_frame.drop(columns=["high", "volume"]).to_csv(path, index=False)
    with pytest.raises(MarketDataError, match=re.escape(f"{path}: missing columns high, volume; there are 5")):
        read_bars(path)


@pytest.mark.parametrize("twin", ["close", "Close", " CLOSE "])
def test_duplicate_columns_are_refused_whatever_their_case(twin: str, long_frame: pd.DataFrame, tmp_path: Path) -> None:
    frame = pd.concat([long_frame, long_frame["close"].rename(twin)], axis=1)
    path = tmp_path / "bars.csv"
    frame.to_csv(path, index=False)
    for source in (path, frame):
        with pytest.raises(MarketDataError, match="duplicate columns close"):
            read_bars(source)


def test_symbol_beside_tic_is_a_duplicate(long_frame: pd.DataFrame) -> None:
    with pytest.raises(MarketDataError, match="duplicate columns symbol"):
        read_bars(long_frame.assign(tic="AAA"))


def test_files_that_cannot_be_read_are_named(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    def refused(name: str, content: bytes | None, what: str) -> None:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(MarketDataError, match=what) as caught:
            read_bars(path)
        assert str(path) in str(caught.value)

    refused("absent.csv", None, "there is no such file or folder")
    refused("bars.xlsx", b"x", r"unknown extension .xlsx; known are .parquet, .csv, .npz and a folder")
    refused("bars", b"x", r"unknown extension \(none\)")
    refused("empty.csv", b"", "the file is empty, it has no header")
    refused("header.csv", ",".join(long_frame).encode() + b"\n", "the file is empty, it has no rows")
    refused("ragged.csv", b"date,symbol,open,high,low,close,volume\n1,2,3,4,5,6,7\n1,2,3,4,5,6,7,8,9", "csv")
    refused("latin.csv", b"date,symbol,open,high,low,close,volume\n\xff\xfe", "cannot be read as .csv")
    refused("empty.parquet", b"", "cannot be read as .parquet")
    refused("text.parquet", b"date,symbol", "cannot be read as .parquet")
    refused("text.npz", b"date,symbol", "cannot be read as .npz")
    (tmp_path / "folder").mkdir()
    refused("folder", None, "the folder holds no .csv file")


def test_an_empty_parquet_and_frame_are_refused(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    long_frame.iloc[:0].to_parquet(tmp_path / "bars.parquet")
    for source in (tmp_path / "bars.parquet", long_frame.iloc[:0]):
        with pytest.raises(MarketDataError, match="the file is empty, it has no rows"):
            read_bars(source)


def test_unknown_symbols_come_with_near_matches_and_what_exists(long_frame: pd.DataFrame) -> None:
    with pytest.raises(MarketDataError, match=r"unknown symbols aab \(did you mean AAA.*there are 3: AAA, BBB, CCC"):
        read_bars(long_frame, symbols=["BBB", "aab"])
    with pytest.raises(MarketDataError, match="unknown symbols RELIANCE; there are 3: AAA, BBB, CCC"):
        read_bars(long_frame, symbols=["RELIANCE"])
    with pytest.raises(MarketDataError, match="asked for more than once: AAA"):
        read_bars(long_frame, symbols=["AAA", "AAA"])
    with pytest.raises(MarketDataError, match="no symbol was asked for"):
        read_bars(long_frame, symbols=[])


def test_a_span_without_bars_tells_the_span_there_is(long_frame: pd.DataFrame) -> None:
    with pytest.raises(MarketDataError, match="the data runs from 2024-01-01 to 2024-01-12"):
        read_bars(long_frame, start="2025-01-01")
    with pytest.raises(MarketDataError, match="no bar from 2024-01-05 to 2024-01-03"):
        read_bars(long_frame, start="2024-01-05", end="2024-01-03")
    with pytest.raises(MarketDataError, match="end 'soon' is not a date"):
        read_bars(long_frame, end="soon")


def test_a_faulty_symbol_does_not_stop_the_others(long_frame: pd.DataFrame) -> None:
    long_frame.loc[B3, "close"] = -1.0
    assert read_bars(long_frame, symbols=["CCC", "AAA"]).symbols == ("CCC", "AAA")


@pytest.mark.parametrize(("factor", "moves"), [(0.5, "-50.0%"), (1.4, r"\+40.0%"), (0.61, None)])
def test_a_large_move_warns_once_with_count_and_the_first(
    factor: float, moves: str | None, long_frame: pd.DataFrame
) -> None:
    prices = ["open", "high", "low", "close"]
    long_frame[prices] = 100.0
    long_frame.loc[B3:19, prices] *= factor
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read_bars(long_frame)
    assert len(caught) == (0 if moves is None else 1)
    if moves is not None:
        message = rf"DataFrame: 1 one-day .* 40% .*first: symbol BBB, date {DAYS[3]}, {moves}; .*split"
        assert re.match(message, str(caught[0].message))
        assert caught[0].category is MarketDataWarning
        assert caught[0].filename == __file__


def test_a_step_from_one_symbol_to_the_next_is_no_move(long_frame: pd.DataFrame) -> None:
    prices = ["open", "high", "low", "close"]
    long_frame.loc[long_frame["symbol"] == "BBB", prices] *= 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_bars(long_frame)


def test_rounding_passes_and_leaves_valid_bars(long_frame: pd.DataFrame) -> None:
    long_frame["close"] = long_frame["high"] * (1 + 1e-8)
    ohlcv = read_bars(long_frame, symbols=["AAA"]).ohlcv
    assert (ohlcv[..., 1] == ohlcv[..., 3]).all()
    long_frame["close"] = long_frame["high"] * (1 + 1e-5)
    with pytest.raises(MarketDataError, match=r"column close: close .* outside"):
        read_bars(long_frame)
