"""Every source gives the same bars, and every kind of bad data is refused with file, symbol, date and column."""

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path

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
    assert bars.symbols == other.symbols and bars.columns.keys() == other.columns.keys()
    np.testing.assert_array_equal(bars.dates, other.dates)
    told = [{"ohlcv": each.ohlcv, **each.columns, **each.context} for each in (bars, other)]
    np.testing.assert_equal(*({name: values.numpy() for name, values in each.items()} for each in told))


def _by_symbol(frame: pd.DataFrame, folder: Path) -> Path:
    """Write a folder of a CSV for each symbol."""
    folder.mkdir(exist_ok=True)
    for symbol, rows in frame.groupby("symbol"):
        rows.drop(columns="symbol").to_csv(folder / f"{symbol}.csv", index=False)
    return folder


def test_bars_are_aligned_by_date_with_nan_where_there_is_none(long_frame: pd.DataFrame):
    """Symbols keep the order given; a span is inclusive; dates are local days; adjusted closes scale a row."""
    # A gap in BBB: by row number, its later bars would slip a day.
    frame = long_frame.drop(index=13)
    before = frame.copy(deep=True)
    bars = read_bars(frame)
    assert bars.symbols == ("AAA", "BBB", "CCC") and bars.dates.dtype == np.dtype("datetime64[D]")
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
    np.testing.assert_array_equal(bars.ohlcv[0, :, 1, CLOSE], long_frame["close"][:10])
    # Dates on which none of the chosen symbols has a bar are none of the market's.
    assert len(read_bars(shuffled, symbols=["CCC"]).dates) == 6
    assert read_bars(shuffled, symbols="BBB").symbols == ("BBB",)
    bars = read_bars(long_frame, start="2024-01-02", end=np.datetime64("2024-01-04"))
    assert bars.dates.astype(str).tolist() == ["2024-01-02", "2024-01-03", "2024-01-04"]
    assert bars.symbols == ("AAA", "BBB", "CCC") and not bars.listed[0, :, 2].any()
    for write in (
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
        assert bars.columns == {} and bars.adjusted and not read_bars(long_frame).adjusted
        for field, column in ((OPEN, "open"), (HIGH, "high"), (LOW, "low"), (CLOSE, "close")):
            expected = _pivot(long_frame.assign(**{column: long_frame[column] * factor}), column)
            np.testing.assert_allclose(bars.ohlcv[0, :, :, field], expected, rtol=1e-12)
        np.testing.assert_array_equal(bars.ohlcv[0, :, :, VOLUME], _pivot(long_frame, "volume"))


def test_parquet_csv_folder_and_frame_agree_bit_for_bit(long_frame: pd.DataFrame, tmp_path: Path):
    """A folder is read file by file, and only those asked for; a fault is named with its file."""
    frame = long_frame.assign(sentiment=np.arange(26.0), vix=pd.factorize(long_frame["date"])[0] / 3)
    frame.to_parquet(tmp_path / "bars.parquet", index=False)
    frame.to_csv(tmp_path / "bars.csv", index=False)
    expected = read_bars(frame)
    assert (expected.columns.keys(), expected.context.keys()) == ({"sentiment"}, {"vix"})
    for source in (tmp_path / "bars.parquet", str(tmp_path / "bars.csv"), _by_symbol(frame, tmp_path / "folder")):
        _assert_same(read_bars(source), expected)
        assert read_bars(source).source == str(source)
    frame.set_index("date").to_parquet(tmp_path / "bars.parquet")
    for indexed in (frame.set_index(["date", "symbol"]), tmp_path / "bars.parquet"):
        _assert_same(read_bars(indexed), expected)
    tmp_path = _by_symbol(long_frame, tmp_path / "plain")
    (tmp_path / "BROKEN.csv").write_text("nothing")
    (tmp_path / "LATIN.csv").write_bytes(b"date,open\n\xff")
    _assert_same(read_bars(tmp_path, symbols=["CCC", "AAA"]), read_bars(long_frame, symbols=["CCC", "AAA"]))
    rows = long_frame[long_frame["symbol"] == "AAA"]
    rows.to_csv(tmp_path / "OTHER.csv", index=False)
    plain = rows.drop(columns="symbol")
    plain.assign(date=plain["date"] + " 00:00:00+05:30").to_csv(tmp_path / "ZONED.csv", index=False)
    plain.assign(date="soon").to_csv(tmp_path / "SOON.csv", index=False)
    plain.to_csv(tmp_path / "A\x07A.csv", index=False)
    for symbols, words in (
        (["LATIN"], "LATIN.csv: cannot be read as .csv"),
        (["BROKEN"], "BROKEN.csv: missing columns date"),
        (["OTHER"], "OTHER.csv: column symbol holds AAA, the file's name says OTHER"),
        (["BBB", "ZONED"], r"ZONED.csv: .*mixed time zones, \+05:30 and no zone in BBB.csv"),
        (["SOON"], "SOON.csv: symbol SOON, date soon, column date"),
        (["A\x07A"], r"control characters in 'A\\x07A', row 1"),
    ):
        with pytest.raises(MarketDataError, match=words):
            read_bars(tmp_path, symbols=symbols)


def test_names_of_columns_and_symbols(long_frame: pd.DataFrame, tmp_path: Path):
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
    for name, words in (("Datetime", "date: date and Datetime"), ("Ticker", "symbol: symbol and Ticker")):
        long_frame.assign(**{name: "x"}).to_csv(path, index=False)
        for source in (long_frame.assign(**{name: "x"}), path):
            with pytest.raises(MarketDataError, match=f"duplicate columns {words} are read as one"):
                read_bars(source)
    long_frame.to_csv(path, index=False)
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *(f"{row}, " for row in rows)]))
    _assert_same(read_bars(path), read_bars(long_frame))
    for names in (("000001", "000002", "600000"), ("000001", "NA", "TRUE")):
        renamed = long_frame["symbol"].map(dict(zip(("AAA", "BBB", "CCC"), names, strict=True)))
        long_frame.assign(symbol=renamed).set_index("symbol").to_csv(path, encoding="utf-8-sig")
        assert read_bars(path).symbols == names
    assert read_bars(long_frame.assign(symbol=" " + long_frame["symbol"] + "\u00a0\t\n")).symbols[0] == "AAA"
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


