"""Files and frames in long format, however they are named, dated and split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError, MarketDataWarning


def _assert_reads_as(source: Path | pd.DataFrame, expected: pd.DataFrame) -> None:
    bars, other = read_bars(source), read_bars(expected)
    assert bars.symbols == other.symbols
    np.testing.assert_array_equal(bars.dates, other.dates)
    np.testing.assert_array_equal(bars.ohlcv, other.ohlcv)
    assert bars.columns == other.columns == {}


def test_a_folder_reads_only_the_files_asked_for(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    for symbol, rows in long_frame.groupby("symbol"):
        rows.to_csv(tmp_path / f"{symbol}.csv", index=False)
    (tmp_path / "BROKEN.csv").write_text("nothing")
    (tmp_path / "LATIN.csv").write_bytes(b"date,open\n\xff")
    bars = read_bars(tmp_path, symbols=["CCC", "AAA"])
    assert bars.symbols == ("CCC", "AAA")
    np.testing.assert_array_equal(bars.ohlcv, read_bars(long_frame, symbols=["CCC", "AAA"]).ohlcv)
    with pytest.raises(MarketDataError, match=r"BROKEN.csv: missing columns date"):
        read_bars(tmp_path)
    with pytest.raises(MarketDataError, match=r"LATIN.csv: cannot be read as .csv"):
        read_bars(tmp_path, symbols=["LATIN"])
    with pytest.raises(MarketDataError, match="unknown symbols DDD"):
        read_bars(tmp_path, symbols=["DDD"])


def test_a_folder_refuses_a_file_of_another_symbol_or_zone(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    rows = long_frame[long_frame["symbol"] == "AAA"]
    rows.to_csv(tmp_path / "BBB.csv", index=False)
    with pytest.raises(MarketDataError, match=r"BBB.csv: column symbol holds AAA, the file's name says BBB"):
        read_bars(tmp_path)
    rows.drop(columns="symbol").to_csv(tmp_path / "BBB.csv", index=False)
    zoned = rows.assign(date=rows["date"] + " 00:00:00+05:30").drop(columns="symbol")
    zoned.to_csv(tmp_path / "CCC.csv", index=False)
    with pytest.raises(MarketDataError, match=r"CCC.csv: .*mixed time zones, \+05:30 and no zone in BBB.csv"):
        read_bars(tmp_path)


def test_a_fault_in_a_folder_names_its_file(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    long_frame.loc[13, "date"] = "soon"
    for symbol, rows in long_frame.groupby("symbol"):
        rows.to_csv(tmp_path / f"{symbol}.csv", index=False)
    with pytest.raises(MarketDataError, match=r"BBB.csv: symbol BBB, date soon, column date"):
        read_bars(tmp_path)


def test_column_names_have_no_case_and_text_is_left_out(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    frame = long_frame.assign(Sector="IT", Listed=True)
    frame.columns = [name.title() for name in frame.columns]
    frame.to_csv(tmp_path / "bars.csv")
    with pytest.warns(MarketDataWarning, match="columns of text are left out: sector"):
        bars = read_bars(tmp_path / "bars.csv")
    assert list(bars.columns) == ["listed"]
    np.testing.assert_array_equal(bars.ohlcv, read_bars(long_frame).ohlcv)


def test_symbols_that_look_like_numbers_or_nothing_stay_text(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    for names in (("000001", "000002", "600000"), ("000001", "NA", "TRUE")):
        renamed = long_frame["symbol"].map(dict(zip(("AAA", "BBB", "CCC"), names, strict=True)))
        long_frame.assign(symbol=renamed).to_csv(tmp_path / "bars.csv", index=False)
        assert read_bars(tmp_path / "bars.csv").symbols == names


@pytest.mark.parametrize(
    "write",
    [
        lambda dates: pd.to_datetime(dates),
        lambda dates: pd.to_datetime(dates).dt.date,
        lambda dates: pd.to_datetime(dates).dt.strftime("%Y%m%d").astype(int),
        lambda dates: dates + "T15:30:00",
        lambda dates: dates + " 23:00:00-05:00",
        lambda dates: dates + "T00:30:00+0530",
        lambda dates: pd.to_datetime(dates).dt.tz_localize("Asia/Kolkata"),
        lambda dates: (pd.to_datetime(dates) + pd.Timedelta("23h")).dt.tz_localize("America/New_York"),
    ],
)
def test_dates_are_local_days_however_they_are_written(
    write: Callable[[pd.Series], pd.Series], long_frame: pd.DataFrame
) -> None:
    _assert_reads_as(long_frame.assign(date=write(long_frame["date"])), long_frame)


def test_dates_and_symbols_may_be_the_index(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    _assert_reads_as(long_frame.set_index(["date", "symbol"]), long_frame)
    long_frame.set_index("date").to_parquet(tmp_path / "bars.parquet")
    _assert_reads_as(tmp_path / "bars.parquet", long_frame)


def test_a_trailing_comma_in_every_row_shifts_no_column(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    long_frame.to_csv(tmp_path / "bars.csv", index=False)
    header, *rows = (tmp_path / "bars.csv").read_text().splitlines()
    (tmp_path / "bars.csv").write_text("\n".join([header, *(f"{row}," for row in rows)]))
    with pytest.warns(pd.errors.ParserWarning, match="loss of data"):
        _assert_reads_as(tmp_path / "bars.csv", long_frame)
