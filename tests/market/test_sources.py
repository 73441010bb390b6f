"""Every source gives the same bars, aligned by date, however its columns are named, dated and split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vecenv.market.bars import CLOSE, HIGH, LOW, OPEN, VOLUME, Bars
from vecenv.market.sources import read_bars
from vecenv.market.validation import MarketDataError, MarketDataWarning

FIELDS = ["open", "high", "low", "close", "volume"]


def _pivot(frame: pd.DataFrame, column: str) -> np.ndarray:
    """Dates by symbols, from plain pandas, NaN where there is no row."""
    return frame.pivot(index="date", columns="symbol", values=column).to_numpy(dtype=np.float64)


def _assert_same(bars: Bars, other: Bars) -> None:
    assert bars.symbols == other.symbols
    np.testing.assert_array_equal(bars.dates, other.dates)
    np.testing.assert_array_equal(bars.ohlcv, other.ohlcv)
    for mine, theirs in ((bars.columns, other.columns), (bars.context, other.context)):
        assert mine.keys() == theirs.keys()
        for name, values in mine.items():
            np.testing.assert_array_equal(values, theirs[name])


def _by_symbol(frame: pd.DataFrame, folder: Path) -> Path:
    """Write a folder of a CSV for each symbol."""
    folder.mkdir(exist_ok=True)
    for symbol, rows in frame.groupby("symbol"):
        rows.drop(columns="symbol").to_csv(folder / f"{symbol}.csv", index=False)
    return folder


def test_bars_are_aligned_by_date_with_nan_where_there_is_none(long_frame: pd.DataFrame):
    """Symbols keep the order given and else are sorted; a span is inclusive and keeps symbols without bars."""
    # A gap in BBB: by row number, its later bars would slip a day.
    frame = long_frame.drop(index=13)
    before = frame.copy(deep=True)
    bars = read_bars(frame)
    assert bars.symbols == ("AAA", "BBB", "CCC")
    assert bars.dates.dtype == np.dtype("datetime64[D]")
    assert bars.dates.astype(str).tolist() == sorted(frame["date"].unique())
    assert bars.ohlcv.shape == (1, 10, 3, 5)
    for i, column in enumerate(FIELDS):
        np.testing.assert_array_equal(bars.ohlcv[0, :, :, i], _pivot(frame, column))
    assert bars.listed[0, :, 1].tolist() == [True] * 3 + [False] + [True] * 6
    assert bars.listed[0, :, 2].tolist() == [False] * 4 + [True] * 6
    bars.ohlcv.zero_()
    pd.testing.assert_frame_equal(frame, before)
    shuffled = long_frame.iloc[::-1].sort_values("date", kind="stable")
    assert read_bars(shuffled).symbols == ("AAA", "BBB", "CCC")
    bars = read_bars(shuffled, symbols=["CCC", "AAA"])
    assert bars.symbols == ("CCC", "AAA")
    np.testing.assert_array_equal(bars.ohlcv[0, :, 1, CLOSE], long_frame["close"][:10])
    # Dates on which none of the chosen symbols has a bar are none of the market's.
    assert len(read_bars(shuffled, symbols=["CCC"]).dates) == 6
    assert read_bars(shuffled, symbols="BBB").symbols == ("BBB",)
    bars = read_bars(long_frame, start="2024-01-02", end=np.datetime64("2024-01-04"))
    assert bars.dates.astype(str).tolist() == ["2024-01-02", "2024-01-03", "2024-01-04"]
    assert bars.symbols == ("AAA", "BBB", "CCC") and not bars.listed[0, :, 2].any()


def test_parquet_csv_folder_and_frame_agree_bit_for_bit(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    frame = long_frame.assign(sentiment=np.arange(26.0), vix=pd.factorize(long_frame["date"])[0] / 3)
    frame.to_parquet(tmp_path / "bars.parquet", index=False)
    frame.to_csv(tmp_path / "bars.csv", index=False)
    expected = read_bars(frame)
    assert (expected.columns.keys(), expected.context.keys()) == ({"sentiment"}, {"vix"})
    for source in (tmp_path / "bars.parquet", str(tmp_path / "bars.csv"), _by_symbol(frame, tmp_path / "folder")):
        bars = read_bars(source)
        _assert_same(bars, expected)
        assert bars.source == str(source)
    frame.set_index("date").to_parquet(tmp_path / "bars.parquet")
    for indexed in (frame.set_index(["date", "symbol"]), tmp_path / "bars.parquet"):
        _assert_same(read_bars(indexed), expected)


def test_a_folder_is_read_file_by_file(long_frame: pd.DataFrame, tmp_path: Path) -> None:
    """Only those asked for; a fault, another symbol or another zone is named with its file."""
    _by_symbol(long_frame, tmp_path)
    (tmp_path / "BROKEN.csv").write_text("nothing")
    (tmp_path / "LATIN.csv").write_bytes(b"date,open\n\xff")
    bars = read_bars(tmp_path, symbols=["CCC", "AAA"])
    assert bars.symbols == ("CCC", "AAA")
    np.testing.assert_array_equal(bars.ohlcv, read_bars(long_frame, symbols=["CCC", "AAA"]).ohlcv)
    rows = long_frame[long_frame["symbol"] == "AAA"]
    rows.to_csv(tmp_path / "OTHER.csv", index=False)
    plain = rows.drop(columns="symbol")
    plain.assign(date=plain["date"] + " 00:00:00+05:30").to_csv(tmp_path / "ZONED.csv", index=False)
    plain.assign(date="soon").to_csv(tmp_path / "SOON.csv", index=False)
    plain.to_csv(tmp_path / "A\x07A.csv", index=False)
    for symbols, words in (
        (["LATIN"], "LATIN.csv: cannot be read as .csv"),
        (["BROKEN"], "BROKEN.csv: missing columns date"),
        (["DDD"], "unknown symbols DDD"),
        (["OTHER"], "OTHER.csv: column symbol holds AAA, the file's name says OTHER"),
        (["BBB", "ZONED"], r"ZONED.csv: .*mixed time zones, \+05:30 and no zone in BBB.csv"),
        (["SOON"], "SOON.csv: symbol SOON, date soon, column date"),
        (["A\x07A"], r"control characters in 'A\\x07A', row 1"),
    ):
        with pytest.raises(MarketDataError, match=words):
            read_bars(tmp_path, symbols=symbols)


def test_names_of_columns_that_are_read_left_out_or_claim_one_role(long_frame: pd.DataFrame, tmp_path: Path):
    for suffix in (".csv", ".parquet"):
        for names in (
            {"date": "Date", "symbol": "Ticker", "open": "Open", "high": "High", "low": "Low", "close": "Close"},
            {"date": "datetime", "symbol": "instrument"},
            {"date": "timestamp", "symbol": "TIC", "volume": "Vol"},
            {"date": "<DATE>", "symbol": "<TICKER>", "open": "<OPEN>", "close": "<CLOSE>", "volume": "<VOL>"},
            {"symbol": "Symbol", "volume": " Volume "},
        ):
            path, renamed = tmp_path / f"bars{suffix}", long_frame.rename(columns=names)
            renamed.to_csv(path, index=False) if suffix == ".csv" else renamed.to_parquet(path, index=False)
            _assert_same(read_bars(path), read_bars(long_frame))
    path = tmp_path / "bars.csv"
    long_frame.assign(Sector="IT", Listed=True).to_csv(path)
    with pytest.warns(MarketDataWarning, match="columns of text are left out: sector"):
        bars = read_bars(path)
    assert list(bars.columns) == ["listed"]
    np.testing.assert_array_equal(bars.ohlcv, read_bars(long_frame).ohlcv)
    for twice, words in (
        (long_frame.assign(Datetime="x"), "date: date and Datetime"),
        (long_frame.assign(Ticker="A"), "symbol: symbol and Ticker"),
    ):
        twice.to_csv(path, index=False)
        for source in (twice, path):
            with pytest.raises(MarketDataError, match=f"duplicate columns {words} are read as one"):
                read_bars(source)
    long_frame.to_csv(path, index=False)
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *(f"{row}," for row in rows)]))
    with pytest.warns(pd.errors.ParserWarning, match="loss of data"):
        _assert_same(read_bars(path), read_bars(long_frame))


def test_symbols_stay_text_without_control_characters(long_frame: pd.DataFrame, tmp_path: Path):
    """Also those that look like numbers or nothing; blanks around one are none of it."""
    path = tmp_path / "bars.csv"
    for names in (("000001", "000002", "600000"), ("000001", "NA", "TRUE")):
        renamed = long_frame["symbol"].map(dict(zip(("AAA", "BBB", "CCC"), names, strict=True)))
        long_frame.assign(symbol=renamed).to_csv(path, index=False)
        assert read_bars(path).symbols == names
    padded = read_bars(long_frame.assign(symbol=" " + long_frame["symbol"] + "\u00a0\t\n"))
    assert padded.symbols == ("AAA", "BBB", "CCC")
    assert read_bars(long_frame.assign(symbol="M & M\u3000" + long_frame["symbol"])).symbols[0] == "M & M\u3000AAA"
    for symbol in ("A\0A", "AAA\0", "\x1b[31mA", "A\nA", "A\u202eA", "A\u200b"):
        frame = long_frame.assign(symbol=long_frame["symbol"].where(np.arange(len(long_frame)) != 12, symbol))
        frame.to_parquet(tmp_path / "bars.parquet", index=False)
        frame.to_csv(tmp_path / "bars.csv", index=False)
        for source in (frame, tmp_path / "bars.parquet", tmp_path / "bars.csv"):
            with pytest.raises(MarketDataError) as told:
                read_bars(source)
            assert f"column symbol: control characters in {symbol!r}, row 13" in str(told.value)
            assert str(told.value).isprintable()


def test_dates_are_local_days_and_adjusted_closes_scale_all_prices_of_a_row(long_frame: pd.DataFrame):
    for write in (
        lambda dates: pd.to_datetime(dates),
        lambda dates: pd.to_datetime(dates).dt.date,
        lambda dates: pd.to_datetime(dates).dt.strftime("%Y%m%d").astype(int),
        lambda dates: dates + "T15:30:00",
        lambda dates: dates + " 23:00:00-05:00",
        lambda dates: dates + "T00:30:00+0530",
        lambda dates: pd.to_datetime(dates).dt.tz_localize("Asia/Kolkata"),
        lambda dates: (pd.to_datetime(dates) + pd.Timedelta("23h")).dt.tz_localize("America/New_York"),
    ):
        _assert_same(read_bars(long_frame.assign(date=write(long_frame["date"]))), read_bars(long_frame))
    factor = np.linspace(0.5, 1.0, len(long_frame))
    for name in ("Adj Close", "adj_close", "adjcp"):
        bars = read_bars(long_frame.assign(**{name: long_frame["close"] * factor}))
        assert bars.columns == {}
        for field, column in ((OPEN, "open"), (HIGH, "high"), (LOW, "low"), (CLOSE, "close")):
            expected = _pivot(long_frame.assign(**{column: long_frame[column] * factor}), column)
            np.testing.assert_allclose(bars.ohlcv[0, :, :, field], expected, rtol=1e-12)
        np.testing.assert_array_equal(bars.ohlcv[0, :, :, VOLUME], _pivot(long_frame, "volume"))


def _finrl(frame: pd.DataFrame) -> pd.DataFrame:
    """The fixture in FinRL's long format: sorted by date, the day's number as the index."""
    finrl = frame.rename(columns={"symbol": "tic"}).sort_values(["date", "tic"])
    finrl["day"] = pd.to_datetime(finrl["date"]).dt.day_of_week
    finrl["macd"] = np.arange(26.0)
    codes = pd.factorize(finrl["date"])[0]
    finrl["vix"], finrl["turbulence"] = 20.0 + codes, codes / 7
    return finrl.set_index(codes)


def test_finrls_frame(long_frame, tmp_path):
    """A close far from the other prices is no adjustment."""
    finrl = _finrl(long_frame)
    finrl.to_csv(tmp_path / "finrl.csv")
    for source in (finrl, tmp_path / "finrl.csv"):
        bars = read_bars(source)
        assert list(bars.columns) == ["macd"]
        np.testing.assert_array_equal(bars.ohlcv, read_bars(long_frame).ohlcv)
        macd = _pivot(finrl.rename(columns={"tic": "symbol"}), "macd")
        np.testing.assert_array_equal(bars.columns["macd"][0], macd)
        assert bars.context["vix"].tolist() == [[20.0 + i for i in range(10)]]
        np.testing.assert_array_equal(bars.context["turbulence"][0], np.arange(10) / 7)
    for factor in (0.5, 1.5):
        wrong = long_frame.assign(close=long_frame["close"].where(long_frame.index != 13, long_frame["close"] * factor))
        with (
            pytest.warns(MarketDataWarning),
            pytest.raises(MarketDataError, match="BBB, date 2024-01-04, column close"),
        ):
            read_bars(_finrl(wrong))


def test_finrls_dividend_adjusted_close_brings_the_other_prices_to_its_scale(long_frame):
    """By days before it alone. A dividend of 4% of AAA after its fifth day: the closes before it are adjusted."""
    paid = (long_frame["symbol"] == "AAA") & (long_frame["date"] < "2024-01-08")
    frame = _finrl(long_frame.assign(close=long_frame["close"].where(~paid, long_frame["close"] * 0.96)))
    with pytest.warns(MarketDataWarning, match=r"close is adjusted and .*5 closes .*symbol AAA, date 2024-01-01"):
        ohlcv, early = (read_bars(part).ohlcv for part in (frame, frame[frame["date"] <= "2024-01-08"]))
    expected = read_bars(long_frame).ohlcv
    np.testing.assert_array_equal(ohlcv[:, :6], early)
    np.testing.assert_array_equal(ohlcv[0, :, :, CLOSE], _pivot(frame.rename(columns={"tic": "symbol"}), "close"))
    np.testing.assert_array_equal(ohlcv[:, :, 1:], expected[:, :, 1:])
    low, high, close = (ohlcv[0, :, 0, field] for field in (LOW, HIGH, CLOSE))
    assert (low <= close).all() and (close <= high).all()
    # The estimate is below the true factor by no more than the distance of the closes from the highs.
    true = np.where(np.arange(10) < 5, 0.96, 1.0)
    np.testing.assert_allclose(ohlcv[0, :, 0, OPEN], expected[0, :, 0, OPEN].numpy() * true, rtol=0.03)


def _arrays() -> dict[str, Any]:
    """Twelve days of eleven stocks, with two indicators."""
    rng = np.random.default_rng(1)
    closes = 50 * np.exp(np.cumsum(rng.normal(0, 0.01, (12, 11)), axis=0))
    return {"price_ary": closes.astype(np.float32), "tech_ary": rng.normal(size=(12, 22))}


def test_elegantrls_arrays(tmp_path: Path):
    """In their order: asset_2 is before asset_10."""
    for key in ("price_ary", "close_ary"):
        closes, tech = _arrays().values()
        np.savez_compressed(tmp_path / "market.npz", allow_pickle=False, **{key: closes, "tech_ary": tech})
        bars = read_bars(tmp_path / "market.npz")
        assert bars.symbols == tuple(f"asset_{k}" for k in range(11))
        assert bars.dates[[0, 4, 5]].astype(str).tolist() == ["2000-01-03", "2000-01-07", "2000-01-10"]
        for field in (OPEN, HIGH, LOW, CLOSE):
            np.testing.assert_array_equal(bars.ohlcv[0, :, :, field], closes)
        assert (bars.ohlcv[..., VOLUME] == 0).all()
        assert list(bars.columns) == ["tech_0", "tech_1"]
        np.testing.assert_array_equal(bars.columns["tech_0"][0], tech[:, :11])
        np.testing.assert_array_equal(bars.columns["tech_1"][0], tech[:, 11:])

    zero = closes.copy()
    zero[5, 3] = 0
    for wrong, words in (
        ({"tech_ary": tech}, r"missing arrays close_ary; it has \['tech_ary'\]"),
        ({"price_ary": closes}, "missing arrays tech_ary"),
        *(({"price_ary": closes, "tech_ary": t}, r"are not \(T, K\) and") for t in (tech[1:], tech[:, 1:], tech[:, 0])),
        ({"price_ary": zero, "tech_ary": tech}, "symbol asset_3, date 2000-01-10, column open: non-positive price 0.0"),
    ):
        np.savez(tmp_path / "market.npz", allow_pickle=False, **wrong)
        with pytest.raises(MarketDataError, match=rf"market\.npz: .*{words}"):
            read_bars(tmp_path / "market.npz")