def _finrl(frame: pd.DataFrame) -> pd.DataFrame:
    """The fixture in FinRL's long format: sorted by date, the day's number as the index."""
    finrl = frame.rename(columns={"symbol": "tic"}).sort_values(["date", "tic"])
    finrl["day"] = pd.to_datetime(finrl["date"]).dt.day_of_week
    finrl["macd"] = np.arange(26.0)
    codes = pd.factorize(finrl["date"])[0]
    finrl["vix"], finrl["turbulence"] = 20.0 + codes, codes / 7
    return finrl.set_index(codes)


def test_finrls_frame(long_frame, tmp_path):
    """A close far from the others is no adjustment; one that is adjusted brings the others of its day to its scale."""
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
        with pytest.warns(MarketDataWarning), pytest.raises(MarketDataError, match="BBB, date 2024-01-04, column clos"):
            read_bars(_finrl(wrong))
    # A dividend of 4% of AAA after its fifth day: the closes before it are adjusted.
    paid = (long_frame["symbol"] == "AAA") & (long_frame["date"] < "2024-01-08")
    frame = _finrl(long_frame.assign(close=long_frame["close"].where(~paid, long_frame["close"] * 0.96)))
    with pytest.warns(MarketDataWarning, match=r"close is adjusted and .*5 closes .*symbol AAA, date 2024-01-01"):
        ohlcv, early = (read_bars(part).ohlcv for part in (frame, frame[frame["date"] <= "2024-01-08"]))
    expected = read_bars(long_frame).ohlcv
    np.testing.assert_array_equal(ohlcv[:, :6], early)
    np.testing.assert_array_equal(ohlcv[0, :, :, CLOSE], _pivot(frame.rename(columns={"tic": "symbol"}), "close"))
    np.testing.assert_array_equal(ohlcv[:, :, 1:], expected[:, :, 1:])
    assert (ohlcv[..., LOW] <= ohlcv[..., CLOSE]).sum() == (ohlcv[..., CLOSE] <= ohlcv[..., HIGH]).sum() == 26
    # The estimate is below the true factor by no more than the distance of the closes from the highs.
    true = np.where(np.arange(10) < 5, 0.96, 1.0)
    np.testing.assert_allclose(ohlcv[0, :, 0, OPEN], expected[0, :, 0, OPEN].numpy() * true, rtol=0.03)


def test_elegantrls_arrays(tmp_path: Path):
    """Twelve days of eleven stocks, with two indicators; in their order: asset_2 is before asset_10."""
    rng = np.random.default_rng(1)
    closes = (50 * np.exp(np.cumsum(rng.normal(0, 0.01, (12, 11)), axis=0))).astype(np.float32)
    tech = rng.normal(size=(12, 22))
    for key in ("price_ary", "close_ary"):
        np.savez_compressed(tmp_path / "market.npz", allow_pickle=False, **{key: closes, "tech_ary": tech})
        bars = read_bars(tmp_path / "market.npz")
        assert bars.symbols == tuple(f"asset_{k}" for k in range(11))
        assert bars.dates[[0, 4, 5]].astype(str).tolist() == ["2000-01-03", "2000-01-07", "2000-01-10"]
        for field in (OPEN, HIGH, LOW, CLOSE):
            np.testing.assert_array_equal(bars.ohlcv[0, :, :, field], closes)
        assert (bars.ohlcv[..., VOLUME] == 0).all()
        np.testing.assert_array_equal(bars.columns["tech_0"][0], tech[:, :11])
        np.testing.assert_array_equal(bars.columns["tech_1"][0], tech[:, 11:])
    zero = closes.copy()
    zero[5, 3] = 0
    nothing = ((slice(0), slice(None)), (slice(None), slice(0)))
    for wrong, words in (
        ({"tech_ary": tech}, r"missing arrays close_ary; it has \['tech_ary'\]"),
        ({"price_ary": closes}, "missing arrays tech_ary"),
        *(({"price_ary": closes, "tech_ary": t}, r"are not \(T, K\) and") for t in (tech[1:], tech[:, 1:], tech[:, 0])),
        *(({"price_ary": closes[a, b], "tech_ary": tech[a]}, "are not .T, K. and") for a, b in nothing),
        *(
            ({"price_ary": closes.astype(kind), "tech_ary": tech}, "are not numbers")
            for kind in ("c16", "U9", "M8[D]", "?")
        ),
        ({"price_ary": zero, "tech_ary": tech}, "symbol asset_3, date 2000-01-10, column open: non-positive price 0.0"),
    ):
        np.savez(tmp_path / "market.npz", allow_pickle=False, **wrong)
        with pytest.raises(MarketDataError, match=rf"market\.npz: .*{words}"):
            read_bars(tmp_path / "market.npz")


DAYS = [str(day.date()) for day in pd.bdate_range("2024-01-01", periods=10)]
# Rows of the fixture: AAA from 0, BBB from 10, CCC from 20 to 25.
B3 = 13
PRICES = ["open", "high", "low", "close"]


def _set(
    row: int | list[int], column: str, value: object, first: object = None
) -> Callable[[pd.DataFrame], pd.DataFrame]:
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
    "NaN run": (_set([1, *range(8, 13)], "close", np.nan), "AAA", DAYS[1], "close", "NaN, longest run 3 bars (6 rows"),
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
    "unsorted": (lambda f: f.iloc[[*range(13), 15, 13, 14, *range(16, 26)]], *AT, "date", "dates are not sorted"),
    "no date": (_set(B3, "date", "2024-13-01"), "BBB", "2024-13-01", "date", "'2024-13-01' is not a date"),
    "month first": (_set(0, "date", "01/02/2024"), "AAA", "01/02/2024", "date", "is 2024-01-02 or 2024-02-01: its col"),
    "zone and none": (_set(B3, "date", ZERO), "BBB", ZERO, "date", "mixed time zones, no zone and +00:00"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_file_symbol_date_and_column(fault, long_frame, tmp_path):
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


def test_what_cannot_be_read_is_refused(long_frame: pd.DataFrame, tmp_path: Path):
    for corrupt, words in (
        (_set(B3, "date", None), "symbol BBB, .*column date: the date is missing"),
        (_set(3, "symbol", None), "column symbol: the symbol is missing, row 4"),
        (_set(3, "symbol", " "), "column symbol: the symbol is missing, row 4"),
        (lambda f: f.assign(date=19723), "date 19723, column date: '19723' is not a date"),
        (lambda f: f.drop(columns=["high", "volume"]), "DataFrame: missing columns high, volume; there are 5: date"),
        (lambda f: pd.concat([f, f["close"].rename(" CLOSE ")], axis=1), "duplicate columns close: close and CLOSE"),
        (lambda f: f.assign(close=f["high"] * (1 + 1e-5)), "column close: close .* outside"),
    ):
        with pytest.raises(MarketDataError, match=words):
            read_bars(corrupt(long_frame.copy()))
    # Rounding passes, and leaves valid bars.
    ohlcv = read_bars(long_frame.assign(close=long_frame["high"] * (1 + 1e-8)), symbols=["AAA"]).ohlcv
    assert (ohlcv[..., 1] == ohlcv[..., 3]).all()
    header = ",".join(long_frame).encode()
    (tmp_path / "folder").mkdir()
    long_frame.iloc[:0].to_parquet(tmp_path / "none.parquet")
    for name, content, what in (
        ("absent.csv", None, "there is no such file or folder"),
        ("bars.xlsx", b"x", r"unknown extension .xlsx; known are .parquet, .csv, .npz and a folder"),
        ("empty.csv", b"", "the file is empty, it has no header"),
        ("header.csv", header + b"\n", "the file is empty, it has no rows"),
        ("twice.csv", header + b",close\n", "duplicate columns close: close and close are read as one"),
        ("comma.csv", header + b"\n2024-01-02,A,9,9,9,9,1,234\n", "row 1 has 8 fields, more than the header's 7"),
        ("later.csv", header + b"\n2024-01-02,A,9,9,9,9,1\n\n2024-01-03,A,9,9,9,9,1,2\n", "row 2 has 8 fields"),
        ("latin.csv", header + b"\n\xff\xfe", "cannot be read as .csv"),
        ("empty.parquet", b"", "cannot be read as .parquet"),
        ("none.parquet", None, "the file is empty, it has no rows"),
        ("text.npz", b"date,symbol", "no .npz file, or a damaged one"),
        ("folder", None, "the folder holds no .csv file"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(MarketDataError, match=what) as caught:
            read_bars(path)
        assert str(path) in str(caught.value)
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
def test_a_large_move_warns_once_with_count_and_the_first(factor, moves, long_frame):
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


REAL_FILES = ("india_nifty109.parquet", "us_dow30.parquet", "us_news50.parquet", "finrl_format_dow29.csv")


@pytest.mark.realdata
@pytest.mark.skipif("VECENV_DATA" not in os.environ, reason="VECENV_DATA is not set")
@pytest.mark.filterwarnings("ignore::vecenv.market.validation.MarketDataWarning")
@pytest.mark.parametrize("name", REAL_FILES)
def test_a_real_file_against_plain_pandas(name: str) -> None:
    path = Path(os.environ["VECENV_DATA"]) / name
    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    wide = frame.rename(columns={"tic": "symbol"}).pivot(index="date", columns="symbol")
    bars = read_bars(path)
    assert list(bars.symbols) == list(wide["close"].columns)
    assert bars.dates.astype(str).tolist() == wide.index.astype(str).tolist()
    assert np.array_equal(bars.listed[0], wide["close"].notna())
    np.testing.assert_array_equal(bars.ohlcv[0, :, :, CLOSE], wide["close"])
    for column, values in bars.columns.items():
        np.testing.assert_array_equal(values[0], wide[column])
